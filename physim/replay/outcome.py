"""What a replay is of, and what it gave: requests, gaps between tokens, steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from physim.metrics import METRICS, PERCENTILES, STATISTICS
from physim.replay.config import ReplayConfig
from physim.replay.request import Request
from physim.service.phases import decode_steps

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class EngineSamples:
    """The engine at the starts of its runs of steps, or of some of them, for a picture over time.

    Attributes:
        time_s: Time, seconds.
        waiting: Requests that wait.
        running: Requests that run.
        kv_blocks: KV blocks in use, mean of the run.
    """

    time_s: np.ndarray
    waiting: np.ndarray
    running: np.ndarray
    kv_blocks: np.ndarray

    @classmethod
    def of_servers(cls, samples: Sequence[np.ndarray]) -> EngineSamples:
        """Sums over servers, each of which is as it was when it was last looked at.

        Args:
            samples: Those of each, in a row.
        """
        rows = [own.reshape(-1, 4) for own in samples]
        if len(rows) > 1:
            # What each look changes of a server, in the order of all looks.
            nothing = np.zeros((1, 4))
            changes = np.concatenate([np.diff(own, axis=0, prepend=nothing) for own in rows])
            times = np.concatenate([own[:, 0] for own in rows])
            order = np.argsort(times, kind="stable")
            rows = [np.column_stack([times[order], np.cumsum(changes[order, 1:], axis=0)])]
        return cls(*rows[0].T)


@dataclass(frozen=True)
class Gaps:
    """Times from a token to the next, of all requests, as steps give them.

    Attributes:
        time_s: When a token came, seconds; of a run of steps, the last.
        gap_s: How long after the one before, in the mean of a run of steps; zero of those that come
            at once with it.
        tokens: How many came so.
    """

    time_s: np.ndarray
    gap_s: np.ndarray
    tokens: np.ndarray

    @classmethod
    def of_servers(cls, gaps: Sequence[np.ndarray]) -> Gaps:
        """Those of all servers, in the order in which they came.

        Args:
            gaps: Those of each, in a row.
        """
        return cls(*_in_order([own.reshape(-1, 3) for own in gaps]).T)


@dataclass(frozen=True)
class Work:
    """What steps had in them: of each run of alike steps, in the order in which they began.

    Attributes:
        began_s: When the first of them began, seconds.
        steps: How many steps they are, one if there are prompts in it.
        step_s: How long each took, mean, seconds.
        decoding: Requests that decoded in each.
        given: Tokens that each gave them, mean: one each, more of drafts.
        prompts: Prompts of which chunks were computed.
        tokens: Tokens of these chunks.
    """

    began_s: np.ndarray
    steps: np.ndarray
    step_s: np.ndarray
    decoding: np.ndarray
    given: np.ndarray
    prompts: np.ndarray
    tokens: np.ndarray

    @classmethod
    def of_servers(cls, work: Sequence[np.ndarray]) -> Work:
        """Those of all servers, in the order in which they began.

        Args:
            work: Those of each, in a row.
        """
        return cls(*_in_order([own.reshape(-1, len(fields(cls))) for own in work]).T)

    def between(self, begin_s: float, end_s: float) -> Work:
        """The same of the steps that began in a time.

        Args:
            begin_s: Its start, seconds,
            end_s: and its end.
        """
        own = (self.began_s >= begin_s) & (self.began_s < end_s)
        return Work(*(getattr(self, one.name)[own] for one in fields(self)))

    def means(self) -> dict[str, float]:
        """Means over steps: time, share with prompts, prompt tokens, who decodes, tokens given."""
        weight = self.steps / self.steps.sum()
        return {
            "step_s": float(weight @ self.step_s),
            "mixed_share": float(weight @ (self.prompts > 0)),
            "prompt_tokens": float(weight @ self.tokens),
            "decoding": float(weight @ self.decoding),
            "given": float(weight @ self.given),
        }


# Stretches of time, one after the other of which is left out to see what chance does, and within
# how many standard errors from so few 90% are: Student's t of nine degrees of freedom.
_STRETCHES, WITHIN_90 = 10, 1.833
_STATES = ("completed", "queued", "running", "dropped")


@dataclass
class Replayed:
    """What a replay gave.

    Attributes:
        requests: All requests that arrived, in the order of arrival.
        samples: The servers over time.
        gaps: Times from a token to the next.
        work: What steps had in them.
        steps: Steps that ran.
        end_s: When the last thing happened, seconds.
        entry: A server of the pool that requests come to,
        config: and one of the pool that gives them their tokens.
        kv_blocks: KV blocks of all servers.
        pools: The servers of each pool over time, and how many KV blocks they have; empty where
            there is one pool.
    """

    requests: list[Request]
    samples: EngineSamples
    gaps: Gaps
    work: Work
    steps: int
    end_s: float
    entry: ReplayConfig
    config: ReplayConfig
    kv_blocks: int
    pools: Sequence[tuple[EngineSamples, int]] = ()

    def to_frame(self) -> pd.DataFrame:
        """A row for each request: times in seconds, empty where there is none.

        ``ttft_s`` and ``e2e_s`` are as the client sees them; ``tpot_s`` is a request's mean time
        from a token to the next, empty where it has one token; ``wait_s`` is the time from its
        arrival at the scheduler to its first step.
        """
        import pandas as pd

        count = len(self.requests)

        def column(name: str, kind: type) -> np.ndarray:
            values = (getattr(request, name) for request in self.requests)
            if kind is float:
                values = (math.nan if value is None else value for value in values)
            return np.fromiter(values, kind, count)

        kinds: dict[str, type] = {"number": int, "stage": int, "arrival_s": float}
        kinds |= dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens"), int)
        kinds |= dict.fromkeys(("scheduled_s", "first_token_s", "finished_s", "dropped_s"), float)
        frame = pd.DataFrame({name: column(name, kind) for name, kind in kinds.items()}, copy=False)
        entry, config, arrival = self.entry, self.config, frame["arrival_s"]
        before = entry.front_end_s + entry.front_end_per_token_s * frame["input_tokens"]
        beside = column("beside_s", float)
        after = config.output_steps * beside + config.output_per_token_s
        decoded = decode_steps(frame["output_tokens"].to_numpy())
        first = after + column("first_output_s", float)
        last = after + column("last_output_s", float) + config.output_per_token_s * decoded
        frame["wait_s"] = frame["scheduled_s"] - arrival - before
        frame["ttft_s"] = frame["first_token_s"] - arrival + first
        frame["e2e_s"] = frame["finished_s"] - arrival + last
        gaps = np.where(decoded > 0, decoded, np.nan)
        frame["tpot_s"] = (frame["e2e_s"] - frame["ttft_s"]) / gaps
        frame["preemptions"] = column("preemptions", int)
        frame["state"] = [_state(request) for request in self.requests]
        return frame

    def summary(self) -> dict[str, dict[str, float]]:
        """Mean and percentiles of TTFT, ITL, TPOT and E2E, seconds.

        Those of ITL are over the gaps between all tokens, the others over completed requests.
        """
        return self.latencies(completed_of(self.to_frame()))

    def latencies(
        self, frame: pd.DataFrame, begin_s: float = 0.0, end_s: float = math.inf
    ) -> dict[str, dict[str, float]]:
        """Mean and percentiles of the latencies of some requests, seconds.

        Args:
            frame: Rows of `to_frame`.
            begin_s: Of the tokens, those that came from then on count for ITL,
            end_s: and until then.
        """
        return {
            metric: _by_name(_statistics(*own))
            for metric, own in self._observed(frame, begin_s, end_s).items()
        }

    def errors(
        self, frame: pd.DataFrame, begin_s: float, end_s: float
    ) -> dict[str, dict[str, float]]:
        """Standard errors of the same, by the chance of which requests came, seconds.

        The load must stay as it is. None of a metric that there is too little of.

        Args:
            frame: Rows of `to_frame`.
            begin_s: Of the tokens, those that came from then on count for ITL,
            end_s: and until then.
        """
        return {
            metric: _by_name(standard_errors(*own))
            for metric, own in self._observed(frame, begin_s, end_s).items()
            if len(own[0]) >= _STRETCHES**2
        }

    def _observed(
        self, frame: pd.DataFrame, begin_s: float, end_s: float
    ) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Values of each metric in the order of time, and how many each stands for."""
        gaps, found = self.gaps, {}
        own = slice(*np.searchsorted(gaps.time_s, (begin_s, end_s)))
        for metric in METRICS:
            if metric == "itl":
                values = gaps.gap_s[own] + self.config.output_per_token_s
                weights = gaps.tokens[own]
            else:
                values = frame[f"{metric}_s"].dropna().to_numpy()
                weights = np.ones(len(values))
            if len(values):
                found[metric] = values, weights
        return found

    def counts(self) -> dict[str, int]:
        """How many requests are completed, queued, running and dropped."""
        states = [_state(request) for request in self.requests]
        return {state: states.count(state) for state in _STATES}


