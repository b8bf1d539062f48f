"""Versions that are known to be bad: each with the public thread in which that was found out.

A row says what was reported there, for the versions and cards that were reported. What holds for
a range is a range in the thread's own words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hy3d_rocm.doctor.finding import Facts, Rule, Said, Severity
from hy3d_rocm.env.machine import dotted, parse_version
from hy3d_rocm.units import GB, size_text

_ROCM = "https://github.com/ROCm/legacy-rocm-build/issues/"
_THEROCK = "https://github.com/ROCm/TheRock/issues/"
_BAD_MES = 0x83


@dataclass(frozen=True)
class KnownBad:
    """holds(facts) gives the evidence where the row is about this machine, else ""."""

    id: str
    severity: Severity
    title: str
    remedy: str
    source: str
    holds: Callable[[Facts], str]

    def rule(self) -> Rule:
        def check(facts: Facts) -> Iterator[Said]:
            evidence = self.holds(facts)
            if evidence:
                yield Said(self.title, evidence, self.remedy)

        return Rule(self.id, self.severity, check, self.source)


def _cards(facts: Facts, *prefixes: str) -> list[str]:
    return sorted({name for name in facts.architectures if name.startswith(prefixes)})


def _mes_firmware(facts: Facts) -> str:
    """The firmware of the card that the architecture belongs to: APUs have one card."""
    cards = _cards(facts, "gfx1150", "gfx1151")
    bad = [c for c in facts.amd_cards if c.get("mes_firmware") == _BAD_MES]
    if not cards or not bad:
        return ""
    return f"{cards[0]}, {bad[0].get('pci')}: MES firmware {_BAD_MES:#x}"


def _kernel_hides_memory(facts: Facts) -> str:
    """Up to 6.15 by the thread, solved in 6.16.9; what AMD's own module has is not known."""
    release = facts.get("kernel.release", "")
    version = parse_version(release)
    large = [card for card in facts.amd_cards if (card.get("vram_total_bytes") or 0) > 16 * GB]
    if not _cards(facts, "gfx1151") or not large or not (() < version < (6, 16, 9)):
        return ""
    if not str(facts.get("kernel.driver", "")).startswith("kernel"):
        return ""
    total = size_text(large[0].get("vram_total_bytes"))
    return f"Linux {release}; {total} are set aside for the GPU (gfx1151)"


def _register_count(facts: Facts) -> str:
    rocm = facts.version("machine.rocm")
    affected = (
        (6,) <= rocm[:1] < (7,) or (7, 0) <= rocm[:2] < (7, 2) or (7, 9) <= rocm[:2] < (7, 11)
    )
    if not facts.is_linux or not _cards(facts, "gfx1151") or not rocm or not affected:
        return ""
    return f"gfx1151 with ROCm {dotted(rocm)}"


def _nightly(facts: Facts) -> int:
    """The day of a ROCm nightly's version: 20251201 of "2.10.0a0+rocm7.11.0a20251201"; else 0."""
    found = re.search(r"\+rocm[\d.]+a(\d{8})$", str(facts.get("torch.version", "")))
    return int(found[1]) if found else 0


def _slow_decode(facts: Facts) -> str:
    cards = _cards(facts, "gfx1100", "gfx1102")
    if facts.get("machine.system") != "windows" or not cards or _nightly(facts) != 20251201:
        return ""
    return f"torch {facts.get('torch.version')} on {', '.join(cards)}"


def _wrong_on_windows(facts: Facts) -> str:
    if facts.get("machine.system") != "windows" or not 20251106 <= _nightly(facts) <= 20251213:
        return ""
    return f"torch {facts.get('torch.version')} on Windows"


def _slow_navi1(facts: Facts) -> str:
    cards, rocm = _cards(facts, "gfx1010"), facts.version("machine.rocm")
    if not cards or rocm[:3] != (7, 1, 1):
        return ""
    return f"{', '.join(cards)} with ROCm {dotted(rocm)}"


def _find_times_out(facts: Facts) -> str:
    """Reported with the default mode; FAST was the way out."""
    rocm, mode = facts.version("machine.rocm"), facts.get("variables.MIOPEN_FIND_MODE.value", "")
    if not _cards(facts, "gfx120") or rocm[:2] != (6, 3) or mode.strip().upper() in ("FAST", "2"):
        return ""
    return f"{', '.join(_cards(facts, 'gfx120'))} with ROCm {dotted(rocm)}, MIOPEN_FIND_MODE " + (
        f"is {mode}" if mode else "is not set"
    )


TABLE = (
    KnownBad(
        "firmware-mes-0x83", Severity.ERROR,
        "This GPU firmware is known for hangs and memory access faults",
        "install a firmware package from before linux-firmware 20251125 (on Fedora "
        "amd-gpu-firmware 20251111), and restart",
        f"{_ROCM}5724 {_ROCM}5616", _mes_firmware,
    ),
    KnownBad(
        "kernel-hides-memory", Severity.WARNING,
        "This kernel is known to show ROCm only 15.5 GB of a Strix Halo's memory",
        "install Linux 6.16.9 or newer",
        f"{_ROCM}5444", _kernel_hides_memory,
    ),
    KnownBad(
        "rocm-register-count", Severity.WARNING,
        "This ROCm is known to crash on gfx1151 (a wrong count of vector registers)",
        "install a PyTorch with ROCm 7.2, or 7.11 and newer",
        f"{_THEROCK}2991", _register_count,
    ),
    KnownBad(
        "nightly-slow-decode", Severity.WARNING,
        "This nightly is known to decode VAEs 30 to 50 times slower than the one of 2025-10-10",
        "install another nightly",
        f"{_THEROCK}2371", _slow_decode,
    ),
    KnownBad(
        "windows-wrong-convolutions", Severity.ERROR,
        "MIOpen of these days is known to compute wrong convolutions on Windows (GemmFwdRest)",
        "install a newer PyTorch for ROCm",
        f"{_THEROCK}2458 https://github.com/ROCm/rocm-libraries/issues/3339", _wrong_on_windows,
    ),
    KnownBad(
        "rocm-slow-gfx1010", Severity.WARNING,
        "ROCm 7.1.1 is known to be 2 to 3 times slower on gfx1010, tiled VAEs to take minutes",
        "use a PyTorch that is built for ROCm 6.4",
        f"{_THEROCK}2848", _slow_navi1,
    ),
    KnownBad(
        "find-times-out", Severity.WARNING,
        "MIOpen's find is known to run into the driver's time-out here above 1024 pixels",
        "set MIOPEN_FIND_MODE=FAST before ComfyUI is started",
        f"{_ROCM}4742 {_ROCM}4729", _find_times_out,
    ),
)  # fmt: skip

RULES = tuple(row.rule() for row in TABLE)
