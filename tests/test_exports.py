"""Files for planners, autoscalers and routers: their forms by hand, and what they say of errors."""

import dataclasses
import json
import math
import sys
import types
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import physim
from physim.corrections.calibration import Calibration
from physim.corrections.fields import Corrections, labels
from physim.errors import InputError
from physim.exports import llmservingsim
from physim.exports.blis import blackbox_form, loaded, trained_physics_form
from physim.exports.blis_documents import (
    NAMES,
    coefficient_set,
    deployment,
    host_terms,
    scenario,
)
from physim.exports.blis_trace import prefixes_of, trace_rows, write_trace
from physim.exports.block_yaml import as_yaml
from physim.exports.dynamo import MockerProfile, mocker_profile, planner_arrays, read_mocker_profile
from physim.exports.form_error import FormStepTimes, Walk, form_error, walk_of
from physim.exports.interpolation import between
from physim.exports.llm_d import (
    Iteration,
    fake_server,
    iteration_of,
    peak_prefill_tokens_per_s,
    transfer_us_per_token,
)
from physim.exports.sglang_simulator import (
    ReplayTable,
    check_subject,
    configuration,
    predictor_seconds,
    read_replay_table,
    replay_table,
    write_sglang,
)
from physim.exports.subject import Subject
from physim.exports.writer import (
    export_blis,
    export_dynamo,
    export_llm_d,
    export_llmservingsim,
    export_sglang_simulator,
)
from physim.measured import blis_trace
from physim.measured.recognised import format_of
from physim.prediction.replayed import replay_load
from physim.step.many_batches import total_seconds
from physim.tables import load as load_table
from physim.tables.batch_times import batch_seconds
from physim.tables.table import Table

OPTIONS = {"gpu": "h100_sxm", "tp": 2, "input_tokens": 575, "output_tokens": 248}
QWEN = "Qwen/Qwen3-14B"


@pytest.fixture(scope="module")
def subject():
    return Subject.from_options(QWEN, "none", **OPTIONS)


@pytest.fixture(scope="module")
def walk(subject):
    return walk_of(subject)


def small():
    """Prompts: 10 ms at 100 tokens, 30 at 300; decode: kv/100 + context/1000 ms."""
    kv, context = np.array([100.0, 1100.0]), np.array([10.0, 1010.0])
    itl = kv[:, None] / 100 + context / 1000
    return MockerProfile(np.array([100.0, 300.0]), np.array([10.0, 30.0]), kv, context, itl)


def rows(*values):
    return [np.array([value], float) for value in values]


@pytest.mark.parametrize(
    ("step", "ms"),
    [
        # 2 requests, 600 tokens attended to: 6 + 0.3 ms
        ((2, 600, 0, 0), 6.3),
        # 200 prompt tokens: 20 ms
        ((0, 0, 1, 200), 20.0),
        # Dynamo adds the two.
        ((2, 600, 1, 200), 26.3),
        # Beyond the ends lines go on.
        ((0, 0, 1, 400), 40.0),
        ((0, 0, 0, 0), 0.0),
    ],
)
def test_dynamo_adds_prompts_and_decodes(step, ms):
    assert small().seconds(*rows(*step))[0] == pytest.approx(ms / 1e3)


def test_a_run_of_decodes_is_its_steps():
    times = FormStepTimes(small().seconds, 500)
    # Two requests at mean contexts 300, 301, 302: (600 + 602 + 604) / 100 + 903 / 1000 ms
    steps, seconds, last = times.decode(2, 600, 3, 1e9)
    assert (steps, seconds, last) == pytest.approx((3, 18.963e-3, 6.342e-3))


def test_together_prompts_are_what_they_add(subject):
    together, apart = (mocker_profile(subject, one) for one in (False, True))
    np.testing.assert_array_equal(together.decode_itl, apart.decode_itl)
    model, load = subject.steps, subject.case.demanded
    decodes, context = subject.middle.pools[-1].running, load.mean_input + load.mean_output / 2
    isl = apart.prefill_isl[-1]

    def ms(decodes, prompts):
        batch = model.batch(
            decode_requests=np.array([decodes]),
            context=context,
            prefill_requests=prompts,
            chunk=isl,
        )
        return 1e3 * total_seconds(model, batch)[0]

    assert apart.prefill_ttft_ms[-1] == pytest.approx(ms(0.0, 1.0), rel=1e-6)
    assert together.prefill_ttft_ms[-1] == pytest.approx(ms(decodes, 1.0) - ms(decodes, 0.0))


def test_decode_steps_of_the_profile_are_those_of_the_model(subject, walk):
    only = walk.prompts == 0
    found = mocker_profile(subject, False).seconds(
        walk.decodes[only], walk.attended[only], walk.prompts[only], walk.tokens[only]
    )
    assert np.median(np.abs(found / walk.seconds[only] - 1)) < 0.01


