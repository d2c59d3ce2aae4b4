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
    first = list(peers.table(rows, "itl"))[2]
    assert first == "| all | all | all | 3 | 4.0 (5.0) | 3.0 (4.0) | 6.0 (6.0) of 1 | - |"


def test_a_peer_is_ahead_on_the_rows_that_it_answers(peers):
    # In all 60 rows the default fit is 5.5% off; in the 30 that the peer answers, 10%.
    rows = compared(peers, 30, 10.0, 8.0) + compared(peers, 30, 1.0, None)
    reasons = {("vllm", "all", "all", "itl"): "a reason", ("all", "all", "all", "any"): "another"}
    lines = list(peers.ahead(rows, reasons))[2:]
    assert lines == [
        f"| {engine} | {gpu} | all | ITL | AIConfigurator 8.0 for 10.0 in 30 rows | {why} |"
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
