"""Data folders in a checkout and in a wheel, and files that are whole or absent."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from physim import data
from physim.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("hardware", "model_configs", "bench_data", "fits")


def test_the_folders_of_this_installation():
    for name in FOLDERS:
        assert data.folder(name).is_dir()
    assert "h100_sxm" in data.names("hardware", ".json")


@pytest.mark.slow
def test_a_wheel_carries_its_data(tmp_path):
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("physim_llm-*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"physim"}
    assert (next(site.glob("*.dist-info")) / "licenses" / "NOTICE").is_file()
    code = (
        "import physim, physim.data as d\n"
        f"assert all('site' in str(d.folder(n)) for n in {FOLDERS})\n"
        "print(physim.predict('Qwen/Qwen3-8B', gpu='h100_sxm', rate=1, input_tokens=100,"
        " output_tokens=100).itl_s)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site), "PATH": ""},
        check=True,
        capture_output=True,
        text=True,
    )
    assert 0 < float(run.stdout) < 1


def test_replacing_writes_all_or_nothing(tmp_path):
    path = tmp_path / "out.json"
    with data.replacing(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o444

    def interrupted():
        with data.replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_to(tmp_path):
    with (
        pytest.raises(InputError, match="choose a folder that can be written to"),
        data.replacing(tmp_path / "no" / "out.json"),
    ):
        pass
