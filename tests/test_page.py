"""The page: tables that are looked up in a browser, and what they say of their error."""

import html
import importlib.util
import json
import math
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_names import served_as
from typer.testing import CliRunner

import physim
from physim.cli import app
from physim.errors import InputError
from physim.page import document
from physim.page.build import predicted
from physim.page.document import write_page
from physim.page.interpolation import cubic, look_up
from physim.page.tables import Packed
from physim.prediction.commands import in_shell
from physim.printable import printable

numbers = st.floats(-10, 10).map(lambda x: round(x, 3))


@given(st.lists(numbers, min_size=4, max_size=4), st.floats(0, 1))
def test_the_cubic_never_overshoots(values, share):
    before, left, right, after = np.array(values)[:, None]
    (found,) = cubic(before, left, right, after, np.array([share]))
    assert min(left[0], right[0]) - 1e-9 <= found <= max(left[0], right[0]) + 1e-9


def test_the_cubic_goes_through_its_points_and_straight_lines():
    table = np.array([[0.0, 1.0, 4.0, 9.0, 16.0], [3.0, 5.0, 7.0, 9.0, 11.0]])
    rows, places = np.array([0, 0, 0, 1, 1]), np.array([0.0, 2.0, 4.0, 0.25, 3.75])
    np.testing.assert_allclose(look_up(table, rows, places), [0, 4, 16, 3.5, 10.5])
    # Slopes 3 and 5 on both sides of 4 and 5 and 7 of 9 have harmonic means of 15/4 and 35/6:
    # half way there is 6.5 + (15/4 - 35/6) / 8.
    (half,) = look_up(table, np.array([0]), np.array([2.5]))
    assert half == pytest.approx(6.5 + (3.75 - 35 / 6) / 8)


def test_a_table_is_held_at_its_edges_and_empty_beyond_what_fits():
    table = np.array([[[1.0, 2.0], [3.0, np.nan], [5.0, np.nan]]])
    rows = np.zeros(4, int)
    found = look_up(table, rows, np.array([-3.0, 9.0, 1.0, 1.0]), np.array([0.0, 0.0, 0.5, 0.0]))
    np.testing.assert_allclose(found, [1, 5, np.nan, 3])


def test_packed_tables_are_exact_to_16_bits():
    rng = np.random.default_rng(0)
    table, parts = rng.normal(size=(2, 3, 4)), rng.uniform(size=(2, 3))
    table[0, 1, 2] = np.nan
    found = Packed.from_named({"itl": table, "parts": parts}).unpacked()
    np.testing.assert_allclose(found["itl"], table, atol=np.nanmax(np.abs(table)) / 2**15)
    np.testing.assert_allclose(found["parts"], parts, atol=1e-4)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page of two servers, its file, and all that it holds."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    found = predicted(
        "Qwen/Qwen3-8B",
        gpus=["h100_sxm"],
        tps=[1, 2],
        inputs=(256, 4096),
        outputs=(32, 512),
        prices={"h100_sxm": 2.5},
        max_num_seqs=256,
        max_num_batched_tokens=8192,
    )
    write_page(found, path)
    return path, found


@pytest.mark.slow
def test_a_page_is_one_file_that_loads_nothing(page):
    text = page[0].read_text()
    facts = json.loads(re.search(r'id="facts">(.*?)</script>', text, re.S)[1])
    assert [group["layout"] for group in facts["groups"]] == ["tp 1", "tp 2"]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.search(r'(src|href)="(?!data:)', text)
    # Nothing of the template is left.
    assert "$" + "script" not in text