def test_planner_arrays_go_together(subject):
    arrays = planner_arrays(subject)
    prefill, decode = arrays.values()
    # tokens / s / GPU of two GPUs
    np.testing.assert_allclose(
        prefill["prefill_thpt_per_gpu"],
        prefill["prefill_isl"] / (prefill["prefill_ttft"] / 1e3) / 2,
    )
    kv = decode["max_kv_tokens"][0]
    requests = decode["x_kv_usage"] * kv / decode["y_context_length"]
    np.testing.assert_allclose(requests, np.rint(requests), rtol=1e-9)
    np.testing.assert_allclose(decode["z_thpt_per_gpu"], requests / (decode["z_itl"] / 1e3) / 2)
    # The prompt and half of 248 tokens.
    assert np.isin(decode["y_context_length"] - 124, prefill["prefill_isl"]).all()
    assert decode["x_kv_usage"].max() <= 1


def test_loads_count_alike(walk):
    assert walk.share.sum() == pytest.approx(1)
    assert (walk.prompts > 0).any()
    assert (walk.prompts == 0).any()


@pytest.mark.slow
def test_the_written_profile_is_read_back_alike(tmp_path, subject):
    about = export_dynamo(QWEN, tmp_path / "out", fit="none", **OPTIONS)
    read = read_mocker_profile(tmp_path / "out" / "perf_data.npz")
    for name, values in vars(mocker_profile(subject, False)).items():
        np.testing.assert_array_equal(getattr(read, name), values)
    assert json.loads((tmp_path / "out" / "metadata.json").read_text()) == about
    with np.load(tmp_path / "out" / "selected_decode_interpolation" / "raw_data.npz") as file:
        said = json.loads(str(file["physim_json"]))
    assert (said["model"], said["gpu"], said["fit"]) == (QWEN, "h100_sxm", "none")
    # Dynamo's own replay of such a profile had +0.3, -0.5 and -5.0% of ITL.
    itl = [one["itl_pct"] for one in about["error"]["loads"]]
    assert max(map(abs, itl[:2])) < 2
    assert abs(itl[2]) < 6


@pytest.mark.slow
def test_a_plain_profile_counts_weights_twice(subject, walk):
    """Dynamo's own replay of one had +4, +22 and +58% of ITL."""
    low, _, high = form_error(subject, mocker_profile(subject, True).seconds, walk).loads
    assert 2 < low.itl_pct < 10
    assert high.itl_pct > 25


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"rate": 2.0}, "rate"),
        ({"pp": 2}, "pp"),
        ({"concurrency": 3}, "concurrency"),
        ({"output_tokens": 1}, "output"),
        ({"max_num_batched_tokens": 1, "max_num_seqs": 1}, "max_num_batched_tokens"),
    ],
)
def test_what_has_no_place_is_said(more, field):
    with pytest.raises(InputError, match=field):
        Subject.from_options(QWEN, "none", **(OPTIONS | more))


def test_other_files_are_no_profiles(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, prefill_isl=np.ones(3))
    with pytest.raises(InputError, match="is no profile"):
        read_mocker_profile(path)
    arrays = vars(small()) | {"decode_itl": np.ones((3, 2))}
    np.savez(path, **arrays)
    with pytest.raises(InputError, match="do not go together"):
        read_mocker_profile(path)


