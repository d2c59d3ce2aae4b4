"""What AIConfigurator recommends, beside what physim does, and what was measured of it.

Five times both are asked for the fewest GPUs that serve so many clients under vLLM, within 2 s to
the first token and 30 ms for each other, in the mean: AIConfigurator's own defaults. The package
``aiconfigurator`` 0.12.0 pins other packages than physim and is installed apart.

    python -m venv peer && peer/bin/pip install aiconfigurator==0.12.0
    physim data convert silicon --out silicon.csv
    peer/bin/python benchmarks/recommended_beside_aiconfigurator.py ask silicon.csv peer.json
    python benchmarks/recommended_beside_aiconfigurator.py compare silicon.csv peer.json

The questions were chosen by the measured rows alone, which ``questions silicon.csv`` does again.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from physim.inputs.case import Case
    from physim.prediction.results import Prediction

TTFT_S, TPOT_S = 2.0, 0.03
# The version whose kernels AIConfigurator looks up.
VERSION = "0.24.0"
# GPUs that may be used at most, and choices that are looked at.
MOST, CHOICES = 16, 10
# Totals of clients that questions are chosen among, and how many are asked.
TOTALS = (32, 64, 128, 256, 512, 1024)
ASKED = 5

Row = Mapping[str, str]


@dataclass(frozen=True)
class Question:
    """So many clients of a model on a GPU, with mean lengths of prompt and answer.

    The KV cache is that of the measured rows, which AIConfigurator takes by itself. ``gemm`` is
    their format of GEMMs where it takes another, which its command cannot be told.
    """

    model: str
    gpu: str
    clients: int
    prompt: int
    output: int
    cache: str = "auto"
    gemm: str = ""

    @property
    def has_experts(self) -> bool:
        """Whether the model is a mixture of experts."""
        return not any(dense in self.model for dense in ("Llama", "Qwen3-32B"))

    def __str__(self) -> str:
        name = self.model.split("/")[1]
        return f"{name}, {self.gpu}, {self.clients} clients, {self.prompt} + {self.output}"


QUESTIONS = (
    Question("MiniMaxAI/MiniMax-M2.5", "b200_sxm", 512, 922, 922, "fp8", "fp8"),
    Question("nvidia/Llama-3.1-70B-Instruct-FP8", "h200_sxm", 64, 7373, 922),
    Question("nvidia/MiniMax-M2.5-NVFP4", "b300_sxm", 256, 7373, 922, "fp8"),
    Question("Qwen/Qwen3-32B", "h100_sxm", 128, 4096, 1024),
    Question("openai/gpt-oss-120b", "h200_sxm", 64, 7373, 922),
)


@dataclass(frozen=True, order=True)
class Deployment:
    """Servers of one layout, which share the clients evenly."""

    replicas: int
    tp: int
    pp: int
    dp: int
    ep: int

    @property
    def each(self) -> int:
        """GPUs of one server."""
        return self.tp * self.pp * self.dp

    @property
    def gpus(self) -> int:
        """GPUs of all of them."""
        return self.replicas * self.each

    def __str__(self) -> str:
        degrees = {"pp": self.pp, "dp": self.dp, "ep": self.ep}
        said = "".join(f" {name}{degree}" for name, degree in degrees.items() if degree > 1)
        return f"{self.replicas} x tp{self.tp}{said}"


@dataclass(frozen=True)
class Served:
    """What a deployment does: generated tokens per second of a GPU, and means of latencies."""

    tokens: float
    ttft_s: float
    tpot_s: float

    @property
    def kept(self) -> bool:
        """Whether it keeps to the objectives."""
        return self.ttft_s <= TTFT_S and self.tpot_s <= TPOT_S

    def __str__(self) -> str:
        mark = "" if self.kept else " MISSED"
        return f"{self.tokens:.0f}; {self.ttft_s * 1e3:.0f}, {self.tpot_s * 1e3:.1f}{mark}"


def rows_of(data: Path) -> list[Row]:
    """Rows of vLLM that do not contradict physics."""
    with data.open(encoding="utf-8") as file:
        return [
            row for row in csv.DictReader(file) if row["engine"] == "vllm" and not row["left_out"]
        ]


def asked_of(rows: Sequence[Row], question: Question) -> list[Row]:
    """Rows of a question's model, GPU and lengths, of any layout and number of clients."""
    wanted = (question.model, question.gpu, question.prompt, question.output)
    return [row for row in rows if _subject(row) == wanted]


def _subject(row: Row) -> tuple[str, str, int, int]:
    lengths = (round(float(row[name])) for name in ("input_len_mean", "output_len"))
    return (row["model"], row["hardware"], *lengths)  # type: ignore[return-value]