@pytest.mark.slow
def test_names_on_a_page_are_text(page, tmp_path):
    _, found = page
    evil = "</title></script><script>alert(1)</script>\x1b[31m\u202e $facts ${x}' \u2028"

    def named(case):
        gpu = replace(case.server.gpu, name=evil)
        return served_as(case, evil, gpu=gpu)

    path = tmp_path / "page.html"
    groups, servers = ([named(case) for case in own] for own in (found.groups, found.servers))
    asked = replace(found.asked, model=evil)
    write_page(replace(found, groups=groups, servers=servers, asked=asked, refused=[evil]), path)
    text = path.read_text()
    assert text.count("<script") == page[0].read_text().count("<script")
    assert printable(html.escape(evil)) in text
    facts = json.loads(re.search(r'id="facts">(.*?)</script>', text, re.S)[1])
    assert facts["gpus"] == {"h100_sxm": printable(evil)}
    assert facts["refused"] == [printable(evil)]
    assert facts["command"] == f"physim predict {in_shell([evil])}"


def test_scripts_make_text_of_text():
    """A page puts what it is told into elements as text, never as HTML."""
    scripts = "".join(path.read_text() for path in Path(document.__file__).parent.glob("*.js"))
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in scripts


@pytest.mark.slow
def test_tables_are_exact_at_their_points_and_near_between_them(page):
    import physim

    _, found = page
    axes = found.tables.axes
    inputs, outputs = 2 ** axes.inputs.points[3], 2 ** axes.outputs.points[1]
    case = found.servers[1]
    share = float(axes.shares[6])
    for lengths, off in (((inputs, outputs), 1e-3), ((700.0, 100.0), 0.02)):
        most = found.tables.saturation_of(*(np.array([one]) for one in (1, *lengths)))
        rate = share * float(most[0])
        options = {"arrival": "poisson", "max_num_seqs": 256, "max_num_batched_tokens": 8192}
        one = physim.predict(
            case.model.name,
            gpu="h100_sxm",
            tp=2,
            rate=rate,
            input_tokens=float(lengths[0]),
            output_tokens=float(lengths[1]),
            **options,
        )
        at = found.tables.look_up(*(np.array([own]) for own in (1, *lengths, rate)))
        assert at["itl"][0] == pytest.approx(one.itl_s, rel=off)
        assert at["ttft"][0] == pytest.approx(one.ttft_s, rel=2 * off)
        assert at["saturation"][0] == pytest.approx(one.saturation_rps, rel=off)


@pytest.mark.slow
def test_errors_are_small_far_from_saturation(page):
    below = page[1].errors["below"]
    for name in ("saturation", "ttft", "itl", "e2e"):
        median, often, most = below[name]
        assert 0 < median <= often <= most
        assert often < 0.06


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--input", "9"], "--input '9': is not FROM:TO; write, say, 128:8192"),
        (["--input", "900:100"], "--input 900:100: is no range from 1 on; give FROM:TO"),
        (["--output", "1:100"], "--output 1:100: is no range from 2 on; give FROM:TO"),
        (["--lengths", "nosuch"], "'nosuch': is no preset and no file"),
        (["--lengths", "sharegpt", "--cached", "9"], "--cached: is given by --lengths already"),
        (["--tps", "0"], "--tps: '0': is not a positive integer"),
        (["--gpus", "h1000"], "h1000"),
        (["--gpus", "l40s", "--tps", "1", "--max-model-len", "900000"], "900000"),
    ],
)
def test_bad_input_is_one_line(arguments, line, tmp_path):
    out = tmp_path / "page.html"
    found = CliRunner().invoke(app, ["page", "Qwen/Qwen3-8B", "--out", str(out), *arguments])
    assert isinstance(found.exception, InputError)
    assert line in str(found.exception)
    assert not out.exists()