def test_a_folder_of_others_is_not_replaced(tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(InputError, match="no export"):
        export_dynamo(QWEN, tmp_path, fit="none", force=True, **OPTIONS)


def test_an_iteration_by_hand():
    three = Iteration(6.0, 0.02, 1e-4)
    # 10 requests of 500 in, 99 out: 6 + 10 (0.02 x 599 / 100 + 1e-4 x 549.5)
    assert three.mean_ms(10, 500, 99) == pytest.approx(7.7475)
    # A step: 10 + 500 tokens, 5,500 attended to and 500 of the prompt
    assert three.seconds(*rows(10, 5500, 1, 500))[0] == pytest.approx(16.8e-3)
    # 3 x 6 + 0.0201 x 500, and 18 + 0.02 + 1e-4 x 550
    assert three.targets_ms(500, 99) == pytest.approx((28.05, 18.075))


# What the autoscaler's own code prints, in 32 bit (llm-inferno/queue-analysis at 2436d94, Go 1.27):
# alpha, beta, gamma; tokens in and out; then `IterationTime` of 1, 17.5 and 160 requests, and
# `PrefillTime` and `DecodeTime` of none at three times alpha, ms.
PRINTED_BY_GO = [
    (6.769, 0.0195, 2.28e-5, 575, 248, 6.849389, 8.175808, 19.63124, 31.53261, 20.34244),
    (6.769, 0.0195, 2.28e-5, 4096, 32, 9.302027, 51.09697, 412.0533, 100.2724, 20.42025),
    (6.769, 0.0195, 2.28e-5, 128, 1024, 6.805508, 7.407892, 12.6103, 22.80592, 20.34109),
    (6.59, 0.0181, 3.28e-5, 575, 248, 6.672752, 8.038155, 19.83027, 30.19636, 19.81103),
    (6.59, 0.0181, 3.28e-5, 4096, 32, 8.989019, 48.57284, 390.4331, 94.04195, 19.92298),
    (6.59, 0.0181, 3.28e-5, 128, 1024, 6.631335, 7.313356, 13.20354, 22.091, 19.80909),
    (14.2, 0.061, 4.4e-4, 575, 248, 14.70918, 23.11062, 95.66855, 77.928, 42.96856),
    (14.2, 0.061, 4.4e-4, 4096, 32, 23.63983, 179.397, 1524.572, 294.2582, 44.47028),
    (14.2, 0.061, 4.4e-4, 128, 1024, 14.55016, 20.32777, 70.22528, 50.46432, 42.9426),
]


@pytest.mark.parametrize("printed", PRINTED_BY_GO)
def test_an_iteration_takes_what_the_autoscaler_computes(printed):
    three, (inputs, outputs) = Iteration(*printed[:3]), printed[3:5]
    found = [three.mean_ms(requests, inputs, outputs) for requests in (1, 17.5, 160)]
    assert found == pytest.approx(printed[5:8], rel=1e-6)
    # The context of an ITL target is half a token longer than that of its decode time.
    ttft, itl = three.targets_ms(inputs, outputs)
    assert (ttft, itl - three.gamma / 2) == pytest.approx(printed[8:], rel=1e-6)


def test_a_straight_walk_gives_its_three_numbers():
    rng = np.random.default_rng(0)
    decodes, context, tokens = rng.uniform(1, (100, 1000, 2000), (200, 3)).T
    attended, share = decodes * context, np.full(200, 1 / 200)
    three = Iteration(5.0, 0.03, 2e-5)
    seconds = three.seconds(decodes, attended, tokens, tokens)
    found = iteration_of(Walk(decodes, attended, tokens, tokens, seconds, share))
    assert vars(found) == pytest.approx(vars(three), rel=1e-4)


def test_peak_prefill_is_a_full_step_and_the_front_end(subject):
    tokens = subject.case.server.sizes.max_num_batched_tokens
    batch = subject.steps.batch(prefill_requests=np.ones(1), chunk=float(tokens))
    step = total_seconds(subject.steps, batch)[0]
    # Zero-shot: 5 ms of a request and 2 us for each token of its prompt, and half of 20 us of its
    # first token; no handover beyond the step.
    outside = 5e-3 + 2e-6 * tokens + 10e-6
    assert peak_prefill_tokens_per_s(subject) == pytest.approx(tokens / (step + outside), rel=1e-5)


def test_a_token_is_transferred_by_every_gpu(subject):
    # 40 layers of 8 KV heads of 128, keys and values, 2 bytes each, half of it on each GPU.
    bytes_of_gpu = 40 * 8 * 128 * 2 * 2 / 2
    assert transfer_us_per_token(subject, 50e9) == pytest.approx(bytes_of_gpu / 50e3)
    for link in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="link"):
            transfer_us_per_token(subject, link)


def test_the_fake_server_is_as_far_off_as_it_says(subject):
    fake, context = fake_server(subject), 575 + 124
    for count in (1.0, 40.0, 200.0):
        batch = subject.steps.batch(decode_requests=np.array([count]), context=context)
        rise = 1 + (fake.factor - 1) * (count - 1) / (fake.max_num_seqs - 1)
        off = fake.inter_token_s * rise / total_seconds(subject.steps, batch)[0] - 1
        assert abs(100 * off) < fake.decode_pct + 0.5


