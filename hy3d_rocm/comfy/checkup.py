"""What the Doctor node does: hy3d_rocm.doctor's findings as text and picture, while ComfyUI can
still cancel."""

from __future__ import annotations

import contextvars
import threading
import time
from typing import Any

import comfy.utils
import torch

from hy3d_rocm.comfy.picture import Section, draw
from hy3d_rocm.comfy.watching import Watcher

__all__ = ["examine_machine"]

_LOOK_S = 0.1
_GRACE_S = 20.0  # beyond the time that the self-tests have: for the facts


def examine_machine(self_test: bool, seconds: int) -> tuple[str, torch.Tensor]:
    """The report as text, and as an IMAGE (1, H, W, 3).

    seconds: for the self-tests of all tiers together. They run in a thread, so that a cancel is
    answered at once; what is then still running ends by its own time-out.
    """
    found = _watched(self_test, seconds)
    return str(found.text()), draw("Doctor: findings, worst first", sections_of(found))


def sections_of(found: Any) -> list[Section]:
    """A section for each finding: evidence, and the remedy after an arrow."""
    made = []
    for finding in found.findings:
        lines = [f"  {line}" for line in _listed(finding.evidence)]
        lines += [f"-> {line}" for line in _listed(finding.remedy)]
        made.append(Section(f"{finding.severity}: {finding.title}", lines))
    return made or [Section("fine: nothing was found", [])]


def _listed(text: Any) -> list[str]:
    lines = text.splitlines() if isinstance(text, str) else [str(part) for part in text or ()]
    return [line for line in lines if line.strip()]


def _watched(self_test: bool, seconds: int) -> Any:
    """examine() in a thread of its own; raises what it raises, and ComfyUI's interrupt."""
    done: list[Any] = []
    failed: list[BaseException] = []
    context = contextvars.copy_context()
    worker = threading.Thread(
        target=context.run, args=(_examine, done, failed, self_test, seconds),
        name="hy3d_rocm doctor", daemon=True,
    )  # fmt: skip
    bar, began = comfy.utils.ProgressBar(100), time.monotonic()
    expected = (seconds if self_test else 0) + _GRACE_S
    with Watcher() as watcher:
        worker.start()
        while worker.is_alive():
            worker.join(_LOOK_S)
            share = min((time.monotonic() - began) / expected, 0.99)
            bar.update_absolute(round(share * 100), 100)
            if watcher.cancelled():  # the watcher makes ComfyUI's own exception of this
                raise RuntimeError("the examination was cancelled; queue it again")
    if failed:
        raise failed[0]
    bar.update_absolute(100, 100)
    return done[0]


def _examine(done: list[Any], failed: list[BaseException], self_test: bool, seconds: int) -> None:
    from hy3d_rocm.doctor import examine

    try:
        done.append(examine(self_test=self_test, seconds=seconds))
    except Exception as error:  # noqa: BLE001  (raised again in ComfyUI's own thread)
        failed.append(error)
