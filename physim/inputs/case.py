"""What is predicted: a service under a load."""

from __future__ import annotations

import difflib
import functools
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_type_hints

from physim.errors import InputError
from physim.inputs.arrivals import ArrivalDispersion
from physim.inputs.deployment import Deployment
from physim.inputs.engine_request import EngineOptions, EngineRequest
from physim.inputs.fleet import Fleet
from physim.inputs.fleet_request import FleetOptions, FleetRequest
from physim.inputs.lengths import Lengths
from physim.inputs.load import Load
from physim.inputs.load_on_server import load_on
from physim.inputs.load_request import LoadOptions, LoadRequest
from physim.inputs.pool_load import pool_load, shared_out
from physim.inputs.request_lengths import RequestLengths
from physim.inputs.scenario import taken_of_server
from physim.inputs.stages import Stage
from physim.inputs.what_fits import TooLargeError, what_fits
from physim.models.architecture import ModelArch
from physim.models.lookup import load_model
from physim.models.parallelism import Parallelism
from physim.options import named_options, options_of
from physim.printable import shown
from physim.service.hardware import load_hardware
from physim.service.phases import DECODE, PREFILL
from physim.service.server import Server
from physim.service.service import Pool, Service


class ModelOptions(TypedDict, total=False):
    """How a model is read.

    ``read_as`` names an architecture class that it is laid out like, and ``quantization`` (``fp8``)
    what the engine makes of 16-bit weights as it starts.
    """

    read_as: str | None
    quantization: str | None


class ServerOptions(ModelOptions, EngineOptions, total=False):
    """A server by names: a case without its load.

    ``gpu`` is the key of a GPU, such as ``h100_sxm``, or a JSON file; ``tp``, ``pp``, ``dp`` and
    ``ep`` are the degrees of `physim.Parallelism`; ``mixed`` says how steps of both prefill and
    decode are composed: ``additive``, as engines run them, or the seed study's
    ``weighted-average`` or ``smooth-weighted``; the others are the fields of `physim.Deployment`.
    """

    gpu: str
    tp: int
    pp: int
    dp: int
    ep: int
    mixed: str


class CaseOptions(LoadOptions, ServerOptions, FleetOptions, total=False):
    """A case by names: those of a server and of a fleet, and the fields of `physim.Load`.

    Those of a fleet are the fields of `physim.inputs.fleet_request.FleetRequest`.
    """


class LoadAndEngineOptions(LoadOptions, ModelOptions, EngineOptions, total=False):
    """What a case is beside its model, its GPU and how many of them share it."""


class SharedOptions(LoadAndEngineOptions, FleetOptions, total=False):
    """The same, of services that may have several servers."""


_LOAD, _CASE = (tuple(options.__annotations__) for options in (LoadOptions, CaseOptions))
_ENGINE, _DEGREES = tuple(options_of(Deployment)), tuple(options_of(Parallelism))
_FLEET = tuple(options_of(Fleet))
_TEXT, _WHOLE = (
    {name for name, hint in get_type_hints(CaseOptions).items() if hint in (kind, kind | None)}
    for kind in (str, int)
)
_TOKENS = ("input_tokens", "output_tokens", "turns")
_RECORDS = {"lengths": RequestLengths, "dispersion": ArrivalDispersion}
# Options that are True or False; the last is of measured runs alone.
_FLAGS = ("async_scheduling", "mixed_chunk", "prefix_caching", "transfer_by_layer")
# What engines have an option for and physim knows nothing of, by words of their names.
_NOT_MODELLED = {"lora": "adapters (LoRA) are", "loras": "adapters (LoRA) are"}
# How alike a name must be to be the one that was meant: the command line's --input is.
_NEAR = 0.5
# How steps of both prefill and decode can be composed; see `physim.step.mixed_steps`.
MIXED = ("additive", "weighted-average", "smooth-weighted")
APART = "apart"


