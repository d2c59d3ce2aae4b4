"""Which known classes an unknown one may be laid out like, by its fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from physim.errors import InputError
from physim.models.architecture import ModelArch
from physim.models.families.unread import listed

_MOST_LAYOUTS = 4
PLAIN = "LlamaForCausalLM"


@dataclass(frozen=True)
class Likeness:
    """A layout that reads all that it needs of a configuration.

    Attributes:
        classes: Architecture classes that read it alike, the one to name first.
        model: The model as they read it.
        unread: Fields that they pass over.
    """

    classes: tuple[str, ...]
    model: ModelArch
    unread: tuple[str, ...]


def likenesses(
    says: str, names: Iterable[str], read: Callable[[str], tuple[ModelArch, tuple[str, ...]]]
) -> tuple[Likeness, ...]:
    """Layouts that fit, best first: by fields passed over, relatives, plainness and how common.

    Args:
        says: The class that the configuration names.
        names: The classes that are known.
        read: Reads the configuration as one of them: the model, and the fields passed over.
    """
    alike: dict[tuple[ModelArch, tuple[str, ...]], list[str]] = {}
    for name in names:
        try:
            model, unread = read(name)
        except InputError:
            continue
        same = replace(model, family="", vision_is_replicated=False)
        alike.setdefault((same, unread), []).append(name)
    found = [
        Likeness(tuple(sorted(classes, key=lambda one: _rank(says, one))), model, unread)
        for (model, unread), classes in alike.items()
    ]
    return tuple(
        sorted(
            found,
            key=lambda one: (
                len(one.unread),
                not _related(says, one.classes[0]),
                _peculiarities(one.model),
                -len(one.classes),
                one.classes[0],
            ),
        )
    )


def advice(found: tuple[Likeness, ...]) -> str:
    """What to read a configuration as: the best layouts, and by what the others differ.

    Args:
        found: Layouts that fit, best first.
    """
    best = found[0]
    by_none = set(best.unread).intersection(*(one.unread for one in found))
    words = [f"{best.classes[0]} ({_size(best.model)}{_passed_over(best, by_none)})"]
    for other in found[1:_MOST_LAYOUTS]:
        differs = f"{_size(other.model)}; {', '.join(_differences(best.model, other.model))}"
        words.append(f"{other.classes[0]} ({differs}{_passed_over(other, by_none)})")
    none = f" (no class reads {listed(sorted(by_none))})" if by_none else ""
    return (
        f"its fields fit the layouts of {'; '.join(words)}{none}; compare parameters and layers "
        f"with the model's card, then pass --as {best.classes[0]} (read_as in Python) or another "
        "of them"
    )


def _size(model: ModelArch) -> str:
    return f"{model.parameters / 1e9:.2f} B parameters"


def _passed_over(one: Likeness, by_none: set[str]) -> str:
    left = [name for name in one.unread if name not in by_none]
    return f"; does not read {listed(left)}" if left else ""


def _peculiarities(model: ModelArch) -> int:
    """How many things a class has that no field says: where none tells, the plain layout first."""
    return model.qk_norm + _biases(model) + (not model.gated_mlp) + 2 * model.tied_embeddings


def _differences(best: ModelArch, other: ModelArch) -> list[str]:
    """By what a layout differs from the best, in words."""
    found = []
    if best.gated_mlp != other.gated_mlp:
        found.append("a gate in its MLP" if other.gated_mlp else "no gate in its MLP")
    if best.qk_norm != other.qk_norm:
        found.append("norms of queries and keys" if other.qk_norm else "no norms of queries")
    if _biases(best) != _biases(other):
        found.append("a bias of queries, keys and values" if _biases(other) else "no bias")
    if best.tied_embeddings != other.tied_embeddings:
        found.append("tied embeddings" if other.tied_embeddings else "embeddings of its own")
    kinds = [{one.words for one in model.attention_layers} for model in (best, other)]
    if kinds[0] != kinds[1]:
        found.append(f"attention: {', '.join(sorted(kinds[1]))}")
    if (best.experts is None) != (other.experts is None):
        found.append("experts" if other.experts else "no experts")
    return found or ["other weights in its layers"]


def _biases(model: ModelArch) -> bool:
    return any(linear.bias for group in model.groups for linear in group.linears)


def _stem(name: str) -> str:
    """The first word of a class: Qwen of Qwen3_5MoeForCausalLM."""
    found = re.match(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return found.group().lower() if found else name.lower()


def _related(says: str, name: str) -> bool:
    return _stem(says) == _stem(name)


def _rank(says: str, name: str) -> tuple[bool, bool, bool, str]:
    sees_too = not name.endswith("ForCausalLM")
    return not _related(says, name), name != PLAIN, sees_too, name
