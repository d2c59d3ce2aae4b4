"""What stands beside the code: pinned versions, and where shipped data come from."""

import csv
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from physim import data
from physim.models.aliases import aliases

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
)
REQUIREMENTS = [
    Requirement(line)
    for lines in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for line in lines
]


@pytest.mark.parametrize(
    "needed", [one for one in REQUIREMENTS if one.name != "physim-llm"], ids=str
)
def test_every_dependency_is_pinned_to_a_version_that_it_allows(needed):
    assert PINS[canonicalize_name(needed.name)] in needed.specifier


def test_the_commands_that_install_take_the_pinned_versions():
    for name in ("README.md", "CONTRIBUTING.md", ".ci/run"):
        installs = re.findall(r"pip\"? install .*-e .*", (ROOT / name).read_text())
        assert any("-c constraints.txt" in line for line in installs), name


def test_every_shipped_configuration_names_its_repository_and_licence():
    with (data.folder("model_configs") / "origins.csv").open() as file:
        rows = {row["config"]: row for row in csv.DictReader(file)}
    assert sorted(rows) == data.names("model_configs", ".json")
    for name, row in rows.items():
        assert row["repository"] == "https://huggingface.co/" + name.replace("--", "/", 1)
        assert row["licence"]


def test_every_alias_names_shipped_files_and_how_that_is_known():
    configs, sampled = data.names("model_configs", ".json"), data.folder("model_configs/generation")
    known = aliases()
    assert list(known) == sorted(known)
    for name, alias in known.items():
        assert name.replace("/", "--", 1) not in configs
        assert alias.config.replace("/", "--", 1) in configs
        defaults = sampled / f"{alias.generation.replace('/', '--', 1)}.json"
        assert not alias.generation or defaults.is_file()
        assert alias.source


def test_every_folder_of_data_is_in_the_notice():
    notice = (ROOT / "NOTICE").read_text()
    for folder in ("bench_data/", "hardware/", "engines/", "model_configs/", "fits/"):
        assert folder in notice
