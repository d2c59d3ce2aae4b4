"""What a serving engine counted in a time: a measured run without a load generator."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from physim.engines.engine import REQUEST_TIMES, Counters, engines
from physim.errors import InputError
from physim.measured import server_log
from physim.measured.histogram import Histogram
from physim.measured.prometheus import Rise
from physim.measured.scrapes import rises_between
from physim.measured.stage_report import StageReport
from physim.printable import shown
from physim.service.phases import decode_steps

# Of fewer requests means say little; of none there are no means.
_FEW = 30
# In a steady state the counts of requests that began and of those that ended differ by no more,
# and no more do two ways to one time.
_STEADY = 0.1
# What a label says that is not set.
_UNSET = ("None", "auto", "")


@dataclass(frozen=True)
class Counted:
    """What an engine counted in a time, all its servers together. Times in seconds.

    Attributes:
        engine: The engine.
        model: The name under which it serves its model.
        ranks: Engine processes, which data-parallel ranks have one each of.
        duration_s: How long it counted.
        requests: Requests that were answered.
        failed: Requests that were not.
        prompt_tokens: Tokens of prompts.
        output_tokens: Tokens that were generated.
        cached_tokens: Tokens of prompts that were found in the prefix cache.
        looked_up_tokens: Tokens that were looked for there.
        sources: Tokens of prompts by where they came from, where the engine says it.
        preemptions: How often a request lost its KV cache.
        kv_usage: Share of the KV cache in use, mean of the scrapes; NaN if not known.
        accepted_length: Tokens that a request gets from a step that verifies drafts; NaN if none
            does.
        acceptance: Chances that all drafts up to each position are accepted; empty if not known.
        times: Times of requests by `physim.engines.engine.REQUEST_TIMES`, as far as they are known.
        lengths: Lengths of ``prompt`` and ``output``, tokens, of those that there are.
        settings: How the engine was started, as far as it shows it; see
            `physim.measured.server_log.options_of`.
        notes: What was odd, and what was made of it, one line each.
    """

    engine: str
    model: str
    ranks: int
    duration_s: float
    requests: float
    failed: float
    prompt_tokens: float
    output_tokens: float
    cached_tokens: float
    looked_up_tokens: float
    sources: Mapping[str, float]
    preemptions: float
    kv_usage: float
    accepted_length: float
    acceptance: tuple[float, ...]
    times: Mapping[str, Histogram]
    lengths: Mapping[str, Histogram]
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """Requests answered per second."""
        return self.requests / self.duration_s

    @property
    def hit_rate(self) -> float:
        """Share of the tokens looked for that were found in the prefix cache."""
        return self.cached_tokens / self.looked_up_tokens if self.looked_up_tokens else 0.0

    @property
    def mean_prompt(self) -> float:
        """Mean prompt, tokens: of those of the requests that were answered, if the engine says."""
        return self._mean_length("prompt", self.prompt_tokens)

    @property
    def mean_output(self) -> float:
        """Mean number of generated tokens, likewise."""
        return self._mean_length("output", self.output_tokens)

    def _mean_length(self, what: str, tokens: float) -> float:
        known = self.lengths.get(what)
        return known.mean if known is not None and known.count else tokens / self.requests

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON takes it, bins included."""
        own = {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in vars(self).items()
        }
        return {
            **own,
            "rate": self.rate,
            "hit_rate": self.hit_rate,
            "settings": dict(self.settings),
            "sources": dict(self.sources),
            **{
                name: {what: one.to_dict() for what, one in getattr(self, name).items()}
                for name in ("times", "lengths")
            },
        }

    def __repr__(self) -> str:
        times = ", ".join(
            f"{name} {1e3 * one.mean:.4g} ms" for name, one in self.times.items() if one.count
        )
        return shown(
            self,
            f"{self.engine} with {self.model}: {self.requests:,.6g} requests in "
            f"{self.duration_s:.4g} s ({self.rate:.4g}/s), {self.failed:g} failed",
            f"means: {self.mean_prompt:.4g} tokens in ({self.hit_rate:.0%} cached), "
            f"{self.mean_output:.4g} out; {times}",
            *self.notes,
        )


