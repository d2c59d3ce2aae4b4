"""Predictions over HTTP are those of Python, and whatever a body holds gets an answer."""

import asyncio
import itertools
import json
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import httpx2
import numpy as np
import pytest
from fuzzing import config_of
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from odd_files import changed, spoilt
from starlette.testclient import TestClient

import physim
from physim.corrections.files import load_fit
from physim.http import bodies, schema
from physim.http.app import application
from physim.http.bounds import Bounds
from physim.http.replies import VERBS, reply
from physim.http.workers import Workers
from physim.inputs.case import CaseOptions, LoadAndEngineOptions, ServerOptions
from physim.models.families import read_architecture
from physim.prediction.intervals import predict_with_intervals
from physim.step.batch import Batch
from physim.step.many_batches import step_times

MODEL = "Qwen/Qwen3-8B"
SERVER = {"model": MODEL, "gpu": "h100_sxm", "fit": "none"}
CASE = {**SERVER, "input_tokens": 500, "output_tokens": 100, "rate": 4}
# A search of one server.
RECOMMEND = {
    **{name: value for name, value in CASE.items() if name != "gpu"},
    "gpus": ["h100_sxm"],
    "slo": ["ttft_p90=5s"],
    "tps": [1],
    "max_gpus": 1,
    "count": 1,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
}
STEP = {**SERVER, "batches": {"decode_requests": [1, 8, 64], "context": 500}}
BODIES = {"/predict": CASE, "/recommend": RECOMMEND, "/step": STEP}


class Inline:
    """Answers in this process."""

    waiting = 0

    def __init__(self, bounds):
        self.bounds = bounds

    async def answer(self, place, body):
        return reply(place, body, self.bounds)

    def stop(self):
        pass


@contextmanager
def without_searches():
    with patch("physim.http.verbs.recommend") as search:
        search.return_value.to_dict.return_value = {}
        yield


@pytest.fixture(scope="module")
def client():
    bounds = Bounds(body_bytes=2**16, cases=3, steps=2000, replayed=200, candidates=20)
    with TestClient(application(Inline(bounds))) as found:
        yield found


def as_json(content):
    return json.loads(json.dumps(content))


def test_a_prediction_is_that_of_python(client):
    assert client.post("/predict", json=CASE).json() == as_json(physim.predict(**CASE).to_dict())
    replayed = {**CASE, "method": "replay", "requests": 50, "seed": 3}
    expected = as_json(physim.predict(**replayed).to_dict())
    assert client.post("/predict", json=replayed).json() == expected


def test_records_of_a_load_are_objects(client):
    tokens = {"kind": "normal", "mean": 500, "std": 50}
    body = {**CASE, "input_tokens": tokens, "stages": [[4, 60]], "rate": None}
    own = {**CASE, "input_tokens": physim.Lengths.normal(500, 50), "stages": [(4, 60)]}
    expected = as_json(physim.predict(**own | {"rate": None}).to_dict())
    assert client.post("/predict", json=body).json() == expected
    # What an answer says of a distribution is asked again alike.
    again = {**body, "input_tokens": expected["load"]["input_tokens"]}
    assert client.post("/predict", json=again).json() == expected
    columns = {"input_tokens": [100, 900], "output_tokens": [50, 150]}
    body = {**SERVER, "lengths": columns, "rate": 4}
    found = client.post("/predict", json=body).json()
    own = {**SERVER, "lengths": physim.RequestLengths.from_columns(**columns), "rate": 4}
    assert found == as_json(physim.predict(**own).to_dict())


def test_empirical_lengths_are_their_values(client):
    values = {"kind": "empirical", "values": [100, 300]}
    found = client.post("/predict", json={**CASE, "input_tokens": values}).json()
    assert found["load"]["input_tokens"]["mean"] == 200
    again = {**CASE, "input_tokens": found["load"]["input_tokens"]}
    assert client.post("/predict", json=again).json() == found
    values["mean"] = 300
    refused = client.post("/predict", json={**CASE, "input_tokens": values})
    assert refused.json()["field"] == "input_tokens.mean"


