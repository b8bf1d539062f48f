"""An examination for people: on a console, and as one page of HTML that loads nothing."""

from __future__ import annotations

import html
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hy3d_rocm import __version__
from hy3d_rocm.doctor.finding import Facts, Finding, Severity
from hy3d_rocm.doctor.selftest import tier_name
from hy3d_rocm.env import doctor as basic
from hy3d_rocm.units import size_text

_WIDTH = 100
_INDENT = 10
_STYLE = Path(__file__).with_name("page.css")
_SEVERITIES = {
    Severity.ERROR: ("error", "errors"), Severity.WARNING: ("warning", "warnings"),
    Severity.ADVICE: ("piece of advice", "pieces of advice"),
}  # fmt: skip


def headline(facts: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """ "1 error, 2 warnings"; said with it where there is no AMD GPU that could be examined."""
    counts = Counter(finding.severity for finding in findings)
    parts = [
        f"{count} {one if count == 1 else many}"
        for severity, (one, many) in _SEVERITIES.items()
        if (count := counts.get(severity, 0))
    ]
    counted = ", ".join(parts)
    if Facts(facts).is_without_amd:
        return f"{counted}; no AMD GPU was found" if counted else "no AMD GPU was found"
    return counted or "nothing wrong was found"


def sections(facts: Mapping[str, Any]) -> dict[str, list[str]]:
    """Heading -> lines. A section that could not be read says so."""
    seen = Facts(facts)
    try:
        found = basic.sections(facts)
    except (KeyError, TypeError, AttributeError) as error:
        found = {"system": [f"can't be shown: {error!r}"]}
    found["kernel driver"] = _kernel(seen)
    found["memory"] = _memory(seen)
    found["MIOpen"] = _miopen(seen)
    found["disks"] = [
        f"{size_text(disk.get('free_bytes'))} of {size_text(disk.get('total_bytes'))} free for "
        + ", ".join(disk.get("uses") or ())
        for disk in seen.rows("disks")
    ]
    found["self-test"] = _self_test(seen)
    if seen.get("comfyui"):
        found["ComfyUI"] = _comfyui(seen)
    return {title: lines for title, lines in found.items() if lines}


def _kernel(facts: Facts) -> list[str]:
    if facts.get("kernel.error"):
        return [str(facts.get("kernel.error"))]
    driver = str(facts.get("kernel.driver") or "no amdgpu")
    driver = "the kernel's own amdgpu" if driver.startswith("kernel ") else driver
    lines = [f"{facts.get('kernel.release', '')}, {driver}"]
    for device in facts.rows("kernel.devices"):
        if device.get("exists"):
            may = "usable" if device.get("usable") else "not usable"
            lines.append(f"{device.get('path')}: {device.get('mode')} {device.get('group')}, {may}")
    options = facts.get("kernel.boot_options", [])
    return [*lines, *([f"booted with {' '.join(options)}"] if options else [])]


def _memory(facts: Facts) -> list[str]:
    free, total = (facts.get(f"memory.host.{n}_bytes") for n in ("available", "total"))
    lines = [f"host: {size_text(free)} of {size_text(total)} available"]
    for card in facts.rows("kernel.cards"):
        if card.get("vram_total_bytes"):
            used, whole = card.get("vram_used_bytes"), card.get("vram_total_bytes")
            gtt = card.get("gtt_total_bytes")
            lines.append(f"{card.get('pci')}: {size_text(used)} of {size_text(whole)} used, and "
                         f"up to {size_text(gtt)} of the host's")  # fmt: skip
    for gpu in facts.rows("torch.gpus"):
        if gpu.get("total_bytes"):
            free, total = gpu.get("free_bytes"), gpu.get("total_bytes")
            held = (f"; this process holds {size_text(gpu.get('reserved_bytes'))}, "
                    f"{size_text(gpu.get('allocated_bytes'))} of it in use")  # fmt: skip
            held = held if facts.get("torch.in_this_process") else ""
            lines.append(f"{gpu.get('name')}: {size_text(free)} of {size_text(total)} free{held}")
    for holder in facts.rows("memory.holders"):
        own = ", this process" if holder.get("own") else ""
        lines.append(f"held by {holder.get('name')} (process {holder.get('pid')}{own}): "
                     f"{size_text(holder.get('vram_bytes'))}, "
                     f"{size_text(holder.get('gtt_bytes'))} of the host's")  # fmt: skip
    return lines


def _miopen(facts: Facts) -> list[str]:
    lines = []
    for place in facts.rows("miopen.places"):
        state = f"{place.get('count', 0)} files, {size_text(place.get('bytes'))}"
        state = state if place.get("exists") else "not there"
        lines.append(f"{place.get('kind')}: {place.get('path')}, {place.get('error') or state}")
    if lines:
        lines.append(f"find results for {facts.number('miopen.find_entries')} convolutions, "
                     f"{facts.number('miopen.compiled_entries')} compiled kernels")  # fmt: skip
    return lines


def _self_test(facts: Facts) -> list[str]:
    if not facts.get("self_test"):
        return ["not asked for"]
    is_amd = bool(facts.get("torch.hip"))
    lines = []
    for result in facts.rows("self_test.results"):
        seconds = result.get("first_seconds")
        time = f", first call {seconds:.2f} s" if isinstance(seconds, float) else ""
        detail = f": {result['detail']}" if result.get("detail") else ""
        name = tier_name(str(result.get("tier")), is_amd)
        lines.append(f"{result.get('device')}, {name}: {result.get('verdict')}{time}{detail}")
    return lines or [str(facts.get("self_test.why") or facts.get("self_test.error") or "no result")]


def _comfyui(facts: Facts) -> list[str]:
    if facts.get("comfyui.error"):
        return [str(facts.get("comfyui.error"))]
    lines = [f"ComfyUI {facts.get('comfyui.version', '')} computes on "
             f"{facts.get('comfyui.device', '')}"]  # fmt: skip
    for model in facts.rows("comfyui.models"):
        lines.append(f"{model.get('name')}: {size_text(model.get('bytes'))} on "
                     f"{model.get('device')}")  # fmt: skip
    return [*lines, *facts.get("comfyui.settings", []), *facts.get("comfyui.patches", [])]


def as_text(facts: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """Findings, worst first, then the facts by section."""
    blocks = [f"hy3d-rocm doctor: {headline(facts, findings)}", *map(_finding, findings)]
    return "\n\n".join([*blocks, basic.columns(sections(facts))])


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


def as_html(facts: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """A whole document. All text is escaped; only http(s) addresses become links."""
    said = headline(facts, findings)
    rows = "".join(_row(title, lines) for title, lines in sections(facts).items())
    style = "\n" + _STYLE.read_text(encoding="utf-8")
    when = html.escape(str(facts.get("when", "")))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>hy3d-rocm doctor: {html.escape(said)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n<h1>{html.escape(said[0].upper() + said[1:])}</h1>\n"
        f'<p class="lead">hy3d-rocm {html.escape(__version__)}, {when}</p>\n'
        + "".join(map(_article, findings))
        + f"<h2>What was found out</h2>\n<table>{rows}</table>\n</body>\n</html>\n"
    )


def _article(finding: Finding) -> str:
    parts = [
        f'<span class="label">{html.escape(str(finding.severity))}</span>',
        f"<h3>{html.escape(finding.title)}</h3>",
        f'<p class="evidence">{html.escape(finding.evidence)}</p>',
    ]
    if finding.remedy:
        parts.append(f'<p class="remedy">{html.escape(finding.remedy)}</p>')
    links = [_link(address) for address in finding.source.split()]
    if links:
        parts.append(f'<p class="source">{"<br>".join(links)}</p>')
    kind = finding.severity if finding.severity in Severity else Severity.ADVICE
    return f'<article class="{kind}" id="{html.escape(finding.id)}">{"".join(parts)}</article>\n'


def _link(address: str) -> str:
    shown = html.escape(address)
    if not address.startswith(("https://", "http://")):
        return shown
    return f'<a href="{shown}" rel="noreferrer">{shown}</a>'


def _row(title: str, lines: list[str]) -> str:
    body = "".join(f"<div>{html.escape(line)}</div>" for line in lines)
    return f"<tr><th>{html.escape(title)}</th><td>{body}</td></tr>"
