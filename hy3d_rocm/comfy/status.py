"""What the status node shows, and the memory of what this session has met."""

from __future__ import annotations

import re
import threading
import weakref
from collections import deque
from typing import Any

import torch

from hy3d_rocm.comfy import memory, picture, settings
from hy3d_rocm.comfy.memory import comfy_device
from hy3d_rocm.comfy.patch import installed
from hy3d_rocm.comfy.picture import Section
from hy3d_rocm.device import resolve_device
from hy3d_rocm.env.doctor import collect, format_text
from hy3d_rocm.pipeline import seed_mode_of, unwrap

__all__ = ["comfy_device", "know", "remember", "report", "status_picture", "status_text"]

KEPT = 5

_reports: deque[str] = deque(maxlen=KEPT)
_known: dict[int, weakref.ref[Any]] = {}
_lock = threading.Lock()


def remember(report: str) -> None:
    """Keeps the report of a decode or encode for the status node; the last KEPT stay."""
    with _lock:
        _reports.append(report)


def know(pipeline: Any) -> None:
    """Lets the status name this pipeline as long as it lives; it is not kept alive by that."""
    pipeline = unwrap(pipeline)
    try:
        reference = weakref.ref(pipeline)
    except TypeError:  # an object without weak references cannot be watched
        return
    with _lock:
        for key in [key for key, ref in _known.items() if ref() is None]:
            del _known[key]
        _known[id(pipeline)] = reference


def report(pipeline: Any = None) -> list[Section]:
    """Device and rule, memory, modes, patches, pipelines, machine, the last decodes (newest
    first)."""
    with _lock:
        reports = list(_reports)
        known = [p for ref in _known.values() if (p := ref()) is not None]
    decodes = [line for text in reversed(reports) for line in text.splitlines()]
    machine = _machine()
    return [
        Section("Device", _device_lines(pipeline)),
        _memory_section(),
        Section("Modes", settings.explained()),
        Section("Patches", _patch_lines()),
        Section("Pipelines", [_pipeline_line(p) for p in known] or ["none seen yet"]),
        *machine,
        Section(f"Decodes and encodes (the last {KEPT})", decodes or ["none yet"]),
    ]


def status_text(pipeline: Any = None) -> str:
    """`report()` as text. `pipeline` may be None."""
    return as_text(report(pipeline))


def as_text(sections: list[Section]) -> str:
    """The sections' titles and, under them, their lines as they are."""
    return "\n\n".join("\n".join([f"{s.title}:", *s.lines]) for s in sections)


def status_picture(sections: list[Section]) -> torch.Tensor:
    """`report()`'s sections as an IMAGE, (1, H, W, 3) float32."""
    return picture.draw("Hunyuan3D and FramePack on ROCm: status", sections)


def _device_lines(pipeline: Any) -> list[str]:
    default = comfy_device()
    lines = [f"ComfyUI computes on {default}"]
    if pipeline is not None:
        lines.append(_pipeline_line(pipeline))
    return lines


def _pipeline_line(pipeline: Any) -> str:
    """What it is, where it computes and why, whether its models are offloaded, its seed mode."""
    from hy3d_rocm.offload import current_mode

    real = unwrap(pipeline)
    found = resolve_device(real, comfy_device())
    line = f"{type(real).__name__} computes on {found.device} (rule: {found.rule})"
    line += f", offload: {current_mode(real)}"
    mode = seed_mode_of(pipeline)
    return line if mode is None else f"{line}, seed_mode: {mode}"


def _memory_section() -> Section:
    try:
        now = memory.usage()
    except (RuntimeError, OSError) as error:
        return Section("Memory", [f"cannot be asked for: {error}"])
    return Section("Memory", [now.line("Now")], now.allocated / now.limit if now.limit else None)


def _patch_lines() -> list[str]:
    """What was said when upstream was patched, or left alone."""
    installation = installed()
    if installation is None:
        return ["not looked at: ComfyUI's server is not running here"]
    lines = [line.removeprefix("hy3d_rocm: ") for line in installation.lines]
    return lines or ["ComfyUI-Hunyuan3DWrapper is not installed: nothing to correct"]


def _machine() -> list[Section]:
    """The doctor's text, a section for each of its headings."""
    sections: list[Section] = []
    for line in format_text(collect()).splitlines():
        match = re.fullmatch(r"(\S.*?)?\s{2,}(.*)", line)
        head, body = (match[1], match[2]) if match else (None, line)
        if head or not sections:
            head = head or "machine"
            sections.append(Section(head[0].upper() + head[1:], []))
        sections[-1] = sections[-1]._replace(lines=[*sections[-1].lines, body])
    return sections
