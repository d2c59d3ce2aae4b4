"""Names as text in which no character acts, for wherever they are shown."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Text on one line, whose control characters are seen rather than obeyed.

    Whatever Python does not call printable is written as in its strings, such as ``\x1b``: control
    characters, ends of lines, marks that turn the direction of text, halves of surrogate pairs.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
