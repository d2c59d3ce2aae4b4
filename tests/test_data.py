"""Data folders in a checkout and in a wheel, and files that are whole or absent."""

import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
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


# Writes a file and a folder again and again, a part at a time.
WRITER = """
import sys, time
from pathlib import Path
from physim import data

place = Path(sys.argv[1])
for number in range(10**6):
    with data.replacing(place / "file") as path, path.open("w") as file:
        for _ in range(20):
            print(number, file=file, flush=True)
            time.sleep(0.0005)
    with data.replacing_folder(place / "folder", force=True) as folder:
        for name in range(20):
            (folder / str(name)).write_text(str(number))
            time.sleep(0.0005)
    print(number, flush=True)
"""


def test_what_is_killed_leaves_what_is_whole(tmp_path):
    rng = np.random.default_rng(0)
    out, temporary = tmp_path / "out", tmp_path / "temporary"
    out.mkdir(), temporary.mkdir()
    for wait in rng.uniform(0, 0.06, 10):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(out)],
            stdout=subprocess.PIPE,
            env=os.environ | {"TMPDIR": str(temporary)},
        ) as process:
            process.stdout.readline()
            time.sleep(wait)
            process.kill()
        numbers = (out / "file").read_text().split()
        assert len(numbers) == 20
        assert len(set(numbers)) == 1
        files = sorted(out.joinpath("folder").iterdir())
        assert len(files) == 20
        assert len({path.read_text() for path in files}) == 1
        assert sorted(path.name for path in out.iterdir()) == ["file", "folder"]
    # What was under way goes with the next that writes.
    assert len(list(temporary.iterdir())) <= 1


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no second file system")
def test_what_is_made_on_another_disk(tmp_path, monkeypatch):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        monkeypatch.setattr(tempfile, "tempdir", elsewhere)
        for number in range(2):
            with data.replacing(tmp_path / "file") as path:
                path.write_text(str(number))
            with data.replacing_folder(tmp_path / "folder", force=True) as folder:
                (folder / str(number)).write_text("")
        assert list(Path(elsewhere).iterdir()) == []
    assert (tmp_path / "file").read_text() == "1"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_folder_that_cannot_be_written_to(tmp_path):
    with (
        pytest.raises(InputError, match="no is not a folder; make it, or choose another"),
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