@dataclass(frozen=True)
class Case:
    """One thing to predict.

    Attributes:
        service: What serves.
        load: The load; None where only the service is meant.
        mixed: How steps of both prefill and decode are composed, one of `MIXED`.
        notes: How the load was changed to what the engine takes, and which options change
            nothing, one line each.
        taken: What is taken of the engine since it was not said (`physim.inputs.scenario`).
    """

    service: Service
    load: Load | None = None
    mixed: str = MIXED[0]
    notes: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()

    @classmethod
    @named_options
    def from_options(
        cls, model: str | Path | ModelArch | Case, **options: Unpack[CaseOptions]
    ) -> Case:
        """A case by names; a case that is given with nothing beside it is taken as it is.

        Args:
            model: Path of a ``config.json``, shipped name, hub id or shape
                (`physim.models.lookup.load_model`).
            **options: GPU, deployment and load; see `CaseOptions`.

        Raises:
            InputError: An option is unknown, some part cannot be used, or they do not go together.
        """
        try:
            return cls.attempted(model, **options)
        except TooLargeError as error:
            given = {name: value for name, value in options.items() if value is not None}
            asked: dict[str, Any] = {name: given[name] for name in _FLEET if name in given}
            # What pools have of their own is not searched.
            if isinstance(model, Case) or Fleet(**asked) != Fleet():
                raise
            fits = what_fits(model, given, cls.attempted)
            if not fits:
                raise
            remedy = f"{error.remedy}; what fits: {', or '.join(fits)}"
            raise InputError(error.where, error.what, remedy) from None

    @classmethod
    def attempted(
        cls, model: str | Path | ModelArch | Case, **options: Unpack[CaseOptions]
    ) -> Case:
        """As `from_options`, without a search for what would fit: for attempts by the thousand.

        Args:
            model: As `from_options` takes it.
            **options: Likewise.

        Raises:
            InputError: Likewise.
        """
        # What is given as None is left as it is by default.
        given: dict[str, Any] = {k: v for k, v in options.items() if v is not None}
        if isinstance(model, Case):
            if given:
                raise InputError(
                    ", ".join(given),
                    "cannot be combined with a case",
                    "change the case, or give no case",
                )
            return model
        check_names(options)
        for name in _TOKENS:
            if isinstance(given.get(name), Mapping):
                given[name] = Lengths.from_dict(given[name], name)
            elif isinstance(given.get(name), str):
                given[name] = Lengths.parse(given[name], name)
        check_types(given)
        if "gpu" not in given:
            raise InputError("gpu", "is missing", "name one, such as h100_sxm")
        mixed = given.get("mixed", MIXED[0])
        if mixed not in MIXED:
            raise InputError("mixed", f"{mixed!r} is unknown", f"use one of {', '.join(MIXED)}")
        asked = {name: given[name] for name in _FLEET if name in given}
        if asked:
            case = cls.of_fleet(model, given, Fleet(**asked), _load_of(given))
            return replace(case, mixed=mixed)
        case = cls.from_parts(
            model,
            given["gpu"],
            _deployment_of(given),
            _load_of(given),
            given.get("read_as"),
            given.get("quantization"),
        )
        return replace(case, mixed=mixed)

    @classmethod
    def of_fleet(
        cls,
        model: str | Path | ModelArch,
        options: Mapping[str, Any],
        fleet: Fleet,
        load: Load | None = None,
    ) -> Case:
        """A case of several servers, whose own options stand in the place of all servers'.

        Args:
            model: As `from_options` takes it.
            options: What all servers have, by name: GPU, degrees and engine.
            fleet: The servers.
            load: The load; None where only the service is meant.

        Raises:
            InputError: Some part cannot be used, or they do not go together.
        """
        arch = load_model(model, options.get("read_as"), options.get("quantization"))
        taken: list[str] = []

        def server_of(own: Mapping[str, Any]) -> Server:
            check_types(own)
            asked = {**options, **own}
            deployment = _deployment_of(asked)
            server = deployment.resolved(arch, load_hardware(asked["gpu"]))
            taken.extend(taken_of_server(deployment, server))
            return server

        service = fleet.service(server_of)
        return cls(service, taken=tuple(dict.fromkeys(taken))).under(load)

    @classmethod
    def from_parts(
        cls,
        model: str | Path | ModelArch,
        gpu: str,
        deployment: Deployment,
        load: Load | None = None,
        read_as: str | None = None,
        quantization: str | None = None,
    ) -> Case:
        """A case of a model as `from_options` takes it, a GPU by name and the rest as records.

        Raises:
            InputError: Some part cannot be used, or they do not go together.
        """
        arch, hardware = load_model(model, read_as, quantization), load_hardware(gpu)
        server = deployment.resolved(arch, hardware)
        notes: list[str] = []
        if load is not None:
            load, notes = load_on(server, load)
        taken = taken_of_server(deployment, server)
        return cls(Service.single(server), load, notes=tuple(notes), taken=taken)

    @property
    def model(self) -> ModelArch:
        """The model that is served."""
        return self.service.model

    @property
    def server(self) -> Server:
        """The one server of the service.

        Raises:
            InputError: It has several.
        """
        return self.service.server

    def server_of(self, phase: str) -> Server:
        """A server that runs a phase.

        Args:
            phase: One of `physim.service.phases.PHASES`.
        """
        return self.service.pool_of(phase).server

    def of_pool(self, pool: Pool, found: float = 1.0) -> Case:
        """A case of one server of a pool, under its share of the load.

        Args:
            pool: The pool.
            found: Share of the turns of conversations whose prompt before is not evicted, where the
                pool only computes prompts.
        """
        load = self.demanded
        own = pool_load(load, pool.phases, pool.server.policy.hands_first_token, found)
        shared = shared_out(own, pool.replicas, self.service.router)
        return replace(self.with_server(pool.server), load=shared)

    def with_server(self, server: Server) -> Case:
        """The same load on one server.

        Args:
            server: The server.
        """
        return replace(self, service=Service.single(server))

    @property
    def demanded(self) -> Load:
        """The load.

        Raises:
            InputError: There is none.
        """
        if self.load is None:
            raise InputError("load", "is missing", "give lengths, and a rate, clients or stages")
        return self.load

    @property
    def structure(self) -> tuple[str, str]:
        """What cases have in common that are solved together: `composition`, and what drafts."""
        draft = self.server.draft
        drafts = "none" if draft is None else "layers" if draft.model else "search"
        return self.composition, drafts

    @property
    def composition(self) -> str:
        """How its steps are composed: ``apart`` where the engine gives prompts steps of their own.

        Otherwise as ``mixed`` says.
        """
        apart = self.server.policy.prompts_apart and self.mixed == MIXED[0]
        return APART if apart else self.mixed

    @property
    def what(self) -> str:
        """The model and what it runs on."""
        return f"{self.model.name} on {self.service.where}"

    def under(self, load: Load | None) -> Case:
        """The same service under another load.

        Raises:
            InputError: A request of mean length, or some prompts, could never run.
        """
        if load is None:
            return replace(self, load=None, notes=self.service.unused)
        prompts = self.service.pool_of(PREFILL)
        if DECODE not in prompts.phases:
            load_on(prompts.server, pool_load(load, prompts.phases))
        own, notes = load_on(self.server_of(DECODE), load)
        # Lengths that were cut before are not cut again.
        if self.load is not None and own.output_tokens == self.load.output_tokens:
            return replace(self, load=own)
        return replace(self, load=own, notes=(*self.service.unused, *notes))

    def __repr__(self) -> str:
        load = (
            "no load"
            if self.load is None
            else f"{self.load.describe()}, {self.load.describe_lengths()}"
        )
        return shown(self, self.what, load, *self.notes)