def read_metrics(paths: Sequence[str | Path], interval_s: float | None = None) -> Counted:
    """What an engine counted between two scrapes of ``/metrics``, or over a range query.

    Args:
        paths: Two scrapes, the earlier first; or the JSON of one range query of Prometheus.
        interval_s: Seconds between the scrapes; None for what the samples say, else the times at
            which the files were written.

    Raises:
        InputError: A file cannot be read or holds no metrics of a known engine, they are of several
            models, the server was started anew between them, or answered no request.
    """
    files = [Path(path) for path in paths]
    where = " and ".join(map(str, files))
    rises, duration, notes = rises_between(files, interval_s)
    known = {one.name: one.counters for one in engines() if one.counters is not None}
    shown = {rise.name.split(":")[0] for rise in rises} & set(known)
    if len(shown) != 1:
        what = "metrics of several engines" if shown else "no metric of a known engine"
        raise InputError(where, f"holds {what}", f"scrape one of {', '.join(known)}")
    (engine,) = shown
    return _Series(engine, known[engine], rises, where).counted(duration, notes)


def stage_of(counted: Counted, output_tokens: float | None = None) -> StageReport:
    """What was counted as a stage of a measured run.

    Args:
        counted: What was counted.
        output_tokens: Tokens generated, if all requests had as many.

    Raises:
        InputError: There are no times until the first token and until the answer.
    """
    for name in ("ttft", "e2e"):
        if name not in counted.times or not counted.times[name].count:
            raise InputError(
                "metrics", f"have no times of {name.upper()}", "scrape the engine under load"
            )
    ttft, e2e = (counted.times[name].mean for name in ("ttft", "e2e"))
    output, prompt = output_tokens or counted.mean_output, counted.mean_prompt
    notes = [*counted.notes, "requests are taken to come at random"]
    timed = counted.times["itl"].mean if "itl" in counted.times else math.nan
    left = (e2e - ttft) / decode_steps(output) if output > 1 else math.nan
    if abs(left - timed) > _STEADY * timed:
        notes.append(
            f"E2E and TTFT leave {left:.3g} s between tokens, of which the engine timed {timed:.3g}"
        )
    acceptance = ",".join(f"{chance:.4g}" for chance in counted.acceptance)
    length = counted.accepted_length
    bins = {name: one.to_text() for name, one in counted.times.items() if one.count}
    return StageReport(
        stage=0,
        rate_rps=counted.rate,
        duration_s=counted.duration_s,
        arrival="poisson",
        input_len_mean=prompt,
        output_len=output,
        ttft_mean=ttft,
        e2e_mean=e2e,
        n_success=round(counted.requests),
        n_failed=round(counted.failed),
        note="; ".join(notes),
        draft_acceptance=acceptance or (None if math.isnan(length) else f"{length:.4g}"),
        cached_len_mean=counted.hit_rate * prompt,
        ttft_bins=bins.get("ttft"),
        itl_bins=bins.get("itl"),
        e2e_bins=bins.get("e2e"),
    )