@pytest.mark.slow
def test_llm_d_reads_what_is_written(tmp_path):
    about = export_llm_d(
        QWEN, tmp_path / "out", fit="none", namespace="prod", link_bytes_per_s=50e9, **OPTIONS
    )
    files = {path.name: path.read_text() for path in (tmp_path / "out").glob("*.yaml")}
    config = yaml.safe_load(files["wva-queueing-model-config.yaml"])
    assert (config["kind"], config["metadata"]["name"]) == (
        "ConfigMap",
        "wva-queueing-model-config",
    )
    own = yaml.safe_load(config["data"]["qwen-qwen3-14b"])
    three = Iteration(**about["iteration_ms"])
    assert (own["model_id"], own["namespace"]) == (QWEN, "prod")
    assert (own["targetTTFT"], own["targetITL"]) == pytest.approx(
        three.targets_ms(575, 248), rel=1e-5
    )
    affinity, source = (
        one["parameters"] for one in yaml.safe_load(files["router.yaml"])["plugins"]
    )
    assert affinity["peakPrefillThroughput"] == round(about["peak_prefill_tokens_per_s"])
    assert source["costModel"]["transferMicrosecondsPerToken"] == pytest.approx(1.638, rel=1e-3)
    fake = yaml.safe_load(files["llm-d-inference-sim.yaml"])
    assert fake["latency-calculator"] == "per-token"
    assert float(fake["inter-token-latency"].removesuffix("ns")) == pytest.approx(
        1e9 * about["fake_server"]["inter_token_s"], rel=1e-6
    )
    for text in files.values():
        said = json.loads(text.partition("\n")[0].removeprefix("# "))
        assert (said["model"], said["gpu"], said["fit"]) == (QWEN, "h100_sxm", "none")
        assert said["engine"]["engine_version"]


# ---- SGLang's simulator ----


@pytest.fixture(scope="module")
def apart():
    return Subject.from_options(QWEN, "none", **(OPTIONS | {"engine": "sglang"}))


def found_by_hand(table, wanted):
    """The simulator's search (time_predictor/replay.py), in plain Python."""
    rows = [(len(b), sum(n for n, _ in b), sum(p for _, p in b)) for b in table.batches]
    mean = [sum(row[k] for row in rows) / len(rows) for k in range(3)]
    spread = [math.sqrt(sum((row[k] - mean[k]) ** 2 for row in rows) / len(rows)) for k in range(3)]
    far = sorted(
        (sum(((row[k] - wanted[k]) / (spread[k] or 1.0)) ** 2 for k in range(3)), place)
        for place, row in enumerate(rows)
    )
    return sum(float(table.seconds[place]) for _, place in far[:3]) / 3


def test_batches_are_found_as_the_simulator_finds_them():
    rng = np.random.default_rng(0)
    pairs = rng.integers(1, 900, (40, 2)).tolist()
    batches = [(tuple(pair),) * int(count) for pair, count in zip(pairs, range(1, 41), strict=True)]
    table = ReplayTable(batches, rng.uniform(0.01, 0.1, 40))
    wanted = rng.uniform(1, [40, 9000, 9000], (30, 3))
    expected = [found_by_hand(table, row) for row in wanted.tolist()]
    np.testing.assert_allclose(table.nearest_s(wanted), expected)


def test_prompts_and_decodes_of_a_table_have_steps_of_their_own():
    batches = [((1, 10),), ((1, 10),) * 2, ((1, 10),) * 3, ((7, 0),), ((8, 0),), ((9, 0),)]
    table = ReplayTable(batches, np.array([1.0, 2.0, 3.0, 10.0, 20.0, 60.0]))
    # Three alike of two requests that attend to 22 tokens; of a prompt of 8 tokens the very same;
    # of one of 8.5 the three prompts; both together take both.
    steps = np.array([[2, 22, 0, 0], [0, 0, 1, 8], [0, 0, 1, 8.5], [2, 22, 1, 8], [0, 0, 0, 0]])
    found = table.seconds_of(*steps.T.astype(float))
    np.testing.assert_allclose(found, [2.0, 20.0, 30.0, 22.0, 0.0])


@pytest.mark.slow
def test_the_replay_table_has_times_of_the_model(apart):
    table = replay_table(apart)
    known = table.to_dict()
    # What the load has, and every batch is told in the order in which the simulator sorts it.
    model = apart.steps
    for count in (1, 3):
        batch = model.batch(prefill_requests=np.array([float(count)]), chunk=575.0)
        assert known[json.dumps([[575, 0]] * count)] == pytest.approx(
            total_seconds(model, batch)[0], rel=1e-5
        )
    one = next(own for own in table.batches if own[0][1] > 0 and len(own) > 3)
    batch = model.batch(decode_requests=np.array([float(len(one))]), context=one[0][1] + 1.0)
    assert known[json.dumps([list(pair) for pair in one])] == pytest.approx(
        total_seconds(model, batch)[0], rel=1e-5
    )
    assert 1000 <= len(table.batches) <= 3000
    assert len(known) == len(table.batches)
    assert max(sum(new for new, _ in own) for own in table.batches) <= 8192


# A step of 1 ms, 1 ms for each request that decodes and 10 us for each prompt token.
AXES = [np.array([0.0, 100.0]), np.array([0.0, 1e4]), np.array([0.0, 1e4]), np.array([0.0, 1e4])]


