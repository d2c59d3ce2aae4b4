"""Lowers a model on a GPU to arrays of one shape: an architecture is data, not code."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Float

from physim.engines.profile import DEFAULT_ENGINE
from physim.errors import InputError
from physim.grids.store import gpu_or_stand_in, grids_of, measured_grids
from physim.models.architecture import ModelArch
from physim.pytree import Pytree
from physim.service.server import Server
from physim.step.better_gpus import no_faster_note
from physim.step.component import Placement
from physim.step.components import COMPONENTS
from physim.step.components.gpu_idle import STEP_GAP
from physim.step.drafting import PART as DRAFT
from physim.step.gemms import format_notes
from physim.step.host import PART as HOST
from physim.step.host import Host
from physim.step.host_memory import peer_access_notes
from physim.step.rows import DecodeRow, DecodeRows, PrefillRow, PrefillRows, Row, SizeRow, SizeRows
from physim.step.sizes import Setting
from physim.types import AnyArray, Number, Scalar

# The parts of a step's time by name: those of the components, a draft's, and the CPU's.
PARTS = {part.name: part for one in COMPONENTS for part in one.parts}
PARTS |= {DRAFT.name: DRAFT, HOST.name: HOST}
PART_NAMES = tuple(PARTS)
_ON_GPU = PART_NAMES[:-1]


class StepOps(Pytree):
    """A model on a GPU as numbers: the leaves of every model of a kind have the same shapes.

    Attributes:
        over_sizes: Operations whose time depends on one size of the step.
        decode: Attention of decoding requests.
        prefill: Attention of prefill chunks.
        windows: Tokens that attention looks back, for each of its kinds; infinite for all.
        setting: What sizes of a step depend on beside its batch.
        tp: GPUs that share every layer.
        host: The CPU's work.
        expert_load: How tokens spread over experts, an exponent.
        draft_tokens: Tokens that are proposed in each step; None where nothing proposes any.
        draft: The layers that propose them; None where none do.
    """

    over_sizes: SizeRows
    decode: DecodeRows
    prefill: PrefillRows
    windows: Float[AnyArray, " windows"]
    setting: Setting
    tp: Scalar
    expert_load: Scalar
    host: Host
    draft_tokens: Scalar | None = None
    draft: StepOps | None = None

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Row],
        host: Host,
        setting: Setting,
        tp: int = 1,
        expert_load: float = 0.0,
        beside: Sequence[Row] = (),
    ) -> StepOps:
        """Some operations as arrays.

        Args:
            rows: The operations.
            host: The CPU's work.
            setting: What sizes of a step depend on beside its batch.
            tp: GPUs that share every layer.
            expert_load: How tokens spread over experts, an exponent.
            beside: Operations of other layers that see the same batches, with windows of theirs.
        """
        decode = [row for row in rows if isinstance(row, DecodeRow)]
        every = [*decode, *(row for row in beside if isinstance(row, DecodeRow))]
        windows = sorted({row.window or np.inf for row in every}) or [np.inf]
        return cls(
            over_sizes=SizeRows.from_rows(
                [row for row in rows if isinstance(row, SizeRow)], _ON_GPU
            ),
            decode=DecodeRows.from_rows(decode, windows, _ON_GPU),
            prefill=PrefillRows.from_rows(
                [row for row in rows if isinstance(row, PrefillRow)], _ON_GPU
            ),
            windows=np.array(windows, float),
            setting=setting,
            tp=float(tp),
            expert_load=expert_load,
            host=host,
        )

    def of_alike_ranks(self, ranks: float) -> StepOps:
        """The operations where so many data-parallel ranks have the same batch.

        Args:
            ranks: How many.
        """
        return dataclasses.replace(self, setting=self.setting.of_alike_ranks(ranks))


def rows_of(server: Server) -> tuple[Row, ...]:
    """The operations of a server's step, each with its work and its measured time.

    A GPU without grids takes its efficiencies from the best-measured GPU; `assumptions` says so.

    Raises:
        InputError: A layer's attention is of a kind that no component describes, or a grid file is
            damaged.
    """
    return _rows(server.without_limits())


@functools.lru_cache(maxsize=1024)
def _rows(server: Server) -> tuple[Row, ...]:
    model = server.model
    known = {kind for component in COMPONENTS for kind in component.attention_kinds}
    for attention in model.attention_layers:
        if attention.kind not in known:
            raise InputError(
                f"{model.name}: layer_types",
                f"{attention.kind!r} is not modelled",
                f"supported: {', '.join(sorted(known))}",
            )
    placement = Placement(server)
    return tuple(row for component in COMPONENTS for row in component.lower(placement))


def lower(server: Server) -> StepOps:
    """The operations of a step as arrays: one object for all that differ in no step's time.

    Raises:
        InputError: As for `rows_of`.
    """
    return _lowered(server.without_limits())


@functools.lru_cache(maxsize=1024)
def _lowered(server: Server) -> StepOps:
    rows, draft = _rows(server), server.draft
    of_draft: tuple[Row, ...] = ()
    if draft is not None and draft.model is not None:
        of_draft = _drafting(server, draft.model)

    host, tp = Host.from_placement(Placement(server)), server.parallelism.tp

    def ops(model: ModelArch, own: Sequence[Row], others: Sequence[Row]) -> StepOps:
        setting = Setting.from_server(server, model)
        return StepOps.from_rows(own, host, setting, tp, server.expert_load, beside=others)

    found = ops(server.model, rows, of_draft)
    if draft is None:
        return found
    layers = ops(draft.model, of_draft, rows) if draft.model is not None else None
    return dataclasses.replace(found, draft_tokens=float(draft.tokens), draft=layers)


def _drafting(server: Server, layers: ModelArch) -> tuple[Row, ...]:
    """The operations of the layers that propose tokens, of which the likeliest are taken.

    What the GPU waits between two steps it does not wait between two passes.
    """
    own = dataclasses.replace(server, model=layers, draft=None, sampling="greedy")
    return tuple(row for row in _rows(own.without_limits()) if row.name != STEP_GAP)


def stack_ops(models: Sequence[StepOps]) -> StepOps:
    """Lowered models as one with a leading axis, those with fewer rows filled up with absent ones.

    Args:
        models: The models.
    """
    models = _alike(models)
    leaves, structures = zip(*(jax.tree.flatten(model) for model in models), strict=True)
    stacked: StepOps = jax.tree.unflatten(
        structures[0], [_filled_up(column) for column in zip(*leaves, strict=True)]
    )
    return stacked


def _alike(models: Sequence[StepOps]) -> Sequence[StepOps]:
    """Models with as many rows over each size, those of their drafts as well."""
    if len({model.over_sizes.slots for model in models}) > 1:
        slots = np.max([model.over_sizes.slots for model in models], axis=0).tolist()
        models = [
            dataclasses.replace(model, over_sizes=model.over_sizes.widened(slots))
            for model in models
        ]
    if all(model.draft_tokens is None for model in models):
        return models
    # Those without drafts propose no token, by the layers of any other.
    others = next((model.draft for model in models if model.draft is not None), None)
    drafts = [model.draft or others for model in models]
    some = _alike([draft for draft in drafts if draft is not None]) if others else drafts
    return [
        dataclasses.replace(model, draft_tokens=model.draft_tokens or 0.0, draft=draft)
        for model, draft in zip(models, some, strict=True)
    ]


def _filled_up(column: Sequence[Number]) -> np.ndarray:
    """Arrays stacked, after zeros were added where they are shorter than the longest."""
    shapes = {np.shape(one) for one in column}
    if len(shapes) == 1:
        return np.array(column, float)
    stacked = np.zeros((len(column), *np.max(list(shapes), axis=0)))
    for place, one in zip(stacked, column, strict=True):
        place[tuple(slice(length) for length in np.shape(one))] = one
    return stacked


def assumptions(server: Server) -> list[str]:
    """Where a lowered model leans on physics because nothing was measured, one line each."""
    model, gpu, placement = server.model, server.gpu, Placement(server)
    lines = [model.note] if model.note else []
    stand_in = gpu_or_stand_in(gpu.key)
    if stand_in != gpu.key:
        limit = no_faster_note(placement, lambda _: 0)
        lines.append(
            f"no measured kernels for {gpu.key}: efficiencies of {stand_in} are used{limit}"
        )
    profile = server.profile
    lines += [line for line in (profile.note, profile.caveat) if line]
    if grids_of(stand_in, profile.engine) not in measured_grids():
        lines.append(
            f"no kernels of {profile.engine} measured on {stand_in}: {DEFAULT_ENGINE}'s are taken"
        )
    lines += peer_access_notes(placement) + _unused(server)
    lines += [line for component in COMPONENTS for line in component.assumptions(placement)]
    return lines + [line for form in model.weight_formats for line in format_notes(placement, form)]


def _unused(server: Server) -> list[str]:
    """Options of experts that were given for a model that has none."""
    if server.model.experts:
        return []
    asked = {"moe_kernel": server.moe_kernel, "expert_load": server.expert_load}
    return [f"{name} changes nothing: the model has no experts" for name in asked if asked[name]]
