"""How far exported forms are off physim's steps and replays: Qwen3-14B, tp 2, on an H100.

Usage: python benchmarks/exports.py; prints a Markdown table. ITL and TTFT are errors of a replay on
the form's steps, zero-shot, at 20, 60 and 90% of saturation.
"""

from __future__ import annotations

from physim.exports.dynamo import mocker_profile
from physim.exports.form_error import FormError, form_error, walk_of
from physim.exports.llm_d import iteration_of
from physim.exports.llmservingsim import layer_profile, with_all_reduces
from physim.exports.subject import SHARES, Subject


def row(name: str, error: FormError) -> str:
    loads = (f"{one.itl_pct:+.1f}%, {one.ttft_pct:+.1f}%" for one in error.loads)
    return " | ".join(
        [f"| {name}", f"{error.median_pct}%", f"{error.worst_pct}%", *loads, ""]
    ).rstrip()


def main() -> None:
    subject = Subject.from_options(
        "Qwen/Qwen3-14B", "none", gpu="h100_sxm", tp=2, input_tokens=575, output_tokens=248
    )
    walk = walk_of(subject)
    forms = {
        "Dynamo, increment": mocker_profile(subject, apart=False).seconds,
        "Dynamo, apart": mocker_profile(subject, apart=True).seconds,
        "llm-d, alpha beta gamma": iteration_of(walk).seconds,
        "LLMServingSim, layers": with_all_reduces(subject, layer_profile(subject)),
    }
    shares = " | ".join(f"ITL, TTFT at {share:.0%}" for share in SHARES)
    print(f"| form | step, median | at most | {shares} |\n| --- | --- | --- | --- | --- | --- |")
    for name, form in forms.items():
        print(row(name, form_error(subject, form, walk)))


if __name__ == "__main__":
    main()
