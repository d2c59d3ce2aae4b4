"""NVIDIA's measured points with prefill and decode apart: which are read, and as what."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from physim.errors import InputError
from physim.inputs.fleet import pool_options, pool_text
from physim.measured import silicon, silicon_pools
from physim.measured.row_physics import excess_flops, excess_speed
from physim.measured.run_cases import case_of
from physim.measured.runs_csv import read_tables
from physim.measured.schema import RunRow
from physim.measured.split import part_of
from physim.measured.stage_report import write_rows
from physim.models.lookup import load_model
from physim.models.parallelism import Parallelism
from physim.service.hardware import load_hardware

SAMPLE = Path(__file__).parent / "reports" / "silicon_disagg.csv"


@pytest.fixture
def points(tmp_path):
    """Writes the sample's first row with some cells changed, and others below it; reads all."""

    def read(*changes):
        with SAMPLE.open(encoding="utf-8") as file:
            first = next(csv.DictReader(file))
        path = tmp_path / "points.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, first)
            writer.writeheader()
            writer.writerows(
                first | {"id": f"row {number}", "silicon_ttft_ms": str(500 + number)} | change
                for number, change in enumerate(changes)
            )
        return silicon_pools.read(path)

    return read


def source(clients, config=437, image="0.8.1.post2"):
    return (
        f"db-dump/2026-04-27; config_id={config}; silicon_concurrency={clients}; "
        f"measured=2026-02-03T00:00:00.000Z; nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:{image}"
    )


def test_a_row_says_which_engines_there_are():
    recipe, dynamo = silicon_pools.read(SAMPLE).frame.to_dict("records")
    # ctx1_gen5_tep4_batch4 decodes four requests in each of five engines.
    assert recipe["prefill"] == "tp=1,dp=2,ep=2,replicas=1"
    assert recipe["decode"] == "tp=4,ep=4,replicas=5,max_num_seqs=4"
    assert recipe["model"] == "nvidia/DeepSeek-V3.1-NVFP4"
    # Dynamo's version is not that of the engine.
    assert recipe["engine_version"] == "1.2.0rc6.post2"
    assert recipe["kv_cache_dtype"] == "fp8"
    # Lengths are even between 0.8 and 1 of what is stated; TPOT is for 920.6 steps.
    assert recipe["input_len_mean"] == pytest.approx(0.9 * 8192)
    assert recipe["e2e_mean"] == pytest.approx(0.545 + 7.7e-3 * 920.6)
    assert recipe["rate_rps"] == pytest.approx(15 / recipe["e2e_mean"])
    # Without a number of clients it is that of all ranks, 48 x 11, for no fit and no error.
    assert dynamo["concurrency"] == 528
    assert dynamo["left_out"] == "its source does not say how many clients there were"
    assert not recipe["left_out"]
    assert dynamo["max_num_seqs"] == 528
    assert (dynamo["prefill"], dynamo["decode"]) == ("tp=1,replicas=5", "tp=1,replicas=11")
    assert dynamo["input_len_mean"] == 4000
    assert not dynamo["draft_hidden"]


def test_rows_of_one_server_are_not_among_them():
    with pytest.raises(InputError, match="has no disaggregated row"):
        silicon_pools.read(SAMPLE.with_name("silicon.csv"))
    with pytest.raises(InputError, match="has no row of a model"):
        silicon.read(SAMPLE)


def test_rows_that_are_passed_over_are_counted(points):
    found = points(
        {},
        {"prefill_num_workers": ""},
        {"decode_num_workers": ""},
        {"model_path": "somebody/else"},
        {"decode_pp_size": "2"},
        {"prefill_moe_ep_size": "8"},
    )
    assert list(found.frame["experiment"]) == ["row 0"]
    assert found.passed_over == {
        "does not say how many engines there are": 2,
        "is of a model that physim does not know": 1,
        "has engines of several stages of layers": 1,
        "has experts on other GPUs than attention": 1,
    }


@pytest.mark.parametrize(
    ("change", "hidden"),
    [
        ({}, False),
        # Servers with all of whose clients recipes with and without MTP are listed.
        ({"silicon_data_source": source(15, config=1)}, True),
        ({"silicon_data_source": source(15, config=388)}, False),
        ({"backend": "sglang", "silicon_data_source": source(15, config=1)}, False),
    ],
)
def test_drafts_are_known_by_the_id_of_the_servers(points, change, hidden):
    (row,) = points(change).frame.to_dict("records")
    assert row["draft"] is None
    assert row["draft_hidden"] is hidden


@pytest.mark.parametrize(
    ("change", "prefill", "decode"),
    [
        # A recipe of other clients has other slots; of none that is listed they are not known.
        (
            {"silicon_data_source": source(31)},
            "tp=1,dp=2,ep=2,replicas=1",
            "tp=4,ep=4,replicas=5",
        ),
        # Kimi's recipes for vLLM have attention of data-parallel ranks, whatever rows say.
        (
            {
                "backend": "vllm",
                "model_path": "moonshotai/Kimi-K2.5",
                "system": "gb200",
                "prefill_tp_size": "4",
                "prefill_attention_dp_size": "1",
                "prefill_moe_ep_size": "4",
                "decode_tp_size": "16",
                "decode_moe_ep_size": "16",
            },
            "tp=1,dp=4,ep=4,replicas=1",
            "tp=1,dp=16,ep=16,replicas=5,max_num_seqs=256",
        ),
        # Prompts of 8,192 tokens on B200 share experts by width.
        (
            {
                "system": "b200_sxm",
                "precision": "fp8",
                "prefill_attention_dp_size": "8",
                "prefill_moe_ep_size": "8",
            },
            "tp=1,dp=8,replicas=1",
            "tp=4,ep=4,replicas=5,moe_kernel=flashinfer",
        ),
    ],
)
def test_engines_are_as_recipes_started_them(points, change, prefill, decode):
    (row,) = points(change).frame.to_dict("records")
    assert (row["prefill"], row["decode"]) == (prefill, decode)


