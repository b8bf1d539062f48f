"""Every table of the package: what is written is of its field's type. What is wrong in a file is
told with the file and the row."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from places import ROOT

from hy3d_rocm.conv import errors
from hy3d_rocm.diagnose import cards
from hy3d_rocm.diagnose.doctor import examination, finding
from hy3d_rocm.diagnose.env import rules as env_rules
from hy3d_rocm.diagnose.log import machine
from hy3d_rocm.diagnose.log import rules as log_rules
from hy3d_rocm.diagnose.tables import TableError, read

PACKAGE = ROOT / "hy3d_rocm"
DIAGNOSE = PACKAGE / "diagnose"
MADE = ("check", "repair", "rocm", "torch", "kind")  # by a maker, which refuses others
ROWS: dict[str, type] = {
    "diagnose/cards.toml": cards.Card,
    "diagnose/log/signs.toml": log_rules.Sign,
    "diagnose/log/commands.toml": machine._Command,
    "diagnose/doctor/lines.toml": examination.Line,
    "diagnose/miopen/lines.toml": examination.Line,
    "conv/errors.toml": errors.Rule,
    **{f"diagnose/log/rules/{name}.toml": log_rules.Rule for name in log_rules.FILES},
    **{f"diagnose/env/rules/{name}.toml": env_rules.Rule for name in env_rules.FILES},
    **{
        path.relative_to(PACKAGE).as_posix(): finding.Rule
        for path in (DIAGNOSE / "doctor/rules").iterdir()
    },
}


def fits(value: Any, kind: Any) -> bool:
    """Whether what a file has is of a field's type."""
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        return value in parts and type(value) in map(type, parts)
    if origin is tuple:
        return isinstance(value, list) and all(fits(part, parts[0]) for part in value)
    if origin is Mapping and dataclasses.is_dataclass(parts[1]):
        return isinstance(value, dict) and not any(wrong(row, parts[1]) for row in value.values())
    if origin is Mapping:
        return isinstance(value, dict) and all(fits(one, parts[1]) for one in value.values())
    return type(value) is origin


def wrong(written: Any, row: Any) -> list[str]:
    hints = get_type_hints(row)
    fields = {field.name: field for field in dataclasses.fields(row) if field.init}
    needed = [
        name for name, field in fields.items()
        if field.default is field.default_factory is dataclasses.MISSING
    ]  # fmt: skip
    return [name for name in needed if not written.get(name)] + [
        name for name, value in written.items()
        if name not in fields or (name not in MADE and not fits(value, hints[name]))
    ]  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_what_is_written_is_of_its_fields_type(name: str) -> None:
    row = ROWS[name]
    kind = row.__name__.strip("_").lower()
    table = tomllib.loads((PACKAGE / name).read_text(encoding="utf-8"))
    assert table.keys() <= {"heading", "shared", kind}
    assert isinstance(table.get("heading", ""), str)
    assert all(fits(v, str) or fits(v, tuple[str, ...]) for v in table.get("shared", {}).values())
    assert table[kind]
    for written in table[kind]:
        assert not wrong(written, row), written


def test_every_table_of_the_package_is_looked_at() -> None:
    data = {"miopen_names.toml", "words.toml"}
    found = {
        p.relative_to(PACKAGE).as_posix() for p in DIAGNOSE.rglob("*.toml") if p.name not in data
    }
    assert found == {name for name in ROWS if name.startswith("diagnose/")}


@dataclasses.dataclass(frozen=True)
class Thing:
    id: str
    text: str
    patterns: tuple[str, ...] = ()
    parts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    size: int = 0


TABLE = """
heading = "Some"
[shared]
AGAIN = '''Again
  and again.'''
LIST = ["x", "y"]
[[thing]]
id = "one"
text = '''It
  fails. {AGAIN}'''
patterns = ['''fa
    il(?:ed)?''', "{LIST}"]
parts."no a" = "it is {AGAIN}"
size = 7
"""


def things(folder: Path, text: str) -> tuple[str, tuple[Thing, ...]]:
    path = folder / "some.toml"
    path.write_text(text)
    return read(path, Thing, makers={"size": (1, 2, 4, 8, 16, 32, 64, 128).__getitem__})


def test_line_breaks_are_blanks_in_a_text_and_nothing_in_a_pattern(tmp_path: Path) -> None:
    heading, (thing,) = things(tmp_path, TABLE)
    assert heading == "Some"
    assert thing == Thing(
        "one", "It fails. Again and again.", ("fail(?:ed)?", "x", "y"),
        {"no a": "it is Again and again."}, 128,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("size = 7", "sizes = 7", ", thing one: Thing.__init__() got an unexpected keyword"),
        ("size = 7", "size = 8", ", thing one: tuple index out of range"),
        ("size = 7", 'size = "x"', ", thing one: tuple indices must be integers"),
        ("AGAIN =", "ONCE =", ", thing one: 'AGAIN'"),
        ("[[thing]]", "[thing]", ": 'str' object has no attribute"),
        ("size = 7", "size = x", ": Invalid value"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_row(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    assert old in TABLE
    text = TABLE.replace(old, new)
    with pytest.raises(TableError) as caught:
        things(tmp_path, text)
    assert str(caught.value).startswith(f"some.toml{told}")
