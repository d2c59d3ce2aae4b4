"""Errors on NVIDIA's measured serving points: physim's, AIConfigurator's and AISimulate's.

The rows are those of ``physim data convert silicon`` that count: of three engines, with no drafts
and not known to be broken. Peers pin other packages than physim, so each has an environment of its
own, and what it answers is kept in a table; a second run goes on where the first stopped.
``peers.csv`` beside this file has their answers on rows of the parts validation and test.

    physim data convert silicon --out silicon.csv
    python -m venv peer && peer/bin/pip install aiconfigurator==0.12.0
    python -m venv other && other/bin/pip install aisimulate==0.13.0.dev202610270000000085
    peer/bin/python benchmarks/against_peers.py ask aiconfigurator silicon.csv benchmarks/peers.csv
    other/bin/python benchmarks/against_peers.py ask aisimulate silicon.csv benchmarks/peers.csv
    python benchmarks/against_peers.py compare silicon.csv benchmarks/peers.csv \
        --where "part == 'test'" --page docs/accuracy.md --groups docs/lab/groups.md

Rows with prefill and decode apart (``physim data convert silicon-disagg --out pools.csv``) are
asked about in the same way, with a table of answers of their own: peers say how many requests per
second there are of them. ``--where "draft_hidden == False"`` leaves out those that may have had
drafts.

An answer takes AIConfigurator some 1.5 s and AISimulate 3. ``compare`` predicts the rows with no
fit and with the default fit, and prints Markdown, or writes it between the two comments that name
it: errors by engine into ``--page``, those by GPU and layout too into ``--groups``. Why a peer is
ahead in a group of rows is said in ``against_peers.csv``, which is written by hand: for rows of the
same ``--where``, by group, and by metric or for ``any``.
"""

from __future__ import annotations

import argparse
import collections
import csv
import multiprocessing
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pages import fill

Row = Mapping[str, str]

# Groups of fewer rows are in no table of their own, and none of them is said to be ahead.
LEAST_ROWS = 30
METRICS = {"itl": "ITL", "ttft": "TTFT", "e2e": "E2E"}
# Of rows with prefill and decode apart besides.
RATE = {"rate": "requests per second"}
PEERS = {"aiconfigurator": "AIConfigurator", "aisimulate": "AISimulate"}
FITS = {"none": "no fit", "default": "default fit"}
REASONS = Path(__file__).with_suffix(".csv")
_ANSWER = ("experiment", "peer", "ttft_s", "tpot_s", "rate_rps", "problem")
# The rows that pages are about come first.
_ORDER = ("validation", "test", "fit")

# Models by the names that both peers have configurations of.
_NAMES = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "zhipuai/GLM-5": "zai-org/GLM-5",
    "nvidia/DeepSeek-R1-NVFP4": "nvidia/DeepSeek-V3.1-NVFP4",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
}
# Models without experts.
_DENSE = ("Llama", "Qwen3-32B")
# Rows of gpt-oss name nvfp4, and the model has formats of its own, which peers find.
_FORMATS_OF_ITS_OWN = ("openai/gpt-oss-120b",)
# Tokens of a step where a row does not say, which is vLLM's default on these GPUs.
_BUDGET = 8192


def counts(row: Row) -> bool:
    """Whether a row counts for errors, as in ``physim evaluate``."""
    return not row["left_out"] and float(row["draft_tokens"] or 0) == 0


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def ask(peer: str, data: Path, answers: Path, processes: int) -> None:
    """Adds what a peer answers to each row that it was not asked about yet."""
    points = {row["id"]: row for row in read(_points(peer))}
    known = read(answers) if answers.is_file() else []
    done = {row["experiment"] for row in known if row["peer"] == peer}
    rows = [row for row in read(data) if counts(row) and row["experiment"] not in done]
    # In any order within a part, so that whatever stops it leaves some rows of every group.
    random.Random(0).shuffle(rows)
    rows.sort(key=lambda row: _ORDER.index(row["part"]))
    answer = {"aiconfigurator": _aiconfigurator, "aisimulate": _aisimulate}[peer]
    wanted = [(answer, row, points[row["experiment"]]) for row in rows]
    with answers.open("a", newline="", encoding="utf-8") as file:
        # A table that was begun before stays as it is.
        fields = list(known[0]) if known else _ANSWER
        writer = csv.DictWriter(file, fields, extrasaction="ignore")
        if not known:
            writer.writeheader()
        with multiprocessing.Pool(processes) as pool:
            for found in pool.imap(_answer, wanted, chunksize=4):
                writer.writerow(found | {"peer": peer})
                file.flush()


