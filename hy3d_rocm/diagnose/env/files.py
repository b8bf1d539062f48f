"""Reading the kernel's small text files, below any root folder; nothing raises."""

from __future__ import annotations

from pathlib import Path


def text(path: Path) -> str:
    """The file's text without white space around it, "" where it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return ""


def number(path: Path) -> int | None:
    """A file of one whole number, decimal or 0x..., None for anything else."""
    try:
        return int(text(path), 0)
    except ValueError:
        return None


def entries(folder: Path) -> list[Path]:
    """What is in a folder, by name; [] where it can't be listed."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def link_name(path: Path) -> str:
    """The last part of where a link leads, "" where there is none."""
    try:
        return path.readlink().name
    except (OSError, ValueError):
        return ""