def test_a_model_is_a_configuration_or_a_name(client):
    config = config_of(MODEL)
    found = client.post("/predict", json={**CASE, "model": config}).json()
    case = {name: value for name, value in CASE.items() if name != "model"}
    own = physim.predict(read_architecture(config, "config.json"), **case)
    assert found == as_json(own.to_dict())
    odd = {**config, "architectures": ["FooForCausalLM"]}
    assert client.post("/predict", json={**CASE, "model": odd}).status_code == 422
    read = {**CASE, "model": odd, "read_as": "Qwen3ForCausalLM"}
    assert client.post("/predict", json=read).json()["ttft_s"] == found["ttft_s"]


def test_a_batch_is_predicted_at_once(client):
    rows = [CASE, {**CASE, "rate": 8}]
    found = client.post("/predict", json={"cases": rows}).json()["predictions"]
    none = load_fit("none")
    cases = [
        physim.Case.from_options(**{k: v for k, v in row.items() if k != "fit"}) for row in rows
    ]
    together = predict_with_intervals(cases, [none.on(case) for case in cases])
    assert found == as_json([one.to_dict() for one in together])
    assert found[0]["ttft_s"] == pytest.approx(physim.predict(**CASE).ttft_s, rel=1e-9)
    mixed = [{**CASE, "method": "replay", "requests": 20}, CASE]
    found = client.post("/predict", json={"cases": mixed}).json()["predictions"]
    assert found[0] == as_json(physim.predict(**mixed[0]).to_dict())


def test_pools_have_options_of_their_own(client):
    pools = {"prefill": {"tp": 1, "replicas": 2}, "decode": {"tp": 1}}
    found = client.post("/predict", json={**CASE, **pools}).json()
    assert found == as_json(physim.predict(**CASE, **pools).to_dict())
    for own in ({"gpu": "/etc/gpu.json"}, {"draft_model": "/etc"}):
        refused = client.post("/predict", json={**CASE, **pools, "decode": own})
        assert refused.json()["problem"].endswith("does not ship with physim")


@pytest.mark.slow
def test_a_recommendation_is_that_of_python(client):
    answer = client.post("/recommend", json=RECOMMEND)
    assert answer.json() == as_json(physim.recommend(**RECOMMEND).to_dict())


def test_a_recommendation_is_asked_for_as_in_python(client, monkeypatch):
    def asked(**options):
        found.update(options)
        raise physim.InputError("objectives", "are kept by none", "relax them")

    found = {}
    monkeypatch.setattr("physim.http.verbs.recommend", asked)
    body = {**RECOMMEND, "output_tokens": {"kind": "exponential", "mean": 100}}
    assert client.post("/recommend", json=body).json() == {
        "field": "objectives",
        "problem": "are kept by none",
        "remedy": "relax them",
    }
    assert found == {**RECOMMEND, "output_tokens": physim.Lengths.exponential(100)}


def test_steps_are_those_of_python(client):
    answer = client.post("/step", json={**STEP, "parts": True}).json()
    model = physim.step_model(**SERVER)
    means = {"decode_requests": np.array([1.0, 8.0, 64.0]), "context": np.array(500.0)}
    time = step_times(model, model.batch(**means))
    assert answer["latency"] == time.latency.tolist()
    assert answer["interval"] == time.interval.tolist()
    assert np.sum([*answer["parts"].values()], axis=0) == pytest.approx(answer["interval"])
    alone = model(model.batch(decode_requests=8.0, context=500.0))
    assert answer["latency"][1] == pytest.approx(float(alone.latency), rel=1e-9)


def test_steps_of_many_blocks(client):
    batches = {"decode_requests": [*range(1, 1501)], "context": 500}
    found = client.post("/step", json={**STEP, "batches": batches}).json()["interval"]
    assert len(found) == 1500
    assert (np.diff(found) > -1e-12).all()
    assert found[63] == client.post("/step", json=STEP).json()["interval"][2]


