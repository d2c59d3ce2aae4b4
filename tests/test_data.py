"""Data folders in a checkout and in a wheel, and files that are whole or absent."""

import json
import os
import shutil
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

from physim import cli, data, workshop
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
import shutil, sys, tempfile, time
from pathlib import Path
from physim import data

def slowly(source, target, length=0):
    for line in source:
        target.write(line)
        target.flush()
        time.sleep(0.0005)

shutil.copyfileobj = slowly
place, kind = Path(sys.argv[1]), sys.argv[2]
for number in range(10**6):
    if kind == "file":
        with data.replacing(place / "file") as path, path.open("w") as file:
            for _ in range(20):
                print(number, file=file, flush=True)
                time.sleep(0.0005)
    else:
        with data.replacing_folder(place / "folder", force=True) as folder:
            for name in range(20):
                (folder / str(name)).write_text(str(number))
                time.sleep(0.0005)
    print(number, flush=True)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("disk", ["same", "other"])
def test_what_is_killed_leaves_what_is_whole(tmp_path, monkeypatch, kind, disk):
    out, temporary = tmp_path / "out", tmp_path / "temporary"
    out.mkdir()
    if disk == "other":
        temporary = shared_memory()
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for wait in np.random.default_rng(0).uniform(0, 0.04, 5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(out), kind],
            stdout=subprocess.PIPE,
            env=os.environ | {"TMPDIR": str(temporary)},
        ) as process:
            process.stdout.readline()
            time.sleep(wait)
            process.kill()
        if kind == "file":
            numbers = (out / "file").read_text().split()
            # A whole copy may be there that has its name from one call of the system to the next.
            left = [path for path in out.iterdir() if path.name != "file"]
            assert all(disk == "other" and len(path.read_text().split()) == 20 for path in left)
        else:
            numbers = [path.read_text() for path in out.joinpath("folder").iterdir()]
        assert len(numbers) == 20
        assert len(set(numbers)) == 1
    # What was under way goes with the next that writes.
    with data.replacing_folder(out / "folder", force=True) as folder:
        (folder / "1").write_text("1")
    # An empty folder may be there that was killed before its marker was written, or after it went.
    assert with_content(temporary) == []
    assert "1" in [path.name for path in with_content(out)]
    shutil.rmtree(temporary)


@pytest.mark.skipif(sys.platform != "linux", reason="exchanges names on Linux")
def test_a_folder_is_replaced_at_once(tmp_path, monkeypatch):
    """Between two renames there would be none, and a process may be killed there."""
    out = tmp_path / "out"
    for number in ("1", "2"):
        with data.replacing_folder(out, force=True) as folder:
            (folder / number).touch()
        monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("renamed"))
    assert [path.name for path in out.iterdir()] == ["2"]
    assert list(tmp_path.iterdir()) == [out]


def with_content(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]


def shared_memory() -> Path:
    """A place for a folder on another disk."""
    if not Path("/dev/shm").is_dir():
        pytest.skip("needs a second file system at /dev/shm")
    return Path(tempfile.mkdtemp(dir="/dev/shm")) / "temporary"


def test_what_is_made_on_another_disk(tmp_path, monkeypatch):
    elsewhere = shared_memory()
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    for number in range(2):
        with data.replacing(tmp_path / "file") as path:
            path.write_text(str(number))
        with data.replacing_folder(tmp_path / "folder", force=True) as folder:
            (folder / str(number)).write_text("")
    assert list(elsewhere.iterdir()) == []
    shutil.rmtree(elsewhere.parent)
    assert (tmp_path / "file").read_text() == "1"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_disk_without_unnamed_files(tmp_path, monkeypatch):
    elsewhere = shared_memory()
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    monkeypatch.delattr(os, "O_TMPFILE")
    with data.replacing(tmp_path / "file") as path:
        path.write_text("1")
    shutil.rmtree(elsewhere.parent)
    assert (tmp_path / "file").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def left_behind(temporary: Path) -> Path:
    """A workshop whose maker is gone."""
    with workshop.workshop() as place:
        shutil.copytree(place, temporary / "copy")
    return (temporary / "copy").rename(place)


def write(tmp_path: Path) -> None:
    data.write_json(tmp_path / "out.json", {})


def test_a_workshop_that_was_left_behind_goes(temporary, tmp_path):
    left = left_behind(temporary)
    assert left.is_dir()
    write(tmp_path)
    assert not left.exists()


