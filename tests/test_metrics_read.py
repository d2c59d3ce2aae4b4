"""Two scrapes of ``/metrics``, read as a measured run; histograms that keep their bins."""

import json
import os
import re
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from commands import run
from hypothesis import given

import physim
from physim.errors import InputError
from physim.measured.exposition import read_samples
from physim.measured.histogram import Histogram
from physim.measured.metrics import read_metrics, stage_of
from physim.measured.run_cases import case_of
from physim.measured.runs_csv import read_tables

REPORTS = Path(__file__).parent / "reports"
VLLM = [REPORTS / f"metrics_{when}.txt" for when in ("before", "after")]
SGLANG = [REPORTS / f"metrics_sglang_{when}.txt" for when in ("before", "after")]


def test_what_was_counted_is_the_difference():
    found = read_metrics(VLLM, 100)
    assert (found.engine, found.model, found.ranks) == ("vllm", "Qwen/Qwen3-8B", 1)
    # 404 of 419 ended in between, of which 4 were given up.
    assert (found.requests, found.failed, found.rate) == (400, 4, 4.0)
    assert (found.mean_prompt, found.mean_output, found.hit_rate) == (1000, 200, 0.25)
    assert found.sources == {"local_compute": 300_000, "local_cache_hit": 100_000}
    assert (found.preemptions, found.kv_usage) == (2, pytest.approx(0.25))
    ttft = found.times["ttft"]
    assert ttft.counts[[4, 5, 8]].tolist() == [200, 100, 100]
    assert ttft.mean == pytest.approx(0.06)
    # Half are up to 0.04 s; nine of ten are 60 of the 100 between 0.1 and 0.25 s.
    assert ttft.percentile(50) == pytest.approx(0.04)
    assert ttft.percentile(90) == pytest.approx(0.1 + 0.6 * 0.15)
    assert {what: one.count for what, one in found.times.items()} == {
        **dict.fromkeys(("ttft", "e2e", "queue", "prefill", "decode"), 400),
        "itl": 79_600,
    }
    assert found.settings == {
        "engine": "vllm",
        "kv_blocks": 24_000,
        "gpu_memory_utilization": 0.85,
        "prefix_caching": True,
    }
    assert found.notes == ()


def test_engine_processes_of_one_server_add_up(tmp_path):
    paths = []
    for path in VLLM:
        text = path.read_text()
        (tmp_path / path.name).write_text(text + text.replace('engine="0"', 'engine="1"'))
        paths.append(tmp_path / path.name)
    one, both = read_metrics(VLLM, 100), read_metrics(paths, 100)
    assert (both.ranks, both.rate, both.mean_prompt) == (2, 2 * one.rate, one.mean_prompt)
    assert both.settings == {**one.settings, "dp": 2}
    assert both.kv_usage == pytest.approx(one.kv_usage)
    assert both.times["ttft"].mean == pytest.approx(one.times["ttft"].mean)
    # Some exporters have an underscore for the colon.
    for path in paths:
        path.write_text(path.read_text().replace("vllm:", "vllm_"))
    assert read_metrics(paths, 100).to_dict() == both.to_dict()


def test_sglang():
    found = read_metrics(SGLANG, 10)
    assert (found.engine, found.requests, found.failed) == ("sglang", 50, 1)
    assert (found.mean_prompt, found.hit_rate, found.accepted_length) == (500, 0.1, 2.5)
    assert found.settings == {"engine": "sglang", "kv_blocks": 25_000}
    assert found.times["e2e"].mean == pytest.approx(1.14)
    assert stage_of(found).draft_acceptance == "2.5"


def test_drafts_are_counted_by_position(tmp_path):
    def with_drafts(path, drafts):
        text = path.read_text()
        labels = 'engine="0",model_name="Qwen/Qwen3-8B"'
        text += f"vllm:spec_decode_num_drafts_total{{{labels}}} {drafts}\n"
        text += f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {1.1 * drafts}\n"
        for place, share in enumerate((0.8, 0.3)):
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            text += f'{name}{{{labels},position="{place}"}} {share * drafts}\n'
        (tmp_path / path.name).write_text(text)
        return tmp_path / path.name

    found = read_metrics([with_drafts(VLLM[0], 10), with_drafts(VLLM[1], 1010)], 100)
    assert found.acceptance == pytest.approx((0.8, 0.3))
    assert found.accepted_length == pytest.approx(2.1)
    assert stage_of(found).draft_acceptance == "0.8,0.3"


