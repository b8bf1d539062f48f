"""An examination for people: on a console, and as one page of HTML that loads nothing."""

from __future__ import annotations

import html
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hy3d_rocm import __version__
from hy3d_rocm.diagnose.doctor import basic
from hy3d_rocm.diagnose.doctor.finding import Facts, Finding, Severity
from hy3d_rocm.diagnose.doctor.selftest import tier_name

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
        f"{counts[severity]} {one if counts[severity] == 1 else many}"
        for severity, (one, many) in _SEVERITIES.items()
        if counts[severity]
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
    room = "{free_bytes:size} of {total_bytes:size} free for {uses}"
    found["disks"] = [disk.filled(room) for disk in seen.each("disks")]
    found["self-test"] = _self_test(seen)
    if seen.get("comfyui"):
        found["ComfyUI"] = _comfyui(seen)
    return {title: lines for title, lines in found.items() if lines}


def _kernel(facts: Facts) -> list[str]:
    if facts.get("kernel.error"):
        return [str(facts.get("kernel.error"))]
    driver = str(facts.get("kernel.driver") or "no amdgpu")
    driver = "the kernel's own amdgpu" if driver.startswith("kernel ") else driver
    lines = [facts.filled(f"{{kernel.release}}, {driver}")]
    for device in facts.each("kernel.devices"):
        if device.word("exists"):
            may = "usable" if device.word("usable") else "not usable"
            lines.append(device.filled(f"{{path}}: {{mode}} {{group}}, {may}"))
    options = facts.get("kernel.boot_options", [])
    return [*lines, *([f"booted with {' '.join(options)}"] if options else [])]


def _memory(facts: Facts) -> list[str]:
    host = "host: {memory.host.available_bytes:size} of {memory.host.total_bytes:size} available"
    lines = [facts.filled(host)]
    lines += [
        card.filled(
            "{pci}: {vram_used_bytes:size} of {vram_total_bytes:size} used, and up to "
            "{gtt_total_bytes:size} of the host's"
        )
        for card in facts.each("kernel.cards")
        if card.word("vram_total_bytes")
    ]
    held = "; this process holds {reserved_bytes:size}, {allocated_bytes:size} of it in use"
    free = "{name}: {free_bytes:size} of {total_bytes:size} free"
    free += held if facts.get("torch.in_this_process") else ""
    lines += [gpu.filled(free) for gpu in facts.each("torch.gpus") if gpu.word("total_bytes")]
    for holder in facts.each("memory.holders"):
        own = ", this process" if holder.word("own") else ""
        lines.append(holder.filled(f"held by {{name}} (process {{pid}}{own}): {{vram_bytes:size}}, "
                                   "{gtt_bytes:size} of the host's"))  # fmt: skip
    return lines


def _miopen(facts: Facts) -> list[str]:
    lines = []
    for place in facts.each("miopen.places"):
        state = "{count} files, {bytes:size}" if place.word("exists") else "not there"
        state = "{error}" if place.word("error") else state
        lines.append(place.filled(f"{{kind}}: {{path}}, {state}"))
    if lines:
        lines.append(f"find results for {facts.number('miopen.find_entries')} convolutions, "
                     f"{facts.number('miopen.compiled_entries')} compiled kernels")  # fmt: skip
    return lines


def _self_test(facts: Facts) -> list[str]:
    if not facts.get("self_test"):
        return ["not asked for"]
    lines = []
    for result in facts.each("self_test.results"):
        seconds = result.word("first_seconds")
        time = ", first call {first_seconds:.2f} s" if isinstance(seconds, float) else ""
        detail = ": {detail}" if result.word("detail") else ""
        name = tier_name(str(result.word("tier")), bool(facts.get("torch.hip")))
        lines.append(result.filled(f"{{device}}, {name}: {{verdict}}{time}{detail}"))
    return lines or [str(facts.get("self_test.why") or facts.get("self_test.error") or "no result")]


def _comfyui(facts: Facts) -> list[str]:
    if facts.get("comfyui.error"):
        return [str(facts.get("comfyui.error"))]
    lines = [facts.filled("ComfyUI {comfyui.version} computes on {comfyui.device}")]
    models = facts.each("comfyui.models")
    lines += [model.filled("{name}: {bytes:size} on {device}") for model in models]
    return [*lines, *facts.get("comfyui.settings", []), *facts.get("comfyui.patches", [])]


def as_text(facts: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """Findings, worst first, then the facts by section."""
    blocks = [f"hy3d-rocm doctor: {headline(facts, findings)}", *map(_finding, findings)]
    return "\n\n".join([*blocks, basic.columns(sections(facts))])


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


def as_html(facts: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """A whole document. All text is escaped; only http(s) addresses become links."""
    said = headline(facts, findings)
    rows = "".join(
        f"<tr><th>{html.escape(title)}</th><td>"
        + "".join(f"<div>{html.escape(line)}</div>" for line in lines)
        + "</td></tr>"
        for title, lines in sections(facts).items()
    )
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
