"""An examination for people: on a console, and as one page of HTML that loads nothing."""

from __future__ import annotations

import html
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from hy3d_rocm import __version__
from hy3d_rocm.diagnose.doctor.finding import Facts, Finding, Severity
from hy3d_rocm.diagnose.tables import read

BASIC = ("system", "packages", "C core", "GPU", "variables")  # what basic.collect() tells
_WIDTH = 100
_INDENT = 10
_SEVERITIES = {
    Severity.ERROR: ("error", "errors"), Severity.WARNING: ("warning", "warnings"),
    Severity.ADVICE: ("piece of advice", "pieces of advice"),
}  # fmt: skip


@dataclass(frozen=True)
class Examination:
    """facts: JSON-able, by section. findings: the worst first."""

    facts: Mapping[str, Any]
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """2 with an error among the findings, 1 with a warning, else 0."""
        found = {finding.severity for finding in self.findings}
        return 2 if Severity.ERROR in found else int(Severity.WARNING in found)

    @property
    def headline(self) -> str:
        """ "1 error, 2 warnings"; said with it where there is no AMD GPU that could be examined."""
        counts = Counter(finding.severity for finding in self.findings)
        parts = [
            f"{counts[severity]} {one if counts[severity] == 1 else many}"
            for severity, (one, many) in _SEVERITIES.items()
            if counts[severity]
        ]
        missing = "no AMD GPU was found" if Facts(self.facts).is_without_amd else ""
        return "; ".join(filter(None, (", ".join(parts), missing))) or "nothing wrong was found"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: "version" of this package, "headline", "exit_code", "findings", "facts"."""
        return {
            "version": __version__, "headline": self.headline, "exit_code": self.exit_code,
            "findings": [finding.as_dict() for finding in self.findings],
            "facts": dict(self.facts),
        }  # fmt: skip

    def text(self) -> str:
        """Findings, worst first, then the facts by section."""
        blocks = [f"hy3d-rocm doctor: {self.headline}", *map(_finding, self.findings)]
        return "\n\n".join([*blocks, columns(sections(self.facts))])

    def html(self) -> str:
        """One page that needs no other file. All text is escaped; only http(s) addresses become
        links."""
        said = self.headline
        rows = "".join(
            f"<tr><th>{html.escape(title)}</th><td>"
            + "".join(f"<div>{html.escape(line)}</div>" for line in lines)
            + "</td></tr>"
            for title, lines in sections(self.facts).items()
        )
        page = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
        return page.substitute(
            headline=html.escape(said),
            heading=html.escape(said[0].upper() + said[1:]),
            version=html.escape(__version__),
            when=html.escape(str(self.facts.get("when", ""))),
            findings="".join(map(_article, self.findings)),
            rows=rows,
        )


@dataclass(frozen=True)
class Line:
    """See the head of lines.toml."""

    section: str
    text: str
    each: str = ""
    when: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    listed: bool = False

    def of(self, facts: Facts) -> Iterator[str]:
        for seen in facts.each(self.each) if self.each else [facts]:
            if all(map(seen.holds, self.when)):
                held = (t for c, t in self.parts.items() if all(map(seen.holds, c.split(" & "))))
                parts = (", " if self.listed else "").join(map(seen.filled, held))
                yield seen.beside({"parts": parts}).filled(self.text)


@cache
def lines_of(path: Path) -> tuple[Line, ...]:
    return read(path, Line)[1]


def sections(facts: Mapping[str, Any], *, whole: bool = True) -> dict[str, list[str]]:
    """Heading -> lines. whole: of an examination, else of basic.collect()'s facts alone. A section
    that could not be read says so."""
    seen = Facts(facts)
    words: dict[str, Any] = {"booted": " ".join(seen.get("kernel.boot_options", []))}
    found: dict[str, list[str]] = {}
    try:
        words |= _basic_words(facts)
    except (KeyError, TypeError, AttributeError) as error:
        found["system"] = [f"can't be shown: {error!r}"]
    seen, is_basic_known = seen.beside(words), not found
    for line in lines_of(Path(__file__).with_name("lines.toml")):
        if is_basic_known if line.section in BASIC else whole:
            found.setdefault(line.section, []).extend(line.of(seen))
    return {title: lines for title, lines in found.items() if lines}


def _basic_words(facts: Mapping[str, Any]) -> dict[str, list[str]]:
    """What stands in the lines beside basic.collect()'s facts; KeyError, TypeError, AttributeError
    where these are of another kind."""
    for name in ("system", "core", "driver", "torch"):
        facts[name].items()
    values = facts["variables"].items()
    return {
        "installed": [f"{name} {v}" for name, v in facts["versions"].items() if v is not None],
        "values": [f"{n}={e['value']}" + f"  ({e['note']})" * bool(e["note"]) for n, e in values],
    }


def columns(found: Mapping[str, list[str]]) -> str:
    """Headings in one column, their lines in another."""
    width = max(map(len, found)) + 2
    lines = []
    for title, body in found.items():
        heads = [title, *[""] * (len(body) - 1)]
        lines += [f"{head:{width}}{line}".rstrip() for head, line in zip(heads, body, strict=True)]
    return "\n".join(lines)


def _finding(finding: Finding) -> str:
    remedy = f"-> {finding.remedy}" if finding.remedy else ""
    lines = [line for part in (finding.title, finding.evidence) for line in _wrapped(part)]
    lines += _wrapped(remedy, subsequent_indent="   ")
    lines += [f"   {address}" for address in finding.source.split()]
    first = f"{str(finding.severity).upper():{_INDENT}}{lines[0]}"
    return "\n".join([first, *(" " * _INDENT + line for line in lines[1:])])


def _wrapped(text: str, **options: Any) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH - _INDENT, break_long_words=False, break_on_hyphens=False, **options
    )


def _article(finding: Finding) -> str:
    shown = {name: html.escape(text) for name, text in finding.as_dict().items()}
    parts = [
        f'<span class="label">{shown["severity"]}</span>',
        f"<h3>{shown['title']}</h3>",
        f'<p class="evidence">{shown["evidence"]}</p>',
    ]
    if finding.remedy:
        parts.append(f'<p class="remedy">{shown["remedy"]}</p>')
    links = [
        f'<a href="{address}" rel="noreferrer">{address}</a>'
        if address.startswith(("https://", "http://")) else address
        for address in shown["source"].split()
    ]  # fmt: skip
    if links:
        parts.append(f'<p class="source">{"<br>".join(links)}</p>')
    return f'<article class="{finding.severity}" id="{shown["id"]}">{"".join(parts)}</article>\n'