def test_a_row_and_its_case(tmp_path):
    out, counted = tmp_path / "runs.csv", tmp_path / "counted.json"
    done = run(
        *("data", "read", "metrics", *VLLM, "--interval", 100, "--model", "Qwen/Qwen3-8B"),
        *("--gpu", "h100", "--out", out, "--counted", counted),
    )
    assert "prompts of 1000 tokens, 25% of them found" in done.stdout
    assert "stage 0: 4/s, TTFT 60.0 ms, E2E 2.050 s, 4 of 404 failed" in done.stdout
    assert "requests are taken to come at random" in done.stdout
    case = case_of(read_tables([out]).rows, None)
    assert (case.demanded.cached_tokens, case.demanded.arrival) == (250, "poisson")
    assert case.server.kv.reported_blocks == 24_000
    found = json.loads(counted.read_text())
    bins = found["times"]["ttft"]
    assert (sum(bins["counts"]), bins["upper_ends"][-1]) == (400, None)
    assert found["rate"] == 4


def test_the_interval_is_the_samples_or_the_files(tmp_path):
    paths = [tmp_path / path.name for path in VLLM]
    for place, (path, copy) in enumerate(zip(VLLM, paths, strict=True)):
        copy.write_text(path.read_text())
        os.utime(copy, (1e9 + 40 * place,) * 2)
    found = read_metrics(paths)
    assert found.duration_s == 40
    assert found.notes == ("the interval of 40.0 s is that between the files' times",)
    for place, copy in enumerate(paths):
        lines = copy.read_text().splitlines()
        time = 1_763_900_000_000 + 25_000 * place
        copy.write_text(
            "\n".join(line if line.startswith("#") else f"{line} {time}" for line in lines) + "\n"
        )
    found = read_metrics(paths)
    assert (found.duration_s, found.notes) == (25, ())
    with pytest.raises(InputError, match="wrong order"):
        read_metrics(paths[::-1])
    for path, copy in zip(VLLM, paths, strict=True):
        copy.write_text(path.read_text())
        os.utime(copy, (1e9, 1e9))
    with pytest.raises(InputError, match="are of one time"):
        read_metrics(paths)


def test_a_range_query_says_the_same(tmp_path):
    result = []
    for before, after in zip(*(read_samples(path, ("vllm:",)) for path in VLLM), strict=True):
        assert before.name == after.name
        metric = {"__name__": before.name, **before.labels}
        middle = (before.value + after.value) / 2
        values = [[0, before.value], [60, middle], [100, after.value]]
        result.append({"metric": metric, "values": [[t, f"{v}"] for t, v in values]})
    path = tmp_path / "range.json"
    answer = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    path.write_text(json.dumps(answer))
    own, other = read_metrics([path]), read_metrics(VLLM, 100)
    assert own.duration_s == 100
    assert {**own.to_dict(), "notes": ()} == {**other.to_dict(), "notes": ()}


def test_a_range_query_may_lack_histograms():
    found = read_metrics([REPORTS / "prometheus_vllm.json"])
    assert (found.times, found.lengths) == ({}, {})
    assert found.mean_prompt == found.prompt_tokens / found.requests
    with pytest.raises(InputError, match="metrics: have no times of TTFT"):
        stage_of(found)


def changed_after(tmp_path, pair, series, by):
    """Two scrapes, of which the later has some series changed."""
    lines = pair[1].read_text().splitlines()
    for place, line in enumerate(lines):
        if re.search(series, line):
            name, value = line.rsplit(" ", 1)
            lines[place] = f"{name} {float(value) + by}"
    path = tmp_path / "after.txt"
    path.write_text("\n".join(lines) + "\n")
    return [pair[0], path]


def test_what_is_odd_is_said(tmp_path):
    bucket = "time_to_first_token_seconds_bucket.*le="
    paths = changed_after(tmp_path, VLLM, rf'{bucket}"\+Inf', 100)
    with pytest.raises(InputError, match="sum: 24 is too little for what its bins hold"):
        read_metrics(paths, 100)
    # A hundred more between 0.02 and 0.04 s.
    paths = changed_after(tmp_path, VLLM, rf'{bucket}"(0.0[468]|0.[1-9]|[12]|\+Inf)', 100)
    (note,) = read_metrics(paths, 100).notes
    assert note.startswith("500 requests got their first token and 400 their answer")
    paths = changed_after(tmp_path, VLLM, "inter_token_latency_seconds_sum", 100)
    assert "of which the engine timed 0.0113" in stage_of(read_metrics(paths, 100)).note
    paths = changed_after(tmp_path, SGLANG, "num_requests_total{", -25)
    assert "only 25 requests were answered" in read_metrics(paths, 10).notes