@pytest.mark.parametrize(
    ("place", "change", "field"),
    [
        ("/predict", {"tpp": 2}, "option 'tpp'"),
        ("/predict", {"tp": "2"}, "tp"),
        ("/predict", {"tp": 3}, "tp"),
        ("/predict", {"rate": -1}, "rate"),
        ("/predict", {"model": "/etc"}, "model"),
        ("/predict", {"model": "someone/else"}, "model"),
        ("/predict", {"model": None}, "model"),
        ("/predict", {"model": {}}, "config.json: architectures"),
        ("/predict", {"gpu": "hardware/h100_sxm.json"}, "gpu"),
        ("/predict", {"gpu": None}, "gpu"),
        ("/predict", {"fit": "fit.json"}, "fit"),
        ("/predict", {"fit": "../fits/public-2026-11"}, "fit"),
        ("/predict", {"input_tokens": "file:/etc/passwd"}, "input_tokens"),
        ("/predict", {"input_tokens": {"kind": "normal"}}, "input_tokens.mean"),
        ("/predict", {"input_tokens": {"kind": "empirical"}}, "input_tokens.values"),
        ("/predict", {"lengths": "sharegpt"}, "lengths"),
        ("/predict", {"arrival": "trace:/etc/passwd"}, "arrival"),
        ("/predict", {"draft": "eagle3", "draft_model": "/etc"}, "draft_model"),
        ("/predict", {"stages": [[1, 2]] * 17}, "stages"),
        ("/predict", {"stages": [[1]]}, "stages[0]"),
        ("/predict", {"method": "replay", "requests": 201}, "requests"),
        ("/predict", {"cases": [{}] * 4}, "cases"),
        ("/predict", {"cases": [CASE]}, "option 'model'"),
        ("/recommend", {"gpus": ["a.json"]}, "gpus"),
        ("/recommend", {"prices": {"a.json": 1}}, "prices"),
        ("/recommend", {"max_gpus": 129}, "max_gpus"),
        ("/recommend", {"max_num_seqs": None, "tps": [], "max_gpus": 8}, "candidates"),
        ("/recommend", {"requests": 201}, "requests"),
        ("/recommend", {"profile": "/etc/passwd"}, "option 'profile'"),
        ("/step", {"batches": {"decode_requests": [1, 2], "chunk": [1]}}, "batches"),
        ("/step", {"batches": {"decode_requests": []}}, "batches"),
        ("/step", {"batches": {"decode_requests": [1] * 2001}}, "steps"),
        ("/step", {"batches": {"decode_requests": -1}}, "batches.decode_requests"),
        ("/step", {"batches": {"decode_requests": [1, -1]}}, "batches.decode_requests[1]"),
        ("/step", {"batches": {"decode_requests": 1, "ranks": 0}}, "batches.ranks"),
        ("/step", {"batches": {}}, "batches"),
        ("/step", {"batches": {"ranks": 1}}, "batches"),
        ("/step", {"batches": {"chunk": 9}}, "batches"),
        (
            "/step",
            {"batches": {"decode_requests": 1, "chunk": 9}},
            "batches.chunk",
        ),
        ("/step", {"rate": 2}, "option 'rate'"),
    ],
)
def test_what_cannot_be_used_is_named(client, place, change, field):
    answer = client.post(place, json={**BODIES[place], **change})
    assert answer.status_code == 422
    said = answer.json()
    assert said["field"] == field
    assert said["problem"]
    assert said["remedy"]


def test_of_several_cases_the_wrong_one_is_named(client):
    refused = client.post("/predict", json={"cases": [CASE, {**CASE, "tp": 3}]})
    assert refused.json()["field"] == "cases[1]: tp"
    refused = client.post("/predict", json={"cases": [CASE, {**CASE, "tp": "x"}]})
    assert refused.json()["field"] == "cases[1].tp"
    no_load = {**SERVER}
    assert client.post("/predict", json={"cases": [no_load]}).json()["field"] == "cases[0]: load"


