"""The console of all commands: what is printed is text, and nothing in it is obeyed."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from physim.printable import printable


class Terminal(Console):
    """A console to which ``[bold]`` and ``:smile:`` are letters, and each string is one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """A string as it is printed, alone or in a cell."""
        return super().render_str(printable(text), **options)
