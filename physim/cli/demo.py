"""``physim demo``: a tour in a terminal, which leaves nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from physim.cli.console import print_line, stdout, table_of

if TYPE_CHECKING:
    from physim.inputs.case import Case

_MODELS = (
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-32B",
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
    "openai/gpt-oss-120b",
)
_GPUS = ("h100_sxm", "a100_sxm", "l40s", "b200_sxm", "mi300x")
# What it is, prompt and answer in tokens.
_REQUESTS = (
    ("chat", 500, 250),
    ("questions on documents", 4000, 300),
    ("code", 2000, 1000),
    ("reasoning", 500, 4000),
)
_RATES = ("1", "4", "16")
_TPS = (1, 2, 4, 8)
# Shares of the highest rate that the picture has.
_SHARES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)
_WIDTH = 30


def demo() -> None:
    """Take a tour: choose a model, a GPU and a load, and see the command, its answer and a picture.

    It asks in the terminal, and writes no file. For example:

    physim demo
    """
    from physim.errors import InputError

    if not _in_terminal():
        raise InputError(
            "demo",
            "asks questions, and there is no terminal",
            "use physim predict Qwen3-8B --gpu h100 --rate 4 --input 500 --output 250",
        )
    import typer

    from physim.cli import app
    from physim.prediction.commands import in_shell

    model = _MODELS[_chosen("a model", _MODELS)]
    gpu = _GPUS[_chosen("a GPU", _GPUS)]
    kinds = [f"{name}: {prompt} tokens in, {answer} out" for name, prompt, answer in _REQUESTS]
    _, prompt, answer = _REQUESTS[_chosen("what requests are", kinds)]
    rate = _RATES[_chosen("requests per second", _RATES)]
    case = _least(model, gpu, float(rate), prompt, answer)
    words = ["predict", model, "--gpu", gpu, "--tp", str(case.server.parallelism.tp)]
    words += ["--rate", rate, "--input", str(prompt), "--output", str(answer)]
    print_line("")
    print_line(f"$ {in_shell(['physim', *words])}")
    typer.main.get_command(app).main(words, standalone_mode=False)
    _print_picture(case)
    print_line("Change what you like of the command; physim --help lists the others.")


def _in_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _chosen(what: str, choices: Sequence[str]) -> int:
    """Asks for one of a list, the first unless told; gives its place."""
    from rich.prompt import Prompt

    from physim.cli.terminal import Terminal

    print_line("")
    for number, choice in enumerate(choices, 1):
        print_line(f"  {number}  {choice}")
    numbers = [str(number) for number in range(1, len(choices) + 1)]
    told = Prompt.ask(f"Choose {what}", console=Terminal(), choices=numbers, default="1")
    return int(told) - 1


def _least(model: str, gpu: str, rate: float, prompt: int, answer: int) -> Case:
    """The load on as few GPUs as hold the model.

    Raises:
        InputError: No number of them does.
    """
    from physim.errors import InputError
    from physim.inputs.case import Case

    refusal: InputError | None = None
    for tp in _TPS:
        try:
            return Case.attempted(
                model, gpu=gpu, tp=tp, rate=rate, input_tokens=prompt, output_tokens=answer
            )
        except InputError as error:
            refusal = error
    assert refusal is not None  # there are numbers of GPUs
    raise refusal


def _print_picture(case: Case) -> None:
    """Prints how the time to first token and between tokens rise with the rate, as bars."""
    from dataclasses import replace

    import physim
    from physim.prediction.results import Prediction

    most = physim.predict(case).saturation_rps
    found: list[tuple[float, Prediction]] = []
    for share in _SHARES:
        load = replace(case.demanded, rate=share * most)
        found.append((share, physim.predict(case.under(load))))
    longest = max(one.ttft_s or 0.0 for _, one in found) or 1.0
    rows = [
        [
            f"{one.requests_per_s:.3g} req/s ({share:.0%})",
            "-" if one.itl_s is None else f"{one.itl_s * 1e3:.1f} ms",
            "-" if one.ttft_s is None else f"{one.ttft_s * 1e3:.0f} ms",
            ("█" * round(_WIDTH * (one.ttft_s or 0.0) / longest)).ljust(_WIDTH, "·"),
        ]
        for share, one in found
    ]
    print_line("")
    print_line("TTFT and ITL against the load, as shares of the highest rate:")
    stdout().print(table_of(["rate", "ITL", "TTFT", ""], rows))
