"""How wide the intervals of servers are, at a few lengths and loads.

They change slowly and are dear: each takes thirty predictions. Servers that differ in limits alone
share those of the one with most slots and budget. Near saturation an interval is wide because the
load may be a larger share of what the server takes: a server that is slower by a factor has, but
for that factor, the latencies of a load so many times as high.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from physim.corrections.files import Fit
from physim.inputs.case import Case
from physim.inputs.request_lengths import RequestLengths
from physim.page.interpolation import Table, look_up
from physim.page.tables import SATURATION, Axes, Axis, Numbers, Rows, Tables
from physim.prediction.intervals import predict_with_intervals
from physim.prediction.results import Prediction

# What has an interval, and the field of a prediction that it is of.
BOUNDED = {"ttft": "ttft_s", "itl": "itl_s", "e2e": "e2e_s", SATURATION: "saturation_rps"}
# What ends the name of a width below the prediction, beside the one above it.
BELOW = "_below"
# From 12 to 50% of the saturation throughput.
LOADS = Axis(-2.0, 1.0, 3)


@dataclass(frozen=True)
class Widths:
    """Widths of 90% intervals above and below the prediction, logarithms of a factor.

    Attributes:
        axes: Where there are points.
        named: The widths by what they are of, of `BOUNDED`, with `BELOW` for those below.
    """

    axes: Axes
    named: Mapping[str, Float[np.ndarray, "groups inputs outputs loads"]]

    @property
    def named_apart(self) -> dict[str, Table]:
        """The widths by names that tables do not have."""
        return {f"width_{name}": own for name, own in self.named.items()}

    @classmethod
    def predicted(
        cls,
        servers: Sequence[Case],
        joint: RequestLengths | None,
        group_of: Sequence[int],
        tables: Tables,
        axes: Axes,
        known: Fit,
    ) -> Widths:
        """Predicts the servers' intervals.

        Args:
            servers: The servers, each under some load.
            joint: Requests that are made as long, or None for those that are alike.
            group_of: The group of each: of those that differ in limits alone the last one counts.
            tables: Their predictions.
            axes: Where to have points.
            known: A fit that knows of its uncertainty.
        """
        places, cases = [], []
        for group, row in {group: row for row, group in enumerate(group_of)}.items():
            for i, o in itertools.product(range(axes.inputs.count), range(axes.outputs.count)):
                inputs, outputs = 2.0 ** axes.inputs.points[i], 2.0 ** axes.outputs.points[o]
                (most,) = tables.saturation_of(*(np.array([one]) for one in (row, inputs, outputs)))
                if math.isnan(most):
                    continue
                for w, share in enumerate(axes.shares.tolist()):
                    places.append((group, i, o, w))
                    cases.append(under(servers[row], joint, inputs, outputs, most * share))
        found = predict_with_intervals(cases, [known.on(case) for case in cases])
        shape = (max(group_of) + 1, axes.inputs.count, axes.outputs.count, axes.loads.count)
        named = {}
        for name in (*BOUNDED, *(f"{name}{BELOW}" for name in BOUNDED)):
            table = np.full(shape, np.nan)
            for place, one in zip(places, found, strict=True):
                table[place] = half_widths(one)[name]
            # Where requests do not fit is next to where they do.
            widest = np.nanmax(table, axis=(1, 2, 3), keepdims=True)
            named[name] = np.where(np.isnan(table), widest, table)
        return cls(axes, named)

    def ends(
        self,
        tables: Tables,
        groups: Rows,
        rows: Rows,
        inputs: Numbers,
        outputs: Numbers,
        rates: Numbers,
    ) -> dict[str, tuple[Numbers, Numbers]]:
        """Both ends of the intervals of servers under loads, by the names of `BOUNDED`.

        Up to the last point they are as wide as the points have it; above it the rest comes from
        the latencies of so much higher and lower loads. TTFT and E2E have no end where the load may
        be above capacity.

        Args:
            tables: The servers' predictions.
            groups: The groups of the servers.
            rows: The servers.
            inputs: Prompt lengths,
            outputs: and generated lengths, tokens.
            rates: Arrivals per second.
        """
        most = tables.saturation_of(rows, inputs, outputs)
        shares = np.clip(rates / most, self.axes.shares[0], self.axes.shares[-1])
        places = (
            *self.axes.lengths(inputs, outputs),
            self.axes.loads.places(np.log(shares / (1 - shares))),
        )
        wide = {name: look_up(table, groups, *places) for name, table in self.named.items()}
        fewer, more = np.exp(wide[f"{SATURATION}{BELOW}"]), np.exp(wide[SATURATION])
        found = {SATURATION: (most / fewer, most * more)}
        slower, slower_near, near, faster_near, faster = (
            tables.look_up(rows, inputs, outputs, own)
            for own in (
                rates * fewer,
                shares * most * fewer,
                shares * most,
                shares * most / more,
                rates / more,
            )
        )
        for name in ("ttft", "itl", "e2e"):
            low = faster[name] * near[name] / faster_near[name] * np.exp(-wide[f"{name}{BELOW}"])
            high = slower[name] * near[name] / slower_near[name] * np.exp(wide[name])
            endless = (rates * fewer > most) & (name != "itl")
            found[name] = low, np.where(endless, np.inf, high)
        return found


def under(
    server: Case, joint: RequestLengths | None, inputs: float, outputs: float, rate: float
) -> Case:
    """A server under another load.

    Args:
        server: The server, under some load.
        joint: Requests that are made as long, or None for those that are alike.
        inputs: Prompt length, mean,
        outputs: and generated length, tokens.
        rate: Arrivals per second.
    """
    load, lengths = server.demanded, (float(inputs), float(outputs))
    if joint is not None:
        load = load.with_lengths(_with_means(joint, *lengths))
    else:
        load = replace(load, input_tokens=lengths[0], output_tokens=lengths[1])
    return server.under(replace(load, rate=float(rate)))


@functools.lru_cache(maxsize=1024)
def _with_means(joint: RequestLengths, inputs: float, outputs: float) -> RequestLengths:
    # All servers are under the same loads.
    return joint.with_means(inputs, outputs)


def half_widths(prediction: Prediction) -> dict[str, float]:
    """Widths of a prediction's intervals, by the names of `Widths`; NaN for none."""
    found = {}
    for name, field in BOUNDED.items():
        value, interval = getattr(prediction, field), prediction.intervals.get(field)
        if value is None or interval is None:
            found[name] = found[f"{name}{BELOW}"] = math.nan
            continue
        low, high = interval
        found[f"{name}{BELOW}"] = math.log(value / low)
        found[name] = math.log(high / value if math.isfinite(high) else value / low)
    return found
