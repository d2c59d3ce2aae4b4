"""Files for planners, autoscalers and routers: their forms by hand, and what they say of errors."""

import json

import numpy as np
import pytest

from physim.errors import InputError
from physim.exports.dynamo import MockerProfile, mocker_profile, planner_arrays, read_mocker_profile
from physim.exports.form_error import FormStepTimes, form_error, walk_of
from physim.exports.subject import Subject
from physim.exports.writer import export_dynamo
from physim.step.many_batches import total_seconds

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


def test_a_plain_profile_counts_weights_twice(subject, walk):
    """Dynamo's own replay of one had +4, +22 and +58% of ITL."""
    low, _, high = form_error(subject, mocker_profile(subject, True).seconds, walk).loads
    assert 2 < low.itl_pct < 10
    assert high.itl_pct > 25


@pytest.mark.parametrize(
    ("more", "field"),
    [({"rate": 2.0}, "rate"), ({"pp": 2}, "pp"), ({"concurrency": 3}, "concurrency")],
)
def test_what_has_no_place_is_said(more, field):
    with pytest.raises(InputError, match=field):
        Subject.from_options(QWEN, "none", **OPTIONS, **more)


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
