"""The load that a server is put under."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeAlias, Unpack

import numpy as np
from jaxtyping import Float

from physim.errors import InputError
from physim.inputs.arrivals import Stretch
from physim.inputs.lengths import Lengths, lengths
from physim.inputs.load_request import LoadOptions, LoadRequest
from physim.inputs.popularity import IN_TURN, Popularity
from physim.inputs.request_lengths import RequestLengths, filled_in
from physim.inputs.request_points import (
    Points,
    RequestMoments,
    RequestPoints,
    independent_points,
    longest_parts,
    moments_of,
)
from physim.inputs.stages import (
    MOST,
    RecordedStage,
    Stage,
    bounded_rate,
    check_positive,
    check_rate,
)
from physim.inputs.turns import TurnSample, sample_turns
from physim.options import named_options
from physim.printable import shown_fields

ARRIVALS = {
    "poisson": "Poisson arrivals",
    "constant": "even arrivals",
    "gamma": "gamma arrivals",
    "trace": "recorded arrivals",
}
# Windows as long as a few steps, seconds; how many lives of requests stand for all, and how many
# windows for what they share.
_STEP_S, _LIVES, _WINDOWS = 0.3, 16, 64
# Turns of a conversation, mean, beyond any that is recorded.
_MOST_TURNS = 1000
_Windows: TypeAlias = Float[np.ndarray, " windows"]


@dataclass(frozen=True)
class Load(LoadRequest):
    """Requests that arrive at a server: at a rate, in stages, or from clients in a closed loop.

    Attributes:
        input_tokens: Prompt length, tokens: a number, or a distribution. Of ``lengths``, where they
            are given instead, the prompts alone; so with the next and with ``cached_tokens``.
        output_tokens: Generated length, tokens: a number, or a distribution.
        rate: Arrivals per second (open loop).
        concurrency: Clients that send the next request when the last is answered (closed loop).
        cached_tokens: Prompt tokens of a prefix that is found in the prefix cache, unless others
            have taken its blocks since it was last used; with ``lengths`` they are found always.
        prefixes: Different prefixes, ``cached_tokens`` long, of which each request has one.
        popularity: Which one: ``in-turn``, one after the other, over and over; or by chance, all
            alike for ``uniform``, and for ``zipf:EXPONENT`` the one of rank ``i`` in proportion to
            ``i ** -EXPONENT``.
        arrival: ``poisson`` for arrivals by chance, ``constant`` for evenly spaced ones, ``gamma``,
            or ``trace`` for recorded ones, which ``dispersion`` holds; of clients it says nothing.
        burstiness: Shape of the gamma distribution of the times between arrivals: 1 is Poisson,
            less is burstier.
        stages: Rates that follow one another, instead of one rate without end.
        requests: How many requests there are, of one rate or from the clients, who all send their
            first at once; None without end.
        timeout_s: Time after which a client gives up; None for never.
        warm_up_s: Time that the engine takes to compile and tune kernels when the first requests of
            clients come, who send a number of them; their first tokens wait for it.
        lengths: Prompts, their cached parts and outputs as they go together, instead of lengths
            that say nothing of each other.
        turns: Turns of a conversation: a number, or a distribution; 1 where requests have nothing
            to do with each other. The prompt of a turn is all that was said before, answers
            included, and new tokens: ``input_tokens`` are those of a first turn, which begins with
            the ``cached_tokens`` of all conversations, and others have as many new ones as it has
            beside these. What was said before is found in the prefix cache unless others have taken
            its blocks. ``rate`` counts turns, and ``arrival`` says how conversations begin; clients
            have one after the other.
        think_s: Time from an answer to the next turn of its conversation, seconds: the mean of an
            exponential distribution. Of clients it also passes before the next conversation.
        dispersion: Recorded arrivals, of ``arrival`` ``trace``, run faster or slower so that they
            come at ``rate``, or at that of each stage. Where ``lengths`` are of the same trace,
            each request comes with its own.

    Raises:
        InputError: A figure is not positive, not finite or out of range, not one of ``rate``,
            ``concurrency`` and ``stages`` is given, lengths are given twice or not at all, or
            conversations are told something that they have no use for.
    """

    def __post_init__(self) -> None:
        filled_in("load", self)
        named = {"rate": self.rate, "concurrency": self.concurrency, "stages": self.stages or None}
        given = [name for name, value in named.items() if value is not None]
        if not given:
            raise InputError("load", "has no rate, concurrency, stages or trace", "give one")
        if len(given) > 1:
            raise InputError("load", f"has {' and '.join(given)}", "give one of them alone")
        for field in ("rate", "concurrency", "burstiness", "requests", "prefixes", "timeout_s"):
            value = getattr(self, field)
            if value is not None:
                check_positive(field, value)
        if self.rate is not None:
            check_rate("rate", self.rate)
        for field in ("input_tokens", "output_tokens", "concurrency"):
            value = getattr(self, field)
            if isinstance(value, str):
                remedy = f"pass physim.Lengths.parse({value!r})"
                raise InputError(
                    field, f"{value!r} is text, not a number or a distribution", remedy
                )
            if isinstance(value, float | int):
                check_positive(field, value)
                if value < 1:
                    raise InputError(field, f"{value} is below 1", "correct it")
        longest = lengths(self.input_tokens).mean
        if not 0 <= self.cached_tokens <= longest:
            raise InputError(
                "cached_tokens",
                f"{self.cached_tokens} is not between 0 and the input's {longest:g}",
                "correct it",
            )
        if self.arrival not in ARRIVALS:
            raise InputError(
                "arrival", f"{self.arrival!r} is unknown", f"use one of {', '.join(ARRIVALS)}"
            )
        if self.lengths is not None and self.prefixes != 1:
            remedy = "leave one of the two out"
            raise InputError("prefixes", "are each request's own where lengths are given", remedy)
        Popularity.parse(self.popularity)
        if self.popularity != IN_TURN and self.prefixes == 1:
            remedy = "say how many there are, or leave it out"
            raise InputError("popularity", "has no meaning for one prefix", remedy)
        self._check_recorded()
        if self.concurrency is not None and (self.arrival != "poisson" or self.burstiness != 1.0):
            raise InputError(
                "arrival",
                "has no meaning for clients, who send when they are answered",
                "leave it out, with its burstiness",
            )
        if self.arrival != "gamma" and self.burstiness != 1.0:
            problem = f"{self.burstiness:g} is the shape of gamma arrivals, not of {self.arrival}"
            raise InputError("burstiness", problem, "make arrival gamma, or leave it out")
        if not 0 <= self.warm_up_s <= MOST:
            problem = f"{str(self.warm_up_s)[:60]} is not between 0 and {MOST:g}"
            raise InputError("warm_up_s", problem, "correct it")
        if self.warm_up_s and (self.concurrency is None or self.requests is None):
            raise InputError(
                "warm_up_s",
                "is for clients who send a number of requests",
                "give both, or leave it",
            )
        if self.requests is not None and self.stages:
            raise InputError("requests", "are set by the stages", "leave one of the two out")
        self._check_turns()

    def _check_turns(self) -> None:
        """Refuses turns and think times that cannot be used, or that other options contradict."""
        mean = self.turns.mean if isinstance(self.turns, Lengths) else self.turns
        if not 1 <= mean <= _MOST_TURNS:
            problem = f"{mean:g} is not between 1 and {_MOST_TURNS}"
            raise InputError("turns", problem, "correct it")
        if not 0 <= self.think_s <= MOST:
            problem = f"{str(self.think_s)[:60]} is not between 0 and {MOST:g}"
            raise InputError("think_s", problem, "correct it")
        if self.think_s and not self.conversing and self.concurrency is None:
            problem = "has no meaning for requests that wait for no answer"
            raise InputError("think_s", problem, "give turns or concurrency, or leave it out")
        if not self.conversing:
            return
        for name, given in (
            ("lengths", self.lengths is not None),
            ("stages", bool(self.stages)),
            ("dispersion", self.dispersion is not None),
            ("prefixes", self.prefixes != 1),
        ):
            if given:
                remedy = "leave one of the two out"
                raise InputError("turns", f"of conversations do not go with {name}", remedy)

    def _check_recorded(self) -> None:
        if self.arrival == "trace":
            if self.dispersion is None:
                remedy = "give it, such as physim.ArrivalDispersion.read(PATH)"
                raise InputError("dispersion", "is missing, which arrival trace needs", remedy)
        elif self.dispersion is not None:
            remedy = "set arrival to trace, or leave it out"
            raise InputError("dispersion", f"has no meaning for arrival {self.arrival}", remedy)

    @classmethod
    @named_options
    def of_requests(cls, lengths: RequestLengths, /, **options: Unpack[LoadOptions]) -> Load:
        """A load of requests whose prompts, cached parts and outputs go together.

        Args:
            lengths: The requests.
            **options: The other fields, such as ``rate``.

        Raises:
            InputError: It cannot be used.
        """
        given: dict[str, Any] = {name: own for name, own in options.items() if own is not None}
        return cls(lengths=lengths, **given)

    def with_lengths(self, lengths: RequestLengths) -> Load:
        """The same arrivals of other requests.

        Args:
            lengths: The requests.
        """
        kept = {one.name: getattr(self, one.name) for one in fields(self)}
        for name in ("input_tokens", "output_tokens", "cached_tokens"):
            del kept[name]
        return Load(**kept | {"lengths": lengths})

    @property
    def conversing(self) -> bool:
        """Whether requests are turns of conversations."""
        return self.turns != 1

    def refuse_turns(self, what: str) -> None:
        """Refuses conversations where nothing is known of them.

        Args:
            what: What there would be of them.

        Raises:
            InputError: Requests are turns of conversations.
        """
        if self.conversing:
            remedy = "leave them out, and give the lengths of turns as requests"
            raise InputError("turns", f"of conversations have no {what}", remedy)

    @property
    def turn_sample(self) -> TurnSample:
        """Turns that stand for all; of requests that are no turns, one of each."""
        return sample_turns(
            self.turns, self.input_tokens, self.output_tokens, float(self.cached_tokens)
        )

    def points(self) -> RequestPoints:
        """Requests of equal weight that stand for all; see `physim.inputs.request_points`."""
        if self.lengths is not None:
            return self.lengths.points
        inputs, outputs = lengths(self.input_tokens), lengths(self.output_tokens)
        return independent_points(inputs.strata(), float(self.cached_tokens), outputs.strata())

    def longest(self) -> Points:
        """New tokens of the longest prompts; see `physim.inputs.request_points.longest_parts`."""
        if self.lengths is not None:
            return self.lengths.longest
        inputs = lengths(self.input_tokens)
        # One request stands for all where they are alike.
        own = inputs.fine[: 1 if inputs.alike else None]
        return longest_parts(np.maximum(own - self.cached_tokens, 1.0))

    def moments(self) -> RequestMoments:
        """Means over all requests, of their lengths and of products of them."""
        if self.lengths is not None:
            return self.lengths.moments
        both = lengths(self.input_tokens), lengths(self.output_tokens)
        # One request stands for all where they are alike.
        count = 1 if all(one.alike for one in both) else None
        inputs, outputs = (one.fine[:count] for one in both)
        own = moments_of(inputs, np.clip(inputs - 1.0, 0.0, self.cached_tokens), outputs)
        # Of lengths that say nothing of each other, and not of how these happen to be listed.
        return own._replace(input_output=own.input * own.output, new_output=own.new * own.output)

    def to_dict(self) -> dict[str, Any]:
        """The load in plain values, for JSON; of requests and recorded arrivals what they are."""
        content = {one.name: getattr(self, one.name) for one in fields(self)}
        for name in ("input_tokens", "output_tokens", "turns"):
            tokens = content[name]
            if self.lengths is not None:
                content[name] = lengths(tokens).mean
            elif isinstance(tokens, Lengths):
                content[name] = asdict(tokens)
        for name in ("lengths", "dispersion"):
            content[name] = None if content[name] is None else content[name].to_dict()
        return content | {"stages": [asdict(stage) for stage in self.stages]}

    @property
    def mean_input(self) -> float:
        """Mean prompt length, tokens: of conversations, over all turns."""
        if self.conversing:
            return self.turn_sample.mean_input
        return lengths(self.input_tokens).mean

    @property
    def mean_output(self) -> float:
        """Mean generated length, tokens."""
        return lengths(self.output_tokens).mean

    @property
    def repeated(self) -> float:
        """Share of the requests that are not the first with their prefix.

        All are taken for such but of clients, whose first requests count.
        """
        if self.concurrency is None or self.requests is None:
            return 1.0
        return Popularity.parse(self.popularity).repeated(self.prefixes, self.requests)

    @property
    def arrival_cv2(self) -> float:
        """Variance of the time between arrivals over the square of its mean.

        Recorded arrivals that run together are as many more than the mean as those with independent
        gaps that vary so much would be. The variance of the number that runs, where nobody waits,
        over its mean is ``1 + 2 integral F(u) (-w'(u)) du``: ``F`` of them follow a request within
        ``u`` beyond the mean, and ``w(u)`` of its life a request shares with one that comes so much
        later (Eckberg, Generalized peakedness of teletraffic processes, ITC 10, 1983).
        """
        if self.dispersion is not None:
            return self._followed(_shared(self._lives()))
        if self.concurrency is not None:
            return 0.0
        found = {"poisson": 1.0, "constant": 0.0, "gamma": 1 / self.burstiness}[self.arrival]
        if not self.conversing:
            return found
        # Of streams that are independent the dispersions add up: later turns come by chance.
        return 1.0 + (found - 1.0) / self.turn_sample.mean_turns

    @property
    def burst_cv2(self) -> float:
        """The same as `arrival_cv2` in windows as long as steps: requests that come at once."""
        if self.dispersion is not None:
            return self._bursts(_STEP_S)
        return self.arrival_cv2

    @property
    def follow_cv2(self) -> float:
        """The same as `arrival_cv2`, of what follows a request while it lives.

        Arrivals with independent gaps that vary so much have as many more than the mean.
        """
        return self.arrival_cv2 if self.dispersion is None else self._followed(self._lives())

    @property
    def at_once(self) -> float:
        """Other requests that come at the very time of a request, mean."""
        return 0.0 if self.dispersion is None else self.dispersion.at_once

    def _lives(self) -> Points:
        """How long equal parts of the requests live, seconds, from short to long."""
        assert self.dispersion is not None
        outputs = np.sort(self.points().output_tokens).reshape(_LIVES, -1).mean(axis=1)
        lives: Points = self.dispersion.life_s * outputs / np.mean(outputs)
        return lives

    def _followed(self, windows_s: _Windows) -> float:
        """Squared variation of independent gaps that have as many follow as the record has."""
        assert self.dispersion is not None
        return max(1.0 + 2.0 * self.dispersion.follow_within(windows_s * self._faster), 0.0)

    def _bursts(self, window_s: float) -> float:
        """Dispersion of recorded bursts at the mean rate of the load.

        A record that runs faster has in a window what it had in a longer one.
        """
        assert self.dispersion is not None
        return self.dispersion.bursts_at(window_s * self._faster)

    @property
    def _faster(self) -> float:
        """Mean rate of the load over that of the record."""
        assert self.dispersion is not None
        rate = self.rate
        if rate is None:
            lasts = sum(stage.duration_s for stage in self.stages)
            rate = sum(stage.rate * stage.duration_s for stage in self.stages) / lasts
        return rate / self.dispersion.rate

    @property
    def recorded(self) -> bool:
        """Whether requests come with the lengths that they have in a trace."""
        return (
            self.dispersion is not None
            and self.lengths is not None
            and self.lengths.recorded
            and len(self.lengths.input_tokens) == len(self.dispersion.arrival_s)
        )

    def in_stretches(self, life_s: float) -> Load:
        """Recorded arrivals at a rate as stages, whose rates are those of stretches of the record.

        Slow changes are stages then, and bursts what comes unevenly within them; see
        `physim.inputs.arrivals.ArrivalDispersion`. It lasts as long as the record, or as its number
        of requests.

        Args:
            life_s: How long a request lives, seconds.
        """
        assert self.dispersion is not None
        assert self.rate is not None
        recorded = self.dispersion.at_rate(self.rate)
        lasts = recorded.lasts if self.requests is None else self.requests / self.rate
        stages = tuple(self._stage_of(stretch) for stretch in recorded.stretches(lasts))
        bursts = replace(self.dispersion, life_s=life_s)
        return replace(self, rate=None, requests=None, stages=stages, dispersion=bursts)

    def _stage_of(self, stretch: Stretch) -> Stage:
        """A stretch of recorded arrivals as a stage."""
        rows = stretch.numbers
        if not self.recorded:
            return Stage(stretch.rate, stretch.duration_s)
        if not len(rows):
            return RecordedStage(stretch.rate, stretch.duration_s)
        assert self.lengths is not None
        inputs, cached, outputs = self.lengths.arrays
        new = np.maximum(inputs - cached, 1.0)
        longer = (float(np.mean(own[rows]) / np.mean(own)) for own in (new, outputs))
        return RecordedStage(stretch.rate, stretch.duration_s, *longer)

    @property
    def endless(self) -> bool:
        """Whether it goes on for ever."""
        return not self.stages and self.requests is None

    def in_open_loop(self, rate: float) -> Load:
        """The load with its clients' requests coming by chance; itself where it has no clients.

        Args:
            rate: Requests of clients, per second.
        """
        if self.concurrency is None:
            return self
        return replace(
            self,
            concurrency=None,
            requests=None,
            warm_up_s=0.0,
            think_s=0.0,
            rate=rate,
        )

    def staying(self) -> Load:
        """The load without end: at its highest rate where it ends or changes."""
        if self.concurrency is not None or (self.endless and self.dispersion is None):
            return self
        rate = max((stage.rate for stage in self.stages), default=self.rate)
        arrival = "poisson" if self.dispersion is not None else self.arrival
        return replace(
            self,
            stages=(),
            requests=None,
            rate=rate,
            dispersion=None,
            arrival=arrival,
            timeout_s=None,
        )

    def schedule(self) -> tuple[Stage, ...]:
        """The stages of a load in open loop that ends."""
        if self.stages:
            return self.stages
        assert self.rate is not None
        assert self.requests is not None
        return (Stage(self.rate, self.requests / self.rate),)

    def faster(self, times: float) -> Load:
        """The same requests in less time; of clients, who wait for answers, as it is.

        To a server it is as if each of its steps took so many times as long, and the clock as well.

        Args:
            times: How many times as fast they come.
        """
        if self.concurrency is not None:
            return self
        return replace(
            self,
            rate=None if self.rate is None else bounded_rate(self.rate * times),
            stages=tuple(
                replace(
                    stage,
                    rate=bounded_rate(stage.rate * times),
                    duration_s=stage.duration_s / times,
                )
                for stage in self.stages
            ),
            timeout_s=None if self.timeout_s is None else self.timeout_s / times,
            think_s=self.think_s / times,
        )

    def describe(self) -> str:
        """The arrivals in a few words."""
        if self.concurrency is not None:
            return f"{self.concurrency:g} clients{self._conversations}"
        rates = [stage.rate for stage in self.stages]
        if self.rate is not None:
            rates = [self.rate]
        said = f"{', then '.join(f'{rate:g}' for rate in rates)} req/s, {ARRIVALS[self.arrival]}"
        return said + self._conversations

    def describe_lengths(self) -> str:
        """Mean lengths, how they vary, and what is cached of prompts, in a few words."""
        cached = f"{self.cached_tokens:g} cached"
        if self.prefixes > 1 and self.cached_tokens:
            cached = f"{self.cached_tokens:g} in one of {self.prefixes} prefixes"
        prompts, outputs = "of many lengths", "of many lengths"
        if self.lengths is None:
            prompts, outputs = (
                lengths(tokens).describe_spread()
                for tokens in (self.input_tokens, self.output_tokens)
            )
        about = f"{prompts}; {cached}" if prompts else cached
        out = f"{self.mean_output:g} out" + (f" ({outputs})" if outputs else "")
        return f"{self.mean_input:g} tokens in ({about}), {out}"

    @property
    def _conversations(self) -> str:
        """Of conversations and think times, what there is to say after the arrivals."""
        thinks = f" {self.think_s:g} s apart" if self.think_s else ""
        if self.conversing:
            return f" in conversations of {self.turn_sample.mean_turns:g} turns{thinks}"
        return f", requests{thinks}" if thinks else ""

    def __repr__(self) -> str:
        return shown_fields(self)


def _shared(lives_s: Points) -> _Windows:
    """Windows that stand for ``-w'(u)`` of `Load.arrival_cv2`, all alike.

    Of two lives ``one`` and ``other`` that begin ``u`` apart, ``w`` falls from the shorter of both
    to nothing in a straight line that ends where ``u`` is the first of them.
    """
    one, other = (own.ravel() for own in np.meshgrid(lives_s, lives_s))
    shorter = np.minimum(one, other)
    within = (np.arange(_LIVES) + 0.5) / _LIVES
    windows = (one - shorter)[:, None] + shorter[:, None] * within
    order = np.argsort(windows, axis=None)
    weights = np.repeat(shorter, _LIVES)[order]
    ends = (np.cumsum(weights) - weights / 2) / np.sum(weights)
    # Regular batches rise and fall between them.
    places = (np.arange(_WINDOWS) + 0.5) / _WINDOWS
    found: _Windows = np.interp(places, ends, windows.ravel()[order])
    return found
