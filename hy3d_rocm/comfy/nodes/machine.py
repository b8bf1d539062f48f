"""The nodes about the machine and the pipelines on it: the machine examined as `hy3d-rocm doctor`
does it, memory given back, what is known of it; a pipeline's seed mode and its offload.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from comfy_api.v0_0_2 import io, ui

from hy3d_rocm import offload as offloading
from hy3d_rocm.comfy import memory, reports, settings
from hy3d_rocm.comfy.nodes.common import AsSet, EachTime, text_and_picture
from hy3d_rocm.comfy.patches.install import installed
from hy3d_rocm.comfy.picture import Section, draw
from hy3d_rocm.comfy.running import TimeBar, Watcher
from hy3d_rocm.device import resolve_device
from hy3d_rocm.diagnose.doctor import basic, examination
from hy3d_rocm.pipeline import PipelineProxy, seed_mode_of, unwrap

_LOOK_S = 0.1
_GRACE_S = 20.0  # beyond the time that the self-tests have: for the facts


class Hy3DRocmDoctor(EachTime):
    """Findings, worst first, each with its evidence and one remedy."""

    @classmethod
    def execute(cls, self_test: bool, seconds: int) -> io.NodeOutput:
        found = _watched(self_test, seconds)
        text, image = found.text(), draw("Doctor: findings, worst first", sections_of(found))
        return io.NodeOutput(text, image, ui=text_and_picture(text, image))


class Hy3DRocmFreeMemory(EachTime):
    """Gives memory back between two nodes, and says how much."""

    @classmethod
    def execute(cls, anything: Any = None) -> io.NodeOutput:
        report = memory.free_everything()
        return io.NodeOutput(anything, report, ui=ui.PreviewText(report))


class Hy3DRocmStatus(EachTime):
    """What this machine is, what was chosen, what has happened."""

    @classmethod
    def execute(cls, pipeline: Any = None) -> io.NodeOutput:
        sections = report(pipeline)
        text = as_text(sections)
        image = draw("Hunyuan3D and FramePack on ROCm: status", sections)
        return io.NodeOutput(text, image, ui=text_and_picture(text, image))


def sections_of(found: Any) -> list[Section]:
    """A section for each finding: evidence, and the remedy after an arrow."""
    made = []
    for finding in found.findings:
        parts = (("  ", finding.evidence), ("-> ", finding.remedy))
        lines = [f"{at}{line}" for at, text in parts for line in text.splitlines() if line.strip()]
        made.append(Section(f"{finding.severity}: {finding.title}", lines))
    return made or [Section("fine: nothing was found", [])]


def _watched(self_test: bool, seconds: int) -> Any:
    """examine() in a thread of its own, so that a cancel is answered at once; what is then still
    running ends by its own time-out. Raises what it raises, and ComfyUI's interrupt.

    seconds: for the self-tests of all tiers together.
    """
    found: Future[Any] = Future()
    context = contextvars.copy_context()
    worker = threading.Thread(
        target=context.run, args=(_examine, found, self_test, seconds),
        name="hy3d_rocm doctor", daemon=True,
    )  # fmt: skip
    with Watcher() as watcher:
        bar = TimeBar((seconds if self_test else 0) + _GRACE_S, watcher)
        worker.start()
        while not wait([found], _LOOK_S).done:
            bar.look()
    result = found.result()
    bar.end()
    return result


def _examine(found: Future[Any], self_test: bool, seconds: int) -> None:
    try:
        found.set_result(examination.examine(self_test=self_test, seconds=seconds))
    except BaseException as error:  # noqa: BLE001  (raised again in ComfyUI's own thread)
        found.set_exception(error)


def report(pipeline: Any = None) -> list[Section]:
    """Device and rule, memory, modes, patches, pipelines, machine, the last decodes (newest
    first)."""
    decodes = [line for text in reports.remembered() for line in text.splitlines()]
    pipelines = [_pipeline_line(one) for one in reports.known_pipelines()]
    asked = [] if pipeline is None else [_pipeline_line(pipeline)]
    facts = examination.sections(basic.collect(), whole=False).items()
    return [
        Section("Device", [f"ComfyUI computes on {memory.comfy_device()}", *asked]),
        _memory_section(),
        Section("Modes", settings.explained()),
        Section("Patches", _patch_lines()),
        Section("Pipelines", pipelines or ["none seen yet"]),
        *(Section(head[0].upper() + head[1:], told) for head, told in facts),
        Section(f"Decodes and encodes (the last {reports.KEPT})", decodes or ["none yet"]),
    ]


def as_text(sections: list[Section]) -> str:
    """The sections' titles and, under them, their lines as they are."""
    return "\n\n".join("\n".join([f"{s.title}:", *s.lines]) for s in sections)


def _pipeline_line(pipeline: Any) -> str:
    """What it is, where it computes and why, whether its models are offloaded, its seed mode."""
    real = unwrap(pipeline)
    found = resolve_device(real, memory.comfy_device())
    line = f"{type(real).__name__} computes on {found.device} (rule: {found.rule})"
    line += f", offload: {offloading.current_mode(real)}"
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


logger = logging.getLogger("hy3d_rocm")


class Hy3DRocmPipeline(AsSet):
    """Puts Hunyuan3D's diffusers pipelines behind a PipelineProxy."""

    @classmethod
    def execute(
        cls, pipeline: Any, seed_mode: str, offload: str = settings.SETTING
    ) -> io.NodeOutput:
        made, device = proxy(pipeline, seed_mode), memory.comfy_device()
        free, total = memory.counted_free(device)
        room = partial(memory.make_room, device=device)
        policy = settings.offload_for(offload)
        # A pipeline that cannot be offloaded raises nothing: that is the reason then.
        decision = offloading.apply(unwrap(pipeline), policy, device, free, total, room=room)
        logger.info("Hy3DRocmPipeline: offload %s: %s", policy, decision.reason)
        return io.NodeOutput(made)


class Hy3DRocmSeedMode(AsSet):
    """Chooses the seed mode of one pipeline, and the number of a batch's first image."""

    @classmethod
    def execute(cls, pipeline: Any, seed_mode: str, first_index: int) -> io.NodeOutput:
        return io.NodeOutput(proxy(pipeline, seed_mode, first_index))


def proxy(pipeline: Any, seed_mode: str, first_index: int = 0) -> PipelineProxy:
    """`pipeline` behind a proxy; "setting" is looked up.

    Raises ValueError, in a sentence, for a first_index that the mode cannot use.
    """
    reports.know(pipeline)
    return PipelineProxy(
        pipeline,
        default_device=memory.comfy_device(),
        seed_mode=settings.seed_mode_for(seed_mode),
        label=type(unwrap(pipeline)).__name__,
        first_index=first_index,
    )
