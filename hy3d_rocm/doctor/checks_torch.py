"""Checks of rules/torch.toml and rules/versions.toml: PyTorch, driver, devices, bad versions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hy3d_rocm.conv.verdict_store.machine import overridden
from hy3d_rocm.doctor.finding import Facts, Said
from hy3d_rocm.env.machine import dotted, parse_version
from hy3d_rocm.units import GB, size_text

# LLVM's generic targets, and what each stands for (AMDGPUUsage, Generic Processors).
_GENERIC = {
    "gfx9-generic": r"gfx9(00|02|04|06|09|0c)", "gfx9-4-generic": r"gfx9(4[0-2]|50)",
    "gfx10-1-generic": r"gfx101[0-3]", "gfx10-3-generic": r"gfx103[0-6]",
    "gfx11-generic": r"gfx11(0[0-3]|5[0-3])", "gfx12-generic": r"gfx120[01]",
}  # fmt: skip
# Cards that run a sibling's kernels, as ComfyUI's readme has it (Linux only).
_SIBLINGS = {r"gfx103[1-6]": ("gfx1030", "10.3.0"), r"gfx110[1-3]": ("gfx1100", "11.0.0")}
_BAD_MES = 0x83


def torch_missing(facts: Facts) -> Iterator[Said]:
    error = facts.get("torch.error", "")
    if not error or facts.get("torch.version") or facts.get("torch.is_hang"):
        return
    why = "not-installed" if "No module named 'torch'" in error else ""
    if not why and "librocm_sysdeps" in error:
        why = "rocm-libraries"
    yield Said("amd" if facts.is_amd else "", why, error=error, target=_target(facts))


def torch_hangs(facts: Facts) -> Iterator[Said]:
    if facts.get("torch.is_hang"):
        yield Said(error=facts.get("torch.error", ""))


def gpu_does_not_start(facts: Facts) -> Iterator[Said]:
    if facts.get("torch.version") and facts.get("torch.error"):
        yield Said(_linux(facts), error=facts.get("torch.error"))


def not_for_amd(facts: Facts) -> Iterator[Said]:
    version, cuda = facts.get("torch.version"), facts.get("torch.cuda")
    is_rocm = facts.get("machine.torch_is_rocm") or facts.get("torch.hip")
    if not version or is_rocm or facts.get("machine.zluda") or facts.rows("torch.gpus"):
        return
    if facts.has_amd_card:
        cards = ", ".join(facts.architectures) or "an AMD card"
        saying = "cuda" if cuda else ""
        yield Said(saying, version=version, cuda=cuda, cards=cards, target=_target(facts))


def no_amd_gpu(facts: Facts) -> Iterator[Said]:
    """Not on NVIDIA's cards, which need none; not where torch's own error says why."""
    if not facts.is_without_amd or facts.computes_elsewhere or facts.get("torch.error"):
        return
    version, rocm = facts.get("torch.version", "not installed"), facts.get("torch.hip")
    yield Said(_linux(facts), "rocm" if rocm else "", version=version, rocm=rocm)


def architecture_missing(facts: Facts) -> Iterator[Said]:
    """An error where no card has kernels; beside one that has, advice to hide the other."""
    built = facts.get("torch.architectures", [])
    if not facts.get("torch.hip") or not built:
        return
    own = facts.visible or facts.architectures
    missing = sorted({name for name in own if not _covers(built, _as_told(name, facts))})
    is_partly = len(missing) < len(set(own))
    for name in missing:
        told = _as_told(name, facts)
        sibling, value = _sibling(name, built, facts)
        first = next((place for place, other in enumerate(own) if other not in missing), 0)
        yield Said(
            "told" if told != name else "", "partly" if is_partly else "sibling" if sibling else "",
            name=name, told=told, version=facts.get("torch.version"), built=", ".join(built),
            first=first, sibling=sibling, value=value,
        )  # fmt: skip


def _as_told(name: str, facts: Facts) -> str:
    """What torch names is what HSA_OVERRIDE_GFX_VERSION has made of it already."""
    if facts.visible:
        return name
    override = str(facts.get("variables.HSA_OVERRIDE_GFX_VERSION.value", ""))
    return overridden(name, {"HSA_OVERRIDE_GFX_VERSION": override})


def _covers(built: list[str], architecture: str) -> bool:
    names = {name.partition(":")[0] for name in built}
    return architecture in names or any(
        name in names and re.fullmatch(pattern, architecture) for name, pattern in _GENERIC.items()
    )


def _sibling(own: str, built: list[str], facts: Facts) -> tuple[str, str]:
    """A card whose kernels `own` runs too, and the override for that; "" where there is none."""
    for pattern, (sibling, value) in _SIBLINGS.items():
        if facts.is_linux and re.fullmatch(pattern, own) and _covers(built, sibling):
            return sibling, value
    return "", ""


def _target(facts: Facts) -> str:
    return ", ".join(sorted(set(facts.architectures))) or "your card"


def _linux(facts: Facts) -> str:
    return "linux" if facts.is_linux else ""


def _container(facts: Facts) -> str:
    return "container" if facts.get("kernel.container") else ""


def sees_no_gpu(facts: Facts) -> Iterator[Said]:
    is_rocm = facts.get("torch.hip")
    if not is_rocm or facts.rows("torch.gpus") or facts.get("torch.error"):
        return
    if not facts.rows("driver.gpus") or list(device_not_usable(facts)):
        return
    names = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
             "GPU_DEVICE_ORDINAL")  # fmt: skip
    values = {name: facts.get(f"variables.{name}.value") for name in names}
    hidden = [f"{name}={value}" for name, value in values.items() if value is not None]
    yield Said(
        "hidden" if hidden else "", listed=", ".join(facts.architectures),
        version=facts.get("torch.version"), hidden=", ".join(hidden),
        first=hidden[0].partition("=")[0] if hidden else "",
    )  # fmt: skip


def device_not_usable(facts: Facts) -> Iterator[Said]:
    if not facts.has_amd_card and not facts.get("torch.hip"):
        return
    closed = [d for d in facts.rows("kernel.devices") if d.get("exists") and not d.get("usable")]
    if not closed:
        return
    groups = sorted({str(device.get("group")) for device in closed})
    yield Said(
        _container(facts),
        what="; ".join(
            f"{d.get('path')} is {d.get('mode')}, group {d.get('group')}" for d in closed
        ),
        own=", ".join(facts.get("kernel.groups", [])) or "none",
        flags=" ".join(f"--group-add {group}" for group in groups),
        names=",".join(groups),
    )


def kfd_missing(facts: Facts) -> Iterator[Said]:
    driven = [card for card in facts.amd_cards if card.get("driver") == "amdgpu"]
    kfd = [d for d in facts.rows("kernel.devices") if d.get("path") == "/dev/kfd"]
    if driven and kfd and not kfd[0].get("exists"):
        yield Said(_container(facts), pci=driven[0].get("pci"))


def card_without_driver(facts: Facts) -> Iterator[Said]:
    cards = facts.amd_cards
    if not cards or any(card.get("driver") == "amdgpu" for card in cards):
        return
    yield Said(
        cards=", ".join(f"{c.get('pci')}: {c.get('driver') or 'no driver'}" for c in cards),
        loaded="is" if facts.get("kernel.loaded") else "is not",
    )


def triton_missing(facts: Facts) -> Iterator[Said]:
    if not facts.get("torch.hip") or not facts.get("torch.triton"):
        return
    error = facts.get("torch.triton.error", "")
    if "No module named 'triton'" in error:
        on_windows = facts.get("machine.system") == "windows"
        yield Said("not-installed", "windows" if on_windows else "", error=error)
    elif error:
        yield Said("broken", error=error)


def miopen_off(facts: Facts) -> Iterator[Said]:
    """Only in ComfyUI, which switches it off by itself."""
    if not facts.get("comfyui") or not facts.get("torch.hip"):
        return
    if facts.get("torch.miopen_or_cudnn_enabled") is False:
        yield Said()


# Versions that are known to be bad


def _cards(facts: Facts, *prefixes: str) -> list[str]:
    return sorted({name for name in facts.architectures if name.startswith(prefixes)})


def mes_firmware(facts: Facts) -> Iterator[Said]:
    """The firmware of the card that the architecture belongs to: APUs have one card."""
    cards = _cards(facts, "gfx1150", "gfx1151")
    bad = [c for c in facts.amd_cards if c.get("mes_firmware") == _BAD_MES]
    if cards and bad:
        yield Said(card=cards[0], pci=bad[0].get("pci"), firmware=f"{_BAD_MES:#x}")


def kernel_hides_memory(facts: Facts) -> Iterator[Said]:
    """Up to 6.15 by the thread, solved in 6.16.9; what AMD's own module has is not known."""
    release = facts.get("kernel.release", "")
    version = parse_version(release)
    large = [card for card in facts.amd_cards if (card.get("vram_total_bytes") or 0) > 16 * GB]
    if not _cards(facts, "gfx1151") or not large or not (() < version < (6, 16, 9)):
        return
    if str(facts.get("kernel.driver", "")).startswith("kernel"):
        yield Said(release=release, total=size_text(large[0].get("vram_total_bytes")))


