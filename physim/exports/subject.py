"""What is exported: a case without a rate, its steps, and what files say of where they are from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Unpack

from physim.corrections.fields import Corrections
from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.errors import InputError
from physim.inputs.case import Case, CaseOptions
from physim.prediction.arrays import step_model_of
from physim.prediction.intervals import predict_with_interval
from physim.prediction.results import Prediction
from physim.prediction.steady import steady
from physim.step.model import StepModel

# Shares of saturation throughput at which a form is held against physim's own steps.
SHARES = (0.2, 0.6, 0.9)


@dataclass(frozen=True)
class Subject:
    """A server and the lengths of its requests.

    Attributes:
        case: The case, at a rate of one request a second.
        corrections: Corrections of the fit.
        fit: Its name.
        steps: Step times.
        loads: Predictions at `SHARES` of saturation, in order.
        middle: The one at 60%, with its intervals.
    """

    case: Case
    corrections: Corrections
    fit: str
    steps: StepModel
    loads: tuple[Prediction, ...]
    middle: Prediction

    @classmethod
    def from_options(
        cls, model: str | Path, fit: str | Path = DEFAULT_FIT, **options: Unpack[CaseOptions]
    ) -> Subject:
        """The subject of options.

        Args:
            model: A path of a ``config.json``, shipped name or hub id.
            fit: Name or path of a fit, ``default`` or ``none``.
            **options: GPU, deployment and load without a rate; see `CaseOptions`.

        Raises:
            InputError: Some input cannot be used, a rate is given, or the steps of such a server
                have no place in these formats.
        """
        for name in ("rate", "concurrency", "stages"):
            if options.get(name):
                raise InputError(
                    name, "cannot be given: rates are shares of saturation throughput", "leave it"
                )
        options = {**options, "rate": 1.0}
        case = Case.from_options(model, **options)
        layout = case.server.parallelism
        for name in ("pp", "dp"):
            if getattr(layout, name) > 1:
                raise InputError(
                    name, f"{getattr(layout, name)} has no place in these formats", "use 1"
                )
        if case.server.draft is not None:
            raise InputError("draft", "has no place in these formats", "leave it out")
        if case.demanded.mean_output <= 1:
            raise InputError(
                "output", "is one token, after which none comes", "ask for two or more"
            )
        if case.server.sizes.max_num_batched_tokens < 2:
            raise InputError("max_num_batched_tokens", "leaves prompts one length", "use 2 or more")
        case.demanded.refuse_turns("export of step times")
        known = load_fit(fit).on(case)
        (found,) = steady([case], [known.corrections], known.name)
        rates = [share * found.saturation_rps for share in SHARES]
        cases = [case_at(case, rate) for rate in rates]
        return cls(
            case,
            known.corrections,
            known.name,
            step_model_of(case, known.corrections),
            tuple(steady(cases, [known.corrections] * len(cases), known.name)),
            predict_with_interval(cases[1], known),
        )

    @property
    def gpus(self) -> int:
        """GPUs of the server."""
        return self.case.server.parallelism.tp

    def about(self) -> dict[str, Any]:
        """What files say of where they are from, as plain values."""
        server, middle = self.case.server, self.middle
        # A load of requests has both.
        assert middle.itl_s is not None
        assert middle.ttft_s is not None
        return {
            "made_by": f"physim {version('physim-llm')}",
            "model": self.case.model.name,
            "gpu": server.gpu.key,
            "gpus": self.gpus,
            "engine": server.to_dict(),
            "fit": self.fit,
            "saturation_rps": self.loads[0].saturation_rps,
            "at_60_pct": {
                "itl_ms": 1e3 * middle.itl_s,
                "ttft_ms": 1e3 * middle.ttft_s,
                "interval_90_pct": {name: list(ends) for name, ends in middle.intervals.items()},
            },
        }


def case_at(case: Case, rate: float) -> Case:
    """The case at another rate.

    Args:
        case: The case.
        rate: Requests per second.
    """
    return case.under(dataclasses.replace(case.demanded, rate=rate))