def small_table():
    decode, _, tokens, _ = np.meshgrid(*AXES, indexing="ij")
    seconds = 1e-3 * (1 + decode) + 1e-5 * tokens
    about = {"each_more_prompt_us": 500.0, "each_more_cached_token_us": 1.0}
    return Table(AXES, seconds, {"gemms": seconds}, about)


def test_a_batch_by_its_requests():
    table = small_table()
    assert batch_seconds(table, []) == 0.0
    assert batch_seconds(table, [(1, 30), (1, 90)]) == pytest.approx(3e-3)
    # One token with nothing before it is a prompt. A prompt more takes 0.5 ms, and 1 us for each
    # token that one has in the cache.
    assert batch_seconds(table, [(1, 0)]) == pytest.approx(1.01e-3)
    assert batch_seconds(table, [(100, 0), (300, 40), (1, 8)]) == pytest.approx(
        2e-3 + 4e-3 + 0.5e-3 + 20e-6
    )
    # Requests that decode, and prompts after them.
    found = predictor_seconds(table, 20, *rows(2, 60, 2, 400))[0]
    assert found == pytest.approx(3e-3 + 1e-3 + 4e-3 + 0.5e-3 + 20e-6)


def simulator():
    """What of SGLang's simulator a predictor takes."""

    class InferTimePredictor:
        def __init__(self, model, hw, config):
            self.asked = model, hw, config

    class ConfigManager:
        config = None

        @classmethod
        def _get_raw_config(cls):
            return cls.config or {}

        @classmethod
        def get_inference_time_predictor(cls, *_):
            return "another"

    names = ("simulation.manager", "time_predictor.base")
    made = {f"sglang_simulator.{name}": types.ModuleType(name) for name in names}
    for name in (
        "sglang_simulator",
        "sglang_simulator.simulation",
        "sglang_simulator.time_predictor",
    ):
        made[name] = types.ModuleType(name)
    made["sglang_simulator.simulation.manager"].ConfigManager = ConfigManager
    made["sglang_simulator.time_predictor.base"].InferTimePredictor = InferTimePredictor
    return made, ConfigManager


@pytest.mark.slow
def test_the_predictor_answers_the_simulator(apart, tmp_path, monkeypatch):
    replay = ReplayTable([((1, 3),), ((4, 0), (4, 0))], np.array([0.001, 0.01]))
    write_sglang(tmp_path, apart, replay, small_table(), {"model": QWEN})
    made, manager = simulator()
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    path = tmp_path / "physim_predictor.py"
    exec(compile(path.read_text(), path, "exec"), {"__file__": str(path), "__name__": "own"})
    asked = ("model", "hw", "config")
    assert manager.get_inference_time_predictor(*asked) == "another"
    manager.config = {"predictor": {"name": "physim"}}
    predictor = manager.get_inference_time_predictor(*asked)
    assert predictor.asked == asked
    request = types.SimpleNamespace
    reqs = [request(extend_length=1, past_kv_length=30), request(extend_length=1, past_kv_length=9)]
    assert predictor.predict_infer_time(request(reqs=reqs)) == pytest.approx(3e-3)
    read = read_replay_table(tmp_path / "replay_table.json")
    assert read.to_dict() == replay.to_dict() == {"[[1, 3]]": 0.001, "[[4, 0], [4, 0]]": 0.01}


@pytest.mark.slow
def test_the_simulator_is_told_of_the_deployment(apart):
    config = configuration(apart)
    assert config["predictor"] == {
        "name": "replay",
        "database_path": "replay_table.json",
        "miss_strategy": "knn",
        "miss_knn_k": 3,
    }
    own = config["scheduler"]
    assert (own["tp_size"], own["kv_cache_data_type"], own["backend_name"]) == (2, "BF16", "sglang")
    gpu = config["platform"]["accelerator"]
    assert (gpu["name"], gpu["hbm_bandwidth_gb"]) == ("h100_sxm", pytest.approx(3350, rel=0.01))


@pytest.mark.parametrize(
    "text",
    ["{}", '{"x": 1}', '{"[[1]]": 1}', '{"[[1, -1]]": 1}', '{"[[1, 1]]": -1}', '{"[[1, 1]]": "1"}'],
)
def test_other_files_are_no_replay_tables(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError, match="is no replay table"):
        read_replay_table(path)


def test_engines_that_mix_steps_are_not_sglangs(subject):
    with pytest.raises(
        InputError, match="engine: vllm never computes prompts in steps of their own"
    ):
        check_subject(subject)


