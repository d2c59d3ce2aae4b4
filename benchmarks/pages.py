"""Tables that a benchmark writes into a page of the documentation, between two comments."""

from __future__ import annotations

from pathlib import Path


def fill(page: Path, name: str, text: str) -> None:
    """Puts a text between the two comments of a page that have a name, for what is there.

    Raises:
        SystemExit: The page lacks one of them.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, first, rest = page.read_text(encoding="utf-8").partition(begin)
    _, second, after = rest.partition(end)
    if not (first and second):
        raise SystemExit(f"{page}: has no {begin} and {end}; add them where the tables go")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
