"""What takes longer than people wait says so: on stderr that is no terminal, and in notebooks."""

import sys
import time
import types

import physim
from physim import progress
from physim.cli.progress import counting, running


def test_a_block_that_lasts_says_what_it_does_from_time_to_time(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_S", 0.05)
    with running("searching") as say:
        say("servers\x1b[31m")
        time.sleep(0.3)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "physim: searching: servers\\x1b[31m, 0 s so far\n"


def test_what_is_counted_is_said_with_its_number(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_S", 0.05)
    with counting("tabulating", 3) as say:
        say("one")
        say("two")
        time.sleep(0.3)
    assert capsys.readouterr().err == "physim: tabulating: two (2/3), 0 s so far\n"


def test_a_block_that_ends_soon_says_nothing(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_S", 5.0)
    with running("searching"):
        pass
    assert capsys.readouterr().err == ""


def test_ticks_end_with_the_block():
    ticks = []
    with progress.ticking(ticks.append, 0.02, 0.02):
        time.sleep(0.2)
    seen = len(ticks)
    time.sleep(0.1)
    assert seen == len(ticks) >= 2
    assert ticks == sorted(ticks)


class Shown:
    """What a notebook displays, and how it changes."""

    def __init__(self):
        self.texts = []

    def display(self, text, **_):
        self.texts.append(text["text/plain"])
        return self

    update = display


def test_a_notebook_shows_the_outermost_function_alone(monkeypatch):
    shown = Shown()
    shell = types.SimpleNamespace(kernel=None)
    ipython = types.SimpleNamespace(get_ipython=lambda: shell, display=shown)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.02)

    @progress.told_in_notebooks("inside")
    def inner():
        time.sleep(0.2)
        return 1

    @progress.told_in_notebooks("outside")
    def outer():
        return inner() + 1

    assert outer() == 2
    assert shown.texts == ["physim: outside, 0 s", ""]


def test_elsewhere_a_function_is_called_as_it_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    assert progress.told_in_notebooks("adding")(sum)([1, 2]) == 3


def test_the_longest_public_functions_tell_what_they_do():
    for name in ("fit", "crossval", "evaluate", "recommend", "scale", "sweep", "predict_trace"):
        assert hasattr(getattr(physim, name), "__wrapped__"), name
