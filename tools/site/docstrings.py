"""Docstrings say `name: meaning` in paragraphs; on the site each name gets a line of its own."""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"^`?(\w+(?:, \w+)*)`?: ")


def known_names(obj: griffe.Object) -> set[str]:
    if isinstance(obj, griffe.Function):
        return {parameter.name for parameter in obj.parameters}
    init = obj.members.get("__init__")
    names = set(obj.members)
    return names | (known_names(init) if isinstance(init, griffe.Function) else set())


def as_list(text: str, names: set[str]) -> str:
    """`text` with every line that begins with known names and a colon made an item of a list."""
    out: list[str] = []
    inside = False
    for line in text.splitlines():
        found = SECTION.match(line)
        if found and set(found[1].split(", ")) <= names:
            if not inside:
                out.append("")
            out.append(f"- `{found[1].replace(', ', '`, `')}`: {line[found.end() :]}")
            inside = True
        elif inside and line.strip():
            out.append("    " + line)
        else:
            inside = False
            out.append(line)
    return "\n".join(out)


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_others: Any) -> None:
        if obj.docstring is not None and isinstance(obj, griffe.Function | griffe.Class):
            obj.docstring.value = as_list(obj.docstring.value, known_names(obj))
