"""Exchanges between GPUs that do not reach each other's memory, by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest

import physim
from physim import data
from physim.errors import InputError
from physim.inputs.deployment import Deployment
from physim.inputs.lengths import Lengths
from physim.models.lookup import load_model
from physim.models.parallelism import Parallelism
from physim.service.hardware import load_hardware, shipped_gpus
from physim.service.service import Service
from physim.step.curves import MESSAGE_BYTES, TOKENS
from physim.step.lowering import assumptions, rows_of

DENSE = "Qwen/Qwen3-14B"


def hosted(key="rtx_pro_6000_server"):
    """A GPU whose cards do not reach each other's memory."""
    return replace(load_hardware(key), peer_access=False)


def exchanged(gpu, **deployment):
    """Rows of what GPUs exchange, by name."""
    model = load_model(deployment.pop("model", DENSE))
    layout = Parallelism(**deployment)
    server = Deployment(layout, max_model_len=8192).resolved(model, gpu)
    return {row.name: row for row in rows_of(server) if row.correction == "all_reduce"}


def test_an_all_reduce_through_the_hosts_memory_by_hand():
    row = exchanged(hosted(), tp=2)["all_reduce"]
    # Of a MiB each of two sends a half twice, at a quarter of 64 GB/s, in two hops of 3 us; and the
    # two are 3 us apart.
    (place,) = np.flatnonzero(MESSAGE_BYTES == 2.0**20)
    by_hand = 3e-6 + 3.5e-6 + 2 * 3e-6 + 2**20 / 16e9
    assert np.exp(row.log_seconds[place]) == pytest.approx(by_hand)
    assert row.bandwidth == 16e9
    # NCCL among eight RTX 4090, which have no peer access, took 42 us (NVIDIA/nccl issue 1530).
    few = np.exp(exchanged(hosted("rtx_4090"), tp=8)["all_reduce"].log_seconds[0]) - 3e-6
    assert few == pytest.approx(42e-6, rel=0.1)


def test_other_exchanges_through_the_hosts_memory_by_hand():
    rows = exchanged(hosted(), tp=2, pp=2)
    assert rows["pipeline_send"].bandwidth == rows["gather_logits"].bandwidth == 16e9
    row = exchanged(hosted(), model="Qwen/Qwen3-30B-A3B", dp=2, ep=2)["expert_exchange"]
    # Of 4,096 tokens of 2,048 numbers each of two ranks sends a half in 16 bit, and gets sums of
    # its own back: two exchanges of a hop of 3 us, each with ranks that are 3 us apart.
    (place,) = np.flatnonzero(TOKENS == 4096)
    by_hand = 2 * (3e-6 + 3.5e-6 + 3e-6 + 4096 * 2048 * 2 / 2 / 16e9)
    assert np.exp(row.log_seconds[place]) == pytest.approx(by_hand)


@pytest.mark.parametrize(
    "gpu", [gpu for gpu in shipped_gpus() if load_hardware(gpu).link == "pcie"]
)
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_no_exchange_is_faster_through_the_hosts_memory(gpu, tp):
    with_access = exchanged(replace(load_hardware(gpu), peer_access=True), tp=tp)["all_reduce"]
    without = exchanged(hosted(gpu), tp=tp)["all_reduce"]
    assert np.all(without.log_seconds >= with_access.log_seconds)
    assert np.all(np.diff(without.log_seconds) >= 0)


def test_peer_access_is_what_the_file_says_or_follows_from_the_link(tmp_path):
    assert load_hardware("h100_sxm").peer_access is True
    assert load_hardware("l40s").peer_access is None
    assert load_hardware("rtx_5090").peer_access is False
    fields = json.loads((data.folder("hardware") / "l40s.json").read_text())
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**fields, "peer_access": {"value": False, "source": "mine"}}))
    assert load_hardware(str(path)).peer_access is False
    path.write_text(json.dumps({**fields, "peer_access": {"value": 0}}))
    with pytest.raises(InputError, match=r"mine.json: peer_access: has neither true nor false"):
        load_hardware(str(path))


def test_how_cards_exchange_is_said():
    def said(gpu, **layout):
        case = physim.Case.from_options(DENSE, gpu=gpu, max_model_len=8192, **layout)
        notes = assumptions(case.server)
        return [note for note in notes if "memory" in note]

    (note,) = said("rtx_pro_6000_server", tp=2)
    assert note.startswith(
        "whether rtx_pro_6000_server cards of this host reach each other's memory"
    )
    (note,) = said("rtx_5090", tp=4)
    assert note == "rtx_5090 cards have no peer access: exchanges go through the host's memory"
    assert not said("h100_sxm", tp=2) + said("rtx_pro_6000_server")


@pytest.mark.slow
def test_intervals_cover_exchanges_through_the_hosts_memory():
    case = physim.Case.from_options(
        DENSE,
        gpu="rtx_pro_6000_server",
        tp=2,
        concurrency=64,
        input_tokens=1000,
        output_tokens=Lengths.lognormal(200, 100),
    )
    server = replace(case.server, gpu=hosted())
    slower = physim.predict(replace(case, service=Service.single(server)))
    known = replace(case.server, gpu=replace(case.server.gpu, peer_access=True))
    alone = physim.predict(replace(case, service=Service.single(known)))
    found = physim.predict(case)
    assert found.itl_s == alone.itl_s < slower.itl_s
    ratio = slower.itl_s / found.itl_s
    assert found.intervals["itl_s"][1] == pytest.approx(alone.intervals["itl_s"][1] * ratio)
    assert found.intervals["itl_s"][0] == pytest.approx(alone.intervals["itl_s"][0])
    assert found.intervals["saturation_rps"][0] < alone.intervals["saturation_rps"][0]
