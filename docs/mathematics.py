"""Formulas between dollars as MathML, which browsers draw without a script."""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert

_CODE = r"```.*?```|`[^`\n]*`"
_BLOCK, _INLINE = r"\$\$(?P<block>.+?)\$\$", r"\$(?P<inline>[^$\n]+)\$"
_FOUND = re.compile(f"{_CODE}|{_BLOCK}|{_INLINE}", re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with each page."""
    return _FOUND.sub(_drawn, markdown)


def _drawn(match: re.Match[str]) -> str:
    if match["block"]:
        return convert(" ".join(match["block"].split()), display="block")
    # Without the span, a paragraph that begins with a formula is taken for a block of HTML.
    return f"<span>{convert(match['inline'])}</span>" if match["inline"] else match[0]
