"""NVIDIA's measured points: which contradict physics, and which a fit may see."""

import pandas as pd
import pytest

from physim.measured.schema import RunRow
from physim.measured.split import part_of

ROW = {
    "experiment": "run",
    "stage": 0,
    "model": "openai/gpt-oss-120b",
    "hardware": "h100_sxm",
    "engine": "vllm",
    "engine_version": "0.18.0",
    "tp": 4,
    "ep": 1,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 8192,
    "max_model_len": 2068,
    "gpu_memory_utilization": 0.9,
    "prefix_caching": False,
    "prompt_groups": 0,
    "arrival": "constant",
    "rate_rps": 1.0,
    "duration_s": 60.0,
    "input_len_mean": 900,
    "output_len": 900,
    "itl_mean": 0.01,
}


@pytest.fixture(scope="module")
def points() -> pd.DataFrame:
    pytest.importorskip("aiconfigurator_core", reason="needs NVIDIA's package (extra `grids`)")
    from physim.measured import silicon

    return silicon.read()


def test_what_is_held_out_whole():
    assert part_of(RunRow.model_validate(ROW)) == "fit"
    for change in (
        {"model": "zai-org/GLM-5-FP8"},
        {"hardware": "b300_sxm"},
        {"engine_version": "0.16.0"},
        {"tp": 8, "ep": 8},
    ):
        assert part_of(RunRow.model_validate(ROW | change)) == "test"


@pytest.mark.slow
def test_a_model_on_a_gpu_with_an_engine_is_of_one_part(points):
    cells = points.groupby(["model", "hardware", "engine"])["part"].unique()
    # Beside its rows of what is held out whole.
    assert {len(set(parts) - {"test"}) for parts in cells} <= {0, 1}
    share = points["part"].value_counts(normalize=True)
    assert set(share.index) == {"fit", "validation", "test"}
    assert share.min() > 0.25


@pytest.mark.slow
def test_no_fit_row_is_of_what_is_tested_alone(points):
    seen = points[points["part"] != "test"]
    assert not seen["model"].str.contains("GLM-5").any()
    assert not seen["hardware"].isin(["b300_sxm", "gb200"]).any()
    assert not ((seen["engine"] == "vllm") & (seen["engine_version"] == "0.16.0")).any()


@pytest.mark.slow
def test_a_series_with_a_row_that_cannot_be_is_left_out(points):
    odd = points[points["left_out"].str.contains("peak FLOP/s|contradicts physics")]
    (alone,) = odd[odd["left_out"].str.startswith("needs")].to_dict("records")
    assert alone["left_out"] == "needs 87% of the peak FLOP/s"
    series = (
        (points["model"] == alone["model"])
        & (points["hardware"] == alone["hardware"])
        & (points["engine"] == alone["engine"])
        & (points["engine_version"] == alone["engine_version"])
    )
    assert len(odd) == series.sum() == 21


@pytest.mark.slow
def test_a_measurement_is_one_row_of_one_part(points):
    times = points[["hardware", "engine", "concurrency", "ttft_mean", "e2e_mean"]]
    assert not times.round(6).duplicated().any()
    # Another file has rows once more, with the last digits rounded.
    assert not points["experiment"].str.contains("gap_analysis_csv").any()


@pytest.mark.slow
def test_most_points_are_read(points):
    # Of 3,619 that are not disaggregated, 793 of them again.
    assert len(points) == 2765
    assert (points["left_out"] == "").sum() == 2669
    assert points.groupby("part").size().to_dict() == {"fit": 902, "test": 1003, "validation": 860}


@pytest.mark.slow
def test_rows_are_as_the_scripts_of_the_day_ran_them(points):
    """Of some rows what the scripts say; see the sources in public_runs.json."""
    seen = points.set_index("experiment")

    def found(experiment, *columns):
        return tuple(seen.loc[experiment, list(columns)])

    drafts = points["draft_tokens"].value_counts(dropna=False).to_dict()
    assert [drafts.pop(tokens) for tokens in (3, 1)] == [131, 26]
    assert list(drafts.values()) == [2608]
    drafted = points[points["draft_tokens"] > 0]
    assert set(drafted["engine"]) == {"trtllm", "sglang"}
    assert set(drafted["model"]) == {
        *("deepseek-ai/DeepSeek-R1", "nvidia/DeepSeek-V3.1-NVFP4", "Qwen/Qwen3.5-397B-A17B-FP8"),
    }
    # With attention data parallelism, one.
    assert set(drafted.loc[drafted["draft_tokens"] == 1, "dp"]) == {4, 8}
    glm = points[points["model"] == "zai-org/GLM-5-FP8"]
    assert set(glm.loc[glm["hardware"] != "h200_sxm", "max_num_batched_tokens"]) == {32768}
    assert set(glm["receive_every"]) == {1}
    oss = points[(points["model"] == "openai/gpt-oss-120b") & (points["engine"] == "trtllm")]
    old = oss[(oss["hardware"] == "h200_sxm")]
    assert (old["ep"] == old["tp"]).all()
    assert set(old["kv_cache_dtype"]) == {"auto"}
