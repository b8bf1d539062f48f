"""Reads tables of rules: TOML files, so that a text can be read and changed without Python.

A file has a `heading`, what several of its rules share (`[shared]`) and the rules (`[[rule]]`), or
rows of another name. The fields of a row are those of a dataclass. In a text a line break counts
as a blank; in an item of a list (a pattern, say) it and the blanks after it count as nothing.
{NAME}, in capitals, stands for what is shared under that name: a text within a text, a list within
a list. The tests hold each file's fields against their types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

_NAME = re.compile(r"\{([A-Z][A-Z_]*)\}")
_LINE_BREAK = re.compile(r"\n[ \t]*")
_Row = TypeVar("_Row")


class TableError(ValueError):
    """What is wrong in a table, with the names of its file and its row."""


def read(
    path: Path,
    row: type[_Row],
    *,
    makers: Mapping[str, Callable[[Any], Any]] | None = None,
    shared: Mapping[str, Any] | None = None,
) -> tuple[str, tuple[_Row, ...]]:
    """The heading and the rows of a file.

    row: the dataclass that a row becomes; of Rule the rows are [[rule]]. makers: field -> what
    makes its value from what is written there. shared: beside what the file shares. Raises
    TableError.
    """
    import tomllib

    kind = row.__name__.strip("_").lower()
    where, rows, known = "", [], dict(shared or {})
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        for name, written in table.get("shared", {}).items():
            known[name] = _filled(written, known)
        for place, written in enumerate(table.get(kind, ()), 1):
            where = f", {kind} {next(iter(written.values()), place)}"
            values = {name: _value(value, known) for name, value in written.items()}
            made = {n: make(values[n]) for n, make in (makers or {}).items() if n in values}
            rows.append(row(**(values | made)))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise TableError(f"{path.name}{where}: {error}") from error
    return table.get("heading", ""), tuple(rows)


@cache
def words(path: Path) -> dict[str, list[str]]:
    """Name -> words, of a file of lists of words."""
    import tomllib

    texts = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: text.split() for name, text in texts.items()}


def words_of(name: str) -> list[str]:
    """A list of env/words.toml."""
    return words(Path(__file__).with_name("env") / "words.toml")[name]


def any_of(patterns: Iterable[str], flags: int = re.IGNORECASE) -> re.Pattern[str]:
    """A pattern that finds what any of these does."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), flags)


def _value(written: Any, known: Mapping[str, Any]) -> Any:
    """A field's value, with what is shared in the place of its name."""
    if isinstance(written, dict):
        return {name: _value(value, known) for name, value in written.items()}
    if isinstance(written, list):
        items = _filled(written, known)
        return tuple(_LINE_BREAK.sub("", i) if isinstance(i, str) else i for i in items)
    return " ".join(_filled(written, known).split()) if isinstance(written, str) else written


def _filled(written: Any, known: Mapping[str, Any]) -> Any:
    """A text, or a list of texts, with what is shared in the place of its name."""
    if isinstance(written, str):
        return _NAME.sub(lambda name: known[name[1]], written)
    parts: list[Any] = []
    for part in written:
        shared = known.get(part[1:-1]) if isinstance(part, str) and part[:1] == "{" else None
        parts += shared if isinstance(shared, list) else [_filled(part, known)]
    return parts
