"""Functions that are made ready once on a machine, not once in each process.

What a function was made into is kept in a folder, so that the next process that calls it with
arrays of the same shapes loads that and neither traces nor compiles. JAX's own cache keeps what XLA
makes, but not the tracing before it, which takes as long again. What has little to do becomes a
program on NumPy (`physim.programs`), which is ready at once; what has much, or is called often, XLA
compiles.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import math
import os
import platform
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar, TypeVarTuple

import jax
import numpy as np

from physim import executables, kept_files, sources
from physim.printable import printable
from physim.programs.program import Program, UnwrittenError
from physim.trusted import doubt_of_folder
from physim.waits import compiling

_log = logging.getLogger(__name__)

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

_OPTIONS: dict[str, Any] = {
    # XLA's fusion emitters take half as long again to compile long chains of small operations, and
    # twice the memory, and what they make of them is no faster.
    "xla_cpu_use_fusion_emitters": False,
    # What jaxlib 0.10.2 leaves to YNNPACK may come out wrong without a word: sums of products of
    # large arrays (JAX's issue 39103), and products that are added to others, into which goes
    # memory that nothing was written to.
    "xla_cpu_experimental_ynn_fusion_type": "",
    # What the last level adds takes a fifth of the time to compile, and brings nothing.
    "xla_backend_optimization_level": 2,
}
# A call with less than so many numbers, each used once, runs in a millisecond or two even without
# optimisation, which takes longer than all else.
_FEW = 100_000
_QUICK = _OPTIONS | {"xla_backend_optimization_level": 0}
# How long XLA takes to optimise a line of a program, about, seconds: a process that has spent as
# much on calls of one has it compiled. Whether that was done before does not count, so that the
# same calls find the same to the last digit.
OPTIMISED_S = 1.7e-3
# What is called takes a program longer than this if it has much to do: XLA compiles it, seconds.
_LONG_S = 0.2
# Of JAX's settings those that change what a function computes.
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
)
_PACKAGES = ("jax", "jaxlib", "equinox", "diffrax", "numpy")


@dataclass
class _Ready:
    """What a function was made into for arrays of some shapes.

    Attributes:
        run: From the leaves of the arguments to those of the result.
        result: The structure of the result.
        calls: How often it is called before it pays to have XLA optimise it.
    """

    run: executables.Run
    result: Any
    calls: float = math.inf


class Kept(Generic[*Arguments, Result]):
    """A function of trees of arrays that is made ready once on a machine; see `kept`."""

    def __init__(self, function: Callable[[*Arguments], Result], uses: float) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._uses = uses
        self._jitted = jax.jit(function, compiler_options=_OPTIONS)
        self._ready: dict[Hashable, _Ready] = {}

    def __call__(self, *args: *Arguments) -> Result:
        """The function's result.

        What has arrays that JAX holds already is left to `jax.jit`.
        """
        leaves, tree = jax.tree.flatten(args)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self._function(*args)
        config = jax.config
        if (
            any(isinstance(leaf, jax.Array) for leaf in leaves)
            or config.jax_disable_jit
            or config.jax_debug_nans
            or config.jax_debug_infs
            or config.jax_default_device is not None
        ):
            return self._jitted(*args)
        leaves = [np.asarray(leaf) for leaf in leaves]
        shapes = tuple((leaf.shape, leaf.dtype.str) for leaf in leaves)
        key = (tree, shapes, *(getattr(config, name) for name in _SETTINGS))
        ready = self._ready.get(key)
        if ready is None or ready.calls <= 0:
            ready = self._ready[key] = self._made(leaves, key, ready)
        ready.calls -= 1
        found: Result = jax.tree.unflatten(ready.result, ready.run(leaves))
        return found

    def forget(self) -> None:
        """Lets go of what this process has loaded; what is called again is loaded again."""
        self._ready.clear()

    def _made(
        self, leaves: Sequence[np.ndarray], key: tuple[Any, ...], before: _Ready | None
    ) -> _Ready:
        """The function for such arguments: loaded if that was kept, or else made and kept.

        Args:
            leaves: The arguments' leaves.
            key: What tells such arguments from others.
            before: A program whose calls are used up; None if there was none.
        """
        is_first = before is None
        is_quick = is_first and self._uses * sum(leaf.size for leaf in leaves) < _FEW
        options = _QUICK if is_quick else _OPTIONS
        program = executable = None
        # Whatever is wrong with what was kept, it can be made anew.
        place = _places(self._function, key)
        if is_first and (program := place(kept_files.PROGRAM)):
            with contextlib.suppress(Exception):
                return _loaded_program(program)
        # What another processor than a CPU runs is not kept.
        if jax.default_backend() == "cpu":
            own = options, jax.config.jax_num_cpu_devices, _processor()
            executable = place(kept_files.COMPILED, *own)
        if executable is not None:
            with contextlib.suppress(Exception):
                return _loaded_executable(executable)
        structures = []

        def flat(*leaves: Any) -> list[Any]:
            found, structure = jax.tree.flatten(self._function(*jax.tree.unflatten(key[0], leaves)))
            structures.append(structure)
            return found

        with compiling.once(), _out_of_jaxs_cache():
            traced = jax.jit(flat, compiler_options=options, keep_unused=True).trace(*leaves)
            (structure,) = structures
            if is_first:
                with contextlib.suppress(UnwrittenError):
                    return _made_program(traced, structure, program)
            return _made_executable(traced, structure, executable)


def _loaded_program(place: Path) -> _Ready:
    code, result, _ = kept_files.load(place)
    program = Program.from_bytes(code)
    return _Ready(program.run, jax.tree.structure(result), _calls(program))


def _calls(program: Program) -> float:
    """How often a program is called before it pays to have XLA optimise it."""
    return OPTIMISED_S * program.lines / program.work_s


def _loaded_executable(place: Path) -> _Ready:
    code, result, told = kept_files.load(place)
    return _Ready(executables.from_bytes(code, told["lapack"]), jax.tree.structure(result))


def _made_program(
    traced: jax.stages.Traced, structure: jax.tree_util.PyTreeDef, place: Path | None
) -> _Ready:
    """A program of what was traced.

    Raises:
        UnwrittenError: It cannot be written, or takes long.
    """
    from physim.programs.writing import written

    program = written(traced.jaxpr)
    if program.work_s > _LONG_S:
        raise UnwrittenError(f"a program of {program.work_s:.2g} s")
    _keep(place, program.to_bytes(), structure)
    return _Ready(program.run, structure, _calls(program))


def _made_executable(
    traced: jax.stages.Traced, structure: jax.tree_util.PyTreeDef, place: Path | None
) -> _Ready:
    lowered = traced.lower()
    _strip_sources(lowered)
    made = lowered.compile()
    code = executables.to_bytes(made)
    if code is not None:
        _keep(place, code[0], structure, lapack=code[1])
    return _Ready(lambda leaves: made(*leaves), structure)


def _keep(place: Path | None, code: bytes, structure: jax.tree_util.PyTreeDef, **told: Any) -> None:
    if place is None:
        return
    # A tree of some other library's classes cannot be kept, nor anything on a full disk.
    with contextlib.suppress(Exception):
        result = jax.tree.unflatten(structure, range(structure.num_leaves))
        kept_files.save(place, code, result, told)


def kept(function: Callable[[*Arguments], Result], uses: float = 1.0) -> Kept[*Arguments, Result]:
    """Decorates a pure function of trees of NumPy arrays and numbers like `jax.jit`, and keeps it.

    What it was made into lies in the folder of `folder`, under a digest of all that it depends
    on: the source of its module and of what that imports, versions, settings, shapes, and of what
    XLA compiled the processor.

    Args:
        function: The function.
        uses: How often it uses each number that it is given, beside a solver of a steady state:
            what has much to do is compiled with optimisation.
    """
    return Kept(function, uses)


def folder() -> Path | None:
    """Where compiled functions are kept: as JAX is told, or in the user's cache; None if nowhere.

    JAX_COMPILATION_CACHE_DIR says where, JAX_ENABLE_COMPILATION_CACHE=false that nothing is kept.
    Nor is anything where another user owns the folder or may write to it, which is logged once.
    """
    if not jax.config.jax_enable_compilation_cache:
        return None
    told = jax.config.jax_compilation_cache_dir
    if told:
        return _trusted(Path(told), Path(told) / "physim")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return _trusted(cache / "physim")


@functools.cache
def _trusted(*folders: Path) -> Path | None:
    """The last of some folders; None if any of them cannot be trusted."""
    for doubt in filter(None, map(doubt_of_folder, folders)):
        _log.warning("physim: %s; compiled functions are not kept", printable(doubt))
        return None
    return folders[-1]


@contextlib.contextmanager
def _out_of_jaxs_cache() -> Iterator[None]:
    """Keeps what is compiled out of JAX's own cache: what comes out of there cannot be kept again.

    XLA leaves the code out of it without a word.
    """
    name = "jax_persistent_cache_min_compile_time_secs"
    usual = getattr(jax.config, name)
    jax.config.update(name, math.inf)
    try:
        yield
    finally:
        jax.config.update(name, usual)


def _strip_sources(lowered: jax.stages.Lowered) -> None:
    """Takes out which line of source each operation comes from: a tenth of the time of a load."""
    from jax.extend.mlir.passmanager import PassManager

    module = lowered.compiler_ir()
    with module.context:
        PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)


def _places(function: Callable[..., Any], key: tuple[Any, ...]) -> Callable[..., Path | None]:
    """Where what is made of a function is kept: of a suffix, and of what else that depends on.

    Args:
        function: The function.
        key: What tells its arguments from others; first their structure.
    """
    root = folder()
    if root is None:
        return lambda *_: None
    module, name = function.__module__, function.__qualname__
    source = sources.digest_of({module, *_modules(key[0])})
    flags = os.environ.get("XLA_FLAGS", ""), os.environ.get("EQX_ON_ERROR", "")

    def place(suffix: str, *own: Any) -> Path:
        digest = hashlib.sha256(repr((source, _versions(), flags, *key, *own)).encode())
        return root / f"{module}.{name}-{digest.hexdigest()[:24]}{suffix}"

    return place


def _modules(tree: jax.tree_util.PyTreeDef) -> Iterator[str]:
    """Modules of the classes in a tree, whose methods a function may call."""
    node = tree.node_data()
    if node is not None:
        yield node[0].__module__
        for child in tree.children():
            yield from _modules(child)


@functools.cache
def _versions() -> tuple[str, ...]:
    return platform.python_version(), *map(metadata.version, _PACKAGES)


@functools.cache
def _processor() -> str:
    """What tells processors apart whose instructions differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    told = ("flags", "Features", "model name", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(told)}))
