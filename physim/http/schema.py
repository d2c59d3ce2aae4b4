"""The OpenAPI description of what is served, made of the types of the bodies."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Literal

from pydantic import TypeAdapter

from physim.http.bodies import CasesBody, PredictBody, RecommendBody, StepBody, adapter_of

_Schema = dict[str, Any]
_PLACE = "#/components/schemas/{model}"
_BODIES = {"Case": PredictBody, "Cases": CasesBody, "Recommend": RecommendBody, "Step": StepBody}
_PROBLEM = {
    "type": "object",
    "properties": {
        "field": {"type": "string", "description": "The place at fault."},
        "problem": {"type": "string", "description": "What is wrong with it."},
        "remedy": {"type": "string", "description": "What can be done about it."},
    },
    "required": ["field", "problem", "remedy"],
}
_SECONDS = {"type": "array", "items": {"type": "number"}}
_TIMES = {
    "type": "object",
    "properties": {
        "latency": {**_SECONDS, "description": "Until a step's tokens are there, seconds."},
        "interval": {**_SECONDS, "description": "Until requests get their next token, seconds."},
        "parts": {
            "type": "object",
            "additionalProperties": _SECONDS,
            "description": "Where the interval goes, by component; where asked for.",
        },
    },
    "required": ["latency", "interval"],
}
# Answers of two verbs are records with fields of their own.
_ANSWERS: Mapping[str, _Schema] = {
    "Prediction": {"type": "object", "description": "physim.Prediction.to_dict()."},
    "Predictions": {
        "type": "object",
        "properties": {
            "predictions": {"type": "array", "items": {"$ref": "#/components/schemas/Prediction"}}
        },
        "required": ["predictions"],
    },
    "Recommendation": {"type": "object", "description": "physim.Recommendation.to_dict()."},
    "StepTimes": _TIMES,
    "Problem": _PROBLEM,
}
_PROBLEMS = {
    "400": "The body is no JSON object.",
    "408": "The body takes too long to arrive.",
    "413": "The body is too large.",
    "422": "Something in the body cannot be used, or asks for too much.",
    "503": "The server is busy, or the work took too long.",
}


@functools.cache
def description() -> _Schema:
    """The description, in OpenAPI 3.1."""
    mode: Literal["validation"] = "validation"
    inputs = [(name, mode, adapter_of(body)) for name, body in _BODIES.items()]
    found, schemas = TypeAdapter.json_schemas(inputs, ref_template=_PLACE)
    components = {**schemas.get("$defs", {}), **_ANSWERS}
    bodies = {name: found[name, mode] for name in _BODIES}
    either = [bodies["Case"], bodies["Cases"]]
    answers = [_named("Prediction"), _named("Predictions")]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "physim",
            "version": version("physim-llm"),
            "description": "Predictions of what an LLM server will do; SI units throughout.",
        },
        "paths": {
            "/predict": _verb(
                "Predict a case, or several at once.", {"anyOf": either}, {"anyOf": answers}
            ),
            "/recommend": _verb(
                "Find the cheapest deployments that keep to objectives.",
                bodies["Recommend"],
                _named("Recommendation"),
            ),
            "/step": _verb("Time many steps of a server.", bodies["Step"], _named("StepTimes")),
        },
        "components": {"schemas": components},
    }


def _named(name: str) -> _Schema:
    return {"$ref": _PLACE.format(model=name)}


def _verb(summary: str, body: _Schema, answer: _Schema) -> _Schema:
    def holding(schema: _Schema) -> _Schema:
        return {"application/json": {"schema": schema}}

    problems = {
        status: {"description": told, "content": holding(_named("Problem"))}
        for status, told in _PROBLEMS.items()
    }
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": holding(body)},
            "responses": {"200": {"description": "Found.", "content": holding(answer)}, **problems},
        }
    }
