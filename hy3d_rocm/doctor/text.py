"""An examination for a console."""

from __future__ import annotations

import textwrap

from hy3d_rocm.doctor.finding import Examined, Finding
from hy3d_rocm.doctor.lines import headline, sections

_WIDTH = 100
_INDENT = 10


def as_text(examination: Examined) -> str:
    """Findings, worst first, then the facts by section."""
    blocks = [f"hy3d-rocm doctor: {headline(examination)}"]
    blocks += [_finding(finding) for finding in examination.findings]
    found = sections(examination.facts)
    width = max(map(len, found)) + 2
    lines = []
    for title, body in found.items():
        heads = [title, *[""] * (len(body) - 1)]
        lines += [f"{head:{width}}{line}".rstrip() for head, line in zip(heads, body, strict=True)]
    return "\n\n".join([*blocks, "\n".join(lines)])


def _finding(finding: Finding) -> str:
    parts = [finding.title, finding.evidence]
    parts += [f"-> {finding.remedy}"] if finding.remedy else []
    lines = [line for part in parts if part for line in _wrapped(part)]
    lines += [f"   {address}" for address in finding.source.split()]
    first = f"{str(finding.severity).upper():{_INDENT}}{lines[0]}"
    return "\n".join([first, *(" " * _INDENT + line for line in lines[1:])])


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH - _INDENT, break_long_words=False, break_on_hyphens=False,
        subsequent_indent="   " if text.startswith("->") else "",
    ) or [""]  # fmt: skip
