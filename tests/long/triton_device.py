"""What the Triton kernels run on in a long check without a GPU: Triton's interpreter ("cpu"), or an
emulated AMD architecture ("gfx1100")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

INTERPRETER = "cpu"
FIGURES = ("addresses", "launches", "instructions")


def is_emulated(device: str) -> bool:
    return device.startswith("gfx")


def architecture(device: str) -> str:
    """Whose launches are made; the interpreter's are those of gfx1100."""
    return device if is_emulated(device) else "gfx1100"


class Watch:
    """A prepared process. watched: what counts there."""

    def __init__(self, device: str) -> None:
        self.device, self.watched = device, None
        if is_emulated(device):
            from tools.dev.gfx import driver

            self.watched: Any = driver.install(device)
        elif device == INTERPRETER:
            from triton_interpreter import prepare_interpreter

            self.watched = prepare_interpreter()

    def unlisted(self) -> list[str]:
        """What was loaded of instructions that the emulator's self-tests may not know, in words."""
        if not is_emulated(self.device):
            return []
        from tools.dev.gfx import opcodes

        missing = sorted(self.watched.instructions - set(opcodes.listed()[self.device]))
        return [f"not in opcodes.txt: {' '.join(missing)}"] if missing else []

    def figures(self) -> dict[str, int]:
        """How much was run so far, by FIGURES."""
        found = dict.fromkeys(FIGURES, 0)
        if is_emulated(self.device):
            from hy3d_rocm.conv.triton import jit

            if not jit._direct.usable:
                raise RuntimeError("kernels were not called as Triton's launcher is")
            launches = self.watched.launches
            found["launches"] = len(launches)
            found["instructions"] = sum(one.counts.instructions for one in launches)
        elif self.watched is not None:
            found["addresses"] = self.watched.checked
        return found


def added(parts: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The figures of several processes together."""
    parts = list(parts)
    return {key: sum(part[key] for part in parts) for key in FIGURES}


def in_words(device: str, figures: Mapping[str, int]) -> str:
    if is_emulated(device):
        return (
            f"{figures['launches']} launches of {figures['instructions']} wave instructions on"
            f" {device}"
        )
    return f"{figures['addresses']} addresses checked"
