"""``physim show``: what comes with physim."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from physim.cli.console import stdout, table_of
from physim.cli.fit import prior_interval
from physim.cli.output_options import AsJson, Plot, print_json, write
from physim.cli.subject_options import ShownFit

if TYPE_CHECKING:
    from physim.corrections.files import Fit

_MADE_ON, _MOST_KINDS = ("runs", "model", "on", "engine", "a step's most"), 12

app = typer.Typer(no_args_is_help=True, help="List the models, GPUs, engines and fits.")


@app.command()
def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Models, as for `physim predict`; by default all shipped ones.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List models with their size, attention, experts, formats and KV cache.

    For example:

    physim show models

    Name models, shipped or not, to learn more about each. Some have the layout of a shipped one, as
    an instruct model has its base model's: those are known by their own names too.
    """
    from physim.models.aliases import aliases
    from physim.models.lookup import load_model, shipped_models
    from physim.models.summary import summary_of

    found = [summary_of(name, load_model(name)) for name in names or shipped_models()]
    alike = [] if names else [(name, one.config) for name, one in aliases().items()]
    if as_json:
        content: dict[str, object] = {"models": [dataclasses.asdict(one) for one in found]}
        print_json(content | ({"aliases": dict(alike)} if alike else {}))
        return
    console = stdout()
    if names:
        for one in found:
            console.print(one.model)
            for label, words in one.lines().items():
                console.print(f"  {label:<18}{words}")
        return
    rows = [
        (
            one.model,
            f"{one.parameters / 1e9:.2f}",
            f"{one.active_parameters / 1e9:.2f}",
            one.kinds,
            f"{one.experts_per_token} of {one.experts}" if one.experts else "-",
            one.weights[0],
        )
        for one in found
    ]
    columns = ("model", "B", "active B", "attention", "experts", "weights")
    console.print(table_of(columns, rows))
    console.print()
    console.print("known too, and laid out the same")
    console.print(table_of(("model", "as"), alike))


@app.command()
def gpus(as_json: AsJson = False) -> None:
    """List the shipped GPUs with their rates, and whether their kernels were measured.

    For example:

    physim show gpus
    """
    from physim.grids.store import measured_gpus
    from physim.service.hardware import load_hardware, shipped_gpus

    found, measured = [load_hardware(key) for key in shipped_gpus()], measured_gpus()
    if as_json:
        print_json([{**gpu.to_dict(), "measured": gpu.key in measured} for gpu in found])
        return
    rows = []
    for gpu in found:
        bf16, fp8 = gpu.peak("bfloat16"), gpu.peak("fp8")
        rows.append(
            (
                gpu.key,
                f"{bf16 / 1e12:.0f}" if bf16 else "-",
                f"{fp8 / 1e12:.0f}" if fp8 else "-",
                f"{gpu.memory_bytes / 2**30:.1f}",
                f"{gpu.memory_bandwidth / 1e12:.2f}",
                f"{gpu.link} {gpu.link_bandwidth / 1e9:.0f}",
                "measured" if gpu.key in measured else "stand-in",
            )
        )
    columns = ("GPU", "bf16 TFLOP/s", "fp8", "GiB", "TB/s", "link GB/s", "kernels")
    stdout().print(table_of(columns, rows))


@app.command()
def engines(as_json: AsJson = False) -> None:
    """List the engines and their versions, with their differences.

    A version between two of these counts as the earlier one.

    For example:

    physim show engines
    """
    from physim.engines.profile import load_engine, shipped_engines

    found = [
        load_engine(engine, version)
        for engine, versions in shipped_engines().items()
        for version in versions
    ]
    if as_json:
        print_json([dataclasses.asdict(one) for one in found])
        return
    rows = [
        (
            one.engine,
            one.version,
            f"{one.gpu_memory_utilization:g}",
            f"{one.limits[0].max_num_batched_tokens} on {one.limits[0].gpu_memory_gib:g} GiB",
            "yes" if one.async_scheduling else "no",
            {"chunk": "its first chunk", "prompt": "all of it", "request": "its answer too"}[
                one.admission
            ],
            one.sampler,
        )
        for one in found
    ]
    columns = (
        *("engine", "version", "memory", "batched tokens", "async"),
        *("prompt starts with room for", "sampler"),
    )
    stdout().print(table_of(columns, rows))


@app.command()
def components(as_json: AsJson = False) -> None:
    """List the components of a step: their parts, and where their figures come from.

    For example:

    physim show components
    """
    from physim.step.components import COMPONENTS
    from physim.step.host import PART as HOST

    found = [(one.name, [part.name for part in one.parts], one.source) for one in COMPONENTS]
    found.append(("host", [HOST.name], "CPU work of a Python scheduler: orders of magnitude"))
    if as_json:
        print_json([dict(zip(("component", "parts", "source"), one, strict=True)) for one in found])
        return
    rows = [(name, ", ".join(parts), source) for name, parts, source in found]
    stdout().print(table_of(("component", "parts of a step", "source"), rows))


