"""Options that several commands take, given to them as one parameter each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, get_args

import typer

from physim.options import Option

# What a bundle's options are given, by name.
Given = dict[str, Any]
Command = Callable[..., None]


class CommandOption(NamedTuple):
    """An option of a command.

    Attributes:
        kind: Its type.
        default: Its default; `inspect.Parameter.empty` where it must be given.
        told: What typer is told of it.
    """

    kind: Any
    default: Any
    told: Any


def shown(option: Option) -> CommandOption:
    """An option of a command, as a record declares it.

    Args:
        option: The option.
    """
    # Typer makes the opposite of a flag if it is left to name both.
    flags = () if option.kind in (bool, bool | None) else (option.flag,)
    told = typer.Option(*flags, help=option.help, rich_help_panel=option.panel)
    return CommandOption(option.kind, option.default, told)


def annotated(kind: Any, default: Any = inspect.Parameter.empty) -> CommandOption:
    """An option of a command, from the type that a parameter of it has.

    Args:
        kind: Its type, ``Annotated`` with what typer is told.
        default: Its default; left out where it must be given.
    """
    own, told = get_args(kind)
    return CommandOption(own, default, told)


def with_bundles(**bundles: Mapping[str, CommandOption]) -> Callable[[Command], Command]:
    """Gives a command bundles of options.

    Args:
        **bundles: Options by name, under the name of the command's parameter that gets what they
            are given.
    """

    def decorated(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in own.parameters.values()
            if parameter.name not in bundles
        ]
        for options in bundles.values():
            parameters += [
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=option.default,
                    annotation=Annotated[option.kind, option.told],
                )
                for name, option in options.items()
            ]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            bundled = {
                bundle: {name: given.pop(name) for name in options}
                for bundle, options in bundles.items()
            }
            command(**given, **bundled)

        # From these typer makes the options.
        called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        return called

    return decorated
