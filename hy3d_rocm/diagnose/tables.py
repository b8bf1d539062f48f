"""Reads tables of rules: TOML files, so that a text can be read and changed without Python.

A file has a `heading`, what several of its rules share (`[shared]`) and the rules (`[[rule]]`), or
rows of another name. The fields of a row are those of a dataclass. In a text a line break counts
as a blank; in an item of a list (a pattern, say) it and the blanks after it count as nothing.
{NAME}, in capitals, stands for what is shared under that name: a text within a text, a list within
a list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

_NAME = re.compile(r"\{([A-Z][A-Z_]*)\}")
_LINE_BREAK = re.compile(r"\n[ \t]*")
_Row = TypeVar("_Row")


class TableError(ValueError):
    """What is wrong in a table, with the names of its file and its rule."""


def read(
    path: Path,
    row: type[_Row],
    *,
    makers: Mapping[str, Callable[[Any], Any]] | None = None,
    shared: Mapping[str, Any] | None = None,
) -> tuple[str, tuple[_Row, ...]]:
    """The heading and the rows of a file.

    row: the dataclass that a row becomes; of Rule the rows are [[rule]]. makers: field -> what
    makes its value from what is written there; a LookupError of it says that there is no such
    thing. shared: beside what the file shares. Raises TableError.
    """
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TableError(f"{path.name} is no TOML: {error}") from None
    kind = row.__name__.strip("_").lower()
    for name in table.keys() - {"heading", "shared", kind}:
        raise TableError(f"{path.name}: {name!r} is none of heading, shared, {kind}")
    reader = _Reader(row, makers or {}, shared or {})
    rows = []
    where = "outside its rows"
    try:
        for name, written in _of(dict, "shared", table.get("shared", {})).items():
            reader.shared[name] = reader.filled(written)
        for place, written in enumerate(_of(list, kind, table.get(kind, [])), 1):
            where = f"{kind} {written.get(reader.needed[0], place)}"
            rows.append(row(**reader.values(written)))
    except _WrongError as error:
        raise TableError(f"{path.name}, {where}: {error}") from None
    return table.get("heading", ""), tuple(rows)


def any_of(patterns: Iterable[str], flags: int = re.IGNORECASE) -> re.Pattern[str]:
    """A pattern that finds what any of these does."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), flags)


def functions_of(*modules: ModuleType) -> dict[str, Callable[..., Any]]:
    """The public functions of these modules by their names, for rules to name them."""
    return {
        name: function
        for module in modules
        for name, function in vars(module).items()
        if isinstance(function, FunctionType)
        and function.__module__ == module.__name__
        and not name.startswith("_")
    }


class _WrongError(Exception):
    """What is wrong, without the place."""


@cache
def _fields_of(row: type) -> tuple[dict[str, tuple[Any, tuple[Any, ...]]], tuple[str, ...]]:
    """Each field's type with what is in its brackets, and the fields without a default."""
    found = [field for field in fields(row) if field.init]
    hints = get_type_hints(row)
    kinds = {f.name: (get_origin(hints[f.name]) or hints[f.name], get_args(hints[f.name]))
             for f in found}  # fmt: skip
    needed = (f.name for f in found if f.default is MISSING and f.default_factory is MISSING)
    return kinds, tuple(needed)


class _Reader:
    def __init__(
        self, row: type, makers: Mapping[str, Callable[[Any], Any]], shared: Mapping[str, Any]
    ) -> None:
        self.kinds, self.needed = _fields_of(row)
        self.makers = makers
        self.shared = dict(shared)

    def values(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """A rule's fields."""
        for name in _of(dict, "it", written):
            if name not in self.kinds:
                raise _WrongError(f"{name!r} is none of {', '.join(self.kinds)}")
        for name in self.needed:
            if written.get(name, "") in ("", []):
                raise _WrongError(f"{name} is missing")
        return {name: self._value(name, value) for name, value in written.items()}

    def _value(self, name: str, written: Any) -> Any:
        if name in self.makers:
            try:
                return self.makers[name](self.filled(written))
            except LookupError:
                raise _WrongError(f"{name}: there is no {written!r}") from None
            except (AttributeError, TypeError, ValueError) as error:
                raise _WrongError(f"{name}: {error}") from None
        kind, parts = self.kinds[name]
        if kind is Mapping:  # name -> a row of its own
            inner = _Reader(parts[1], self.makers, self.shared)
            return {
                key: parts[1](**inner.values(value))
                for key, value in _of(dict, name, written).items()
            }
        if kind is tuple and parts[0] is not str:  # pairs of texts
            pairs = _of(dict, name, written).items()
            return tuple((key, self._text(name, text)) for key, text in pairs)
        if kind is tuple:
            items = self.filled(_of(list, name, written))
            return tuple(
                _LINE_BREAK.sub("", item) if "\n" in _of(str, name, item) else item
                for item in items
            )
        if kind is Literal and written not in parts:
            raise _WrongError(f"{name}: {written!r} is none of {', '.join(map(str, parts))}")
        if kind is Literal:
            return written
        return self._text(name, written) if kind is str else _of(kind, name, written)

    def _text(self, name: str, written: Any) -> str:
        return " ".join(self.filled(_of(str, name, written)).split())

    def filled(self, written: Any) -> Any:
        """`written` with what is shared in the place of its name."""
        if isinstance(written, list):
            parts = []
            for part in written:
                is_name = isinstance(part, str) and part.startswith("{") and part.endswith("}")
                shared = self.shared.get(part[1:-1]) if is_name else None
                parts += shared if isinstance(shared, list) else [self.filled(part)]
            return parts
        if isinstance(written, str) and "{" in written:
            return _NAME.sub(self._shared, written)
        return written

    def _shared(self, found: re.Match[str]) -> str:
        if found[1] not in self.shared:
            raise _WrongError(f"{found[0]} is not in the file's [shared]")
        return _of(str, found[1], self.shared[found[1]])


def _of(kind: type[_Row], name: str, value: Any) -> _Row:
    if type(value) is not kind:
        wanted = {str: "a text", list: "a list", dict: "a table", bool: "true or false"}
        raise _WrongError(f"{name}: {value!r} is not {wanted.get(kind, 'a whole number')}")
    return value
