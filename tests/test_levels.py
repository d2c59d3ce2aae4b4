"""Levels of corrections: what runs of some tell of others, by hand."""

import numpy as np
import pytest

import physim
from physim.corrections.fields import CORRECTIONS, PRIOR_WIDTHS, Corrections, flat, labels
from physim.corrections.files import Fit, load_fit
from physim.corrections.levels import (
    LEVELS,
    Evidence,
    Tree,
    branch_of,
    common,
    joined,
    prior_widths,
)

H100, H200 = (("all", gpu, *[""] * (len(LEVELS) - 2)) for gpu in ("h100_sxm", "h200_sxm"))


def widths(**by_level):
    return np.array([[by_level.get(level, 0.0)] for level in LEVELS])


def told(branch, curvature):
    return Evidence(Tree((branch,)), np.array([[[curvature]]]))


def test_what_runs_on_one_gpu_tell_of_another():
    # Shared 0.3 and a GPU's own 0.4: a variance of 0.25 in all, of which 0.09 is common.
    spread = told(H100, 25.0).spread(widths(shared=0.3, gpu=0.4))
    # Curvature of 25 is a measurement with a variance of 0.04.
    assert spread.at_branch(H100)[0, 0] == pytest.approx(1 / (1 / 0.25 + 25))
    assert spread.at_branch(H200)[0, 0] == pytest.approx(0.25 - 0.09**2 / (0.25 + 0.04))


def test_a_level_without_width_carries_everything_over():
    spread = told(H100, 25.0).spread(widths(shared=0.3))
    assert spread.at_branch(H200)[0, 0] == pytest.approx(spread.at_branch(H100)[0, 0])
    assert spread.at_branch(H200)[0, 0] == pytest.approx(1 / (1 / 0.09 + 25))


def test_what_no_run_tells_of_is_as_uncertain_as_before():
    evidence = Evidence(Tree((H100,)), np.diag([25.0, 0.0])[None])
    wide = np.tile(widths(shared=0.3, gpu=0.4), 2)
    found = evidence.spread(wide).at_branch(H100)
    assert found[1, 1] == pytest.approx(0.25)
    assert found[0, 1] == 0


def test_evidence_adds_up():
    both = joined(joined(told(H100, 25.0), told(H200, 9.0)), told(H100, 16.0))
    assert both.tree.branches == (H100, H200)
    assert both.curvature.ravel().tolist() == [41.0, 9.0]
    wide = widths(shared=0.3, gpu=0.4)
    alone = told(H100, 41.0).spread(wide).at_branch(H200)[0, 0]
    assert both.spread(wide).at_branch(H200)[0, 0] < alone


def test_branches_name_what_a_case_is():
    case = physim.Case.from_options("Qwen/Qwen3-14B", gpu="h100_sxm")
    branch = branch_of(case, "mine")
    assert branch[:4] == ("all", "h100_sxm", "vllm", f"vllm {case.server.profile.version}")
    assert branch[-1] == "mine"
    assert "vllm Qwen3ForCausalLM" in branch
    other = branch_of(physim.Case.from_options("Qwen/Qwen3-14B", gpu="h200_sxm"), "mine")
    assert common([branch, other])[:3] == ("all", "", "vllm")


def test_levels_share_the_variance_of_the_prior():
    found, prior = prior_widths(), flat(PRIOR_WIDTHS)
    for place, name in enumerate(labels()):
        total = np.sum(found[:, place] ** 2)
        if name in CORRECTIONS and not CORRECTIONS[name].carries_over:
            assert total == pytest.approx(prior[place] ** 2)
        else:
            assert 0 < total <= prior[place] ** 2
    host = [name for name, one in CORRECTIONS.items() if one.carries_over]
    assert {"host_step", "front_end", "handover", "output_handling", "warm_up"} <= set(host)
    columns = [labels().index(name) for name in host]
    for level in ("gpu", "family"):
        assert not found[LEVELS.index(level), columns].any()


def test_a_fit_file_keeps_any_name(tmp_path):
    triangle = [float(number) for number in range(6)]
    name = f'@"curvature": "[{triangle}]"@'
    branch = ("all", name, *[""] * (len(LEVELS) - 2))
    curvature = np.diag(np.where(np.arange(len(labels())) < 2, 25.0, 0.0))
    known = Fit(
        name,
        {("shared", "all"): flat(Corrections()), ("gpu", name): flat(Corrections(lm_head=0.5))},
        np.full((len(LEVELS), len(CORRECTIONS)), 0.1),
        Evidence(Tree((branch,)), curvature[None]),
        branch,
    )
    known.write(tmp_path / "fit.json")
    found = load_fit(tmp_path / "fit.json")
    assert found.offsets.keys() == known.offsets.keys()
    assert found.common == branch
    # Each matrix on a line.
    assert '"curvature": [25.0, 0.0, 25.0]\n' in (tmp_path / "fit.json").read_text()