def test_no_file_of_a_client_is_touched(client, tmp_path):
    """Whatever names a file of the machine, which lies there, is neither opened nor listed."""
    secret = tmp_path / "config.json"
    secret.write_text(json.dumps(config_of(MODEL)))
    touched = []

    def watch(event, arguments):
        # Hooks cannot be taken away again.
        if is_watched and event in ("open", "os.listdir", "os.scandir", "socket.connect"):
            touched.append(str(arguments[0]))

    is_watched = True
    sys.addaudithook(watch)
    paths = (secret, tmp_path, f"file:{secret}", f"trace:{secret}", "nobody/of-the-hub")
    for place, names in (
        ("/predict", bodies.PredictBody),
        ("/recommend", bodies.RecommendBody),
        ("/step", bodies.StepBody),
    ):
        for path, name in itertools.product(map(str, paths), names.__annotations__):
            value = {"gpu": path, "draft_model": path} if name in ("prefill", "decode") else path
            value = [path] if name in ("gpus", "slo") else value
            with without_searches():
                body = {**BODIES[place], name: value}
                assert client.post(place, json=body).status_code in (200, 422)
    is_watched = False
    assert [one for one in touched if str(tmp_path) in one or "socket" in one] == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"3", b"\xff", b'{"a": NaN}', b"[" * 50_000, b'{"a":"\\ud800"}']
)
def test_what_is_no_json_object_is_malformed(client, body):
    answer = client.post("/predict", content=body)
    assert answer.status_code == 400
    assert set(answer.json()) == {"field", "problem", "remedy"}


def test_a_large_body_is_not_kept(client):
    for size in (2**16 + 1, 2**21):
        assert client.post("/step", content=b" " * size).status_code == 413
    pieces = (b" " * 1000 for _ in range(100))
    assert client.post("/step", content=pieces).status_code == 413


def test_other_places_and_methods_are_refused(client):
    read = client.get("/predict")
    assert (read.status_code, read.json()["problem"]) == (405, "takes POST, not GET")
    assert read.json()["remedy"] == "POST a JSON body; /openapi.json describes it"
    written = client.post("/health")
    assert (written.status_code, written.json()["problem"]) == (405, "takes GET, not POST")
    assert client.get("/etc/passwd").json()["problem"] == "is not there"
    assert client.get("/health").json() == {"status": "ok", "waiting": 0}


def test_a_mistake_of_the_code_is_no_traceback(client, monkeypatch, caplog):
    def fails(*_):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("physim.http.verbs.predicted", fails)
    answer = client.post("/predict", json=CASE)
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "secret" in caplog.text


def test_the_description_is_made_of_what_python_declares(client):
    found = client.get("/openapi.json").json()
    assert found == as_json(schema.description())
    assert found["openapi"].startswith("3.1")
    schemas = found["components"]["schemas"]
    for name, options in (
        ("Case", CaseOptions),
        ("Recommend", LoadAndEngineOptions),
        ("Step", ServerOptions),
    ):
        assert set(options.__annotations__) <= set(schemas[name]["properties"])
        assert all(one["description"] for one in schemas[name]["properties"].values())
    for one in schemas.values():
        Draft202012Validator.check_schema(one)
    for place, body in BODIES.items():
        own = found["paths"][place]["post"]["requestBody"]["content"]["application/json"]
        check = Draft202012Validator({**own["schema"], "components": found["components"]})
        check.validate(as_json(body))
        assert not check.is_valid({**as_json(body), "model": 3})
        assert not check.is_valid({**as_json(body), "another": 3})
    names = schemas["Batches"]["properties"]
    assert set(names) | {"windows"} >= set(Batch.summarised.__func__.__annotations__) - {"return"}


def answered(seed, bounds):
    """The status of the answer to a body that is wrong in some way."""
    rng = np.random.default_rng(seed)
    place = list(VERBS)[rng.integers(len(VERBS))]
    content = BODIES[place]
    if rng.random() < 0.3:
        content = {**content, "model": config_of(MODEL)}
    if place == "/predict" and rng.random() < 0.3:
        lengths = {"kind": "gamma", "mean": 300.0, "std": 100.0}
        more = {"input_tokens": lengths, "stages": [[4.0, 60.0]], "tp": 1, "cached_tokens": 10}
        content = {"cases": [{**content, **more, "rate": None}]}
    for _ in range(rng.integers(1, 4)):
        content = changed(rng, content)
    text = json.dumps(content)
    body = spoilt(rng, text) if rng.random() < 0.2 else text.encode()
    found = reply(place, body, bounds)
    json.loads(found.body)
    return found.status


FUZZED = Bounds(replayed=500, candidates=30, stages=2)


@given(st.integers(0, 2**32))
@settings(max_examples=50)
def test_whatever_a_body_holds_is_answered(seed):
    with without_searches():
        assert answered(seed, FUZZED) in (200, 400, 422)


