"""The README's Python runs as it stands, and the start page shows its output."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_python_examples_run():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    printed = ""
    for block in blocks:
        run = subprocess.run(
            [sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert (run.returncode, run.stderr) == (0, "")
        printed += run.stdout
    assert "<Prediction Qwen/Qwen3-8B on 1 x h100_sxm" in printed


def test_the_start_page_shows_what_the_readme_shows():
    shown = re.compile(r"```\n(Qwen/Qwen3-14B on 2 .*?)```", re.DOTALL)
    pages = [(ROOT / name).read_text() for name in ("README.md", "docs/index.md")]
    readme, start = (shown.search(page)[1] for page in pages)
    assert start == readme