def test_a_row_that_cannot_be_takes_its_series_along(points):
    # A tenth of a millisecond a token: an engine reads 40 GB of weights in no such time.
    found = points({}, {"silicon_tpot_ms": "0.1"}).frame
    reasons = dict(zip(found["experiment"], found["left_out"], strict=True))
    assert "of the time that reading memory takes" in reasons["row 1"]
    assert reasons["row 0"] == "is of a series with a row that contradicts physics"


def test_more_flop_than_a_gpu_has_cannot_be():
    arch, gpu = load_model("Qwen/Qwen3-32B"), load_hardware("h100_sxm")
    layout = Parallelism()
    # 2 x 31.2 billion parameters but embeddings' x 1,000 tokens x 14/s are 874 TFLOP/s of 989.
    assert excess_flops(arch, gpu, layout, 14.0, 1000) == "needs 88% of the peak FLOP/s"
    assert excess_flops(arch, gpu, layout, 13.0, 1000) == ""
    assert excess_flops(arch, gpu, Parallelism(tp=2), 14.0, 1000) == ""
    # 64 GB of weights take 19 ms at 3.35 TB/s.
    assert excess_speed(arch, gpu, layout, 0.01, 100, 100, 0.021) == ""
    assert "of the time that reading memory takes" in excess_speed(
        arch, gpu, layout, 0.01, 100, 100, 0.018
    )


def test_bad_points_are_refused_with_their_place(points):
    with pytest.raises(InputError, match="line 2: silicon_data_source: says no number for config"):
        points({"silicon_data_source": "db-dump/2026-04-27; config_id=x; a/b:c"})
    with pytest.raises(InputError, match="line 3: decode_tp_size: is empty"):
        points({}, {"decode_tp_size": ""})


def test_the_split_goes_by_names_and_by_the_layout_of_either_pool():
    row = silicon_pools.read(SAMPLE).frame.to_dict("records")[1]
    row = {name: value for name, value in row.items() if value is not None}

    def part(**changes):
        return part_of(RunRow.model_validate(row | changes))

    assert part() == "validation"
    # As an aggregated row of the same names.
    alone = {name: value for name, value in row.items() if name not in ("prefill", "decode")}
    assert part_of(RunRow.model_validate(alone)) == "validation"
    assert part(decode="tp=8,ep=8,replicas=2") == "test"
    assert part(prefill="tp=8,ep=8,replicas=2") == "test"
    assert part(decode="tp=8,replicas=2") == "validation"
    assert part(hardware="gb200") == "test"


def test_rows_are_cases_of_pools(tmp_path):
    path = tmp_path / "pools.csv"
    write_rows(path, silicon_pools.read(SAMPLE).frame)
    rows = read_tables([path]).rows
    assert rows[0].row.decode == "tp=4,ep=4,replicas=5,max_num_seqs=4"
    case = case_of(rows[:1], None)
    first, second = case.service.pools
    assert (first.replicas, second.replicas, second.server.sizes.max_num_seqs) == (1, 5, 4)
    assert case.demanded.concurrency == 15


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"prefill": None}, "prefill: is empty"),
        ({"decode": None}, "decode: is empty"),
        ({"decode": "tp=4;replicas=2"}, "decode: tp '4;replicas=2' is not a number"),
        ({"decode": "tp=0"}, "decode: tp 0 is not a positive integer"),
        ({"decode": "replicas=two"}, "decode: replicas 'two' is not a number"),
        ({"decode": "tp"}, "decode: 'tp' is not an option and its value"),
        ({"decode": "tp=4,tp=2"}, "decode: names tp twice"),
        ({"decode": "replica=2"}, "decode: option 'replica' is unknown; did you mean replicas"),
    ],
)
def test_pools_that_cannot_be(tmp_path, changes, complaint):
    path = tmp_path / "pools.csv"
    write_rows(path, silicon_pools.read(SAMPLE).frame.assign(**changes))
    with pytest.raises(InputError, match=complaint):
        read_tables([path])


@given(
    st.dictionaries(
        st.sampled_from(["tp", "pp", "dp", "ep", "replicas", "max_num_seqs", "receive_every"]),
        st.integers(1, 99_999),
        min_size=1,
    )
)
def test_what_is_written_of_a_pool_is_read(options):
    text = pool_text(options | {"moe_kernel": None})
    assert list(pool_options("pool", text).items()) == list(options.items())


@pytest.mark.slow
def test_most_points_with_workers_are_read():
    pytest.importorskip("aiconfigurator_core", reason="needs NVIDIA's package (extra `grids`)")
    found = silicon_pools.read()
    # Of 1,602 that are disaggregated, 274 with their engines.
    assert found.passed_over == {
        "does not say how many engines there are": 1328,
        "is of a model that physim does not know": 3,
    }
    frame = found.frame
    assert len(frame) == 271
    # Those of NVIDIA's that do not state their clients.
    assert (frame["left_out"] != "").sum() == 7
    assert frame.groupby("part").size().to_dict() == {"fit": 56, "test": 189, "validation": 26}
    assert frame["draft_hidden"].sum() == 58
    assert frame["decode"].str.contains("max_num_seqs").sum() == 188
    # Rows that no fit sees share no model, GPU and engine with those that it sees.
    cells = frame.groupby(["model", "hardware", "engine"])["part"].unique()
    assert {len(set(parts) - {"test"}) for parts in cells} <= {0, 1}