def _in_order(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of several servers by their first column; those of one are in order."""
    if len(rows) == 1:
        return rows[0]
    every = np.concatenate(rows)
    return every[np.argsort(every[:, 0], kind="stable")]


def completed_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of completed requests; the frame itself, of which there may be much, if all are."""
    done = frame["state"] == "completed"
    return frame if done.all() else frame[done]


def standard_errors(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Standard errors of `STATISTICS` of values that follow one another, and depend on each other.

    By the jackknife of blocks (Kunsch, Annals of Statistics 17, 1989): how much they change where
    one stretch after the other is left out, each longer than what depends on each other.

    Args:
        values: The values, in the order in which they came.
        weights: How many each stands for.
    """
    without = np.array(
        [
            _statistics(np.delete(values, own), np.delete(weights, own))
            for own in np.array_split(np.arange(len(values)), _STRETCHES)
        ]
    )
    off = without - without.mean(axis=0)
    return np.sqrt((_STRETCHES - 1) / _STRETCHES * np.sum(off**2, axis=0))


def _by_name(statistics: np.ndarray) -> dict[str, float]:
    return dict(zip(STATISTICS, statistics.tolist(), strict=True))


def _statistics(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """`STATISTICS` of values that stand for several each."""
    return np.append(np.average(values, weights=weights), _quantiles(values, weights))


def _quantiles(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """`PERCENTILES` of values that stand for several each, between which lines are straight."""
    order = np.argsort(values)
    ends = np.cumsum(weights[order])
    places = np.array(PERCENTILES) / 100 * (ends[-1] - 1)
    below, above = (
        values[order[np.searchsorted(ends, rank(places), side="right")]]
        for rank in (np.floor, np.ceil)
    )
    return below + places % 1 * (above - below)


def _state(request: Request) -> str:
    if request.dropped_s is not None:
        return "dropped"
    if request.finished_s is not None:
        return "completed"
    return "queued" if request.scheduled_s is None else "running"
