"""Rules about PyTorch, the kernel driver, the devices and Triton."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hy3d_rocm.conv.verdict_store.machine import overridden
from hy3d_rocm.doctor.finding import Facts, Rule, Said, Severity

_WHEELS = "https://github.com/ROCm/TheRock/blob/main/RELEASES.md"
# LLVM's generic targets, and what each stands for (AMDGPUUsage, Generic Processors).
_GENERIC = {
    "gfx9-generic": r"gfx9(00|02|04|06|09|0c)", "gfx9-4-generic": r"gfx9(4[0-2]|50)",
    "gfx10-1-generic": r"gfx101[0-3]", "gfx10-3-generic": r"gfx103[0-6]",
    "gfx11-generic": r"gfx11(0[0-3]|5[0-3])", "gfx12-generic": r"gfx120[01]",
}  # fmt: skip
# Cards that run a sibling's kernels, as ComfyUI's readme has it (Linux only).
_SIBLINGS = {r"gfx103[1-6]": ("gfx1030", "10.3.0"), r"gfx110[1-3]": ("gfx1100", "11.0.0")}


def torch_missing(facts: Facts) -> Iterator[Said]:
    error = facts.get("torch.error", "")
    if not error or facts.get("torch.version") or facts.get("torch.is_hang"):
        return
    if "No module named 'torch'" in error:
        yield Said("PyTorch is not installed in this Python", error, _install(facts),
                   id="torch-not-installed")  # fmt: skip
    else:
        known = "https://github.com/pytorch/pytorch/issues/188561"
        yield Said("PyTorch is installed and can't be loaded", error, _install(facts),
                   source=known if "librocm_sysdeps" in error else "")  # fmt: skip


def torch_hangs(facts: Facts) -> Iterator[Said]:
    if facts.get("torch.is_hang"):
        yield Said(
            "PyTorch hangs while it is loaded or starts the GPU",
            facts.get("torch.error", ""),
            "restart the machine; if a slow disk may be the reason, give --seconds 300 first",
        )  # fmt: skip


def gpu_does_not_start(facts: Facts) -> Iterator[Said]:
    if facts.get("torch.version") and facts.get("torch.error"):
        yield Said("PyTorch can't start the GPU", facts.get("torch.error"),
                   "look at the kernel's messages: sudo dmesg | grep -i amdgpu"
                   if facts.is_linux else "install the newest driver and restart")  # fmt: skip


def not_for_amd(facts: Facts) -> Iterator[Said]:
    version = facts.get("torch.version")
    is_rocm = facts.get("machine.torch_is_rocm") or facts.get("torch.hip")
    if not version or is_rocm or facts.get("machine.zluda") or facts.rows("torch.gpus"):
        return
    if facts.has_amd_card:
        build = f"a CUDA {facts.get('torch.cuda')} build" if facts.get("torch.cuda") else "CPU only"
        cards = ", ".join(facts.architectures) or "an AMD card"
        yield Said(
            "PyTorch is not built for AMD cards, so everything runs on the CPU",
            f"torch {version} is {build}; the driver lists {cards}",
            _install(facts),
        )


def no_amd_gpu(facts: Facts) -> Iterator[Said]:
    """Not on NVIDIA's cards, which need none; not where torch's own error says why."""
    if not facts.is_without_amd or facts.computes_elsewhere or facts.get("torch.error"):
        return
    version, is_rocm = facts.get("torch.version", "not installed"), facts.get("torch.hip")
    kind = f"built for ROCm {is_rocm}" if is_rocm else "not built for ROCm"
    if facts.is_linux:
        look = "lspci -nn | grep -Ei 'vga|display|3d' lists the cards that the system sees"
    else:
        look = "look for the card under Display adapters in the Device Manager"
    yield Said(
        "No AMD GPU was found: everything runs on the CPU",
        f"no AMD display adapter on the bus, none known to the driver; PyTorch {version} is {kind}",
        f"if this machine has an AMD card: {look}",
        severity=Severity.WARNING if is_rocm else None,
    )


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
        card = f"the card is {name}" + (f" (told to be {told})" if told != name else "")
        evidence = f"{card}; torch {facts.get('torch.version')} is built for {', '.join(built)}"
        if is_partly:
            first = next(i for i, other in enumerate(own) if other not in missing)
            yield Said(f"PyTorch has no kernels for one of the GPUs ({name})", evidence,
                       f"set HIP_VISIBLE_DEVICES={first}, so that nothing is run on it",
                       severity=Severity.ADVICE, id="architecture-partly")  # fmt: skip
        else:
            yield Said(f"PyTorch has no kernels for this card ({name})", evidence,
                       _for_architecture(name, built, facts))  # fmt: skip


def _as_told(name: str, facts: Facts) -> str:
    """What torch names is what HSA_OVERRIDE_GFX_VERSION has made of it already."""
    return (
        name if facts.visible else overridden(name, {"HSA_OVERRIDE_GFX_VERSION": _override(facts)})
    )


def _override(facts: Facts) -> str:
    return str(facts.get("variables.HSA_OVERRIDE_GFX_VERSION.value", ""))


def _covers(built: list[str], architecture: str) -> bool:
    names = {name.partition(":")[0] for name in built}
    return architecture in names or any(
        name in names and re.fullmatch(pattern, architecture) for name, pattern in _GENERIC.items()
    )


def _for_architecture(own: str, built: list[str], facts: Facts) -> str:
    for pattern, (sibling, value) in _SIBLINGS.items():
        if facts.is_linux and re.fullmatch(pattern, own) and _covers(built, sibling):
            return f"set HSA_OVERRIDE_GFX_VERSION={value}: it then runs {sibling}'s kernels"
    return f"install a PyTorch that is built for {own} ({_WHEELS})"


def _install(facts: Facts) -> str:
    if not facts.is_amd:
        return "install PyTorch (https://pytorch.org/get-started/locally/)"
    target = ", ".join(sorted(set(facts.architectures))) or "your card"
    return f"install PyTorch's ROCm build for {target} into this Python ({_WHEELS})"


def sees_no_gpu(facts: Facts) -> Iterator[Said]:
    is_rocm = facts.get("torch.hip")
    if not is_rocm or facts.rows("torch.gpus") or facts.get("torch.error"):
        return
    if not facts.rows("driver.gpus") or list(device_not_usable(facts)):
        return
    names = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
             "GPU_DEVICE_ORDINAL")  # fmt: skip
    hidden = [f"{n}={v}" for n in names if (v := facts.get(f"variables.{n}.value")) is not None]
    listed = ", ".join(facts.architectures)
    yield Said(
        "PyTorch sees no GPU, though the driver has one",
        f"the driver lists {listed}; torch {facts.get('torch.version')} lists none"
        + (f"; {', '.join(hidden)}" if hidden else ""),
        f"unset {hidden[0].partition('=')[0]}" if hidden else
        "run rocminfo: what it says first is what PyTorch meets",
    )  # fmt: skip


def device_not_usable(facts: Facts) -> Iterator[Said]:
    if not facts.has_amd_card and not facts.get("torch.hip"):
        return
    closed = [d for d in facts.rows("kernel.devices") if d.get("exists") and not d.get("usable")]
    if not closed:
        return
    groups = sorted({str(device.get("group")) for device in closed})
    own = ", ".join(facts.get("kernel.groups", [])) or "none"
    what = "; ".join(f"{d.get('path')} is {d.get('mode')}, group {d.get('group')}" for d in closed)
    if facts.get("kernel.container"):
        flags = " ".join(f"--group-add {group}" for group in groups)
        remedy = f"start the container with {flags} (the numbers that the host's groups have)"
    else:
        names = ",".join(groups)
        remedy = f"sudo usermod -aG {names} $USER, then log out and in again"
    yield Said("This user may not use the GPU's devices",
               f"{what}; this process has the groups: {own}", remedy)  # fmt: skip


def kfd_missing(facts: Facts) -> Iterator[Said]:
    driven = [card for card in facts.amd_cards if card.get("driver") == "amdgpu"]
    kfd = [d for d in facts.rows("kernel.devices") if d.get("path") == "/dev/kfd"]
    if not driven or not kfd or kfd[0].get("exists"):
        return
    if facts.get("kernel.container"):
        remedy = "start the container with --device=/dev/kfd --device=/dev/dri"
    else:
        remedy = "install a kernel with HSA_AMD (CONFIG_HSA_AMD=y), or AMD's amdgpu-dkms"
    where = "this container has" if facts.get("kernel.container") else "there is"
    yield Said(
        "The compute driver's device is missing",
        f"amdgpu drives {driven[0].get('pci')}, and {where} no /dev/kfd",
        remedy,
    )


def card_without_driver(facts: Facts) -> Iterator[Said]:
    cards = facts.amd_cards
    if not cards or any(card.get("driver") == "amdgpu" for card in cards):
        return
    said = ", ".join(f"{c.get('pci')}: {c.get('driver') or 'no driver'}" for c in cards)
    loaded = "is" if facts.get("kernel.loaded") else "is not"
    yield Said("No AMD card is driven by amdgpu", f"{said}; the module amdgpu {loaded} loaded",
               "load the driver: sudo modprobe amdgpu")  # fmt: skip


def triton_missing(facts: Facts) -> Iterator[Said]:
    if not facts.get("torch.hip") or not facts.get("torch.triton"):
        return
    error = facts.get("torch.triton.error", "")
    if "No module named 'triton'" in error:
        package = "triton-windows" if facts.get("machine.system") == "windows" else \
            "the triton wheel that belongs to this PyTorch"  # fmt: skip
        yield Said("Triton is not installed: the second fastest convolution back-end is missing",
                   error, f"install {package}", severity=Severity.ADVICE)  # fmt: skip
    elif error:
        yield Said("Triton is installed and can't be loaded", error,
                   "install the triton wheel that belongs to this PyTorch",
                   id="triton-broken")  # fmt: skip


def miopen_off(facts: Facts) -> Iterator[Said]:
    """Only in ComfyUI, which switches it off by itself."""
    if not facts.get("comfyui") or not facts.get("torch.hip"):
        return
    if facts.get("torch.miopen_or_cudnn_enabled") is False:
        yield Said(
            "ComfyUI has switched MIOpen off for this card",
            "torch.backends.cudnn.enabled is False, so PyTorch's own conv3d runs, which takes "
            "27 times the input's memory",
            "leave the setting \"VAE nodes\" of this pack at protect: it chooses by what fits",
        )  # fmt: skip


RULES = (
    Rule("torch-hangs", Severity.ERROR, torch_hangs),
    Rule("torch-broken", Severity.ERROR, torch_missing),
    Rule("gpu-does-not-start", Severity.ERROR, gpu_does_not_start),
    Rule("torch-not-for-amd", Severity.ERROR, not_for_amd,
         "https://github.com/amd/playbooks/issues/69"),
    Rule("no-amd-gpu", Severity.ADVICE, no_amd_gpu),
    Rule("architecture-missing", Severity.ERROR, architecture_missing,
         "https://github.com/pytorch/pytorch/issues/164346 "
         "https://github.com/pytorch/pytorch/issues/147626"),
    Rule("device-not-usable", Severity.ERROR, device_not_usable,
         "https://github.com/ROCm/vllm/pull/893 https://github.com/ROCm/rocminfo/issues/34"),
    Rule("kfd-missing", Severity.ERROR, kfd_missing),
    Rule("card-without-driver", Severity.ERROR, card_without_driver),
    Rule("torch-sees-no-gpu", Severity.ERROR, sees_no_gpu),
    Rule("triton-missing", Severity.WARNING, triton_missing),
    Rule("miopen-off", Severity.ADVICE, miopen_off,
         "https://github.com/Comfy-Org/ComfyUI/pull/11366"),
)  # fmt: skip
