"""Tables of errors beside peers': groups, means, and where a peer is ahead."""

from pathlib import Path

import pytest


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    import against_peers

    return against_peers


def row(**others):
    return {
        "engine": "vllm",
        "hardware": "h100_sxm",
        "dp": "1",
        "ep": "1",
        "output_len": "101.0",
        "ttft_mean": "1.0",
        "e2e_mean": "3.0",
        "left_out": "",
        "draft_tokens": "",
        **others,
    }


def test_errors_are_of_the_three_latencies(peers):
    # 100 steps in 2 s are 20 ms each; 25 ms after 0.8 s end at 3.3 s.
    found = peers.compared(row(), {"none": {"ttft": 0.8, "itl": 0.025}})
    assert found.group == peers.Group("vllm", "h100_sxm", "tensor parallel")
    assert {metric: errors["none"] for metric, errors in found.errors.items()} == pytest.approx(
        {"itl": 25.0, "ttft": 20.0, "e2e": 10.0}
    )


APART = {
    "prefill": "tp=2,replicas=4,max_num_batched_tokens=16384",
    "decode": "tp=1,dp=8,ep=8,replicas=2,max_num_seqs=5",
    "tp": "1",
    "max_num_seqs": "160",
    "max_num_batched_tokens": "8192",
    "concurrency": "160.0",
}


def test_rows_apart_have_requests_per_second_too(peers):
    # 160 clients with requests of 3 s are 53.3 a second; 3.3 s make 48.5 of them.
    known = {
        "none": {"ttft": 0.8, "itl": 0.025},
        "aisimulate": {"ttft": 1, "itl": 0.02, "rate": 48},
    }
    found = peers.compared(row(**APART), known)
    assert found.group == peers.Group("vllm", "h100_sxm", "prefill and decode apart")
    assert found.errors["rate"] == pytest.approx({"none": 100 / 11, "aisimulate": 10.0})
    assert "rate" not in peers.compared(row(), known).errors


def test_peers_are_asked_about_the_engines_of_a_row(peers):
    apart = peers.engines_of(row(**APART), "deepseek-ai/DeepSeek-V3")
    assert apart == {
        "prefill": peers.Engines(
            {"tp": 2, "dp": 1, "moe_tp": 2, "moe_ep": 1}, 4, ranks=1, slots=160, tokens=16384
        ),
        "decode": peers.Engines(
            {"tp": 1, "dp": 8, "moe_tp": 1, "moe_ep": 8}, 2, ranks=8, slots=5, tokens=8192
        ),
    }
    # Of 160 clients each of 16 ranks has ten, and room for five.
    assert peers.requests_of_a_rank(row(**APART), apart["decode"]) == 5
    whole = row(tp="4", max_num_seqs="64.0", max_num_batched_tokens="", concurrency="2.0")
    (name, engines), *_ = peers.engines_of(whole, "Qwen/Qwen3-32B").items()
    assert name == "aggregated"
    assert engines == peers.Engines({"tp": 4}, 1, ranks=1, slots=64, tokens=8192)
    assert peers.requests_of_a_rank(whole, engines) == 2


def test_a_table_of_answers_that_was_begun_goes_on(peers, monkeypatch, tmp_path):
    """One of before has no column for requests per second."""
    data, answers = tmp_path / "rows.csv", tmp_path / "answers.csv"
    header = "experiment,left_out,draft_tokens,part"
    data.write_text(f"{header}\nfirst,,,fit\nsecond,,,fit\n")
    answers.write_text("experiment,peer,ttft_s,tpot_s,problem\nfirst,aisimulate,1,0.1,\n")
    points = [{"id": name} for name in ("first", "second")]
    read = peers.read
    monkeypatch.setattr(peers, "_points", lambda _: None)
    monkeypatch.setattr(peers, "read", lambda path: points if path is None else read(path))
    monkeypatch.setattr(peers.multiprocessing, "Pool", Processes)
    peers.ask("aisimulate", data, answers, 1)
    assert answers.read_text().splitlines()[2:] == ["second,aisimulate,2,0.2,"]


class Processes:
    """A pool of none, whose answers are all the same."""

    def __init__(self, _):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def imap(self, _, wanted, **__):
        for _, asked, _ in wanted:
            times = {"ttft_s": 2, "tpot_s": 0.2, "rate_rps": 5, "problem": ""}
            yield {"experiment": asked["experiment"]} | times


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"left_out": "is broken"}, False),
        ({"draft_tokens": "3.0"}, False),
        ({"draft_tokens": "0.0"}, True),
    ],
)
def test_rows_count_as_in_evaluate(peers, changed, expected):
    assert peers.counts(row(**changed)) is expected


def compared(peers, count, ours, theirs, **others):
    """So many rows with these errors of ITL, the peer's None where it refuses."""
    group = peers.compared(row(**others), {}).group
    itl = {"none": ours + 1.0, "default": ours}
    if theirs is not None:
        itl["aiconfigurator"] = theirs
    return [peers.Compared(group, {"itl": itl, "ttft": {}, "e2e": {}})] * count


def test_layouts_of_few_rows_have_no_line(peers):
    rows = compared(peers, 30, 1.0, 2.0) + compared(peers, 29, 1.0, 2.0, dp="2", ep="2")
    rows += compared(peers, 30, 1.0, 2.0, hardware="h200_sxm")
    assert peers.groups_of(rows) == [
        peers.Group(),
        peers.Group("vllm"),
        peers.Group("vllm", "h100_sxm"),
        peers.Group("vllm", "h100_sxm", "tensor parallel"),
        # All rows of the H200 are of one layout, which is said once.
        peers.Group("vllm", "h200_sxm"),
    ]


def test_a_table_says_how_many_rows_a_peer_answers(peers):
    rows = compared(peers, 2, 4.0, None) + compared(peers, 1, 1.0, 6.0)
    first = list(peers.table(rows, "itl", [peers.Group()]))[2]
    assert first == "| all | all | all | 3 | 4.0 (5.0) | 3.0 (4.0) | 6.0 (6.0) of 1 | - |"


def test_a_peer_is_ahead_on_the_rows_that_it_answers(peers):
    # In all 60 rows the default fit is 5.5% off; in the 30 that the peer answers, 10%.
    rows = compared(peers, 30, 10.0, 8.0) + compared(peers, 30, 1.0, None)
    reasons = {("vllm", "all", "all", "itl"): "a reason", ("all", "all", "all", "any"): "another"}
    lines = list(peers.ahead(rows, reasons))[2:]
    assert lines == [
        f"| {engine} | {gpu} | all | ITL | AIConfigurator 8.0 against 10.0 in 30 rows | {why} |"
        for engine, gpu, why in (
            ("all", "all", "another"),
            ("vllm", "all", "a reason"),
            ("vllm", "h100_sxm", "not known"),
        )
    ]
    assert "No peer" in next(peers.ahead(rows[1:], reasons))


def test_a_page_is_written_between_its_comments(peers, tmp_path):
    page = tmp_path / "page.md"
    begin, end = "<!-- name: begin -->", "<!-- name: end -->"
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    peers.fill(page, "name", "new")
    assert page.read_text() == f"before\n{begin}\n\nnew\n\n{end}\nafter\n"
    with pytest.raises(SystemExit, match="has no <!-- other: begin -->"):
        peers.fill(page, "other", "new")
