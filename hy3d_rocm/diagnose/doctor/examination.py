"""`examine()`: facts, and what they mean, worst first, which never raises for a broken machine; and
an examination for people: on a console, and as one page of HTML that loads nothing."""

from __future__ import annotations

import html
import logging
import os
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from hy3d_rocm import __version__
from hy3d_rocm.conv.errors import is_cancel
from hy3d_rocm.diagnose.doctor import basic, checks, kernel, selftest, windows
from hy3d_rocm.diagnose.doctor.finding import Facts, Finding, Rule, Severity, Variant
from hy3d_rocm.diagnose.env import gpu, rules
from hy3d_rocm.diagnose.env.machine import Machine, detect
from hy3d_rocm.diagnose.env.shown import anonymous
from hy3d_rocm.diagnose.miopen import places
from hy3d_rocm.diagnose.tables import read
from hy3d_rocm.memory import ROOT

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


logger = logging.getLogger("hy3d_rocm")

FOLDER = Path(__file__).with_name("rules")
FILES = ("torch", "windows", "versions", "pack", "memory", "miopen")
DEFAULT_SECONDS = 90.0
_TORCH_SHARE = 0.5  # of the time: a cold import of a ROCm build takes ten seconds and more
_OF_MACHINE = (
    "architectures", "torch", "torch_is_rocm", "rocm", "zluda", "system", "runs_on_amd",
)  # fmt: skip
# What a program that this one runs in knows of itself; set by comfy/routes.py.
host_facts: dict[str, Callable[[], Mapping[str, Any]]] = {}


def examine(
    environ: Mapping[str, str] = os.environ,
    self_test: bool = True,
    seconds: float = DEFAULT_SECONDS,
    *,
    tell: Callable[[str], None] | None = None,
    cancel: Callable[[], None] | None = None,
) -> Examination:
    """Looks at this machine, at most about `seconds` (5 and more) long, and at what that means.

    self_test: each convolution back-end is tried in a child process. tell(text) says what
    is being done, cancel() is called often while children run; what it raises goes through.
    """
    environ = dict(environ)
    until = time.monotonic() + seconds
    share = seconds * _TORCH_SHARE if self_test else seconds
    facts = collect(environ, torch_seconds=max(share, 5.0), tell=tell)
    if self_test:
        if tell is not None:
            tell("trying each convolution back-end")
        share = max(until - time.monotonic(), 3.0)
        facts["self_test"] = _guarded(selftest.run, facts["torch"], share, tell=tell, cancel=cancel)
    shown = anonymous(facts, environ, keep_paths=True)
    return Examination(shown, tuple(judge(shown)))


def collect(
    environ: Mapping[str, str],
    *,
    torch_seconds: float = DEFAULT_SECONDS,
    root: Path = ROOT,
    machine: Machine | None = None,
    torch: Mapping[str, Any] | None = None,
    system: windows.System | None = None,
    folders: Sequence[str] | None = None,
    tell: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """All facts but the self-test's. A section that fails is {"error": ...}.

    root, machine, torch, system (how Windows is asked), folders (of packages): in place of this
    machine's (tests).
    """
    topology = root / gpu.TOPOLOGY.relative_to("/")
    if machine is None:
        try:
            machine = detect(environ, topology=topology)
        except Exception as error:  # noqa: BLE001  (nothing is known of it then)
            logger.debug("hy3d_rocm: the machine can't be told: %s", error)
            machine = Machine()
    if torch is None:
        if tell is not None:
            tell("asking PyTorch")
        torch = _guarded(basic.ask_torch, torch_seconds)
    facts = _guarded(basic.collect, environ, machine=machine, torch=torch, topology=topology)
    facts.setdefault("torch", dict(torch))
    of_machine = {name: getattr(machine, name) for name in _OF_MACHINE}
    facts["machine"] = {n: list(v) if isinstance(v, tuple) else v for n, v in of_machine.items()}
    facts["judged"] = _judged(environ, machine)
    facts["kernel"] = _guarded(kernel.collect, root)
    if of_windows := _guarded(windows.collect, environ, root, system, folders):
        facts["windows"] = of_windows
    facts["memory"] = _guarded(kernel.memory, root)
    facts["miopen"] = _guarded(places.collect, environ)
    facts.update(_guarded(kernel.storage, environ))
    facts.update((name, _guarded(function)) for name, function in host_facts.items())
    facts["when"] = time.strftime("%Y-%m-%d %H:%M:%S")
    return facts


def rules_of_file(path: Path) -> tuple[Rule, ...]:
    """Raises TableError."""
    makers: dict[str, Callable[[Any], Any]] = {
        "check": lambda name: getattr(checks, name),
        "variants": lambda written: {name: Variant(**case) for name, case in written.items()},
    }
    return read(path, Rule, makers=makers)[1]


@cache
def table() -> tuple[Rule, ...]:
    """All rules."""
    return tuple(rule for name in FILES for rule in rules_of_file(FOLDER / f"{name}.toml"))


def judge(facts: Mapping[str, Any]) -> list[Finding]:
    """What all rules say of these facts, worst first; in the order of the table within that."""
    seen = Facts(facts)
    findings: list[Finding] = []
    for rule in table():
        try:
            findings += rule.findings(seen)
        except Exception as error:  # facts of a kind no rule thought of
            logger.debug("hy3d_rocm: the doctor's rule %s failed", rule.id, exc_info=True)
            findings.append(Finding(
                "rule-failed", Severity.ADVICE, "One of the doctor's own rules failed",
                f"{rule.id}: {type(error).__name__}: {error}", "report it with this report",
            ))  # fmt: skip
    return sorted(findings, key=lambda finding: list(Severity).index(finding.severity))


def _judged(environ: Mapping[str, str], machine: Machine) -> list[dict[str, str]]:
    """What the table of variables says, where it is about this machine."""
    return [
        {
            "name": finding.name,
            "subject": finding.subject,
            "value": finding.value,
            "verdict": finding.rule.verdict,
            "rule": finding.rule.name,
            "effect": finding.text.removesuffix(f"; {finding.rule.remedy}"),
            "remedy": finding.rule.remedy,
            "source": finding.rule.source,
        }
        for finding in (found.public() for found in rules.judge(environ, machine))
        if machine.has_rocm_libraries or finding.name.startswith("HY3D_")
    ]


def _guarded(
    function: Callable[..., Mapping[str, Any]], *given: Any, **named: Any
) -> dict[str, Any]:
    try:
        return dict(function(*given, **named))
    except Exception as error:  # that it failed is the fact
        if is_cancel(error):
            raise
        return {"error": f"{type(error).__name__}: {error}"}
