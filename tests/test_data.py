"""Data folders in a checkout and in a wheel, and files that are whole or absent."""

import json
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

from physim import data
from physim.errors import InputError
from physim.measured.stage_report import write_rows

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("hardware", "engines", "model_configs", "bench_data", "fits")


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


def test_a_link_stays_one_and_a_file_keeps_its_permissions(tmp_path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("{}")
    target.chmod(0o600)
    link.symlink_to(target)
    data.write_json(link, {"a": 1})
    assert link.is_symlink()
    assert json.loads(target.read_text()) == {"a": 1}
    assert target.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "target.json"]


def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        data.write_json(pipe, {"a": 1})
        assert json.loads(read.result(10)) == {"a": 1}
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    "text", ['{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", f'{{"a": {"9" * 5000}}}']
)
def test_json_that_is_too_much(tmp_path, text):
    path = tmp_path / "much.json"
    path.write_text(text)
    with pytest.raises(InputError, match="is nested too deeply, or holds too long a number"):
        data.read_json(path)


def test_rows_that_many_append_are_all_there(tmp_path):
    path = tmp_path / "runs.csv"

    def append(number):
        write_rows(path, pd.DataFrame([{"experiment": f"run {number}"}]), append=True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(append, range(40)))
    assert sorted(pd.read_csv(path)["experiment"]) == sorted(f"run {n}" for n in range(40))
    assert [path.name for path in tmp_path.iterdir()] == ["runs.csv"]