@app.command()
def fit(
    name: ShownFit,
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """Show a fit: each correction as a factor with its interval, and what it was fitted to.

    For example:

    physim show fit default --plot corrections.png
    """
    from physim.corrections.files import load_fit

    known = load_fit(name)
    if as_json:
        print_json(known.to_dict())
    else:
        _print_fit(known)
    if plot is not None:
        from physim.plot import draw_corrections

        write(lambda: draw_corrections(known), plot)


def _print_fit(known: Fit) -> None:
    import math

    import numpy as np

    from physim.corrections.calibration import TWO_SIDED_90
    from physim.corrections.fields import CORRECTIONS, flat

    about = known.at_branch(known.common)
    values = flat(about.corrections)
    spreads = None if about.covariance is None else np.sqrt(np.diag(about.covariance))
    rows = []
    for place, (label, one) in enumerate(CORRECTIONS.items()):
        interval = "-"
        if spreads is not None:
            half = TWO_SIDED_90 * spreads[place]
            low, high = math.exp(values[place] - half), math.exp(values[place] + half)
            interval = f"{low:.2f} to {high:.2f}"
        prior = prior_interval(float(known.prior[place]))
        rows.append([one.meaning, label, prior, f"{math.exp(values[place]):.3f}", interval])
    console = stdout()
    shared = ", ".join(filter(None, known.common))
    console.print(
        f"{known.name}: factors on components for a case like its runs ({shared}), with 90% "
        "intervals; prior: before any run"
    )
    console.print(table_of(("what", "correction", "prior", "fitted", "90%"), rows))
    if known.made_on:
        console.print("made on runs of:")
        console.print(table_of(_MADE_ON, _kinds(known)))
        left = len(known.made_on) - _MOST_KINDS
        if left > 0:
            console.print(f"and {left} other kinds of servers")
    console.print("residual: a small network for what is left in the work on all tokens of a step")
    offsets = _offsets(known)
    if offsets:
        console.print()
        console.print("factors beside those, the three largest of each")
        console.print(table_of(("level", "of", "factors"), offsets))
    for key in ("noise", "scatter", "ranges"):
        if getattr(known, key):
            console.print(f"{key}: {_plain(getattr(known, key))}")
    for key, value in known.record.items():
        if value and key not in ("losses", "left_out", "distrusted"):
            console.print(f"{key}: {_plain(value)}")


def _kinds(known: Fit) -> list[list[str]]:
    """The kinds of servers of a fit's runs."""
    return [
        [
            str(kind.rows),
            kind.model,
            f"{kind.gpu}, {kind.layout}",
            f"{kind.engine} {kind.version}",
            f"{kind.max_num_seqs} requests, {kind.max_num_batched_tokens} tokens",
        ]
        for kind in known.made_on[:_MOST_KINDS]
    ]


def _offsets(known: Fit) -> list[list[str]]:
    """What each node differs by that not all runs share."""
    import math

    from physim.corrections.fields import CORRECTIONS

    rows = []
    for (level, name), values in known.offsets.items():
        own = sorted(zip(CORRECTIONS, values.tolist(), strict=False), key=lambda one: -abs(one[1]))
        shown = [f"{label} {math.exp(value):.2f}" for label, value in own[:3] if abs(value) > 0.005]
        if level != "shared" and name not in known.common and shown:
            rows.append([level, name, ", ".join(shown)])
    return rows


def _plain(value: object) -> str:
    """A value on one line, its numbers rounded."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(
            f"{key} ({_plain(entry)})" if isinstance(entry, dict) else f"{key} {_plain(entry)}"
            for key, entry in value.items()
        )
    if isinstance(value, list | tuple):
        a_range = len(value) == 2 and all(isinstance(end, int | float) for end in value)
        return (" to " if a_range else ", ").join(map(_plain, value))
    return str(value)


@app.command()
def fits(as_json: AsJson = False) -> None:
    """List the shipped fits.

    For example:

    physim show fits
    """
    from physim.corrections.files import NO_FIT, STANDS_FOR_DEFAULT, shipped_fits

    told = {NO_FIT: "the physics, with nothing fitted", STANDS_FOR_DEFAULT: "the default"}
    if as_json:
        print_json([{"fit": name, "meaning": told.get(name, "")} for name in shipped_fits()])
        return
    stdout().print(table_of(("fit", ""), [(name, told.get(name, "")) for name in shipped_fits()]))
