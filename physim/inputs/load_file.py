"""Loads from files of load generators and simulators, told apart by what they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from physim import data
from physim.errors import InputError
from physim.inputs import blis_workload, inference_perf
from physim.inputs.load_request import LoadOptions
from physim.inputs.stages import Stage


def read_load(path: str | Path) -> LoadOptions:
    """The options of a load from a configuration of inference-perf or a workload of BLIS.

    Prompts of inference-perf's ``shared_prefix`` come again after all of them were sent, and are
    found in the prefix cache as a whole then; of a run that sends no more than it has, the groups'
    own parts are. Lengths are those that are asked for: where requests do not ignore the end of the
    sequence, outputs are shorter.

    BLIS's clients whose requests come by chance are one stream, of which each request is of a
    client by its fraction of the rate. A prefix of a group is found in the cache by each of its
    requests; 2,048 requests stand for all.

    Args:
        path: The file, YAML or JSON.

    Returns:
        Options of `physim.predict`, such as ``stages`` and ``input_tokens``, or ``lengths``.

    Raises:
        InputError: It cannot be read, is neither, or says a load that no option says.
    """
    content, place = data.read_yaml(Path(path)), str(path)
    if inference_perf.is_configuration(content):
        return inference_perf.load_of(content, place)
    if blis_workload.is_workload(content):
        return blis_workload.load_of(content, place)
    remedy = "pass inference-perf's configuration, or BLIS's workload"
    raise InputError(place, "has neither load nor aggregate_rate", remedy)


def describes_a_load(content: Mapping[str, Any]) -> bool:
    """Whether `read_load` takes a YAML mapping for a load, whose fields may be wrong still.

    Args:
        content: The mapping.
    """
    return inference_perf.is_configuration(content) or blis_workload.is_workload(content)


def staying(options: LoadOptions) -> LoadOptions:
    """The same load without end, at its highest rate.

    Args:
        options: What `read_load` found.
    """
    kept: Any = {k: v for k, v in options.items() if k not in ("stages", "requests", "timeout_s")}
    if "stages" in options:
        kept["rate"] = max(stage.rate for stage in _stages(options))
    found: LoadOptions = kept
    return found


def _stages(options: LoadOptions) -> Sequence[Stage]:
    return [one if isinstance(one, Stage) else Stage(*one) for one in options["stages"]]