@pytest.mark.slow
def test_a_page_of_requests_whose_lengths_go_together(tmp_path):
    import physim

    pairs = tmp_path / "my pairs.csv"
    rows = [f"{number},{1 + 3000 // number}" for number in range(100, 1100)]
    pairs.write_text("\n".join(["input_tokens,output_tokens", *rows]))
    out = tmp_path / "page.html"
    words = ["--gpus", "h100_sxm", "--tps", "1", "--input", "256:1024", "--output", "32:128"]
    words += ["--lengths", str(pairs), "--max-num-seqs", "256", "--max-num-batched-tokens", "2048"]
    words += ["--fit", "none", "--out", str(out)]
    done = CliRunner().invoke(app, ["page", "Qwen/Qwen3-8B", *words])
    assert done.exit_code == 0, done.output
    text = out.read_text()
    assert "Prompt tokens, mean" in text
    facts = json.loads(re.search(r'id="facts">(.*?)</script>', text, re.S)[1])
    command = shlex.split(facts["command"])
    assert command[-4:] == ["--lengths", str(pairs), "--fit", "none"]
    # A shell's command is the page's prediction.
    requests = physim.RequestLengths.read(pairs)
    limits = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    found = predicted(
        "Qwen/Qwen3-8B",
        gpus=["h100_sxm"],
        tps=[1],
        inputs=(256, 1024),
        outputs=(32, 128),
        lengths=requests,
        fit="none",
        **limits,
    )
    load = ["--rate", "3", "--input", "512", "--output", "64", "--arrival", "poisson", "--json"]
    words = [*command[1:], "--gpu", "h100_sxm", "--tp", "1", *load]
    words += [f"--{name.replace('_', '-')}={value}" for name, value in limits.items()]
    right = json.loads(CliRunner().invoke(app, words).stdout)
    one = found.tables.look_up(*(np.array([x]) for x in (0, 512.0, 64.0, 3.0)))
    for name in ("ttft", "itl", "e2e"):
        assert one[name][0] == pytest.approx(right[f"{name}_s"], rel=0.02), name
    # Long prompts have short outputs here: they decode at other contexts than those alike.
    alike = physim.predict(
        "Qwen/Qwen3-8B", gpu="h100_sxm", rate=3.0, input_tokens=512, output_tokens=64,
        arrival="poisson", fit="none", **limits,
    )  # fmt: skip
    assert abs(alike.e2e_s / right["e2e_s"] - 1) > 0.001


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"rate": 4.0}, "rate: is varied by the page"),
        ({"pp": 2}, "option 'pp': is unknown; did you mean pps?"),
        ({"gpus": []}, "page: has nothing to show"),
        (
            {"gpus": ["h100_sxm"], "prices": {"a100_sxm": 1.5}},
            "price of a100_sxm: is of no GPU of the page",
        ),
    ],
)
def test_what_a_page_is_not_given(options, line):
    with pytest.raises(InputError) as caught:
        predicted("Qwen/Qwen3-8B", **options)
    assert line in str(caught.value)


# ---- the live form ----


def test_the_live_form_predicts_what_is_chosen():
    pytest.importorskip("marimo", reason="needs marimo (extra `app`)")
    import physim
    from physim.page.live import app as live
    from physim.page.live import options_chosen

    _, found = live.run()
    chosen = found["deployment"].value | found["load"].value
    lengths = {name: float(chosen[name]) for name in ("input_tokens", "output_tokens")}
    assert chosen.pop("requests") == ""
    right = physim.predict("Qwen/Qwen3-8B", **{**chosen, **lengths})
    assert found["prediction"].ttft_s == pytest.approx(right.ttft_s, rel=1e-9)
    assert found["problem"] == ""
    joint = physim.Case.from_options(
        "Qwen/Qwen3-8B",
        **options_chosen(
            found["deployment"].value, {**found["load"].value, "requests": "sharegpt"}
        ),
    ).demanded
    assert joint.lengths.name == "sharegpt"
    assert joint.mean_output == pytest.approx(lengths["output_tokens"])
    shown, problem = live.run(
        defs={"given": {}, "model": "no/such-model", "fit": "default", "gpus": ["l40s"]}
    )
    assert problem["prediction"] is None
    assert "no/such-model" in problem["problem"]
    assert shown


