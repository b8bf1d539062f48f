"""The commands and code blocks of README, CONTRIBUTING and docs, as they stand there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")))
# What a command begins with; variables may stand before it.
_PROGRAMS = r"(?:venv/bin/)?(?:hy3d-rocm|python3?|make|pytest|git|pip)"
_COMMAND = re.compile(rf"(?:[A-Z][A-Z0-9_]*=\S+ )*{_PROGRAMS}(?: |$)")
_PIPED = re.compile(r"(?:^|[|(;] ?|&& )(?=(?:venv/bin/)?hy3d-rocm )")


@dataclass(frozen=True)
class Block:
    """A fenced or indented block of a page. line: its first, from 1."""

    page: str
    line: int
    text: str

    @property
    def is_python(self) -> bool:
        """Statements of Python about this package, not a signature or a listing."""
        if "hy3d_rocm" not in self.text and "import" not in self.text:
            return False
        try:
            body = ast.parse(self.text).body
        except SyntaxError:
            return False
        return bool(body)

    @property
    def name(self) -> str:
        """The page and how the block begins: what tells it from others."""
        return f"{self.page}: {self.text.splitlines()[0].strip()[:40].rstrip()}"


@dataclass(frozen=True)
class Command:
    page: str
    text: str

    @property
    def words(self) -> list[str]:
        """Without variables before it, comments and what it is piped into."""
        text = re.sub(r"^(?:[A-Z][A-Z0-9_]*=\S+ )*", "", self.text)
        text = re.split(r" +#| 2>&1| \| | && |; ", text)[0]
        return text.replace("venv/bin/", "").split()


def blocks() -> list[Block]:
    return [block for page in PAGES for block in _blocks_of(page)]


def _blocks_of(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in re.finditer(r"^```\w*\n(.*?)^```", text, re.S | re.M):
        yield Block(page, text[: found.start()].count("\n") + 2, found[1])
    for found in re.finditer(r"(?:^ {4}.*\n(?:\n(?= {4}))?)+", _without_fences(text), re.M):
        lines = [line.removeprefix("    ") for line in found[0].splitlines()]
        yield Block(page, text[: found.start()].count("\n") + 1, "\n".join(lines) + "\n")


def _without_fences(text: str) -> str:
    """Fenced blocks as empty lines."""
    return re.sub(r"^```.*?^```", lambda f: "\n" * f[0].count("\n"), text, flags=re.S | re.M)


def commands() -> list[Command]:
    """Every command of every page once a page: lines of blocks, and words in backticks."""
    found: dict[Command, None] = {}
    for block in blocks():
        for line in _joined(block.text):
            # What stands two spaces behind a command is its description.
            text = re.split(r"\s{2,}(?!\[)", line.strip())[0]
            found.update(dict.fromkeys(_commands_in(block.page, text)))
    for page in PAGES:
        text = _without_fences((ROOT / page).read_text(encoding="utf-8"))
        for span in re.findall(
            r"`([^`\n]+(?:\n[^`\n]+)?)`", re.sub(r"^ {4}.*", "", text, flags=re.M)
        ):
            found.update(dict.fromkeys(_commands_in(page, " ".join(span.split()))))
    return list(found)


def _commands_in(page: str, text: str) -> Iterator[Command]:
    if _COMMAND.match(text):
        yield Command(page, text)
    elif piped := _PIPED.search(text):
        yield Command(page, text[piped.end() :])


def _joined(text: str) -> list[str]:
    """Lines, those that only go on with options of the line before joined to it."""
    lines: list[str] = []
    for line in text.splitlines():
        if lines and re.match(r"\s+\[--|\s+\[[\w ]", line):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return lines