def _points(peer: str) -> Path:
    """The table of measured points, which is in the packages of both peers."""
    core = {"aiconfigurator": "aiconfigurator_core", "aisimulate": "aisimulate_core"}[peer]
    return Path(str(resources.files(core))) / "systems" / "silicon_sample.csv"


@dataclass(frozen=True)
class Engines:
    """Engines of a row that are alike.

    Attributes:
        layout: Degrees of one: tp, and dp, moe_tp and moe_ep where the model has experts.
        replicas: How many there are.
        ranks: Ranks of attention of one.
        slots: Requests that a rank decodes at once.
        tokens: Tokens of a step of a rank.
    """

    layout: Mapping[str, int]
    replicas: int
    ranks: int
    slots: int
    tokens: int


@dataclass(frozen=True)
class Answer:
    """What a peer says of a row: TTFT and TPOT in seconds, and the requests per second if it does.

    Of those it tells the latter for rows with prefill and decode apart alone.
    """

    ttft_s: float
    tpot_s: float
    rate_rps: float | None = None


# A row, its model's name, its engines (aggregated, or prefill and decode), and its formats.
Ask = Callable[[Row, str, Mapping[str, Engines], Mapping[str, str]], Answer]


def engines_of(row: Row, model: str) -> dict[str, Engines]:
    """The engines of a row by phase, as peers name these."""
    texts = {"prefill": row.get("prefill"), "decode": row.get("decode")}
    pools = {phase: text for phase, text in texts.items() if text}
    found = {}
    for phase in pools or ("aggregated",):
        said = dict(part.split("=") for part in pools[phase].split(",")) if pools else {}
        degrees = {name: int(said.get(name, row.get(name) or 1)) for name in ("tp", "dp", "ep")}
        tp, dp, ep = degrees.values()
        layout = {"tp": tp}
        if not any(dense in model for dense in _DENSE):
            layout |= {"dp": dp, "moe_tp": tp * dp // ep, "moe_ep": ep}
        found[phase] = Engines(
            layout,
            replicas=int(said.get("replicas", 1)),
            ranks=dp,
            slots=int(float(said.get("max_num_seqs", row["max_num_seqs"]))),
            tokens=int(
                float(said.get("max_num_batched_tokens", row["max_num_batched_tokens"] or _BUDGET))
            ),
        )
    return found


def requests_of_a_rank(row: Row, engines: Engines) -> int:
    """Requests that a rank of attention has of a row's clients, no more than it takes."""
    together = int(float(row["concurrency"])) // (engines.replicas * engines.ranks)
    return max(min(together, engines.slots), 1)


def _answer(wanted: tuple[Ask, Row, Row]) -> dict[str, Any]:
    """What a peer answers, or why it does not.

    A peer is asked in a row's own formats, and where it refuses, in those that it takes by itself.
    """
    ask_peer, row, point = wanted
    found = dict.fromkeys(_ANSWER, "") | {"experiment": row["experiment"]}
    model = _NAMES.get(point["model_path"], point["model_path"])
    engines, formats = engines_of(row, model), ["gemm_quant_mode"]
    if not any(dense in model for dense in _DENSE):
        formats.append("moe_quant_mode")
    stated = {name: point[name] for name in formats if point[name]}
    for asked in [{}] if model in _FORMATS_OF_ITS_OWN else [stated, {}]:
        try:
            answer = ask_peer(row, model, engines, asked)
        except (Exception, SystemExit) as error:  # whatever it refuses a row with
            found["problem"] = f"{type(error).__name__}: {error}"[:200].replace("\n", " ")
        else:
            said = {name: value for name, value in asdict(answer).items() if value is not None}
            return found | said | {"problem": ""}
    return found


def _aiconfigurator(
    row: Row, model: str, engines: Mapping[str, Engines], formats: Mapping[str, str]
) -> Answer:
    """AIConfigurator's estimate, of the batch that clients make of each rank."""
    from aiconfigurator.cli.api import cli_estimate

    names = {
        "tp": "tp_size",
        "dp": "attention_dp_size",
        "moe_tp": "moe_tp_size",
        "moe_ep": "moe_ep_size",
    }
    asked: dict[str, Any] = {}
    for phase, own in engines.items():
        front = "" if phase == "aggregated" else f"{phase}_"
        asked |= {f"{front}{names[degree]}": size for degree, size in own.layout.items()}
        # A prompt at a time, which is what its factor on TTFT is for.
        batch = 1 if phase == "prefill" else requests_of_a_rank(row, own)
        asked[f"{front}batch_size"] = batch
        if front:
            asked[f"{front}num_workers"] = own.replicas
    found = cli_estimate(
        model_path=model,
        system_name=row["hardware"],
        backend_name=row["engine"],
        isl=round(float(row["input_len_mean"])),
        osl=round(float(row["output_len"])),
        **({} if "aggregated" in engines else {"mode": "disagg"}),
        **asked,
        **formats,
    )
    rate = None if "aggregated" in engines else found.raw["request_rate"]
    return Answer(found.ttft * 1e-3, found.tpot * 1e-3, rate)


def _aisimulate(
    row: Row, model: str, engines: Mapping[str, Engines], formats: Mapping[str, str]
) -> Answer:
    """Means of AISimulate's replay of the row's requests, of its limits and its mean lengths."""
    from aisimulate.config.cli import CorePredictionConfig
    from aisimulate.predict import run_prediction
    from aisimulate.stack import resolve_runner_factory

    names = {
        "tp": "tensor",
        "dp": "attention_data",
        "moe_tp": "moe_tensor",
        "moe_ep": "moe_expert",
    }
    apart = "aggregated" not in engines
    workers = {}
    for phase, own in engines.items():
        parallelism = {names[degree]: size for degree, size in own.layout.items()}
        workers[phase] = {
            "parallelism": parallelism | ({"replicas": own.replicas} if apart else {}),
            "kv_cache": {"prefix_caching": False},
            "timing": dict(formats),
            "scheduler": {"max_batched_tokens": own.tokens, "max_sequences": own.slots},
        }
    case = {
        "traffic": {
            "source": {
                "type": "synthetic",
                "input_tokens": round(float(row["input_len_mean"])),
                "output_tokens": round(float(row["output_len"])),
            },
            "load": {"type": "concurrency", "concurrency": int(float(row["concurrency"]))},
            "stop": {"requests": int(float(row["requests"]))},
        },
        "engine": {
            "mode": "disaggregated" if apart else "aggregated",
            "model": model,
            "hardware": row["hardware"],
            "backend": row["engine"],
            "workers": workers,
        },
    }
    found = run_prediction(
        CorePredictionConfig.model_validate(case),
        stack="engine",
        runner_factory=resolve_runner_factory("engine"),
    ).summary
    rate = found["request_throughput_rps"] if apart else None
    return Answer(found["mean_ttft_ms"] * 1e-3, found["mean_tpot_ms"] * 1e-3, rate)


@dataclass(frozen=True)
class Group:
    """Rows of an engine, of a GPU under it, of a kind of layout there; ``all`` for any."""

    engine: str = "all"
    gpu: str = "all"
    layout: str = "all"

    def holds(self, other: Group) -> bool:
        """Whether rows of the other group are of this one."""
        pairs = zip(_fields(self), _fields(other), strict=True)
        return all(ours in ("all", theirs) for ours, theirs in pairs)


def _fields(group: Group) -> tuple[str, str, str]:
    return group.engine, group.gpu, group.layout


@dataclass(frozen=True)
class Compared:
    """A measured row: the group of its layout, and absolute errors in percent.

    ``errors`` are by metric and by what predicts, without what gives no answer.
    """

    group: Group
    errors: Mapping[str, Mapping[str, float]]


def compared(row: Row, predicted: Mapping[str, Mapping[str, float]]) -> Compared:
    """A row beside predictions of its TTFT and ITL, seconds, by what predicts."""
    steps = float(row["output_len"]) - 1
    ttft, e2e = float(row["ttft_mean"]), float(row["e2e_mean"])
    measured = {"itl": (e2e - ttft) / steps, "ttft": ttft, "e2e": e2e}
    clients = float(row["concurrency"]) if row.get("prefill") else None
    if clients:
        measured["rate"] = clients / e2e
    errors: dict[str, dict[str, float]] = {metric: {} for metric in measured}
    for name, times in predicted.items():
        known = {"e2e": times["ttft"] + steps * times["itl"]} | dict(times)
        if clients:
            # By Little's law, where none is told.
            known = {"rate": clients / known["e2e"]} | known
        for metric, seen in measured.items():
            errors[metric][name] = 100 * abs(known[metric] / seen - 1)
    return Compared(_group(row), errors)


def _group(row: Row) -> Group:
    if row.get("prefill"):
        return Group(row["engine"], row["hardware"], "prefill and decode apart")
    dp, ep = int(row["dp"]), int(row["ep"])
    kind = "data parallel" if dp > 1 else "experts spread" if ep > 1 else "tensor parallel"
    return Group(row["engine"], row["hardware"], kind)


def groups_of(rows: Sequence[Compared]) -> list[Group]:
    """Groups of engines and GPUs, and layouts of 30 rows and more beside others of their GPU."""
    layouts = collections.Counter(one.group for one in rows)
    found = {Group()}
    for layout, size in layouts.items():
        on_gpu = Group(layout.engine, layout.gpu)
        found |= {Group(layout.engine), on_gpu}
        if LEAST_ROWS <= size < sum(on_gpu.holds(one.group) for one in rows):
            found.add(layout)
    return sorted(found, key=lambda group: [(name != "all", name) for name in _fields(group)])


def table(rows: Sequence[Compared], metric: str, groups: Sequence[Group]) -> Iterator[str]:
    """Errors by group, in Markdown: mean (median), and of how many rows if not of all."""
    names = [*FITS.values(), *PEERS.values()]
    yield f"| {(METRICS | RATE)[metric]}, percent | GPU | layout | rows | {' | '.join(names)} |"
    yield f"| {' | '.join(['---'] * (4 + len(names)))} |"
    for group in groups:
        some = [one for one in rows if group.holds(one.group)]
        cells = [_cell(some, metric, name) for name in (*FITS, *PEERS)]
        yield f"| {' | '.join((*_fields(group), str(len(some)), *cells))} |"


def _cell(rows: Sequence[Compared], metric: str, name: str) -> str:
    known = [one.errors[metric][name] for one in rows if name in one.errors[metric]]
    if not known:
        return "-"
    said = f"{statistics.fmean(known):.1f} ({statistics.median(known):.1f})"
    return said if len(known) == len(rows) else f"{said} of {len(known)}"


def ahead(rows: Sequence[Compared], reasons: Mapping[tuple[str, ...], str]) -> Iterator[str]:
    """Groups where a peer's mean error is less than the default fit's on the rows it answers.

    Reasons are by engine, GPU, layout and metric, which may be ``any``.
    """
    found = []
    for group in groups_of(rows):
        for metric in METRICS:
            leads = dict(_leads([one for one in rows if group.holds(one.group)], metric))
            if leads:
                keys = ((*_fields(group), metric), (*_fields(group), "any"))
                why = next((reasons[key] for key in keys if key in reasons), "not known")
                cells = (*_fields(group), METRICS[metric], ", ".join(leads), why)
                found.append((-max(leads.values()), f"| {' | '.join(cells)} |"))
    if not found:
        yield f"No peer is ahead in any group of {LEAST_ROWS} rows and more."
        return
    yield "| engine | GPU | layout | metric | peer's error, and the default fit's | why |"
    yield f"| {' | '.join(['---'] * 6)} |"
    yield from (line for _, line in sorted(found))


def _leads(rows: Sequence[Compared], metric: str) -> Iterator[tuple[str, float]]:
    """What is said of each peer that is ahead in rows of a group, and by how many points it is."""
    for peer, title in PEERS.items():
        both = [
            (one.errors[metric]["default"], one.errors[metric][peer])
            for one in rows
            if {"default", peer} <= one.errors[metric].keys()
        ]
        if len(both) >= LEAST_ROWS:
            ours, theirs = (statistics.fmean(errors) for errors in zip(*both, strict=True))
            if theirs < ours:
                yield f"{title} {theirs:.1f} against {ours:.1f} in {len(both)} rows", ours - theirs


def compare(data: Path, answers: Path, where: str, page: Path | None, groups: Path | None) -> None:
    """Prints the tables, or writes them into pages."""
    predicted: dict[str, dict[str, dict[str, float]]] = {}
    for one in read(answers):
        if one["tpot_s"]:
            times = {"ttft": float(one["ttft_s"]), "itl": float(one["tpot_s"])}
            if one.get("rate_rps"):
                times["rate"] = float(one["rate_rps"])
            predicted.setdefault(one["experiment"], {})[one["peer"]] = times
    asked = set()
    for fit in FITS:
        for name, times in _physim(data, fit, where):
            asked.add(name)
            if times:
                predicted.setdefault(name, {})[fit] = times
    rows = [
        compared(row, predicted.get(row["experiment"], {}))
        for row in read(data)
        if counts(row) and row["experiment"] in asked
    ]
    by_group = groups_of(rows)
    by_engine = [group for group in by_group if group == Group(group.engine)]
    lead = [*_opening(rows, where), ""]
    if page is None and groups is None:
        print("\n".join([*lead, *_tables(rows, by_group)]))
    if page is not None:
        fill(page, "against_peers", "\n".join([*lead, *_tables(rows, by_engine)]))
    if groups is not None:
        fill(groups, "groups", "\n".join(_tables(rows, by_group)))


def _physim(data: Path, fit: str, where: str) -> Iterator[tuple[str, dict[str, float]]]:
    """The rows that are asked for, each with physim's prediction, which is empty if it has none."""
    import physim

    found = physim.evaluate([data], fit=fit, where=where)
    for row in found.rows:
        metrics = {name: row["metrics"][f"{name}_mean"]["predicted"] for name in METRICS}
        yield row["experiment"], metrics
    for row in found.skipped:
        yield row["experiment"], {}


def _opening(rows: Sequence[Compared], where: str) -> Iterator[str]:
    with REASONS.open(encoding="utf-8") as file:
        reasons: dict[tuple[str, ...], str] = {
            (row["engine"], row["gpu"], row["layout"], row["metric"]): row["reason"]
            for row in csv.DictReader(file)
            if row["where"] == where
        }
    answered = (
        f"{title} {sum(peer in one.errors['itl'] for one in rows)}" for peer, title in PEERS.items()
    )
    yield f"{len(rows)} rows, `{where}`; answered: {', '.join(answered)}."
    yield ""
    yield from ahead(rows, reasons)


def _tables(rows: Sequence[Compared], groups: Sequence[Group]) -> Iterator[str]:
    known = [name for name in METRICS | RATE if any(name in one.errors for one in rows)]
    for place, metric in enumerate(known):
        if place:
            yield ""
        yield from table(rows, metric, groups)


def main() -> None:
    """Asks a peer or compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    asking = verbs.add_parser("ask")
    asking.add_argument("peer", choices=PEERS)
    asking.add_argument("data", type=Path)
    asking.add_argument("answers", type=Path)
    asking.add_argument("--processes", type=int, default=2)
    comparing = verbs.add_parser("compare")
    comparing.add_argument("data", type=Path)
    comparing.add_argument("answers", type=Path)
    comparing.add_argument("--where", required=True)
    comparing.add_argument("--page", type=Path)
    comparing.add_argument("--groups", type=Path)
    asked = parser.parse_args()
    if asked.verb == "ask":
        ask(asked.peer, asked.data, asked.answers, asked.processes)
    else:
        compare(asked.data, asked.answers, asked.where, asked.page, asked.groups)


if __name__ == "__main__":
    main()