@pytest.mark.slow
def test_whatever_many_bodies_hold_is_answered(first_seed):
    start = first_seed or 0
    search = "/recommend", json.dumps(BODIES["/recommend"]).encode(), FUZZED
    assert reply(*search).status == 200
    # What a search of one server takes on this machine, now that it is compiled. One of all GPUs
    # replays five, and bodies of other shapes are compiled, which takes as long as three or four.
    begun = time.process_time()
    assert reply(*search).status == 200
    one_s = time.process_time() - begun
    for seed in range(start, start + 2000):
        begun = time.process_time()
        # A search takes as long as all else.
        with without_searches() if seed % 50 else nullcontext():
            assert answered(seed, FUZZED) in (200, 400, 422), seed
        assert time.process_time() - begun < 15 * one_s, (seed, one_s)


def test_adapters_know_every_form():
    forms = set(bodies._FORMS)
    known = {*CaseOptions.__annotations__, "model", "fit", "slo"}
    assert forms <= known


@pytest.mark.slow
def test_a_worker_that_takes_too_long_is_replaced():
    workers = Workers(1, Bounds(seconds=0.02, waiting=2))
    with TestClient(application(workers)) as client:
        first = client.post("/predict", json=CASE)
        assert first.status_code == 503
        assert first.headers["retry-after"] == "1"
        assert "0.02 s" in first.json()["problem"]
        # The next process takes no longer over what is wrong.
        assert client.post("/predict", content=b"{").status_code == 400
        workers._workers[0]._process.kill()
        assert client.post("/predict", content=b"{").status_code == 503
        assert client.post("/predict", content=b"{").status_code == 400
        workers.waiting = 2
        assert client.post("/predict", content=b"{").json()["problem"] == "is busy"
        workers.waiting = 0
    assert not workers._workers[0]._process.is_alive()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
def test_the_command_serves_until_it_is_stopped():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = "from physim.cli import main; main()"
    words = [sys.executable, "-c", code, "serve", "--port", str(port), "--workers", "1"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        assert f"http://127.0.0.1:{port}" in server.stderr.readline()
        address = f"http://127.0.0.1:{port}"
        with httpx2.Client(
            base_url=address, timeout=60, transport=httpx2.HTTPTransport(retries=5)
        ) as client:
            assert client.post("/predict", json=CASE).status_code == 200
            (worker,) = children(server.pid)
            begun = time.monotonic()
            server.terminate()
            assert server.wait(30) != 0
        assert time.monotonic() - begun < 10
        assert not Path(f"/proc/{worker}").exists()
        assert server.stderr.read() == ""


def children(process):
    """The processes that a process started which take part in its work."""
    lists = Path(f"/proc/{process}/task").glob("*/children")
    found = [one for own in lists for one in own.read_text().split()]
    return [one for one in found if "spawn_main" in Path(f"/proc/{one}/cmdline").read_text()]


def test_a_body_that_does_not_come_is_not_waited_for():
    said = []

    async def receive():
        await asyncio.sleep(60)

    async def send(message):
        said.append(message)

    scope = {"type": "http", "method": "POST", "path": "/step", "headers": []}
    scope |= {"query_string": b"", "root_path": "", "server": ("localhost", 80), "scheme": "http"}
    app = application(Inline(Bounds(arriving_s=0.01)))
    asyncio.run(app(scope, receive, send))
    assert said[0]["status"] == 408


def test_the_command_starts_light():
    code = "import physim.cli.serve, physim.http.serving, sys; "
    code += "sys.exit(any(one in sys.modules for one in ('jax', 'numpy', 'pandas')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_extra_is_one_line(monkeypatch):
    from physim.cli.serve import serve

    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(
        physim.InputError, match=r"^serve: needs starlette; pip install 'physim-llm\[serve"
    ):
        serve()


def test_a_port_that_is_taken_is_one_line(capsys):
    from physim.cli.serve import serve

    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(physim.InputError, match="choose another --host or --port"),
    ):
        serve("127.0.0.1", other.getsockname()[1], 1)
    # It is not said that it serves.
    assert capsys.readouterr().err == ""
