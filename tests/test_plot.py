"""Pictures show the numbers that they are of."""

from pathlib import Path

import numpy as np
import pytest

import physim
from physim import plot
from physim.corrections.fields import Corrections
from physim.corrections.files import Fit
from physim.errors import InputError
from physim.plot.components import _SWEEPS
from physim.plot.steps import _work
from physim.prediction.arrays import step_model_of
from physim.step.lowering import PART_NAMES
from physim.tables.files import load
from physim.tables.writer import write_table

MODEL, DENSE = "Qwen/Qwen3-14B", {"gpu": "h100_sxm", "tp": 2}
ENGINE = {**DENSE, "max_num_seqs": 128, "max_num_batched_tokens": 2048}


def lines(axes):
    return {line.get_label(): line.get_data() for line in axes.get_lines()}


def test_the_roofline_of_a_component_is_that_of_its_bytes():
    drawn = lines(plot.draw_component(MODEL, "mlp", **DENSE))
    # Of one token, on each of two GPUs: 17,408 x 5,120 and 5,120 x 8,704 weights of two bytes, and
    # the activations, 40 layers, at 3.35 TB/s.
    weights = 2 * (17408 * 5120 + 5120 * 8704)
    activations = 2 * (5120 + 17408 + 8704 + 5120)
    tokens, milliseconds = drawn["roofline"]
    assert tokens[0] == 1
    assert milliseconds[0] == pytest.approx(40e3 * (weights + activations) / 3.35e12, rel=1e-4)
    # And of 8,192, at 989.5 TFLOP/s.
    flops = 2 * 8192 * (17408 * 5120 + 5120 * 8704)
    assert milliseconds[-1] == pytest.approx(40e3 * flops / 989.5e12, rel=1e-3)


# What only some layouts have is drawn of them.
SPREAD = {
    "experts": ("Qwen/Qwen3-30B-A3B", {"gpu": "h100_sxm", "dp": 2, "ep": 2}),
    "pipeline": (MODEL, {"gpu": "h100_sxm", "pp": 2}),
    "draft": (
        MODEL,
        {**DENSE, "draft": "eagle3", "draft_tokens": 3, "draft_acceptance": 0.7},
    ),
}
SPREAD["expert_exchange"] = SPREAD["experts"]


@pytest.mark.parametrize("component", PART_NAMES)
def test_every_component_can_be_drawn(component):
    model, layout = SPREAD.get(component, (MODEL, DENSE))
    drawn = lines(plot.draw_component(model, component, **layout))
    if component != "host":
        measured = next(line for label, line in drawn.items() if label.startswith("fit"))[1]
        assert np.all(measured > 0)
        if "roofline" in drawn:
            assert np.all(measured >= 0.999 * drawn["roofline"][1])


def test_what_a_fit_moves_is_drawn_beside_it(tmp_path):
    path = tmp_path / "mine.json"
    Fit.from_corrections("mine", Corrections(lm_head=0.2)).write(path)
    drawn = lines(plot.draw_component(MODEL, "lm_head", fit=path, gpu="h100_sxm"))
    assert drawn["fit"][1] == pytest.approx(np.exp(0.2) * drawn["nothing fitted"][1], rel=1e-5)


def test_pictures_go_along_something_else_only_for_parts_that_there_are():
    assert set(_SWEEPS) <= set(PART_NAMES)


def test_a_component_that_is_not_there():
    with pytest.raises(InputError, match="has no experts"):
        plot.draw_component(MODEL, "experts", **DENSE)
    with pytest.raises(InputError, match="'gemm' is unknown; use one of qkv"):
        plot.draw_component(MODEL, "gemm", **DENSE)


@pytest.mark.slow
def test_a_deployment_on_one_sheet():
    lengths = {"input_tokens": 786, "output_tokens": 251}
    drawn = plot.draw_deployment(MODEL, concurrency=40, **lengths, **ENGINE)
    assert [axes.get_xlabel() for axes in drawn[:4]] == [
        *["clients"] * 3,
        "requests that decode, 1000 tokens each",
    ]
    # The curve goes through what is predicted for one of its loads.
    number, itl = lines(drawn[1])["mean"]
    one = physim.predict(MODEL, concurrency=float(number[-1]), **lengths, **ENGINE)
    assert number[-1] == 160
    assert itl[-1] == pytest.approx(1e3 * one.itl_s, rel=1e-3)


def test_a_table_is_drawn_through_its_knots(tmp_path):
    write_table(MODEL, tmp_path / "table", kind="json", tolerance=0.05, **ENGINE)
    table = load(tmp_path / "table")
    decoding, prefilling = plot.draw_table(table)
    requests, milliseconds = lines(decoding)["1,000 tokens each"]
    assert list(requests) == [knot for knot in table.axes[0] if knot]
    assert milliseconds[-1] == pytest.approx(1e3 * table(requests[-1], 1000, 0, 0))
    assert "0 requests decode" in lines(prefilling)
    plot.save([decoding, prefilling], tmp_path / "table.svg")
    drawing = (tmp_path / "table.svg").read_text()
    assert "<svg" in drawing
    assert "<dc:date>" not in drawing


def test_a_name_that_is_no_pictures():
    with pytest.raises(InputError, match=r"end it in \.png or \.svg"):
        plot.save(plot.draw_component(MODEL, "lm_head", **DENSE), Path("picture.docx"))


def test_experts_compute_what_their_tokens_visit():
    """By hand: each of 2,048 tokens visits two of Mixtral's experts, of three matrices each."""
    case = physim.Case.from_options("mistralai/Mixtral-8x7B-v0.1", gpu="h100_sxm", tp=2)
    model = step_model_of(case, Corrections())
    flops, moved, seconds = _work(case, model, 0.0, 2048.0, 1000.0)["experts"]
    by_hand = 2048 * 2 * 3 * 2 * 4096 * 14336 * 32 / 2
    assert flops == pytest.approx(by_hand, rel=0.02)
    # All eight experts' weights are read, in 16 bit, and the activations with them.
    assert moved > 8 * 3 * 2 * 4096 * 14336 * 32 / 2
    assert 200e12 < flops / seconds < 989e12