def register_count(facts: Facts) -> Iterator[Said]:
    rocm = facts.version("machine.rocm")
    affected = (
        (6,) <= rocm[:1] < (7,) or (7, 0) <= rocm[:2] < (7, 2) or (7, 9) <= rocm[:2] < (7, 11)
    )
    if facts.is_linux and _cards(facts, "gfx1151") and rocm and affected:
        yield Said(rocm=dotted(rocm))


def _nightly(facts: Facts) -> int:
    """The day of a ROCm nightly's version: 20251201 of "2.10.0a0+rocm7.11.0a20251201"; else 0."""
    found = re.search(r"\+rocm[\d.]+a(\d{8})$", str(facts.get("torch.version", "")))
    return int(found[1]) if found else 0


def slow_decode(facts: Facts) -> Iterator[Said]:
    cards = _cards(facts, "gfx1100", "gfx1102")
    if facts.get("machine.system") == "windows" and cards and _nightly(facts) == 20251201:
        yield Said(version=facts.get("torch.version"), cards=", ".join(cards))


def wrong_on_windows(facts: Facts) -> Iterator[Said]:
    if facts.get("machine.system") == "windows" and 20251106 <= _nightly(facts) <= 20251213:
        yield Said(version=facts.get("torch.version"))


def slow_navi1(facts: Facts) -> Iterator[Said]:
    cards, rocm = _cards(facts, "gfx1010"), facts.version("machine.rocm")
    if cards and rocm[:3] == (7, 1, 1):
        yield Said(cards=", ".join(cards), rocm=dotted(rocm))


def find_times_out(facts: Facts) -> Iterator[Said]:
    """Reported with the default mode; FAST was the way out."""
    rocm, mode = facts.version("machine.rocm"), facts.get("variables.MIOPEN_FIND_MODE.value", "")
    cards = _cards(facts, "gfx120")
    if cards and rocm[:2] == (6, 3) and mode.strip().upper() not in ("FAST", "2"):
        words = {"cards": ", ".join(cards), "rocm": dotted(rocm), "mode": mode}
        yield Said("set" if mode else "", **words)
