"""Names of models, GPUs, fits and runs are shown as they are, and nothing in them is obeyed."""

import ast
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import unicodedata
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.text import Text
from test_evaluation import ROW

import physim
from physim import cli, data, plot
from physim.corrections.fields import Corrections
from physim.corrections.files import Fit
from physim.fitting.fit import Estimate, Outcome
from physim.grids.efficiency import Grid
from physim.inputs.profile import Window
from physim.measured.steps import MeasuredSteps
from physim.metrics import METRICS
from physim.models.lookup import checkpoint_of
from physim.plot import loads, report
from physim.plot.figures import literal, new_figure
from physim.plot.pareto import draw_tradeoff
from physim.prediction.commands import in_shell, manifest_of, serve_command
from physim.prediction.html import element, escaped
from physim.prediction.requests import Requests
from physim.prediction.results import (
    FIRST_TOKEN_PARTS,
    PoolPrediction,
    PoolTimeline,
    Prediction,
    StageLatencies,
    Timeline,
)
from physim.printable import printable
from physim.questions.capacity import Capacity
from physim.questions.choices import Choice, Recommendation
from physim.questions.comparison import Comparison
from physim.questions.elasticities import Elasticities
from physim.questions.objectives import Objective, Requirements
from physim.questions.pareto import Tradeoff
from physim.questions.schedule import ReplicaSchedule
from physim.questions.servers import Servers
from physim.service.service import Service
from physim.tables.table import Table
from physim.validation.crossval import Crossval
from physim.validation.evaluation import Evaluation
from physim.validation.step_errors import StepComparison, errors_of

NAMES = [
    *("[/x]", "[v2]", "[bold]", ":smile:", "%s", "{0}", "$x_{", "$x$", "_x", "--x", "a\\b"),
    *("<script>alert(1)</script>", '"><img src=x onerror=1>', "a'b; rm -rf", "a: b # c", "null"),
    *("\x1b[31m", "\x1b]0;t\x07", "\x9b31m", "\r", "\n", "\t", "\x7f", "\u202e", "\u2028"),
    *("\u200b", "\udcff", "模型"),
]
# All of it in one name, as a file may have that UTF-8 can write.
EVIL = "[/x]" + "".join(NAMES[1:-2]).replace("/", "")
SHOWN = printable(EVIL)
LOAD = ["--rate", "6", "--input", "786", "--output", "251"]


# ---- the edges ----