@pytest.mark.usefixtures("temporary")
def test_a_workshop_in_use_stays(tmp_path):
    with workshop.workshop() as place:
        write(tmp_path)
        assert place.is_dir()


@pytest.mark.parametrize(
    "name",
    ["physim-2026-results", "physim-99999999999999999999", "physim-1", "physim--", "physim-²"],
)
@pytest.mark.parametrize("kind", ["folder", "file", "link", "pipe for a marker", "a copied marker"])
def test_what_others_made_stays(temporary, tmp_path, name, kind):
    place, elsewhere = temporary / name, tmp_path / "elsewhere"
    elsewhere.mkdir()
    if kind == "file":
        place.write_text("results")
    elif kind == "link":
        left = left_behind(temporary)
        shutil.copytree(left, elsewhere, dirs_exist_ok=True)
        place.symlink_to(elsewhere)
    else:
        place.mkdir()
        (place / "results.csv").write_text("1")
        if kind == "pipe for a marker":
            os.mkfifo(place / ".physim-workshop")
        elif kind == "a copied marker":
            shutil.copy(left_behind(temporary) / ".physim-workshop", place)
    before = sorted(elsewhere.rglob("*")) + sorted(place.rglob("*"))
    write(tmp_path)
    assert place.exists()
    assert sorted(elsewhere.rglob("*")) + sorted(place.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who alone can give files away")
def test_a_workshop_of_another_user_stays(temporary, tmp_path):
    left = left_behind(temporary)
    os.chown(left, 12345, -1)
    write(tmp_path)
    assert left.is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who alone can give files away")
@pytest.mark.parametrize("disk", ["same", "other"])
def test_a_file_keeps_its_owner_and_group(tmp_path, monkeypatch, disk):
    place = tmp_path if disk == "same" else shared_memory().parent
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    path = tmp_path / "out.json"
    path.write_text("{}")
    os.chown(path, 12345, 23456)
    path.chmod(0o640)
    write(tmp_path)
    status = path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (12345, 23456, 0o640)


def test_a_file_that_would_change_hands_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    path.write_text("theirs")
    own, theirs = os.stat_result, path.stat().st_uid + 1

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refuse)
    usual = Path.stat

    def stat(self, **kwargs):
        status = usual(self, **kwargs)
        return own((*status[:4], theirs, *status[5:])) if self == path else status

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(InputError, match=r"out.json: belongs to another user or group, which a"):
        write(tmp_path)
    assert path.read_text() == "theirs"


def test_a_folder_that_cannot_be_written_to(tmp_path):
    with (
        pytest.raises(InputError, match="no is not a folder; make it, or choose another"),
        data.replacing(tmp_path / "no" / "out.json"),
    ):
        pass


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full"
)
def test_a_full_disk_names_itself(tmp_path, monkeypatch, capsys):
    says = "the disk is full; make room on it, and among temporary files"
    with pytest.raises(InputError, match=f"^/dev/full: {says}"):
        data.write_json(Path("/dev/full"), {"a": "b" * 100_000})

    def no_room(*_):
        with open("/dev/full", "w") as disk:  # noqa: PTH123
            disk.write("a")

    path = tmp_path / "out"
    with pytest.raises(InputError, match=f"^{path}: {says}"), data.replacing(path):
        no_room()
    with pytest.raises(InputError, match=f"^{path}: {says}"), data.replacing_folder(path):
        no_room()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("physim.cli.app", no_room)
    # Nothing that a process sets for itself alone.
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("gc.set_threshold", lambda *_: None)
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert "error: stdout: the disk is full; make room on it" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nothere.json", "No such file or directory; check the path and its permissions"),
        ("", "Is a directory; check the path and its permissions"),
        ("a" * 300, "File name too long; check the path and its permissions"),
        ("a\0b", "is no file's name; check the path"),
    ],
)
def test_json_that_cannot_be_read_says_why(tmp_path, name, says):
    with pytest.raises(InputError, match=f"{says}$"):
        data.read_json(tmp_path / name)


def test_rows_that_many_append_are_all_there(tmp_path):
    path = tmp_path / "runs.csv"

    def append(number):
        write_rows(path, pd.DataFrame([{"experiment": f"run {number}"}]), append=True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(append, range(40)))
    assert sorted(pd.read_csv(path)["experiment"]) == sorted(f"run {n}" for n in range(40))
    assert [path.name for path in tmp_path.iterdir()] == ["runs.csv"]


def test_files_are_named_by_paths():
    with pytest.raises(InputError, match="tables: has a dict, which is no path"):
        data.paths_of([{}], "tables")
