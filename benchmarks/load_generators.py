"""Reports of GuideLLM's and AIPerf's own releases, made against a fake server, as they are read.

    python -m venv guidellm && guidellm/bin/pip install guidellm==0.8.1
    python -m venv aiperf && aiperf/bin/pip install aiperf==0.13.0
    python benchmarks/load_generators.py --guidellm guidellm/bin --aiperf aiperf/bin

GuideLLM's mock server answers with a first token after 40 ms and 31 more each 5 ms, so after 195 ms
in all; both send it five requests a second for twelve seconds. Nothing is fetched: the tokenizer,
whose tokens are bytes, is made here. Where a package is missing it says so in one line.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import physim

RATE, SECONDS = 5, 12
TTFT_MS, ITL_MS, OUTPUT, PROMPT = 40, 5, 32, 64
REVISION = "0" * 40
MODEL: dict[str, Any] = {"model": "Qwen/Qwen3-8B", "gpu": "h100_sxm", "engine_version": "0.33"}
READ = ("rate_rps", "n_success", "input_len_mean", "output_len", "ttft_mean", "e2e_mean")

# What runs in GuideLLM's Python: a tokenizer of bytes.
TOKENIZER = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {letter: place for place, letter in enumerate(letters)} | {"<eos>": len(letters)}
made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
made.decoder = decoders.ByteLevel()
named = dict.fromkeys(("eos_token", "pad_token", "unk_token"), "<eos>")
PreTrainedTokenizerFast(tokenizer_object=made, **named).save_pretrained(sys.argv[1])
"""


@contextlib.contextmanager
def mock_server(guidellm: Path) -> Iterator[str]:
    """GuideLLM's fake server, and where it is."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    words = [str(guidellm / "guidellm"), "mock-server", "--port", str(port), "--model", "mock"]
    words += ["--ttft-ms", str(TTFT_MS), "--itl-ms", str(ITL_MS), "--output-tokens", str(OUTPUT)]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(words, stdout=quiet, stderr=quiet)
    try:
        for _ in range(120):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    """Prints what is read of each report."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("guidellm", "aiperf"):
        parser.add_argument(f"--{name}", type=Path, required=True, help=f"a folder with {name}")
    asked = parser.parse_args()
    for name in ("guidellm", "aiperf"):
        if shutil.which(getattr(asked, name) / name) is None:
            print(f"skipped: {getattr(asked, name)} has no {name}")
            return
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        # As it stands in Hugging Face's cache, where AIPerf looks for it.
        kept = place / "hub" / "models--own--bytes"
        tokenizer = kept / "snapshots" / REVISION
        tokenizer.mkdir(parents=True)
        (kept / "refs").mkdir()
        (kept / "refs" / "main").write_text(REVISION)
        subprocess.run([asked.guidellm / "python", "-c", TOKENIZER, tokenizer], check=True)
        offline = {"HF_HOME": made, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        with mock_server(asked.guidellm) as url:
            run = [
                asked.guidellm / "guidellm",
                "run",
                "--backend",
                f"kind=openai_http,target={url}",
            ]
            run += ["--profile", f"kind=constant,rate={RATE}", "--disable-console"]
            run += ["--constraint", f"kind=max_duration,seconds={SECONDS}"]
            run += ["--tokenizer", f"kind=huggingface_auto,model={tokenizer}", "--data"]
            run += [f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={OUTPUT}"]
            run += ["--output", f"kind=json,path={place / 'benchmarks.json'}"]
            profile = [asked.aiperf / "aiperf", "profile", "--model", "mock", "--url", url]
            profile += ["--endpoint-type", "chat", "--streaming", "--tokenizer", "own/bytes"]
            profile += ["--synthetic-input-tokens-mean", str(PROMPT), "--ui", "none"]
            profile += ["--output-tokens-mean", str(OUTPUT), "--request-rate", str(RATE)]
            profile += ["--request-count", str(RATE * SECONDS), "--artifact-dir", place / "aiperf"]
            for words in (run, profile):
                subprocess.run(words, env=os.environ | offline, check=True, capture_output=True)
        reports = {
            "guidellm": place / "benchmarks.json",
            "aiperf": place / "aiperf" / "profile_export_aiperf.json",
            "aiperf, lines": place / "aiperf" / "profile_export.jsonl",
        }
        print(f"| report | {' | '.join(READ)} |")
        print("| --- " * (1 + len(READ)) + "|")
        for name, path in reports.items():
            (row,) = physim.read_report(name.partition(",")[0], path, **MODEL).to_dict("records")
            print(f"| {name} | " + " | ".join(f"{row[one]:.4g}" for one in READ) + " |")


if __name__ == "__main__":
    main()