def test_the_live_form_prices_a_million_generated_tokens():
    marimo = pytest.importorskip("marimo", reason="needs marimo (extra `app`)")
    import physim
    from physim.page.live import app as live
    from physim.page.live import said_cost

    _, found = live.run()
    assert (found["price"].value, found["cost"]) == (None, "")
    _, found = live.run(defs={"price": marimo.ui.number(value=-1.0)})
    assert found["cost"].startswith("price of a100_sxm: -1 is not positive")
    load = {"rate": 2.0, "input_tokens": 1000, "output_tokens": 200}
    case = physim.Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm", tp=2, **load)
    prediction = physim.predict(case)
    # Two GPUs for 3.60 an hour each cost 0.002 a second, and generate 400 tokens in it.
    least = 5.0 * 2.0 / prediction.saturation_rps
    assert said_cost(case, prediction, 3.6) == (
        f"Cost of a million generated tokens: 5; {least:.3g} at saturation"
    )


def test_the_live_form_draws_every_layout_of_a_node():
    pytest.importorskip("marimo", reason="needs marimo (extra `app`)")
    from physim.page.live import elsewhere

    load = {"rate": 1.0, "input_tokens": 500, "output_tokens": 100, "tp": 8, "max_model_len": 4096}
    cases = elsewhere("Qwen/Qwen3-14B", ["h100_sxm"], load)
    layouts = {str(case.server.parallelism) for case in cases}
    assert len(cases) == len(layouts) == 9
    assert {"tp 1", "tp 8", "tp 2, pp 4"} <= layouts


def test_the_live_form_is_served_by_marimo(monkeypatch):
    pytest.importorskip("marimo", reason="needs marimo (extra `app`)")
    called = []

    def run(words, **_):
        called.append(words)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", run)
    words = ["app", "Qwen/Qwen3-8B", "--gpus", "h100,l40s", "--no-open", "--port", "4000"]
    assert CliRunner().invoke(app, words).exit_code == 0
    (words,) = called
    assert words[1:4] == ["-m", "marimo", "run"]
    assert words[words.index("--") + 1 :] == [
        *("--model", "Qwen/Qwen3-8B", "--fit", "default", "--gpus", "h100_sxm,l40s"),
    ]


