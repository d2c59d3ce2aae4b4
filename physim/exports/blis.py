"""BLIS: the forms of step times that its files hold, and the load that they are projected over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from physim.exports.form_error import Form, Steps
from physim.exports.subject import Subject
from physim.inputs.case import Case
from physim.inputs.stages import Stage
from physim.tables.linear_models import MICROSECOND, trained_physics_basis
from physim.tables.operating_region import LASTS_S
from physim.tables.table import Table


def loaded(subject: Subject) -> Case:
    """The case under its three loads, one after another.

    Args:
        subject: What is exported.
    """
    stages = tuple(
        Stage(float(found.load.rate or 0.0), LASTS_S)
        for found in subject.loads
        if found.load is not None
    )
    return subject.case.under(dataclasses.replace(subject.case.demanded, rate=None, stages=stages))


def blackbox_form(beta: Mapping[str, float]) -> Form:
    """The blackbox as seconds of steps.

    Args:
        beta: Its coefficients, microseconds: of a step, a prompt token and a request that decodes.
    """
    step, prefill, decode = (MICROSECOND * one for one in beta.values())

    def seconds(decodes: Steps, attended: Steps, prompts: Steps, tokens: Steps) -> Steps:
        del attended, prompts
        return step + prefill * tokens + decode * decodes

    return seconds


def trained_physics_form(beta: Mapping[str, float], subject: Subject) -> Form:
    """Trained physics as seconds of steps.

    Args:
        beta: Its eleven coefficients.
        subject: What is exported.
    """
    values, load = np.array(list(beta.values())), subject.case.demanded

    def seconds(decodes: Steps, attended: Steps, prompts: Steps, tokens: Steps) -> Steps:
        batches = subject.steps.batch(
            decode_requests=decodes,
            context=attended / np.maximum(decodes, 1e-9),
            prefill_requests=prompts,
            chunk=tokens / np.maximum(prompts, 1e-9),
            cached=load.cached_tokens,
        )
        basis = trained_physics_basis(batches, load.mean_input, subject.case.server)
        return np.asarray(MICROSECOND * (basis @ values))

    return seconds


def table_form(table: Table, subject: Subject) -> Form:
    """A table as seconds of steps, prompts of a step being alike.

    Args:
        table: The table.
        subject: What is exported.
    """
    cached = subject.case.demanded.cached_tokens

    def seconds(decodes: Steps, attended: Steps, prompts: Steps, tokens: Steps) -> Steps:
        chunk = tokens / np.maximum(prompts, 1.0)
        before = np.where(tokens > 0, cached + (chunk - tokens) / 2, 0.0)
        where = np.stack([decodes, attended / np.maximum(decodes, 1e-9), tokens, before], axis=1)
        more = [
            table.more_prompts_s(count, count * cached) for count in np.asarray(prompts).tolist()
        ]
        return table.many(where) + np.array(more)

    return seconds


def said(about: Mapping[str, Any]) -> list[str]:
    """What a file says above its numbers of where they are from.

    Args:
        about: The subject's own account.
    """
    engine = about["engine"]
    return [
        f"{about['made_by']}, fit {about['fit']}: {about['model']} on {about['gpus']} x "
        f"{about['gpu']}, {engine['engine']} {engine['engine_version']}"
    ]
