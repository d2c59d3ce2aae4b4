"""The README's Python runs as it stands."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_python_examples_run(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert "<Prediction Qwen/Qwen3-8B on 1 x h100_sxm" in capsys.readouterr().out
