"""The page: one HTML file that holds tables of predictions, and scripts that look them up."""

from __future__ import annotations

import base64
import gzip
import json
import re
import string
from dataclasses import asdict, replace
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np

from physim import data
from physim.corrections.files import DEFAULT_FIT
from physim.grids.store import gpu_or_stand_in
from physim.inputs.case import Case
from physim.inputs.deployment import Deployment
from physim.inputs.load import ARRIVALS, Load
from physim.models.parallelism import Parallelism, telling
from physim.options import options_of
from physim.page.build import CHECKED, KNEE, PageRequest, Predicted
from physim.page.tables import VALUES
from physim.prediction.commands import in_shell
from physim.prediction.html import escaped
from physim.prediction.intervals import BEYOND, SCALES, WORDS, least_s
from physim.printable import printable
from physim.progress import told_in_notebooks
from physim.step.lowering import PART_NAMES, PARTS

_SCRIPTS = ("tables.js", "pictures.js", "page.js")
_OPTIONS = {**options_of(Parallelism), **options_of(Deployment), **options_of(Load)}
# Where the page starts, if there is such a server.
_FIRST = {"seqs": 256, "budget": 8192, "count": 1}


@told_in_notebooks("writing a page")
def write_page(found: Predicted, path: Path) -> None:
    """Writes a page on a model that needs no server: it moves with its controls in any browser.

    Args:
        found: What it shows, of `physim.page.build.predicted`.
        path: The HTML file; it appears whole or not at all.
    """
    text = _document(found)
    with data.replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _command(asked: PageRequest) -> str:
    """``physim predict`` of one of the servers, without what the page varies."""
    words = ["physim", "predict", str(asked.model)]
    usual = {name: option.default for name, option in _OPTIONS.items()}
    flags = {name: option.flag for name, option in _OPTIONS.items()} | {"read_as": "--as"}
    named = {"lengths": None if asked.lengths is None else asked.lengths.name, "fit": asked.fit}
    for name, value in {**asked.options, **named}.items():
        if value in (None, usual.get(name, DEFAULT_FIT)) or name.startswith("max_num"):
            continue
        flag = flags.get(name, f"--{name}")
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, str(value)]
    return in_shell(words)


def _document(found: Predicted) -> str:
    """The HTML."""
    case = found.servers[0]
    version = metadata.version("physim-llm")
    profile = case.server.profile
    lengths = case.demanded.lengths
    requests = "" if lengths is None else f", requests as in {printable(lengths.name)}"
    about = (
        f"{profile.engine} {profile.version}, {ARRIVALS[case.demanded.arrival]}{requests}. "
        f"Predicted by physim {version}, fit {found.fit.name}; nothing leaves this page."
    )
    numbers = gzip.compress(found.packed.content, mtime=0)
    return string.Template(_asset("page.html")).substitute(
        title=escaped(case.model.name),
        about=escaped(about),
        degrees=escaped(" ".join(f"{k}: {one.help}" for k, one in options_of(Parallelism).items())),
        mean="" if lengths is None else ", mean",
        style=_asset("page.css"),
        # A name in it must not end the element.
        facts=json.dumps(_facts(found)).replace("<", "\\u003c"),
        numbers=base64.b64encode(numbers).decode(),
        script="\n".join(map(_asset, _SCRIPTS)),
    )


def _asset(name: str) -> str:
    return resources.files("physim.page").joinpath(name).read_text(encoding="utf-8")


def _facts(found: Predicted) -> dict[str, Any]:
    """All that the page is told beside its tables."""
    case = found.servers[0]
    (inputs, outputs), rate = _middle(found)
    return {
        "command": _command(found.asked),
        "axes": asdict(found.tables.axes),
        "width_axes": None if found.widths is None else asdict(found.widths.axes),
        "arrays": found.packed.arrays,
        "values": VALUES,
        "parts": [{"name": name, "label": PARTS[name].label} for name in PART_NAMES],
        "gpus": {case.server.gpu.key: printable(case.server.gpu.name) for case in found.groups},
        "groups": [_group(found, case) for case in found.groups],
        "servers": [
            {"group": group, **_server(case)}
            for group, case in zip(found.group_of, found.servers, strict=True)
        ],
        "prices": dict(found.prices),
        "cached": _cached(case.demanded),
        "beyond": BEYOND,
        "errors": found.errors,
        "knee": KNEE,
        "checked": CHECKED,
        "refused": [printable(line) for line in found.refused],
        "first": {
            "gpu": case.server.gpu.key,
            "layout": str(case.server.parallelism),
            **_FIRST,
            "rate": rate,
            "input": inputs,
            "output": outputs,
        },
    }


def _middle(found: Predicted) -> tuple[tuple[int, int], float]:
    """Lengths in the middle of what the page offers, and a third of what its first server takes."""
    axes = found.tables.axes
    inputs, outputs = (
        float(round(2 ** ((axis.points[0] + axis.points[-1]) / 2)))
        for axis in (axes.inputs, axes.outputs)
    )
    one = (np.array([value]) for value in (inputs, outputs))
    most = float(found.tables.saturation_of(np.array([0]), *one)[0])
    return (int(inputs), int(outputs)), float(f"{most / 3:.3g}") if most > 0 else 1.0


def _cached(load: Load) -> dict[str, float]:
    """What of a prompt is found in the prefix cache: so many tokens, or a share of it."""
    if load.lengths is None:
        return {"tokens": load.cached_tokens, "share": 0.0}
    return {"tokens": 0.0, "share": load.cached_tokens / load.mean_input}


def _group(found: Predicted, case: Case) -> dict[str, Any]:
    """What servers have in common that differ in limits alone."""
    load, layout = case.demanded, case.server.parallelism
    # What a prompt takes at least is so much for each of its tokens.
    one = replace(load, input_tokens=1.0, output_tokens=1.0, cached_tokens=0.0, lengths=None)
    least = least_s(case.under(one))
    ranges = found.fit.on(case).ranges
    return {
        "gpu": case.server.gpu.key,
        "layout": str(layout),
        "degrees": telling(asdict(layout)),
        "gpus": layout.gpus,
        "weight_bytes": case.server.memory.weights,
        "stands_in": gpu_or_stand_in(case.server.gpu.key) != case.server.gpu.key,
        "least": {"ttft_s_per_token": least["ttft_s"], "itl_s": least["itl_s"]},
        "ranges": [
            {
                "quantity": name,
                "before": (words := re.split(r"\{.*\}", WORDS[name]))[0],
                "after": words[1],
                "scale": SCALES.get(name, 1.0),
                "least": low,
                "most": high,
            }
            for name, (low, high) in ranges.items()
        ],
    }


def _server(case: Case) -> dict[str, Any]:
    """A server's limits and memory."""
    sizes, kv, memory = case.server.sizes, case.server.kv, case.server.memory
    return {
        "max_num_seqs": sizes.max_num_seqs,
        "max_num_batched_tokens": sizes.max_num_batched_tokens,
        "kv_tokens": kv.reported_blocks * kv.block_size,
        "memory": {
            name: getattr(memory, name)
            for name in ("weights", "kv_cache", "graphs", "activations", "usable")
        },
    }