@pytest.mark.parametrize("name", NAMES)
def test_printable_text_is_one_line_without_control_characters(name):
    shown = printable(name)
    assert shown.splitlines() == [shown]
    assert not {unicodedata.category(letter) for letter in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert printable(shown) == shown
    # What can be printed stays; what cannot is written as Python writes it.
    assert shown == (name if name.isprintable() else repr(name)[1:-1])


class Elements(HTMLParser):
    """Elements with their attributes, and the text in them."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, [name for name, _ in attrs]))

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_html_is_text(name):
    page = Elements(element("p", name, element("b", name), class_=name))
    assert page.found == [("p", ["class"]), ("b", [])]
    assert page.text == 2 * printable(name)
    assert escaped(escaped(name)) == escaped(name)


def test_a_name_in_a_command_is_one_word_to_bash():
    line = in_shell(["printf", "%s\\0", *NAMES])
    assert line.isprintable()
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(name) for name in NAMES]


def served_as(case, name, **others):
    """A case whose model has another name."""
    server = replace(case.server, model=replace(case.model, name=name), **others)
    return replace(case, service=Service.single(server))


@pytest.mark.parametrize("name", [*NAMES, EVIL, "123", "Qwen/Qwen3-8B", "x" * 300])
def test_a_name_in_a_manifest_is_text(name, case):
    named = served_as(case, name)
    server, service = yaml.safe_load_all(manifest_of(named, 2))
    label = server["metadata"]["name"]
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", label)
    assert service["spec"]["selector"] == {"app": label}
    assert server["spec"]["replicas"] == 2
    (container,) = server["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["/bin/bash", "-c", serve_command(named)]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_the_usual_name_of_a_manifest_is_the_models(case):
    named = served_as(case, "Qwen/Qwen3-8B")
    assert '\n  name: "qwen3-8b"\n' in manifest_of(named, 1)


# ---- commands ----


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model, a GPU, a fit and measured runs that all have the name."""
    place = tmp_path_factory.mktemp("names")
    (place / EVIL).mkdir(parents=True)
    config = data.folder("model_configs") / "Qwen--Qwen3-8B.json"
    shutil.copy(config, place / EVIL / "config.json")
    gpu = data.read_json(data.folder("hardware") / "h100_sxm.json")
    (place / "gpu.json").write_text(json.dumps({**gpu, "key": EVIL, "name": EVIL}))
    Fit.from_corrections(EVIL, Corrections(lm_head=0.1)).write(place / EVIL / "fit.json")
    return place


@pytest.fixture(scope="module")
def model(place):
    return str(place / EVIL)


@pytest.fixture(scope="module")
def case(model, place):
    gpu = str(place / "gpu.json")
    return physim.Case.from_options(model, gpu=gpu, rate=6, input_tokens=786, output_tokens=251)


@pytest.fixture(scope="module")
def prediction(case):
    """Some numbers under the name, without the time to predict them."""
    latencies = {name: {"mean": 0.1, "p50": 0.1, "p99": 0.2} for name in METRICS}
    seconds = np.array([0.1])
    whole = StageLatencies(
        6.0, None, None, None, latencies, Requests(seconds, seconds, seconds, seconds)
    )
    pool = PoolPrediction(
        case.server,
        saturation_rps=20.0,
        batch=4.0,
        running=5.0,
        kv_use=0.1,
        hit_rate=0.0,
        mixed_share=0.2,
        step_s=0.01,
        step_parts_s={"mlp": 0.01},
    )
    return Prediction(
        model=case.model.name,
        load=case.load,
        fit=EVIL,
        method="fluid",
        ttft_s=0.1,
        ttft_parts_s=dict.fromkeys(FIRST_TOKEN_PARTS, 0.1 / 7),
        itl_s=0.01,
        e2e_s=1.0,
        requests_per_s=6.0,
        output_tokens_per_s=1506.0,
        saturated=False,
        pools=(pool,),
        whole=whole,
        stages=(),
        timeline=None,
        scenario=(f"a {EVIL}",),
        assumptions=(f"a {EVIL}",),
        extrapolations=(f"a {EVIL}, of which no kernel was measured",),
    )


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command as the shell does, in this process: its exit code, stdout and stderr."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(gc, "set_threshold", lambda *_: None)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["physim", *map(str, words)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        captured = capsys.readouterr()
        for stream in (captured.out, captured.err):
            assert all(line.isprintable() for line in stream.split("\n")), ascii(stream)
        return code, captured.out, captured.err

    return run


def test_models_are_shown(run, model):
    code, out, err = run("show", "models", model)
    assert (code, err) == (0, "")
    assert out.startswith(f"{printable(model)}\n  parameters")
    assert json.loads(run("show", "models", model, "--json")[1])["models"][0]["model"] == model


def test_a_fit_is_shown(run, place):
    code, out, err = run("show", "fit", place / EVIL / "fit.json")
    assert (code, err) == (0, "")
    assert f"{SHOWN}/fit.json: factors" in out


@pytest.mark.parametrize(
    "words",
    [
        ["show", "models", "{}"],
        ["show", "models", "./{}.json"],
        ["show", "fit", "{}"],
        ["grids", "show", "{}"],
        ["evaluate", "--data", "{}.csv"],
        ["report", "Qwen/Qwen3-8B", "--gpu", "{}.json", *LOAD, "--out", "a.html"],
        ["predict", "Qwen/Qwen3-8B", "--gpu", "h100", "--plot", "{}.doc"],
        ["page", "Qwen/Qwen3-8B", "--input", "{}", "--out", "a.html"],
    ],
)
def test_an_error_is_one_line_that_names_it(run, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in (EVIL, "[/x]", "[v2]", "a\nb", "\udcff"):
        code, out, err = run(*(word.replace("{}", name) for word in words))
        assert (code, out) == (1, "")
        (line,) = err.splitlines()
        assert line.startswith("physim: error: ")
        # A message may show the first characters of a value alone.
        assert printable(name)[:40] in line or repr(name)[1:40] in line


@pytest.mark.parametrize("words", [["{}"], ["show", "gpus", "{}"], ["show", "gpus", "--{}"]])
def test_a_command_that_is_not_understood_is_shown(run, words):
    code, out, err = run(*(word.replace("{}", "[/x]\x1b[31m") for word in words))
    assert (code, out) == (2, "")
    assert "[/x]" in err


def test_an_error_of_the_system_is_one_line(run, monkeypatch):
    import physim.measured.reports as module

    def fail(*_, **__):
        raise OSError(5, "Input/output error", EVIL)

    monkeypatch.setattr(module, "read_report", fail)
    words = ["data", "read", "vllm-bench", "r.json", "--model", "m", "--gpu", "h100"]
    code, _, err = run(*words, "--out", "runs.csv")
    assert code == 1
    assert err.startswith(f"physim: error: {SHOWN}: Input/output error")
    assert len(err.splitlines()) == 1


def test_a_prediction_is_shown(run, monkeypatch, place, model, prediction):
    monkeypatch.setattr(physim, "predict", lambda *_, **__: prediction, raising=False)
    words = ["predict", model, "--gpu", place / "gpu.json", *LOAD]
    code, out, err = run(*words, "--slo", "ttft=500ms", "--serve-command")
    named, lacks = checkpoint_of(str(model))
    assert (code, err) == (0, f"physim: note: {printable(lacks)}\n" if lacks else "")
    lines = out.splitlines()
    assert lines[0].startswith(f"{printable(model)} on 1 x {SHOWN}, 6 req/s, Poisson arrivals")
    assert lines[0].endswith(f"fit: {SHOWN}")
    assert f"Assumed, as not given: a {SHOWN}." in lines
    assert f"Note: a {SHOWN}." in lines
    assert f"Beyond what was measured: a {SHOWN}, of which no kernel was measured." in lines
    serve, bench = lines[-2:]
    assert serve.startswith(f"vllm serve {in_shell([named])} --tensor")
    assert bench.startswith(f"vllm bench serve --model {in_shell([named])} --dataset")
    found = json.loads(run(*words, "--json")[1])
    assert (found["model"], found["pools"][0]["gpu"], found["fit"]) == (model, EVIL, EVIL)


def test_a_load_that_ends_is_shown(run, monkeypatch, place, model, prediction):
    timeline = Timeline(*([0.0, 1.0] for _ in range(6)))
    ends = replace(prediction, timeline=timeline)
    monkeypatch.setattr(physim, "predict", lambda *_, **__: ends, raising=False)
    out = run("predict", model, "--gpu", place / "gpu.json", *LOAD)[1]
    assert "such a load, if it stayed:" in out


def test_a_capacity_is_shown(run, monkeypatch, place, model, prediction):
    found = Capacity(9.0, EVIL, (Objective("e2e", "mean", 1.0),), None, (8.0, 10.0), prediction)
    monkeypatch.setattr(physim, "capacity", lambda *_, **__: found, raising=False)
    words = ["capacity", model, "--gpu", place / "gpu.json", *LOAD[2:], "--slo", "e2e_mean=1s"]
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert out.startswith(
        f"{printable(model)} on 1 x {SHOWN}: up to 9 requests/s (90%: 8 to 10), limited by {SHOWN}"
    )
    assert json.loads(run(*words, "--json")[1])["prediction"]["model"] == model


def compared(model):
    row = {
        **dict.fromkeys(("ttft_s", "itl_s", "e2e_s", "saturation_rps", "use"), 0.5),
        "model": model,
        "gpu": EVIL,
        **dict.fromkeys(("tp", "pp", "dp", "ep", "servers", "gpus"), 1),
        "layout": "tp 1",
        "output_tokens_per_s": 9.0,
        "cost_per_million_tokens": None,
        "extrapolations": [EVIL],
    }
    return Comparison([row], [{**row, "tp": 2, "reason": f"{EVIL}: no"}])


def test_a_comparison_is_shown(run, monkeypatch, model):
    monkeypatch.setattr(physim, "compare", lambda *_, **__: compared(model), raising=False)
    words = ["compare", model, "--gpus", "h100", *LOAD]
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    last = SHOWN.split("/")[-1]
    assert re.search(rf"^ {re.escape(last)} +{re.escape(SHOWN)} +tp 1 ", out, re.M)
    assert f"\nAll are beyond what was measured: {SHOWN}.\n" in out
    assert f"\nleft out {printable(model)} on 2 x {SHOWN}: {SHOWN}: no\n" in out
    assert json.loads(run(*words, "--json")[1])["rows"][0]["gpu"] == EVIL


def elasticities(case):
    values = {"memory_bandwidth": dict.fromkeys(("ttft", "itl", "e2e", "saturation"), 0.5)}
    parts = dict.fromkeys(FIRST_TOKEN_PARTS, 0.001)
    return Elasticities(values, values["memory_bandwidth"], parts, 0.0, case, EVIL)


def test_elasticities_are_shown(run, monkeypatch, place, model, case):
    monkeypatch.setattr(physim, "explain", lambda *_, **__: elasticities(case), raising=False)
    code, out, err = run("explain", model, "--gpu", place / "gpu.json", *LOAD)
    assert (code, err) == (0, "")
    assert out.startswith(f"{printable(model)} on 1 x {SHOWN}: TTFT")


def recommended(case, prediction):
    servers = Servers.__new__(Servers)
    servers.cases = (case,)
    choice = Choice(case, 2, prediction, prediction, {}, 0.1, EVIL, None, None)
    return Recommendation([choice], Requirements((), 0.9), servers, {EVIL: 3})


def test_a_recommendation_is_shown(run, monkeypatch, tmp_path, model, case, prediction):
    found = recommended(case, prediction)
    monkeypatch.setattr(physim, "recommend", lambda *_, **__: found, raising=False)
    words = ["recommend", model, *LOAD, "--slo", "ttft_p99=2s"]
    code, out, err = run(*words, "--manifest", tmp_path / "server.yaml")
    assert (code, err) == (0, "")
    assert f"2 x {SHOWN.split('/')[-1]} on 1 x {SHOWN} (tp 1)" in out
    assert f"\n1: {serve_command(case)}\n" in out
    assert f"\n3 more cannot be, such as: {SHOWN}\n" in out
    server, _ = yaml.safe_load_all((tmp_path / "server.yaml").read_text())
    (container,) = server["spec"]["template"]["spec"]["containers"]
    assert container["command"][-1] == serve_command(case)
    assert json.loads(run(*words, "--json")[1])["choices"][0]["model"] == model


def evaluated(case):
    pair = {"observed": 1.0, "predicted": 2.0, "error_pct": 100.0}
    metrics = {f"{name}_mean": pair for name in METRICS}
    row = {"experiment": EVIL, "stage": 0, "model": EVIL}
    names = ("n", "mape", "median_ape", "max_ape", "bias_pct", "within_10pct")
    summary = {name: dict.fromkeys(names, 1.0) for name in metrics}
    skipped = [{**row, "stage": 1, "reason": EVIL}]
    return Evaluation([{**row, "metrics": metrics}], summary, skipped, [case])


def test_an_evaluation_is_shown(run, monkeypatch, case):
    monkeypatch.setattr(physim, "evaluate", lambda *_: evaluated(case), raising=False)
    code, out, err = run("evaluate", "--data", "runs.csv", "--by", "model")
    assert (code, err) == (0, "")
    assert re.search(rf"^ {re.escape(SHOWN)} +0 ", out, re.M)
    assert f"\nskipped {SHOWN} stage 1: {SHOWN}\n" in out
    assert (
        json.loads(run("evaluate", "--data", "runs.csv", "--json")[1])["rows"][0]["model"] == EVIL
    )


def test_runs_of_a_name_are_refused_by_it(run, tmp_path):
    runs = tmp_path / "runs.csv"
    pd.DataFrame([{**ROW, "experiment": EVIL, "model": EVIL}]).to_csv(runs, index=False)
    code, _, err = run("evaluate", "--data", runs)
    assert code == 1
    assert len(err.splitlines()) == 1


def crossvalidated():
    one = {"mape": 1.0, "mean_of_folds": 1.0, "refused": 0}
    summary = [
        {"method": "physim", "metric": "e2e", "worst_fold": EVIL, "folds": {EVIL: 9.0}, **one}
    ]
    return Crossval("model", [], summary)


def test_a_cross_validation_is_shown(run, monkeypatch):
    import physim.validation.crossval as module

    monkeypatch.setattr(module, "crossval", lambda *_, **__: crossvalidated())
    code, out, err = run("crossval", "--data", "runs.csv")
    assert (code, err) == (0, "")
    assert printable(EVIL.split("/")[-1][:16]) in out


def fitted():
    row = {"experiment": EVIL, "stage": 0, "metric": "e2e", "error_pct": 9.0, "e2e_after": 1.0}
    left = [{"experiment": EVIL, "stage": 1, "reason": EVIL}]
    estimate = Estimate("lm_head", 0.1, 0.1, 0.0, 0.2, {EVIL: 0.5})
    known = Fit.from_corrections(EVIL, Corrections(lm_head=0.1))
    case = physim.Case.from_options(
        "Qwen/Qwen3-8B", gpu="h100_sxm", rate=1, input_tokens=786, output_tokens=251
    )
    return Outcome(known, [estimate], [row], [row], left, [2.0, 1.0], case, [])


def test_a_fit_that_is_made_is_shown(run, monkeypatch, tmp_path):
    import physim.fitting.fit as module
    import physim.fitting.identified as of_fit

    told = of_fit.Identified((), (of_fit.Confusion((EVIL, EVIL), 0.9, EVIL, EVIL),))
    monkeypatch.setattr(module, "fit", lambda *_, **__: fitted())
    monkeypatch.setattr(of_fit, "identified", lambda *_: told)
    out_file = tmp_path / f"{EVIL.split('/')[1]}.json"
    code, out, err = run("fit", "--data", "runs.csv", "--out", out_file)
    assert (code, err) == (0, "")
    assert f"\n  {SHOWN} stage 0: E2E +9.0%\n" in out
    assert f"\nleft out {SHOWN} stage 1: {SHOWN}\n" in out
    assert out.splitlines()[-1] == f"written to {printable(str(out_file))}"


def test_tables_are_shown(run, monkeypatch, tmp_path):
    import physim.tables.writer as writer
    from physim.tables.writer import Made

    about = {"assumptions": [EVIL]}
    monkeypatch.setattr(writer, "write_table", lambda *_, **__: about)
    made = [Made(EVIL, None, f"{EVIL}: {EVIL}"), Made(EVIL, Path(EVIL), "", None, [EVIL])]
    monkeypatch.setattr(writer, "write_tables", lambda *_, **__: iter(made))
    code, out, err = run("table", "Qwen/Qwen3-8B", "--gpu", "h100", "--out", EVIL)
    assert (code, err) == (0, "")
    assert out == f"Note: {SHOWN}.\nwritten to {SHOWN}\n"
    models = tmp_path / "models.txt"
    models.write_text("Qwen/Qwen3-8B\n")
    code, out, _ = run("table", "--models", models, "--gpus", "h100", "--out", tmp_path)
    assert code == 0
    assert out.splitlines()[:3] == [
        f"left out {SHOWN}: {SHOWN}",
        f"{SHOWN}: {printable(Path(EVIL).name)}",
        f"  Note: {SHOWN}.",
    ]


def test_a_sweep_is_shown(run, monkeypatch, tmp_path):
    out_folder = tmp_path / EVIL.split("/")[1]
    out_folder.mkdir()
    pd.DataFrame({"problem": [EVIL]}).to_parquet(out_folder / "part-0.parquet")
    monkeypatch.setattr(physim, "sweep", lambda *_, **__: 1, raising=False)
    code, out, err = run("sweep", "grid.yaml", "--out", out_folder)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"1 case in {printable(str(out_folder))}",
        f"1 of them have no prediction, 1 since: {SHOWN}",
    ]


def test_a_report_that_is_read_is_shown(run, tmp_path):
    source = Path(__file__).with_name("reports") / "guidellm.json"
    out_file = tmp_path / f"{EVIL.split('/')[1]}.csv"
    words = ["data", "read", "guidellm", source, "--model", "Qwen/Qwen3-8B", "--gpu", "h100"]
    code, out, err = run(*words, "--out", out_file, "--experiment", "[/x] :smile: <b>")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"written to {printable(str(out_file))}"
    code, out, err = run(*words, "--out", out_file, "--experiment", EVIL)
    assert (code, out) == (1, "")
    assert "holds control characters; correct it" in err


def test_progress_is_text(monkeypatch):
    """On a terminal alone, so into a buffer that says it is one."""
    import io

    from physim.cli.progress import counting, running

    buffer = io.StringIO()
    buffer.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", buffer)
    monkeypatch.setenv("COLUMNS", "900")
    monkeypatch.setenv("TERM", "xterm")
    with running("fitting") as say:
        say(EVIL)
    with counting("tabulating", 2) as say:
        say(EVIL)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", buffer.getvalue())
    assert f"fitting: {SHOWN}" in shown
    assert f"tabulating: {SHOWN}" in shown


def test_commands_print_through_the_console_alone():
    """Whatever prints or styles text by other means would have to escape names again."""
    known = {
        "console.py": {"rich", "typer.echo"},
        "terminal.py": {"rich"},
        "progress.py": {"rich"},
        # Of which nothing is anybody else's.
        "__init__.py": {"typer.echo"},
        # Questions, whose words are its own.
        "demo.py": {"rich"},
        # Tables without headings.
        "predict.py": {"rich"},
        # JSON is escaped as JSON is.
        "output_options.py": {"typer.echo"},
    }
    for path in sorted(Path(cli.__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text())
        checked = [
            one
            for one in ast.walk(tree)
            if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"
        ]
        skipped = {inside for one in checked for inside in ast.walk(one)}
        found = set()
        for one in ast.walk(tree):
            if (
                isinstance(one, ast.ImportFrom)
                and one not in skipped
                and (one.module or "").startswith("rich")
            ):
                found.add("rich")
            if isinstance(one, ast.Call) and ast.unparse(one.func) in (
                "print",
                "typer.echo",
                "typer.secho",
            ):
                found.add(ast.unparse(one.func))
        assert found <= known.get(path.name, set()), path.name


# ---- pages ----


def test_a_prediction_in_a_notebook_is_text(prediction):
    page = Elements(prediction._repr_html_())
    server = replace(prediction.pool.server, gpu=replace(prediction.pool.server.gpu, key="g"))
    pools = (replace(prediction.pool, server=server),)
    plain = replace(
        prediction,
        model="m",
        pools=pools,
        fit="f",
        scenario=("c",),
        assumptions=("a",),
        extrapolations=("b",),
    )
    assert page.found == Elements(plain._repr_html_()).found
    assert f"{prediction.model.replace(EVIL, SHOWN)} on 1 x {SHOWN}" in page.text
    assert f"Note: a {SHOWN}." in page.text
    assert f"Assumed, as not given: a {SHOWN}." in page.text
    assert all(line.isprintable() for line in repr(prediction).split("\n"))


def test_a_page_on_a_deployment_is_text(run, monkeypatch, tmp_path, model, place, case, prediction):
    def drawn(*_, **__):
        axes = new_figure(2, 2).subplots()
        axes.set_title(literal(case.what))
        return axes

    monkeypatch.setattr(report, "predict_with_interval", lambda *_: prediction)
    monkeypatch.setattr(report, "explain", lambda *_, **__: elasticities(case))
    for name in (
        *("draw_load", "draw_breakdown", "draw_roofline", "draw_first_token"),
        "draw_elasticities",
    ):
        monkeypatch.setattr(report, name, drawn)
    out_file = tmp_path / f"{EVIL.split('/')[1]}.html"
    words = ["report", model, "--gpu", place / "gpu.json", *LOAD, "--out", out_file]
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert out == f"written to {printable(str(out_file))}\n"
    page = Elements(out_file.read_text())
    assert {tag for tag, _ in page.found} == {
        *("html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "div", "pre"),
        *("table", "tr", "th", "td", "dl", "dt", "dd"),
        *("svg", "metadata", "rdf:rdf", "cc:work", "dc:type", "dc:format", "dc:creator"),
        *("cc:agent", "dc:title", "defs", "g", "path", "use"),
    }
    assert not [name for _, names in page.found for name in names if name.startswith("on")]
    assert f"{printable(model)} on 1 x {SHOWN}" in page.text
    assert in_shell([model]) in page.text


def test_the_live_form_shows_names_as_text():
    pytest.importorskip("marimo", reason="needs marimo (extra `app`)")
    from physim.page.live import app

    given = {"given": {}, "model": EVIL, "fit": "default", "gpus": ["l40s"]}
    shown, found = app.run(defs=given)
    assert EVIL in found["problem"] or repr(EVIL)[1:-1] in found["problem"]
    pages = [one.text for one in shown if one is not None]
    assert any(escaped(EVIL) in page for page in pages)
    assert not any(EVIL in page or "<img" in page or "<script" in page for page in pages)


# ---- pictures ----


def of_steps():
    columns = {
        "decode_requests": [2.0],
        "prefill_requests": [0.0],
        "prefill_tokens": [0.0],
        "seconds": [0.01],
        "context_tokens": [100.0],
    }
    steps = MeasuredSteps.from_columns(columns, "loop", EVIL)
    predicted = np.array([0.011])
    return StepComparison(steps, predicted, EVIL, errors_of(steps, predicted), ())


# Pictures that hold no name, or are made of others.
NAMELESS = {"draw_losses", "draw_observed", "draw_scaling"}
COMPOSED = {"draw_deployment", "draw_fit", "draw_folds", "draw_pareto"}


def pictures(case, prediction):
    """Every picture of names, by what draws it."""
    timeline = Timeline(*([0.0, 1.0] for _ in range(6)))
    over_time = PoolTimeline(*([0.0, 1.0] for _ in range(4)))
    points = Tradeoff(np.array([0, 0]), np.array([1.0, 2.0]), np.array([2.0, 1.0]))
    choice = recommended(case, prediction).choices[0]
    windows = [Window(0.0, 600.0, 1.0, 786, 251)]
    schedule = ReplicaSchedule([case], windows, np.array([2]), np.array([0.5]))
    of_a_day = replace(recommended(case, prediction), choices=[replace(choice, schedule=schedule)])
    error = {"interpolation_error_pct": {"p99": 1.0}}
    engine = dict.fromkeys(("tp", "pp", "dp", "ep"), 1)
    about = {"model": EVIL, "gpu": EVIL, "engine": engine, **error}
    knots = np.array([1.0, 200.0])
    step_times = Table([knots] * 4, np.ones((2, 2, 2, 2)), {}, about)
    fit = {"fit": "none"}
    return {
        "draw_breakdown": lambda: plot.draw_breakdown(case, **fit),
        "draw_by_length": lambda: plot.draw_by_length(prediction),
        "draw_comparison": lambda: plot.draw_comparison(compared(case.model.name)),
        "draw_component": lambda: plot.draw_component(case, "mlp", **fit),
        "draw_corrections": lambda: plot.draw_corrections(
            Fit.from_corrections(EVIL, Corrections())
        ),
        "draw_elasticities": lambda: plot.draw_elasticities(elasticities(case)),
        "draw_errors": lambda: plot.draw_errors(fitted()),
        "draw_explanation": lambda: plot.draw_explanation(elasticities(case)),
        "draw_first_token": lambda: plot.draw_first_token(elasticities(case)),
        "draw_evaluation": lambda: plot.draw_evaluation(evaluated(case)),
        "draw_fold_errors": lambda: plot.draw_fold_errors(crossvalidated()),
        "draw_groups": lambda: plot.draw_groups(evaluated(case), ["model"]),
        "draw_load": lambda: plot.draw_load(case, **fit),
        "draw_measured_steps": lambda: plot.draw_measured_steps(of_steps()),
        "draw_pools": lambda: plot.draw_pools(
            replace(prediction, timeline=replace(timeline, pools=(over_time,)))
        ),
        "draw_roofline": lambda: plot.draw_roofline(case, **fit),
        "draw_schedule": lambda: plot.draw_schedule(of_a_day),
        "draw_surface": lambda: plot.draw_surface(Grid((("k", knots),), np.zeros(2)), EVIL),
        "draw_table": lambda: plot.draw_table(step_times),
        "draw_timeline": lambda: plot.draw_timeline(replace(prediction, timeline=timeline)),
        "draw_way": lambda: plot.draw_way(prediction),
        "draw_tradeoff": lambda: draw_tradeoff(points, [case]),
    }


def test_a_name_in_a_picture_is_text(monkeypatch, case, prediction):
    monkeypatch.setattr(loads, "predict_with_interval", lambda *_: prediction)
    drawings = pictures(case, prediction)
    known = {name for name in plot.__all__ if name.startswith("draw")}
    assert known <= drawings.keys() | NAMELESS | COMPOSED
    for name, draw in drawings.items():
        drawn = draw()
        figure = (drawn[0] if isinstance(drawn, list | tuple) else drawn).get_figure(root=True)
        texts = [one for one in figure.findobj(Text) if "{0}" in one.get_text()]
        assert texts, name
        for text in texts:
            shown, is_formula = text._preprocess_math(text.get_text())
            assert not is_formula, name
            # A title may be broken into lines.
            assert "{0}$x" in shown, name
            assert shown.replace("\n", "").isprintable(), name


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_legend_is_there(name):
    axes = new_figure(2, 2).subplots()
    axes.plot([0, 1], label=literal(name))
    axes.set_title(literal(name))
    for text in (axes.title, *axes.legend().get_texts()):
        shown, is_formula = text._preprocess_math(text.get_text())
        assert not is_formula
        assert shown.strip() == printable(name)