@pytest.mark.slow
def test_a_folder_for_sglangs_simulator(tmp_path):
    options = OPTIONS | {"engine": "sglang"}
    about = export_sglang_simulator(QWEN, tmp_path / "out", fit="none", **options)
    for error in about["errors"].values():
        assert error["median_pct"] < 1
        for one in error["loads"]:
            assert abs(one["itl_pct"]) < 1
            assert abs(one["ttft_pct"]) < 2
    assert (
        len(read_replay_table(tmp_path / "out" / "replay_table.json").batches) == about["batches"]
    )


# ---- LLMServingSim ----


def test_lines_between_knots_go_on():
    knots = [np.array([0.0, 2.0]), np.array([0.0, 10.0, 20.0])]
    values = 3 * knots[0][:, None] + knots[1] ** 2
    # 3 x and y squared, straight from 100 to 400 between 10 and 20.
    where = [np.array([1.0, 4.0, 0.0]), np.array([15.0, 10.0, 30.0])]
    np.testing.assert_allclose(between(knots, values, where), [253.0, 112.0, 700.0])


def layers_by_hand():
    """Two layers: each dense layer takes 1 ms and 10 us a token; attention 1 us a cached token."""
    tokens, dense = np.array([1.0, 1001.0]), np.array([1.01e-3, 11.01e-3])
    axes = tuple(np.array([0.0, 1000.0]) for _ in range(4))
    chunk, _, count, each = np.meshgrid(*axes, indexing="ij")
    attention = 1e-6 * chunk + 1e-9 * count * each
    names = ("embedding", "layernorm", "qkv_proj")
    lm_head = {"lm_head": np.array([0.5e-3, 0.5e-3])}
    return llmservingsim.LayerProfile(
        2, tokens, dict.fromkeys(names, dense), tokens, lm_head, axes, attention
    )


@pytest.mark.parametrize(
    ("step", "ms"),
    [
        # Of 10 tokens a dense layer takes 1.1 ms: once, four times and twice; 0.5 ms for lm_head;
        # and attention to 5,000 tokens twice, 5 us each.
        ((10, 5000, 0, 0), 7 * 1.1 + 0.5 + 0.01),
        # 90 more tokens of a prompt: 2 ms; and their attention, 90 us.
        ((10, 5000, 1, 90), 7 * 2.0 + 0.5 + 0.01 + 0.18),
        ((0, 0, 0, 0), 0.0),
    ],
)
def test_layers_add_up_to_a_step(step, ms):
    assert layers_by_hand().seconds(*rows(*step))[0] == pytest.approx(ms / 1e3)


def test_a_profile_of_layers_is_the_models_steps(subject, walk, tmp_path):
    llmservingsim.check_subject(subject)
    profile = llmservingsim.layer_profile(subject)
    steps = (walk.decodes, walk.attended, walk.prompts, walk.tokens)
    found = llmservingsim.with_all_reduces(subject, profile)(*steps)
    off = np.abs(found / walk.seconds - 1)[walk.share > 1e-3]
    assert np.median(off) < 0.01
    assert off.max() < 0.03
    # What is written is read back alike.
    place = tmp_path / llmservingsim.folder_of(subject.case.server)
    assert place.relative_to(tmp_path).parts == ("H100_SXM", "Qwen", "Qwen3-14B", "bf16")
    llmservingsim.write_profile(place, subject, profile, {"fit": "none"})
    read = llmservingsim.read_profile(place / "tp2", profile.layers)
    for name in ("tokens", "sequences", "attention"):
        np.testing.assert_allclose(getattr(read, name), getattr(profile, name), rtol=1e-5)
    for name in ("dense", "per_sequence"):
        own = getattr(profile, name)
        assert getattr(read, name).keys() == own.keys()
        for layer, seconds in getattr(read, name).items():
            np.testing.assert_allclose(seconds, own[layer], rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(read.seconds(*steps), profile.seconds(*steps), rtol=1e-4)
    meta = yaml.safe_load((place / "meta.yaml").read_text())
    assert (meta["tp_degrees"], meta["variant"], meta["physim"]) == ([2], "bf16", {"fit": "none"})
    head = (place / "tp2" / "attention.csv").read_text().partition("\n")[0]
    assert head == "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"


@pytest.mark.parametrize(
    ("model", "more", "line"),
    [
        (QWEN, {"engine": "sglang"}, "sglang computes prompts in steps of their own"),
        ("Qwen/Qwen3-30B-A3B", {}, "has experts, for which physim writes no profile"),
        ("google/gemma-3-12b-it", {}, "has layers that differ"),
        ("mistralai/Mistral-7B-Instruct-v0.1", {}, "has attention other than full attention"),
    ],
)
def test_layers_without_a_place_are_refused(model, more, line, subject):
    case = physim.Case.from_options(model, rate=1.0, **(OPTIONS | more))
    with pytest.raises(InputError, match=line):
        llmservingsim.check_subject(dataclasses.replace(subject, case=case))


def test_names_stay_within_the_folder(subject):
    server = subject.case.server
    for name, kept in (("/etc/x/../y", ("x", "y")), ("../..", ()), ("a/b/c", ("b", "c"))):
        model = dataclasses.replace(server.model, name=name)
        found = llmservingsim.folder_of(dataclasses.replace(server, model=model))
        assert found.parts == ("H100_SXM", *kept, "bf16")


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("dense.csv", "layer,tokens\nx,1\n", "is no table of layer, tokens, time_us"),
        ("dense.csv", "layer,tokens,time_us\nx,1,-1\n", "is no table of layer"),
        ("dense.csv", "layer,tokens,time_us\nx,1,1\n", "has layers of different knots"),
        ("attention.csv", "", "is no table of prefill_chunk"),
        (
            "attention.csv",
            "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,1,1\n",
            "one knot",
        ),
    ],
)
def test_other_tables_are_no_profiles_of_layers(tmp_path, name, text, line):
    (tmp_path / "dense.csv").write_text("layer,tokens,time_us\nx,1,1\nx,2,1\n")
    (tmp_path / "per_sequence.csv").write_text("layer,sequences,time_us\nx,1,1\nx,2,1\n")
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=line):
        llmservingsim.read_profile(tmp_path, 2)