class _Series:
    """The series of one engine, by name."""

    def __init__(self, engine: str, counters: Counters, rises: Iterable[Rise], where: str) -> None:
        self.engine, self.counters, self.where = engine, counters, where
        self.by_name: dict[str, list[Rise]] = defaultdict(list)
        for rise in rises:
            if rise.name.startswith(f"{engine}:"):
                self.by_name[rise.name].append(rise)
        models = {
            one.labels["model_name"]
            for own in self.by_name.values()
            for one in own
            if "model_name" in one.labels
        }
        if len(models) > 1:
            names = ", ".join(sorted(models)[:3])
            raise InputError(where, f"is of several models ({names})", "scrape one server")
        self.model = next(iter(models), "")

    def counted(self, duration_s: float, notes: tuple[str, ...]) -> Counted:
        names = self.counters
        ended = self._by_label(names.requests, "finished_reason")
        among = sum(ended.get(reason, 0.0) for reason in names.failed_reasons)
        requests = self._rise(names.requests) - among
        if not requests > 0:
            raise InputError(
                self.where,
                f"{names.requests} did not rise: no request was answered",
                "scrape again after some requests",
            )
        times = {what: self._histogram(*names.times.get(what, ())) for what in REQUEST_TIMES}
        lengths = {
            what: self._histogram(name.removesuffix("_bucket"))
            for what, name in (("prompt", names.prompt_lengths), ("output", names.output_lengths))
            if name
        }
        cached = self._rise(names.cached)
        looked_up = self._rise(names.looked_up) if names.looked_up else self._rise(names.prompt)
        acceptance, accepted_length = self._acceptance()
        processes = {
            one.labels["engine"]
            for one in self.by_name[names.requests]
            if one.labels.get("engine", "").isdecimal()
        }
        usage = [
            one.level
            for name in names.kv_usage
            for one in self.by_name[name]
            if not math.isnan(one.level)
        ]
        found = {what: one for what, one in times.items() if one is not None}
        return Counted(
            engine=self.engine,
            model=self.model,
            ranks=max(len(processes), 1),
            duration_s=duration_s,
            requests=requests,
            failed=among + self._rise(names.failed),
            prompt_tokens=self._rise(names.prompt),
            output_tokens=self._rise(names.output),
            cached_tokens=min(cached, looked_up),
            looked_up_tokens=looked_up,
            sources=self._by_label(names.sources, "source"),
            preemptions=self._rise(names.preempted),
            kv_usage=float(np.mean(usage)) if usage else math.nan,
            accepted_length=accepted_length,
            acceptance=acceptance,
            times=found,
            lengths={what: one for what, one in lengths.items() if one is not None},
            settings=self._settings(len(processes)),
            notes=(*notes, *_doubts(requests, found)),
        )

    def _rise(self, name: str) -> float:
        return math.fsum(one.rise for one in self.by_name[name]) if name else 0.0

    def _by_label(self, name: str, label: str) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for one in self.by_name[name] if name else ():
            found[one.labels.get(label, "")] += one.rise
        return dict(found)

    def _histogram(self, *names: str) -> Histogram | None:
        """The first of some histograms that there is whole, of all series together."""
        whole = (
            name for name in names if self.by_name[f"{name}_bucket"] and self.by_name[f"{name}_sum"]
        )
        name = next(whole, None)
        if name is None:
            return None
        up_to: dict[float, float] = defaultdict(float)
        for one in self.by_name[f"{name}_bucket"]:
            text = one.labels.get("le", "")
            try:
                edge = math.inf if text == "+Inf" else float(text)
            except ValueError:
                edge = math.nan
            if math.isnan(edge):
                raise InputError(
                    f"{self.where}: le of {name}", f"{text[:40]!r} is no upper end", "scrape anew"
                )
            up_to[edge] += one.rise
        edges = np.array(sorted(up_to))
        counts = np.diff(np.array([up_to[edge] for edge in edges]), prepend=0.0)
        where = f"{self.where}: {name}"
        return Histogram(edges, counts, self._rise(f"{name}_sum"), where)

    def _acceptance(self) -> tuple[tuple[float, ...], float]:
        """Chances of acceptance by position, and tokens of a step that verifies drafts."""
        names = self.counters
        drafts = self._rise(names.drafts)
        if drafts > 0:
            accepted = self._by_label(names.accepted_by_position, "position")
            places = sorted((text for text in accepted if text.isdecimal()), key=int)
            chances = tuple(min(accepted[place] / drafts, 1.0) for place in places)
            return chances, 1 + self._rise(names.accepted) / drafts
        lengths = [one.level for one in self.by_name[names.accepted_length] if one.level >= 1]
        return (), float(np.mean(lengths)) if lengths else math.nan

    def _settings(self, processes: int) -> dict[str, Any]:
        names = self.counters
        told: dict[str, str] = {}
        for one in self.by_name[names.settings] if names.settings else ():
            for name, label in names.setting_labels.items():
                if one.labels.get(label, "") not in _UNSET:
                    told.setdefault(name, one.labels[label])
        for one in self.by_name[names.kv_tokens] if names.kv_tokens else ():
            if one.level >= 1:
                told.setdefault("kv_tokens", f"{one.level:.0f}")
        if processes > 1:
            told["dp"] = str(processes)
        # Of several formats of 16 bit, and of fp8, a number's name says enough.
        if re.search("bfloat16|float16|bf16|fp16", told.get("kv_cache_dtype", "")):
            told["kv_cache_dtype"] = "bfloat16"
        found = dict(server_log.options_of(self.engine, told, self.where))
        found.pop("notes")
        return found


def _doubts(requests: float, times: Mapping[str, Histogram]) -> list[str]:
    """What says that means of this time are not those of a steady load."""
    notes = []
    if requests < _FEW:
        notes.append(f"only {requests:.0f} requests were answered")
    began, ended = (times[name].count if name in times else math.nan for name in ("ttft", "e2e"))
    if abs(began - ended) > _STEADY * max(began, ended):
        notes.append(
            f"{began:.0f} requests got their first token and {ended:.0f} their answer: the load "
            "was not steady"
        )
    return notes