def test_the_live_form_says_what_it_lacks(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    found = CliRunner().invoke(app, ["app", "Qwen/Qwen3-8B"])
    assert str(found.exception) == "physim app: needs marimo; pip install 'physim-llm[app]'"


# ---- in a browser ----


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (extra `dev`)")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("needs Chromium or Chrome on the path")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, page):
    """Opens the page from its file; fails where the browser complains."""
    complaints, contexts = [], []

    def open_page(**how):
        context = browser.new_context(**how)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda said: complaints.append(said.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto(page[0].as_uri() + how.get("hash", ""))
        tab.wait_for_selector("html[data-ready=true]")
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


def shown(tab, name):
    text = tab.get_attribute(f"#{name}", "data-value")
    return float(text) if text else None


def full_model(tab):
    """What the command on the page prints."""
    words = shlex.split(tab.inner_text("#command"))
    assert words[0] == "physim"
    found = CliRunner().invoke(app, [*words[1:], "--json"])
    assert found.exit_code == 0, found.output
    return json.loads(found.output)


def settle(tab):
    tab.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.mark.slow
def test_sliders_move_numbers_that_are_the_models(opened, page):
    tab, errors = opened(), page[1].errors
    moves = [
        lambda: None,
        lambda: [tab.focus("#rate"), *[tab.keyboard.press("ArrowRight") for _ in range(12)]],
        lambda: [tab.focus("#input"), *[tab.keyboard.press("ArrowLeft") for _ in range(25)]],
        lambda: [tab.focus("#output"), *[tab.keyboard.press("ArrowRight") for _ in range(40)]],
        lambda: tab.select_option("#layout", "tp 2"),
        lambda: tab.fill("#input-typed", "3000"),
        lambda: tab.fill("#count", "3"),
    ]
    seen = set()
    for move in moves:
        move()
        settle(tab)
        right = full_model(tab)
        share = right["load"]["rate"] / right["saturation_rps"]
        off = errors["below" if share < 0.8 else "above"]
        for name, key in (
            ("ttft", "ttft_s"),
            ("itl", "itl_s"),
            ("e2e", "e2e_s"),
            ("saturation", "saturation_rps"),
        ):
            assert shown(tab, name) == pytest.approx(right[key], rel=off[name][2]), name
        low, high = right["intervals"]["itl_s"]
        said = re.match(r"90%: (\S+) ms to (\S+) ms", tab.inner_text("#itl-more"))
        assert float(said[1]) == pytest.approx(low * 1e3, rel=0.2)
        # Upper ends are steep between the points near the capacity.
        assert float(said[2]) == pytest.approx(high * 1e3, rel=0.2)
        seen.add(shown(tab, "e2e"))
    assert len(seen) == len(moves)


@pytest.mark.slow
def test_above_capacity_there_is_no_latency(opened):
    tab = opened()
    tab.fill("#rate-typed", "100000")
    settle(tab)
    assert "Above capacity" in tab.inner_text("#warning")
    assert shown(tab, "ttft") is None
    right = full_model(tab)
    assert right["saturated"]
    assert shown(tab, "itl") == pytest.approx(right["itl_s"], rel=0.02)


@pytest.mark.slow
def test_near_saturation_the_last_point_is_shown(opened):
    tab = opened()
    tab.fill("#rate-typed", str(0.995 * shown(tab, "saturation")))
    settle(tab)
    assert "So near to saturation" in tab.inner_text("#warning")
    assert shown(tab, "ttft") > 0


@pytest.mark.slow
def test_a_price_is_typed_and_kept(opened):
    tab = opened()
    tab.fill("#price", "")
    tab.focus("#price")
    tab.keyboard.type("12.75")
    settle(tab)
    assert tab.input_value("#price") == "12.75"
    rate, output = (float(tab.input_value(f"#{name}-typed")) for name in ("rate", "output"))
    cost = shown(tab, "cost")
    assert cost == pytest.approx(12.75 / 3600 / (rate * output) * 1e6, rel=5e-3)
    tab.reload()
    tab.wait_for_selector("html[data-ready=true]")
    assert tab.input_value("#price") == "12.75"


@pytest.mark.slow
def test_servers_that_keep_to_objectives_are_those_of_capacity(opened):
    tab = opened()
    assert tab.inner_text("#needed-more") == "give an objective"
    tab.fill("#rate-typed", "60")
    tab.fill("#slo-itl", "9")
    settle(tab)
    prompt, output = (float(tab.input_value(f"#{name}-typed")) for name in ("input", "output"))
    server = {"gpu": "h100_sxm", "max_num_seqs": 256, "max_num_batched_tokens": 8192}
    load = {"input_tokens": prompt, "output_tokens": output}
    most = physim.capacity("Qwen/Qwen3-8B", slo=["itl_mean=9ms"], **server, **load).rate_rps
    each = float(re.search(r"one takes ([\d.]+)/s", tab.inner_text("#needed-more"))[1])
    assert each == pytest.approx(most, rel=0.02)
    assert shown(tab, "needed") == math.ceil(60 / each)
    assert "ITL missed with 1" in tab.inner_text("#needed-more")
    address = tab.url
    tab.fill("#slo-itl", "0.1")
    settle(tab)
    assert shown(tab, "needed") is None
    assert "missed at any load" in tab.inner_text("#needed-more")
    tab.goto(address.replace("seqs=256", "seqs=200"))
    settle(tab)
    assert tab.input_value("#slo-itl") == "9"
    assert "no max-num-seqs of 200: this is 256" in tab.inner_text("#warning")


@pytest.mark.slow
def test_the_best_of_all_is_below_no_line(opened):
    tab = opened()
    best, lines = tab.evaluate(
        """() => {
          const paths = [...document.querySelectorAll("#pareto-picture path")];
          const pair = (at) => at.split(" ").map(Number);
          const points = paths.map((path) => path.getAttribute("d").slice(1).split("L").map(pair));
          return [points.at(-1), points.slice(0, -1).flat()];
        }"""
    )
    best = np.array(sorted(best))
    for x, y in lines:
        if best[0, 0] <= x <= best[-1, 0]:
            # Down is more on a screen.
            assert np.interp(x, *best.T) <= y + 2


@pytest.mark.slow
def test_the_address_holds_what_is_chosen(opened):
    tab = opened()
    tab.select_option("#layout", "tp 2")
    tab.fill("#rate-typed", "2.5")
    settle(tab)
    address, ttft = tab.url, shown(tab, "ttft")
    other = opened()
    other.goto(address)
    other.reload()
    other.wait_for_selector("html[data-ready=true]")
    assert shown(other, "ttft") == pytest.approx(ttft, rel=1e-6)
    assert other.input_value("#layout") == "tp 2"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_fits_its_window_in_both_themes(opened, scheme, width):
    tab = opened(viewport={"width": width, "height": 844}, color_scheme=scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 26)")
    tab.click("#theme")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != paper
    cost = shown(tab, "cost")
    gpus, rate, output = (
        1,
        float(tab.input_value("#rate-typed")),
        float(tab.input_value("#output-typed")),
    )
    assert cost == pytest.approx(2.5 * gpus / 3600 / (rate * output) * 1e6, rel=1e-3)
    assert not math.isnan(cost)


@pytest.mark.slow
def test_layouts_are_chosen_by_name(browser, tmp_path):
    out = tmp_path / "page.html"
    words = (
        "page Qwen/Qwen3-30B-A3B --gpus h100_sxm,h200_sxm --tps 1,2 --pps 2 --eps 1,2 --fit none"
    )
    words += " --input 256:1024 --output 32:128 --max-num-seqs 256 --max-num-batched-tokens 8192"
    done = CliRunner().invoke(app, [*words.split(), "--out", str(out)])
    assert done.exit_code == 0, done.output
    line = "left out: 2 x h100_sxm (tp 1, pp 2, ep 2): ep: 2 does not divide the 1 GPUs"
    assert done.stderr.count(line) == 1
    with browser.new_context() as context:
        tab = context.new_page()
        tab.goto(out.as_uri())
        tab.wait_for_selector("html[data-ready=true]")
        names = tab.eval_on_selector_all("#layout option", "all => all.map((one) => one.value)")
        assert names == ["tp 1, pp 2", "tp 2, pp 2", "tp 2, pp 2, ep 2"]
        tab.select_option("#layout", names[2])
        # Another GPU has the same layout.
        tab.select_option("#gpu", "h200_sxm")
        settle(tab)
        assert tab.input_value("#layout") == names[2]
        assert " --gpu h200_sxm --tp 2 --pp 2 --ep 2 " in tab.inner_text("#command")
        right = full_model(tab)
        assert shown(tab, "itl") == pytest.approx(right["itl_s"], rel=0.05)
        assert shown(tab, "saturation") == pytest.approx(right["saturation_rps"], rel=0.05)
        # The address keeps it.
        tab.reload()
        tab.wait_for_selector("html[data-ready=true]")
        assert tab.input_value("#layout") == names[2]
        # A pipeline keeps up to its saturation throughput, and no further.
        tab.fill("#rate-typed", str(0.95 * shown(tab, "saturation")))
        settle(tab)
        assert shown(tab, "ttft") == pytest.approx(full_model(tab)["ttft_s"], rel=0.2)
        tab.fill("#rate-typed", str(1.05 * shown(tab, "saturation")))
        settle(tab)
        assert tab.inner_text("#warning").startswith("Above capacity: the queue grows without end.")
        assert shown(tab, "ttft") is None
        assert full_model(tab)["saturated"]
