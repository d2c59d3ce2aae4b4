"""The documentation is short and names all that is public; `mkdocs build --strict` checks more."""

import re
from pathlib import Path

import pytest
import typer

import physim
import physim.plot
from physim.cli import app
from physim.step.lowering import PARTS

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))


def test_what_there_is_to_read_stays_short():
    def words(paths):
        return sum(len(path.read_text().split()) for path in paths)

    assert words([ROOT / "README.md"]) <= 650
    docs = ROOT / "docs"
    # Notebooks have no pages, but what they export has.
    others = {docs / "lab", docs / "notebooks"}
    pages = [path for path in docs.rglob("*.md") if others.isdisjoint(path.parents)]
    assert words(pages) <= 18_000


@pytest.mark.parametrize("name", physim.__all__)
def test_public_names_are_in_the_reference(name):
    assert re.search(rf"^::: physim\.{name}$", REFERENCE, re.MULTILINE), name
    assert getattr(physim, name).__doc__


@pytest.mark.parametrize("name", physim.plot.__all__)
def test_pictures_are_in_the_reference(name):
    assert f"::: physim.plot.{name}\n" in REFERENCE


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_a_step_have_a_picture_in_the_physics(part):
    assert f"(images/{part}.png)" in (ROOT / "docs" / "physics.md").read_text()
    assert (ROOT / "docs" / "images" / f"{part}.png").is_file()


def test_parts_of_the_physics_say_the_same_four_things():
    for page in ("physics.md", "serving.md"):
        text = (ROOT / "docs" / page).read_text()
        for section in re.split(r"^##+ ", text, flags=re.MULTILINE):
            said = re.findall(r"^- \*\*(\w[\w ]*)\*\*:", section, re.MULTILINE)
            assert said in ([], ["Formula", "Source", "Constants", "Known miss"]), section[:60]


def leaves(command, *names):
    """Every command that does something, with its words."""
    for name, own in getattr(command, "commands", {}).items():
        if hasattr(own, "commands"):
            yield from leaves(own, *names, name)
        else:
            yield pytest.param(" ".join([*names, name]), own, id=" ".join([*names, name]))


@pytest.mark.parametrize(("words", "command"), [*leaves(typer.main.get_command(app))])
def test_commands_are_in_the_reference_and_have_an_example(words, command):
    assert f"`{words}`" in REFERENCE
    assert f"For example:\n\nphysim {words}" in command.help
