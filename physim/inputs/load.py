"""The load that a server is put under."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from physim.errors import InputError
from physim.inputs.deployment import Limits
from physim.inputs.lengths import Lengths, Tokens, lengths

ARRIVALS = ("constant", "poisson", "gamma")
# Rates that mean something, requests per second: from one in thirty years.
_RATES = (1e-9, 1e9)
# About the largest float: whole numbers may be larger.
_MOST = 1e308


@dataclass(frozen=True)
class Stage:
    """A part of a load.

    Attributes:
        rate: Arrivals per second.
        duration_s: For so long, seconds.

    Raises:
        InputError: A figure is not positive.
    """

    rate: float
    duration_s: float

    def __post_init__(self) -> None:
        for field in ("rate", "duration_s"):
            _check_positive(f"stage: {field}", getattr(self, field))
        _check_rate("stage: rate", self.rate)

    @classmethod
    def parse(cls, text: str) -> Stage:
        """Reads ``RATE:SECONDS``.

        Raises:
            InputError: It is something else.
        """
        rate, _, seconds = text.partition(":")
        try:
            numbers = float(rate), float(seconds)
        except ValueError:
            raise InputError(
                f"stage {text!r}", "is not RATE:SECONDS", "write, say, 8:600"
            ) from None
        return cls(*numbers)


@dataclass(frozen=True)
class Load:
    """Requests that arrive at a server: at a rate, in stages, or from clients in a closed loop.

    Attributes:
        input_tokens: Prompt length, tokens: a number, or a distribution.
        output_tokens: Generated length, tokens: a number, or a distribution.
        rate: Arrivals per second (open loop).
        concurrency: Clients that send the next request when the last is answered (closed loop).
        cached_tokens: Prompt tokens that are found in the prefix cache.
        arrival: ``constant`` for evenly spaced arrivals, ``poisson``, or ``gamma``; of clients
            it says nothing.
        burstiness: Shape of the gamma distribution of the times between arrivals: 1 is Poisson,
            less is burstier.
        stages: Rates that follow one another, instead of one rate without end.
        requests: How many requests there are, of one rate or from the clients, who all send their
            first at once; None without end.
        prefixes: Different cached prefixes, ``cached_tokens`` long, that requests have in turn.
        timeout_s: Time after which a client gives up; None for never.
        warm_up_s: Time that the engine takes to compile and tune kernels when the first requests of
            clients come, who send a number of them; their first tokens wait for it.

    Raises:
        InputError: A figure is not positive, not finite or out of range, or not one of ``rate``,
            ``concurrency`` and ``stages`` is given.
    """

    input_tokens: Tokens
    output_tokens: Tokens
    rate: float | None = None
    concurrency: float | None = None
    cached_tokens: float = 0.0
    arrival: str = "constant"
    burstiness: float = 1.0
    stages: tuple[Stage, ...] = ()
    requests: int | None = None
    prefixes: int = 1
    timeout_s: float | None = None
    warm_up_s: float = 0.0

    def __post_init__(self) -> None:
        named = {"rate": self.rate, "concurrency": self.concurrency, "stages": self.stages or None}
        given = [name for name, value in named.items() if value is not None]
        if not given:
            raise InputError("load", "has no rate, concurrency, stages or trace", "give one")
        if len(given) > 1:
            raise InputError("load", f"has {' and '.join(given)}", "give one of them alone")
        for field in ("rate", "concurrency", "burstiness", "requests", "prefixes", "timeout_s"):
            value = getattr(self, field)
            if value is not None:
                _check_positive(field, value)
        if self.rate is not None:
            _check_rate("rate", self.rate)
        for field in ("input_tokens", "output_tokens", "concurrency"):
            value = getattr(self, field)
            if isinstance(value, str):
                remedy = f"pass physim.Lengths.parse({value!r})"
                raise InputError(
                    field, f"{value!r} is text, not a number or a distribution", remedy
                )
            if isinstance(value, float | int):
                _check_positive(field, value)
                if value < 1:
                    raise InputError(field, f"{value} is below 1", "correct it")
        if not 0 <= self.cached_tokens <= self.mean_input:
            raise InputError(
                "cached_tokens",
                f"{self.cached_tokens} is not between 0 and the input's {self.mean_input:g}",
                "correct it",
            )
        if self.arrival not in ARRIVALS:
            raise InputError(
                "arrival", f"{self.arrival!r} is unknown", f"use one of {', '.join(ARRIVALS)}"
            )
        if self.concurrency is not None and (self.arrival != "constant" or self.burstiness != 1.0):
            raise InputError(
                "arrival",
                "says nothing of clients, who send when they are answered",
                "leave it out, with its burstiness",
            )
        if not 0 <= self.warm_up_s <= _MOST:
            problem = f"{str(self.warm_up_s)[:60]} is not between 0 and {_MOST:g}"
            raise InputError("warm_up_s", problem, "correct it")
        if self.warm_up_s and (self.concurrency is None or self.requests is None):
            raise InputError(
                "warm_up_s", "is of clients who send a number of requests", "give both, or leave it"
            )
        if self.requests is not None and self.stages:
            raise InputError("requests", "are set by the stages", "leave one of the two out")

    @property
    def mean_input(self) -> float:
        """Mean prompt length, tokens."""
        return lengths(self.input_tokens).mean

    @property
    def mean_output(self) -> float:
        """Mean generated length, tokens."""
        return lengths(self.output_tokens).mean

    @property
    def arrival_cv2(self) -> float:
        """Variance of the time between arrivals over the square of its mean."""
        return {"constant": 0.0, "poisson": 1.0, "gamma": 1 / self.burstiness}[self.arrival]

    @property
    def endless(self) -> bool:
        """Whether it goes on for ever."""
        return not self.stages and self.requests is None

    def schedule(self) -> tuple[Stage, ...]:
        """The stages of a load in open loop that ends."""
        if self.stages:
            return self.stages
        assert self.rate is not None
        assert self.requests is not None
        return (Stage(self.rate, self.requests / self.rate),)

    def describe(self) -> str:
        """The arrivals in a few words."""
        if self.concurrency is not None:
            return f"{self.concurrency:g} clients"
        rates = [stage.rate for stage in self.stages]
        if self.rate is not None:
            rates = [self.rate]
        return f"{', then '.join(f'{rate:g}' for rate in rates)} req/s {self.arrival}"

    def within(self, limits: Limits) -> tuple[Load, list[str]]:
        """The load as an engine takes it: requests end at max_model_len.

        Args:
            limits: The engine's limits.

        Returns:
            The load, and what was made shorter, one line each.

        Raises:
            InputError: A request of mean length, or some prompts, could never run.
        """
        self._check_fits(limits)
        most, inputs, outputs = limits.max_model_len, self.input_tokens, self.output_tokens
        if isinstance(inputs, Lengths):
            refused = inputs.share_beyond(most - 1)
            if refused:
                raise InputError(
                    "input",
                    f"{refused:.2g} of the prompts have more tokens than max_model_len {most} has "
                    "room for, which engines refuse",
                    "shorten them or raise max_model_len",
                )
        left = most - self.mean_input
        if not isinstance(outputs, Lengths) or not (cut := outputs.share_beyond(left)):
            return self, []
        line = f"{cut:.2%} of the outputs end early, where requests reach max_model_len {most}"
        return replace(self, output_tokens=outputs.up_to(left)), [line]

    def _check_fits(self, limits: Limits) -> None:
        length = self.mean_input + self.mean_output
        if length > limits.max_model_len:
            raise InputError(
                "input and output",
                f"{length:g} tokens exceed max_model_len {limits.max_model_len}",
                "shorten them or raise max_model_len",
            )
        if length > limits.kv_tokens:
            raise InputError(
                "input and output",
                f"{length:g} tokens exceed the KV cache of {limits.kv_tokens} tokens",
                "shorten them, raise tp, or take a larger GPU",
            )


def _check_rate(field: str, rate: float) -> None:
    least, most = _RATES
    if not least <= rate <= most:
        raise InputError(field, f"{rate:g} is not between {least:g} and {most:g}", "correct it")


def _check_positive(field: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise InputError(field, f"{value} is not positive", "correct it")
    if value > _MOST:
        raise InputError(field, f"is above {_MOST:g}", "correct it")