def check_types(options: Mapping[str, Any]) -> None:
    """Refuses words where numbers or flags belong, and the other way round.

    Raises:
        InputError: An option is of another kind.
    """
    for name, value in options.items():
        # These are checked where they are read.
        if name in ("stages", "draft_acceptance", "prefill", "decode"):
            continue
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if name in _TEXT:
            known, what = isinstance(value, str), "text"
        elif name in _FLAGS:
            known, what = isinstance(value, bool), "True or False"
        elif name in _TOKENS:
            known, what = is_number or isinstance(value, Lengths), "a number or physim.Lengths"
        elif name in _RECORDS:
            known, what = isinstance(value, _RECORDS[name]), f"a physim.{_RECORDS[name].__name__}"
        elif name in _WHOLE:
            known, what = is_number and isinstance(value, numbers.Integral), "a whole number"
        else:
            known, what = is_number, "a number"
        if not known:
            shown = repr(value)[:80]
            raise InputError(name, f"{shown} is not {what}", "correct it")


@functools.lru_cache
def _by_flag() -> dict[str, str]:
    """Options of a case by how commands call them, where that is not their name."""
    flags = {"as": "read_as"}
    for record in (LoadRequest, EngineRequest, Parallelism, FleetRequest):
        for name, option in options_of(record).items():
            flags[option.flag.removeprefix("--").replace("-", "_")] = name
    return {flag: name for flag, name in flags.items() if flag != name}


def option_names(names: Iterable[str]) -> dict[str, str]:
    """Options as `Case.from_options` calls them, by names that may be the command line's.

    Args:
        names: Such as ``input``, ``max-num-seqs`` or ``input_tokens``.

    Raises:
        InputError: Two are of one option.
    """
    found: dict[str, str] = {}
    for name in names:
        own = name.removeprefix("--").replace("-", "_")
        own = _by_flag().get(own, own)
        if own in found.values():
            raise InputError(f"option {name!r}", f"is {own}, which is there already", "give one")
        found[name] = own
    return found


def check_names(options: Iterable[str], known: Sequence[str] = _CASE) -> None:
    """Refuses options that are unknown.

    Args:
        options: Names of options.
        known: Names that are known; those that a case has if not given.

    Raises:
        InputError: One is unknown.
    """
    for name in options:
        if name not in known:
            for word, what in _NOT_MODELLED.items():
                if word in re.split(r"[_-]", name.lower()):
                    raise InputError(f"option {name!r}", f"{what} not modelled", "leave it out")
            near = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
            remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
            raise InputError(f"option {name!r}", "is unknown", remedy)


def _deployment_of(options: Mapping[str, Any]) -> Deployment:
    """The deployment among some options.

    Raises:
        InputError: A figure is out of range.
    """
    degrees, engine = (
        {name: options[name] for name in names if name in options} for names in (_DEGREES, _ENGINE)
    )
    return Deployment(Parallelism(**degrees), **engine)


def _load_of(options: Mapping[str, Any]) -> Load | None:
    """The load among some options; None if there is none.

    Raises:
        InputError: It cannot be used.
    """
    given = {name: options[name] for name in _LOAD if name in options}
    if not given:
        return None
    for name in ("input_tokens", "output_tokens"):
        if "lengths" not in given and given.get(name) is None:
            raise InputError(name, "is missing", "give it")
    stages = given.pop("stages", ())
    return Load(**given, stages=tuple(s if isinstance(s, Stage) else Stage(*s) for s in stages))