@pytest.mark.slow
def test_a_folder_for_llmservingsim(tmp_path):
    about = export_llmservingsim(QWEN, tmp_path / "out", fit="none", **OPTIONS)
    assert (tmp_path / "out" / about["folder"] / "meta.yaml").is_file()
    assert about["error"]["median_pct"] < 1
    for one in about["error"]["loads"]:
        assert max(abs(one["itl_pct"]), abs(one["ttft_pct"])) < 3


def entries(known, case):
    (document,) = yaml.safe_load_all(as_yaml([coefficient_set(case, known)], ["x"]))
    assert document["kind"] == "CoefficientSet"
    return {name: one for entry in document["coefficients"] for name, one in entry.items()}


def test_host_terms_are_constants_and_their_intervals(subject):
    """5 ms, with a standard deviation of 0.5 of its logarithm: 1.96 of it are a factor of 2.664."""
    found = entries(Calibration("none", Corrections()), subject.case)
    front = found["host_admission_per_request"]
    assert (front["value"], front["units"], front["method"]) == (5000, "us_per_request", "assumed")
    assert front["ci95"] == pytest.approx([5000 / 2.66446, 5000 * 2.66446], rel=1e-4)
    assert front["scope"] == {"hardware": ["h100"], "model": ["qwen3-14b"], "tp": [2]}
    assert front["sources"][0]["cite"].endswith("fit none")
    assert found["host_completion"]["method"] == "not_charged"
    assert found["host_output_token"]["value"] == 20
    for entry, term in zip(found.values(), host_terms(subject.case), strict=True):
        assert entry["value"] == pytest.approx(1e6 * term.seconds)
        low, high = entry.get("ci95", [0, 0])
        assert low <= entry["value"] <= high


def test_a_fit_narrows_a_host_term(subject):
    covariance = np.zeros((len(labels()),) * 2)
    place = labels().index("front_end")
    covariance[place, place] = 0.04
    known = Calibration("mine", Corrections(front_end=np.log(2.0)), covariance)
    front = entries(known, subject.case)["host_admission_per_request"]
    # 10 ms, and 1.96 times 0.2.
    assert front["value"] == pytest.approx(10_000)
    assert front["ci95"][1] == pytest.approx(10_000 * np.exp(0.392), rel=1e-5)
    assert "of 0.5, and of 0.2 after the fit" in front["rationale"]


def test_documents_name_what_options_do(subject):
    case = subject.case
    problem, choice = yaml.safe_load_all(as_yaml([scenario(case), deployment(case)], ["x"]))
    assert set(problem) == {
        *("kind", "name", "model", "coefficients", "engine_version", "cluster"),
    }
    assert problem["cluster"] == {"hardware": "h100", "nodes": 1, "gpus_per_node": 2}
    (pool,) = choice["pools"]
    assert pool["parallel"] == {"tp": 2, "pp": 1, "dp": 1, "enable_expert_parallel": False}
    told = case.server.to_dict()
    for name, place in NAMES.items():
        if ".engine." in place:
            assert pool["engine"][place.rpartition(".")[2]] == told[name]


