"""Input that is wrong is refused in one line.

`benchmarks/fuzz.py` tries many more.
"""

import json

import pytest
from fuzzing import MALFORMED, refused_or_read
from hypothesis import given, settings
from hypothesis import strategies as st

from physim import data
from physim.inputs.hardware import load_hardware


@pytest.mark.parametrize("kind", MALFORMED)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=100)
def test_what_is_wrong_is_refused_in_one_line(tmp_path_factory, kind, seed):
    refused_or_read(kind, seed, tmp_path_factory.getbasetemp())


def test_an_edited_gpu_is_read_anew(tmp_path):
    path = tmp_path / "gpu.json"
    content = data.read_json(data.folder("hardware") / "h100_sxm.json")
    for number in (1e12, 2e12):
        content["memory_bandwidth_bytes_per_s"]["value"] = number
        path.write_text(json.dumps(content))
        assert load_hardware(str(path)).memory_bandwidth == number