def measured(rows: Sequence[Row], clients: int) -> dict[Deployment, Served]:
    """Every deployment of which a server with its share of the clients was measured."""
    found = defaultdict(list)
    for row in rows:
        replicas = clients / float(row["concurrency"])
        one = _layout(row, int(replicas))
        if replicas >= 1 and replicas == int(replicas) and one.gpus <= MOST:
            found[one].append(row)
    return {one: _served(some) for one, some in found.items()}


def _layout(row: Mapping[str, Any], replicas: int) -> Deployment:
    return Deployment(replicas, *(int(row[degree]) for degree in ("tp", "pp", "dp", "ep")))


def _served(rows: Sequence[Row]) -> Served:
    """The mean of the rows of the newest version among some of one layout and load."""

    def version(row: Row) -> tuple[int, ...]:
        return tuple(int(part) for part in row["engine_version"].split("."))

    newest = [row for row in rows if version(row) == max(map(version, rows))]
    each = []
    for row in newest:
        rate, output, ttft, e2e = (
            float(row[name]) for name in ("rate_rps", "output_len", "ttft_mean", "e2e_mean")
        )
        each.append((rate * output / _layout(row, 1).each, ttft, (e2e - ttft) / (output - 1)))
    return Served(*(statistics.fmean(column) for column in zip(*each, strict=True)))


def around(rows: Sequence[Row], one: Deployment, clients: int) -> list[tuple[float, str, Served]]:
    """Clients, part and figures of the rows of a deployment's layout that are next to its share.

    The one of just its share where there is one; else the nearest with fewer, and with more.
    """
    alike = defaultdict(list)
    for row in rows:
        if _layout(row, one.replicas) == one:
            alike[float(row["concurrency"])].append(row)
    share = clients / one.replicas
    fewer = [own for own in alike if own <= share]
    more = [own for own in alike if own >= share]
    places = sorted({*([max(fewer)] if fewer else []), *([min(more)] if more else [])})
    if share in places:
        places = [share]
    return [(own, alike[own][0]["part"], _served(alike[own])) for own in places]


def choose(data: Path) -> None:
    """Prints the questions that the rows which no fit has seen can answer best.

    One of each checkpoint: the GPU, lengths and total of clients of which most measured deployments
    are on each side of the objectives; then where most are measured, then of most tokens.
    """
    unseen = [row for row in rows_of(data) if row["part"] != "fit"]
    ranked = []
    for subject in sorted({_subject(row) for row in unseen}):
        model, gpu, prompt, output = subject
        for clients in TOTALS:
            question = Question(model, gpu, clients, prompt, output)
            found = measured(asked_of(unseen, question), clients)
            kept = sum(one.kept for one in found.values())
            sides = min(kept, len(found) - kept)
            ranked.append((sides, len(found), prompt + output, question))
    ranked.sort(key=lambda one: one[:3], reverse=True)
    best: dict[str, tuple[int, int, int, Question]] = {}
    for one in ranked:
        best.setdefault(one[3].model, one)
    for sides, number, _, question in list(best.values())[:ASKED]:
        print(f"{question}: {number} deployments measured, {sides} on the smaller side")


def ask(data: Path, out: Path) -> None:
    """Writes what AIConfigurator recommends, and what it estimates of that and of all others.

    Its command says how many clients a deployment serves at most; the estimate is of a server with
    its share of those that are asked for.
    """
    rows, answers = rows_of(data), []
    for question in QUESTIONS:
        answer: dict[str, Any] = {"question": str(question), "choices": []}
        with tempfile.TemporaryDirectory() as folder:
            command = _command(question)
            answer["command"] = " ".join(command)
            run = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
            subprocess.run([*run, "--save-dir", folder], check=True, capture_output=True)
            for path in Path(folder).rglob("agg/best_config_topn.csv"):
                with path.open(encoding="utf-8") as file:
                    answer["choices"] = [_choice(row) for row in csv.DictReader(file)]
        chosen = [_layout(one, one["replicas"]) for one in answer["choices"]]
        known = measured(asked_of(rows, question), question.clients)
        others = {*chosen, *_layouts(question)}
        answer["estimates"] = {str(one): _estimate(question, one) for one in others}
        formats = {"gemm_quant_mode": question.gemm}
        answer["as_measured"] = {
            str(one): _estimate(question, one, **formats) for one in known if question.gemm
        }
        answers.append(answer)
        out.write_text(json.dumps(answers, indent=1), encoding="utf-8")


