"""Input that is wrong is refused in one line.

`benchmarks/fuzz.py` tries many more, as ``pytest --seeds random`` does with other seeds each time.
"""

import itertools
import json
from collections import Counter

import pytest
from fuzzing import (
    MALFORMED,
    READERS,
    modules_that_read,
    refused_or_read,
)
from fuzzing_fields import OPTIONS, unread_of_config, why_ignored

from physim import data
from physim.inputs.case import CaseOptions
from physim.service.hardware import load_hardware


@pytest.mark.parametrize("kind", MALFORMED)
def test_what_is_wrong_is_refused_in_one_line(tmp_path, kind, first_seed):
    start, least = (0, 10) if first_seed is None else (first_seed, 300)
    found = Counter()
    # As many more as it takes to see one that is refused, and one that is read.
    for seed in itertools.count(start):
        found[refused_or_read(kind, seed, tmp_path)] += 1
        if found.total() >= least and len(found) == 2:
            break
        assert found.total() < 100 * least, found


def test_every_reader_has_a_fuzzer():
    assert set(modules_that_read()) == set(READERS)
    named = {kind for kinds in READERS.values() if isinstance(kinds, tuple) for kind in kinds}
    assert named <= set(MALFORMED)
    # A case by names reads nothing itself.
    assert set(MALFORMED) - named == {"options"}


def test_it_is_known_why_nothing_comes_of_a_field():
    # `benchmarks/fuzz.py --fields` tries those of all shipped models.
    unread = unread_of_config("google/gemma-4-26B-A4B")
    assert {"text_config.hidden_size", "hidden_size"}.isdisjoint(unread)
    assert [field for field in unread if not why_ignored("config", field)] == []


def test_each_option_of_a_case_is_tried():
    assert set(OPTIONS) == set(CaseOptions.__annotations__)


def test_an_edited_gpu_is_read_anew(tmp_path):
    path = tmp_path / "gpu.json"
    content = data.read_json(data.folder("hardware") / "h100_sxm.json")
    for number in (1e12, 2e12):
        content["memory_bandwidth_bytes_per_s"]["value"] = number
        path.write_text(json.dumps(content))
        assert load_hardware(str(path)).memory_bandwidth == number