AFTER = VLLM[1].read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no metric of vllm or sglang"),
        ("up 1\n", "holds no metric of vllm or sglang"),
        (AFTER[:-4], "is no whole sample of Prometheus's text format"),
        (AFTER.replace('le="0.04"', 'le="x"'), "'x' is no upper end"),
        (AFTER.replace("vllm:generation_tokens_total{", "vllm:generation_tokens_total["), "sample"),
        (AFTER.replace("84000.0", "NaN"), "is nan after 4000"),
        (AFTER.replace("84000.0", "12.0"), "is 12 after 4000: the scrapes are in the wrong order"),
        (AFTER.replace("1.7637312e+09", "1.8e+09"), "the server was started anew"),
        (AFTER.replace('"Qwen/Qwen3-8B"', '"other"', 1), "is of several models"),
        (AFTER + AFTER, "is there twice"),
        (AFTER.replace('num_gpu_blocks="12000"', 'num_gpu_blocks="-3"'), "kv_blocks: -3 is not"),
        (VLLM[0].read_text(), "no request was answered"),
        (SGLANG[1].read_text(), "the server is another"),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path, text, message):
    path = tmp_path / "after.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        read_metrics([VLLM[0], path], 100)
    assert "\n" not in str(raised.value)


def test_files_and_options_that_do_not_go_together(tmp_path):
    out = tmp_path / "runs.csv"
    about = ("--model", "Qwen/Qwen3-8B", "--gpu", "h100", "--out", out)
    for words, message in (
        (("metrics", VLLM[0]), "is one scrape; pass another of some minutes later"),
        (("metrics", *VLLM, VLLM[0]), "files: are 3; pass two scrapes"),
        (("metrics", *VLLM, "--interval", 0), "interval: 0.0 is no length of time"),
        (("metrics", *VLLM[::-1], "--interval", 9), "wrong order"),
        (("vllm-bench", *VLLM), "files: are 2, of vllm-bench; pass one"),
        (("vllm-bench", VLLM[0], "--interval", 9), "interval: has no meaning for vllm-bench"),
        (("vllm-bench", VLLM[0], "--counted", out), "--counted: has no meaning for vllm-bench"),
    ):
        assert message in run("data", "read", *words, *about).stderr
    assert not out.exists()


def test_labels_are_unescaped(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text('a:b{x="1,}\\"\\\\ \\n",y=""} +Inf 12.5 # {id="7"} 1\na:c 3\nb 2\n')
    first, second = read_samples(path, ("a:",))
    assert (first.labels, first.value, first.time_s) == ({"x": '1,}"\\ \n', "y": ""}, np.inf, 12.5)
    assert (second.name, second.labels, second.time_s) == ("a:c", {}, None)


@given(st.lists(st.floats(1e-3, 20), min_size=1, max_size=200), st.floats(0, 100))
def test_percentiles_are_within_the_bin_of_their_values(values, percent):
    edges = np.array([0.01, 0.1, 0.5, 1, 2, 5, 10, np.inf])
    numbers = np.sort(values)
    places = np.searchsorted(edges, numbers, side="left")
    found = Histogram(edges, np.bincount(places, minlength=8).astype(float), float(sum(values)))
    assert found.mean == pytest.approx(np.mean(values))
    exact = numbers[max(int(np.ceil(percent / 100 * len(numbers))) - 1, 0)]
    place = np.searchsorted(edges, exact, side="left")
    low, high = (0.0, *edges)[place], edges[min(place, 6)]
    assert low - 1e-9 <= found.percentile(percent) <= high + 1e-9
    assert found.percentile(percent) <= found.percentile(100) + 1e-12


@pytest.mark.parametrize(
    ("edges", "counts", "total", "message"),
    [
        ([1.0, 2.0], [1.0, 1.0], 2.0, "le: are no upper ends up to"),
        ([2.0, 1.0, np.inf], [1.0, 1.0, 1.0], 9.0, "le: are no upper ends up to"),
        ([1.0, np.inf], [1.0, -1.0], 2.0, "buckets: do not rise with le"),
        ([1.0, np.inf], [0.0, 3.0], 2.9, "sum: 2.9 is too little"),
    ],
)
def test_bins_must_be_bins(edges, counts, total, message):
    with pytest.raises(InputError, match=message):
        Histogram(np.array(edges), np.array(counts), total)


def test_cached_prompts_of_a_row_are_checked(tmp_path):
    frame = physim.read_report(
        "metrics", VLLM, model="Qwen/Qwen3-8B", gpu="h100_sxm", interval_s=100
    )
    for change, message in (
        ({"cached_len_mean": 1000.0}, "cached_len_mean: 1000 leaves nothing of 1000 tokens"),
        ({"prompt_groups": 3}, "prompt_groups: say what is cached, as cached_len_mean does"),
    ):
        frame.assign(**change).to_csv(tmp_path / "runs.csv", index=False)
        with pytest.raises(InputError, match=message):
            read_tables([tmp_path / "runs.csv"])