def _command(question: Question) -> list[str]:
    return [
        *("aiconfigurator", "cli", "default", "--model-path", question.model),
        *("--system", question.gpu, "--backend", "vllm", "--serving-mode", "agg"),
        *("--target-concurrency", str(question.clients)),
        *("--isl", str(question.prompt), "--osl", str(question.output)),
        *("--ttft", f"{TTFT_S * 1e3:g}", "--tpot", f"{TPOT_S * 1e3:g}", "--strict-sla"),
        *("--top-n", str(CHOICES)),
    ]


def _choice(row: Row) -> dict[str, Any]:
    return {
        "replicas": int(row["replicas_needed"]),
        **{degree: int(row[degree]) for degree in ("tp", "pp", "dp")},
        "ep": int(row["moe_ep"] or 1),
        "clients_of_one": float(row["concurrency"]),
        "tokens": float(row["tokens/s/gpu"]),
        "ttft_s": float(row["ttft"]) * 1e-3,
        "tpot_s": float(row["tpot"]) * 1e-3,
        "formats": {name: row[name] for name in ("gemm", "moe", "kvcache", "fmha")},
    }


def _layouts(question: Question) -> Iterator[Deployment]:
    """Every deployment without pipeline stages of up to `MOST` GPUs, eight for a server."""
    degrees = (1, 2, 4, 8)
    for tp, dp in itertools.product(degrees, degrees if question.has_experts else (1,)):
        for ep in {1, tp * dp} if question.has_experts else {1}:
            for replicas in range(1, MOST // (tp * dp) + 1) if tp * dp <= degrees[-1] else ():
                yield Deployment(replicas, tp, 1, dp, ep)


def _estimate(question: Question, one: Deployment, **formats: str) -> dict[str, Any]:
    from aiconfigurator.cli.api import cli_estimate

    experts = {"moe_tp_size": one.tp * one.dp // one.ep, "moe_ep_size": one.ep}
    try:
        found = cli_estimate(
            model_path=question.model,
            system_name=question.gpu,
            backend_name="vllm",
            isl=question.prompt,
            osl=question.output,
            batch_size=math.ceil(question.clients / one.replicas / one.dp),
            tp_size=one.tp,
            pp_size=one.pp,
            attention_dp_size=one.dp,
            **(experts if question.has_experts else {}),
            **formats,
        )
    except (Exception, SystemExit) as error:  # whatever it refuses a deployment with
        return {"problem": f"{type(error).__name__}: {error}"[:200]}
    tokens = found.tokens_per_second_per_gpu
    return {"tokens": float(tokens), "ttft_s": found.ttft * 1e-3, "tpot_s": found.tpot * 1e-3}


def compare(data: Path, peer: Path) -> None:
    """Prints the recommendations, and how both fare on all deployments that were measured."""
    rows, answers = rows_of(data), json.loads(peer.read_text(encoding="utf-8"))
    print(
        "| question | measured, of which keep; told right; off, percent | best measured | "
        "recommended by | deployment | physim | AIConfigurator | measured |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    again = []
    for question, answer in zip(QUESTIONS, answers, strict=True):
        of_it = asked_of(rows, question)
        known = measured(of_it, question.clients)
        estimates = {name: _read(one) for name, one in answer["estimates"].items()}
        theirs = [_layout(one, one["replicas"]) for one in answer["choices"]]
        with tempfile.TemporaryDirectory() as folder:
            ours = dict(_recommended(question, _alone(question.model, Path(folder))))
        predicted = {one: _replayed(_server(question, one), one) for one in known}
        cells = [
            str(question),
            _fared(known, predicted, {one: estimates[str(one)] for one in known}),
            _best(known),
        ]
        for one, by in _first(list(ours), theirs, known).items():
            cells += [
                *(", ".join(by), f"{one} ({one.gpus})"),
                str(_replayed(ours.get(one) or _server(question, one), one)),
                str(estimates.get(str(one)) or "-"),
                _observed(around(of_it, one, question.clients), question, one),
            ]
            print(f"| {' | '.join(cells)} |", flush=True)
            cells = [""] * 3
        if of_rows := {name: _read(one) for name, one in answer["as_measured"].items()}:
            fared = _fared(known, predicted, {one: of_rows[str(one)] for one in known})
            again.append(f"{question}, with {question.gemm} GEMMs for AIConfigurator: {fared}")
    print("", *again, sep="\n")


def _read(estimate: Mapping[str, Any]) -> Served | None:
    if "problem" in estimate:
        return None
    return Served(estimate["tokens"], estimate["ttft_s"], estimate["tpot_s"])


def _alone(model: str, folder: Path) -> str:
    """A model's files in a folder, for `physim.recommend` to leave its other formats out."""
    from physim.models.lookup import config_path

    path = config_path(model)
    shutil.copy(path, folder / "config.json")
    sampling = path.parent / "generation" / path.name
    if sampling.is_file():
        shutil.copy(sampling, folder / "generation_config.json")
    return str(folder)


def _recommended(question: Question, model: str) -> Iterator[tuple[Deployment, Case]]:
    import physim

    found = physim.recommend(
        model,
        slo=[f"ttft_mean={TTFT_S}s", f"tpot_mean={TPOT_S}s"],
        gpus=[question.gpu],
        max_gpus=MOST,
        count=CHOICES,
        concurrency=question.clients,
        input_tokens=question.prompt,
        output_tokens=question.output,
        engine_version=VERSION,
        kv_cache_dtype=question.cache,
    )
    for choice in found.choices:
        layout = choice.case.server.parallelism
        degrees = layout.tp, layout.pp, layout.dp, layout.ep
        yield Deployment(choice.replicas, *degrees), choice.case


def _server(question: Question, one: Deployment) -> Case:
    """One of the servers under its share, with the engine's own limits."""
    from physim.inputs.case import Case

    return Case.from_options(
        question.model,
        gpu=question.gpu,
        tp=one.tp,
        pp=one.pp,
        dp=one.dp,
        ep=one.ep,
        concurrency=question.clients / one.replicas,
        input_tokens=question.prompt,
        output_tokens=question.output,
        engine_version=VERSION,
        kv_cache_dtype=question.cache,
    )


def _replayed(case: Case, one: Deployment) -> Served:
    import physim
    from physim.prediction.many import predict_cases

    known = physim.load_fit("default").on(case).corrections
    (found,) = predict_cases([case], known, method="replay")
    return Served(found.output_tokens_per_s / one.each, *_means(found))


def _means(prediction: Prediction) -> tuple[float, float]:
    latencies = prediction.whole.latencies
    return latencies["ttft"]["mean"], latencies["tpot"]["mean"]


def _first(
    ours: Sequence[Deployment],
    theirs: Sequence[Deployment],
    known: Mapping[Deployment, Served],
) -> dict[Deployment, list[str]]:
    """The first choice of each tool and, where it was not measured, the first that was."""
    found = defaultdict(list)
    for by, choices in (("physim", ours), ("AIConfigurator", theirs)):
        shown = [place for place, one in enumerate(choices) if place == 0 or one in known]
        for place in shown[: 1 if choices and choices[0] in known else 2]:
            found[choices[place]].append(by if place == 0 else f"{by}'s choice {place + 1}")
    return found


def _observed(
    found: Sequence[tuple[float, str, Served]], question: Question, one: Deployment
) -> str:
    share = question.clients / one.replicas
    said = [
        f"{served} ({part}{'' if clients == share else f', {clients:g} clients each'})"
        for clients, part, served in found
    ]
    return "; ".join(said) or "not measured"


def _best(known: Mapping[Deployment, Served]) -> str:
    """Of measured deployments that keep to the objectives that of most tokens per second of a GPU.

    All serve the same clients, so fewer GPUs are more tokens of each.
    """
    kept = [one for one in known if known[one].kept]
    if not kept:
        return "none keeps"
    best = max(kept, key=lambda one: known[one].tokens)
    return f"{best} ({best.gpus} GPUs): {known[best]}"


def _fared(
    known: Mapping[Deployment, Served],
    *tools: Mapping[Deployment, Served | None],
) -> str:
    """How many measured deployments are told right, and the mean error of their throughput."""
    right, off = [], []
    for predicted in tools:
        pairs = [(predicted[one], found) for one, found in known.items()]
        # What a tool says cannot be, keeps to nothing.
        told = [(said is not None and said.kept) == found.kept for said, found in pairs]
        right.append(str(sum(told)))
        errors = [abs(said.tokens / found.tokens - 1) * 100 for said, found in pairs if said]
        off.append(f"{statistics.fmean(errors):.1f}")
    kept = sum(one.kept for one in known.values())
    return f"{len(known)}, {kept}; {', '.join(right)}; {', '.join(off)}"


def main() -> None:
    """Chooses questions, asks the peer, or compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("questions", "ask", "compare"):
        own = verbs.add_parser(verb)
        own.add_argument("data", type=Path)
        if verb != "questions":
            own.add_argument("peer", type=Path)
    asked = parser.parse_args()
    if asked.verb == "questions":
        choose(asked.data)
    elif asked.verb == "ask":
        ask(asked.data, asked.peer)
    else:
        compare(asked.data, asked.peer)


if __name__ == "__main__":
    main()
