"""What XLA compiled, as bytes that another process runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

# From the leaves of the arguments to those of the result.
Run = Callable[[Sequence[np.ndarray]], Sequence[Any]]


def to_bytes(compiled: jax.stages.Compiled) -> tuple[bytes, bool] | None:
    """The code, and whether it calls LAPACK; None of one that calls back to Python.

    Args:
        compiled: A function that takes all arrays that it is given to a list of arrays.
    """
    text = compiled.as_text()
    if "python_cpu_callback" in text:
        return None
    return compiled.runtime_executable().serialize(), "lapack_" in text


def from_bytes(code: bytes, calls_lapack: bool) -> Run:
    """What `to_bytes` wrote, ready to run.

    Args:
        code: The code.
        calls_lapack: Whether it calls LAPACK.
    """
    from jaxlib.xla_client import DeviceList

    if calls_lapack:
        # JAX looks LAPACK up when a call of it is lowered, and what is loaded takes it as found.
        jax.jit(jax.scipy.linalg.lu_factor).lower(np.eye(2))
    (device, *_) = jax.devices()
    executable = device.client.deserialize_executable(
        code, executable_devices=DeviceList((device,))
    )

    def run(leaves: Sequence[np.ndarray]) -> Sequence[jax.Array]:
        results = executable.execute_sharded(jax.device_put(list(leaves)))
        return [one for (one,) in results.disassemble_into_single_device_arrays()]

    return run