def test_forms_of_blis_by_hand(subject):
    form = blackbox_form({"step, us": 6000.0, "prefill token, us": 50.0, "decode token, us": 20.0})
    # 6 ms, 100 tokens of 50 us and 10 requests of 20 us
    assert form(*rows(10, 5000, 1, 100))[0] == pytest.approx(11.2e-3)
    # Of trained physics the seventh is a time of the step, the sixth of each request, us.
    beta = {str(n): one for n, one in enumerate([0.0] * 5 + [30.0, 6000.0] + [0.0] * 4)}
    assert trained_physics_form(beta, subject)(*rows(10, 5000, 1, 100))[0] == pytest.approx(6.33e-3)


def test_blis_gets_the_three_loads(subject):
    stages = loaded(subject).demanded.stages
    assert [one.rate for one in stages] == pytest.approx(
        [share * subject.middle.saturation_rps for share in (0.2, 0.6, 0.9)]
    )


@given(
    rows=st.lists(
        st.tuples(
            st.floats(1e-3, 10.0),
            st.integers(1, 5000),
            st.integers(1, 800),
            st.floats(1e-5, 30.0),
            st.floats(0.0, 100.0),
            st.sampled_from(["completed", "completed", "dropped"]),
        ),
        min_size=3,
        max_size=20,
    ),
    shared=st.integers(0, 900),
)
@settings(max_examples=40, deadline=None)
def test_a_trace_of_blis_is_read_back_alike(subject, rows, shared):
    gaps, new, outputs, ttft, decode, states = map(np.array, zip(*rows, strict=True))
    states = states.astype("<U9")
    states[:2] = "completed"
    frame = pd.DataFrame(
        {
            "number": np.arange(len(rows)),
            "arrival_s": np.cumsum(gaps),
            "input_tokens": new + shared,
            "output_tokens": outputs,
            "ttft_s": np.where(states == "completed", ttft, np.nan),
            "e2e_s": np.where(states == "completed", ttft + decode, np.nan),
            "state": states,
        }
    )
    done = frame[frame["state"] == "completed"]
    prefixes = [("prefix-0" if shared else "", shared)] * len(rows)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        write_trace(path, trace_rows(frame, prefixes, QWEN), subject.case, ["x"])
        (stage,), server = blis_trace.read_run(path)
        assert len(pd.read_csv(path).columns) == 27
        assert format_of([path]) == "blis-trace"
    assert (stage.n_success, stage.n_failed) == (len(done), len(frame) - len(done))
    assert stage.input_len_mean == pytest.approx(done["input_tokens"].mean())
    assert stage.output_len == pytest.approx(done["output_tokens"].mean())
    told = subject.case.server.to_dict()
    for name in ("max_num_seqs", "max_model_len", "gpu_memory_utilization"):
        assert server[name] == told[name]
    # Times are whole microseconds.
    assert stage.ttft_mean == pytest.approx(done["ttft_s"].mean(), abs=2e-6)
    assert stage.e2e_mean == pytest.approx(done["e2e_s"].mean(), abs=2e-6)
    assert stage.duration_s == pytest.approx(frame["arrival_s"].iloc[-1] - gaps[0], abs=2e-6)


def test_requests_that_share_a_prefix_are_of_one_group(subject):
    load = dataclasses.replace(
        subject.case.demanded, cached_tokens=320, prefixes=3, requests=12, rate=5.0
    )
    result = replay_load(subject.case.under(load), subject.corrections, seed=0)
    rows = trace_rows(result.to_frame(), prefixes_of(result, 320), QWEN)
    # In turn: of twelve requests each third has the same.
    assert rows["prefix_group"].tolist() == ["prefix-0", "prefix-1", "prefix-2"] * 4
    assert (rows["input_tokens"] == 575 - 320).all()
    assert (rows["server_input_tokens"] == 575).all()


@pytest.mark.slow
def test_blis_reads_what_is_written(tmp_path):
    """A table is at most 1% off in ITL at any load, a line is further off and says so."""
    about = export_blis(QWEN, tmp_path / "out", fit="none", **OPTIONS)
    loads = {name: error["loads"] for name, error in about["errors"].items()}
    assert max(abs(one["itl_pct"]) for one in loads["table"]) < 1
    assert max(abs(one["itl_pct"]) for one in loads["blackbox"]) > 2
    read = load_table(tmp_path / "out")
    assert read.metadata["outside_steps"]["front_end_s"] == 5e-3
    assert read.metadata["errors"] == about["errors"]
    assert about["left_out"] == {}
    (stage,), _ = blis_trace.read_run(tmp_path / "out" / "trace.csv")
    assert stage.rate_rps == pytest.approx(0.6 * about["saturation_rps"], rel=0.1)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        *("scenario.yaml", "host-overheads.yaml", "table.json", "defaults.yaml"),
    }
