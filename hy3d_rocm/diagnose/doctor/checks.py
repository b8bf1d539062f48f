"""What rules of rules/*.toml look at beyond their conditions: functions that are named there.

A check takes facts and gives a Match for each finding, with the words that its texts need beside
the facts themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hy3d_rocm.diagnose.cards import cards
from hy3d_rocm.diagnose.doctor.finding import Facts, Match, named
from hy3d_rocm.diagnose.env.checks import FILLED, override_architecture
from hy3d_rocm.diagnose.env.choices import PATCH_VARIABLE, read_patch_choice
from hy3d_rocm.memory import is_apu
from hy3d_rocm.units import GB, size_text

# LLVM's generic targets, and what each stands for (AMDGPUUsage, Generic Processors).
_GENERIC = {
    "gfx9-generic": r"gfx9(00|02|04|06|09|0c)", "gfx9-4-generic": r"gfx9(4[0-2]|50)",
    "gfx10-1-generic": r"gfx101[0-3]", "gfx10-3-generic": r"gfx103[0-6]",
    "gfx11-generic": r"gfx11(0[0-3]|5[0-3])", "gfx12-generic": r"gfx120[01]",
}  # fmt: skip
_PAGE_BYTES = 4096
_DATABASES = ("find", "performance", "compiled")
_VERDICTS = ("throws", "harmful", "does nothing")
_SWITCHES = ("HY3D_ROCM", "HY3D_ROCM_ENV", "HY3D_ROCM_VAE")

# PyTorch, driver, devices


def architecture_missing(facts: Facts) -> Iterator[Match]:
    """An error where no card has kernels; beside one that has, advice to hide the other. Nothing
    where the wheels are told to be for other GPUs, which says the same."""
    if facts.get("machine.torch_is_rocm") and any(wheels_without_card(facts)):
        return
    built = facts.get("torch.architectures", [])
    own = facts.visible or facts.architectures
    # Of a processor's GPU that comes first another rule speaks.
    meant = [name for name in own if not (facts.integrated_first and is_apu(name))]
    missing = sorted({name for name in meant if not _covers(built, _as_reported(name, facts))})
    is_linux = facts.holds("machine.system is linux")
    is_partly = len(missing) < len(set(meant))
    for name in missing:
        told = _as_reported(name, facts)
        # A card whose kernels this one runs too (Linux only), and the override for that.
        value = cards()[name].override if is_linux and name in cards() else ""
        sibling = override_architecture(value)
        sibling = sibling if _covers(built, sibling) else ""
        yield Match(
            "told" if told != name else "", "windows" if facts.is_windows else "",
            "sibling" if sibling else "", "partly" if is_partly else "",
            name=name, told=told, sibling=sibling, value=value,
            first=next(
                (n for n, other in enumerate(own) if other in meant and other not in missing), 0
            ),
        )  # fmt: skip


def _as_reported(name: str, facts: Facts) -> str:
    """What torch names is what HSA_OVERRIDE_GFX_VERSION has made of it already."""
    if facts.visible:
        return name
    override = str(facts.get("variables.HSA_OVERRIDE_GFX_VERSION.value", ""))
    return override_architecture(override) or name


def _covers(built: list[str], architecture: str) -> bool:
    names = {name.partition(":")[0] for name in built}
    return architecture in names or any(
        name in names and re.fullmatch(pattern, architecture) for name, pattern in _GENERIC.items()
    )


def device_not_usable(facts: Facts) -> Iterator[Match]:
    closed = facts.closed
    groups = sorted({str(device.word("group")) for device in closed})
    if closed and (facts.has_amd_card or facts.get("torch.hip")):
        yield Match(
            what="; ".join(device.filled("{path} is {mode}, group {group}") for device in closed),
            own=facts.get("kernel.groups") or "none",
            flags=" ".join(f"--group-add {group}" for group in groups),
            names=",".join(groups),
        )


def kfd_missing(facts: Facts) -> Iterator[Match]:
    driven = [card for card in facts.amd_cards if card.get("driver") == "amdgpu"]
    kfd = [d for d in facts.rows("kernel.devices") if d.get("path") == "/dev/kfd"]
    if driven and kfd and not kfd[0].get("exists"):
        yield Match(pci=driven[0].get("pci"))


def card_without_driver(facts: Facts) -> Iterator[Match]:
    cards = facts.amd_cards
    if facts.undriven:
        yield Match("windows", names=list(map(named, facts.undriven)))
    elif cards and not facts.is_windows and all(c.get("driver") != "amdgpu" for c in cards):
        yield Match(
            cards=", ".join(f"{c.get('pci')}: {c.get('driver') or 'no driver'}" for c in cards),
            loaded="is" if facts.get("kernel.loaded") else "is not",
        )


# Windows and WSL


def wheels_without_card(facts: Facts) -> Iterator[Match]:
    """ROCm's wheels that are for other GPUs, where PyTorch's own list does not show that."""
    cards = [name for name in facts.visible if not is_apu(name)]
    meant = cards or facts.visible or facts.discrete or facts.architectures
    families = [str(name) for name in facts.get("windows.wheels.families", [])]
    devices = [str(name) for name in facts.get("windows.wheels.devices", [])]
    if not meant or any(_is_of(name, family) for name in meant for family in families + devices):
        return
    if families and not facts.get("torch.architectures"):
        yield Match(name=meant[0], built=families)
    if not families and facts.get("windows.wheels.is_split"):
        yield Match("split", "none" if not devices else "", name=meant[0], built=devices)


def _is_of(architecture: str, family: str) -> bool:
    """A wheel's name for its GPUs: "gfx110X" stands for gfx1100 to gfx1103."""
    low = family.lower()
    return architecture == low or (low.endswith("x") and architecture[:-1] == low[:-1])


def integrated_first(facts: Facts) -> Iterator[Match]:
    if not facts.integrated_first:
        return
    names = [gpu.get("name") for gpu in facts.rows("torch.gpus")]
    told = zip(names, facts.visible, strict=False)
    listed = [f"cuda:{place} is {name} ({own})" for place, (name, own) in enumerate(told)]
    cards = [str(place) for place, name in enumerate(facts.visible) if not is_apu(name)]
    built = facts.get("torch.architectures", [])
    is_error = bool(built) and not _covers(built, facts.visible[0])
    yield Match(
        "no-kernels" if is_error else "",
        "rocr" if facts.get("variables.ROCR_VISIBLE_DEVICES.value") else "",
        named=listed, cards=",".join(cards),
    )  # fmt: skip


def short_time_out(facts: Facts) -> Iterator[Match]:
    """Windows' own two seconds, where something on the GPU took longer or for ever."""
    hung = [
        f"{result['name']} did not come back here" for result in facts.tested
        if result.get("verdict") == "hang" and result["is_gpu"]
    ]  # fmt: skip
    if count := facts.number("knowledge.verdicts.hang"):
        hung.append(f"{count} back-ends of convolutions did not come back before")
    is_on = facts.get("windows.time_out") and facts.get("windows.time_out.level") != 0
    if hung and is_on and facts.number("windows.time_out.seconds") <= 2:
        yield Match(why=hung[0])


# Memory


def held_by_others(facts: Facts) -> Iterator[Match]:
    total = max((card.get("vram_total_bytes") or 0 for card in facts.amd_cards), default=0)
    others = [h for h in facts.each("memory.holders") if not h.word("own")]
    held = sum(int(h.word("vram_bytes") or 0) for h in others)
    if not total or held < max(GB, total // 10):
        return
    name = "{name} (process {pid})"
    yield Match(
        "much" if held >= total // 4 else "", held=held, total=total,
        who=[h.filled(f"{name} {{vram_bytes:size}}") for h in others[:4]],
        largest=others[0].filled(name),
    )  # fmt: skip


def held_by_nobody(facts: Facts) -> Iterator[Match]:
    """What the driver counts as used and no process that may be looked at holds."""
    cards = [card for card in facts.amd_cards if card.get("vram_total_bytes")]
    used = sum(int(card.get("vram_used_bytes") or 0) for card in cards)
    total = sum(int(card["vram_total_bytes"]) for card in cards)
    held = sum(int(h.get("vram_bytes") or 0) for h in facts.rows("memory.holders"))
    if not _is_apu(facts) and used - held >= max(2 * GB, total * 15 // 100):
        yield Match(used=used, total=total, held=held)


def idle_in_allocator(facts: Facts) -> Iterator[Match]:
    """Looked at for each GPU of torch's."""
    reserved = int(facts.word("reserved_bytes") or 0)
    idle = reserved - int(facts.word("allocated_bytes") or 0)
    if idle >= 2 * GB and idle * 4 >= reserved:
        yield Match(idle=idle)


def apu_share(facts: Facts) -> Iterator[Match]:
    """On an APU the GPU has the firmware's carve-out and, beyond it, what TTM lets it take."""
    cards = [card for card in facts.amd_cards if card.get("vram_total_bytes")]
    card = next((c for c in cards if c.get("gtt_total_bytes")), None)
    host = facts.number("memory.host.total_bytes")
    if not _is_apu(facts) or card is None or not host:
        return
    carve_out, gtt = int(card["vram_total_bytes"]), int(card["gtt_total_bytes"])
    wanted = host * 3 // 4
    is_small = carve_out + gtt < (carve_out + host) * 6 // 10
    if is_small or carve_out > 2 * host:
        yield Match(
            "" if is_small else "carve-out", carve_out=carve_out, gtt=gtt,
            pages=wanted // _PAGE_BYTES, wanted=wanted,
        )  # fmt: skip


def _is_apu(facts: Facts) -> bool:
    return bool(facts.architectures) and all(map(is_apu, facts.architectures))


# MIOpen


def _mode(facts: Facts) -> str:
    number = {"1": "NORMAL", "2": "FAST", "3": "HYBRID", "5": "DYNAMIC_HYBRID"}
    value = str(facts.get("variables.MIOPEN_FIND_MODE.value", "")).strip().upper()
    return number.get(value, value)


def _files(facts: Facts) -> Iterator[Mapping[str, Any]]:
    for place in facts.rows("miopen.places"):
        yield from (file for file in place.get("files") or () if isinstance(file, Mapping))


def _found(facts: Facts) -> tuple[int, int]:
    """Find results for the MIOpen that torch has, and for others; all, where that isn't known."""
    own = str(facts.get("torch.library", ""))
    mine = others = 0
    for file in _files(facts):
        if file.get("holds") == "find":
            entries = int(file.get("entries") or 0)
            if own and file.get("version") and file["version"] != own:
                others += entries
            else:
                mine += entries
    return mine, others


def empty(facts: Facts) -> Iterator[Match]:
    mine, others = _found(facts)
    mode = _mode(facts)
    if not mine and mode != "FAST":
        mode = mode or "not set, so DYNAMIC_HYBRID"
        yield Match("others" if others else "", others=others, mode=mode)


def filled(facts: Facts) -> Iterator[Match]:
    mine, _ = _found(facts)
    if mine >= FILLED and _mode(facts) == "FAST":
        yield Match(results=mine)


def damaged(facts: Facts) -> Iterator[Match]:
    bad = [
        str(file.get("path"))
        for file in _files(facts)
        if file.get("holds") in _DATABASES and file.get("entries") is None and file.get("bytes")
        and not file.get("in_use")  # open in MIOpen: not counted
        and not str(file.get("path")).endswith(("-wal", "-shm", "-journal", ".txt"))
    ]  # fmt: skip
    if bad:
        yield Match(files=bad[:4])


def outgrown(facts: Facts) -> Iterator[Match]:
    """Files of versions that are no longer used."""
    by_version: dict[str, int] = {}
    for place in facts.rows("miopen.places"):
        for version, size in (place.get("versions") or {}).items():
            if version:
                by_version[version] = by_version.get(version, 0) + int(size or 0)
    own = str(facts.get("torch.library", "")) or (max(by_version, default=""))
    old = {version: size for version, size in by_version.items() if version != own}
    if sum(old.values()) >= GB and own in by_version:
        yield Match(
            which=[f"{version}: {size_text(size)}" for version, size in old.items()], own=own
        )


# Variables, this pack's own parts and settings, and the self-test


def variables(facts: Facts) -> Iterator[Match]:
    """One finding for each rule of the variables' table, with all variables that it speaks of."""
    by_rule: dict[str, list[Mapping[str, Any]]] = {}
    for judged in facts.rows("judged"):
        if judged.get("verdict") in _VERDICTS:
            by_rule.setdefault(str(judged.get("rule")), []).append(judged)
    for rule, group in by_rule.items():
        words = {name: group[0].get(name) for name in ("effect", "remedy", "source")}
        yield Match(
            str(group[0]["verdict"]), "" if words["remedy"] else "no-remedy", rule=rule, **words,
            names=[judged.get("subject") or judged.get("name") for judged in group],
            values=[f"{judged.get('name')}={judged.get('value')}" for judged in group],
        )  # fmt: skip


def switched_off(facts: Facts) -> Iterator[Match]:
    values = {name: str(facts.get(f"variables.{name}.value", "")) for name in _SWITCHES}
    off = [f"{name}=off" for name, value in values.items() if value.strip().lower() == "off"]
    text = str(facts.get(f"variables.{PATCH_VARIABLE}.value", ""))
    choice = read_patch_choice({PATCH_VARIABLE: text})
    if text.startswith("("):  # it holds more than known words, so facts don't have it
        off.append(f"{PATCH_VARIABLE} is not understood, so nothing is corrected in place")
    elif choice.mode == "off":
        off.append(choice.problem or f"{PATCH_VARIABLE}={text.strip()}")
    off += [f"the setting {name} is off" for name in facts.get("comfyui.switched_off", [])]
    if off:
        yield Match(off=off)


def no_gpu_tier(facts: Facts) -> Iterator[Match]:
    on_gpu = [
        r for r in facts.tested
        if r["is_gpu"] and r.get("tier") != "cpu" and r.get("verdict") != "refused"
    ]  # fmt: skip
    if on_gpu and all(r.get("verdict") not in ("ok", "slow-find") for r in on_gpu):
        yield Match(verdicts=[f"{r['name']}: {r.get('verdict')}" for r in on_gpu])


def wrong_attention(facts: Facts) -> Iterator[Match]:
    by_device: dict[str, list[Mapping[str, Any]]] = {}
    for row in facts.rows("self_test.attention"):
        if row.get("verdict") != "ok":
            by_device.setdefault(str(row.get("device")), []).append(row)
    for device, rows in by_device.items():
        sizes = [row.get("size", 0) for row in rows]
        told = "; ".join(f"{row.get('size')}: {row.get('detail')}" for row in rows)
        variant = "fails" if all(row.get("verdict") == "error" for row in rows) else ""
        if not all(sizes):
            variant, told = "not-tried", str(rows[0].get("detail"))
        elif not all(row.get("is_large") for row in rows):
            variant = "small"
        yield Match(variant, device=device, sizes=list(map(str, sizes)), told=told)


def wrong_decode_kernels(facts: Facts) -> Iterator[Match]:
    for row in facts.rows("self_test.decode_kernels"):
        if row.get("verdict") not in ("ok", "refused"):
            variant = "" if row.get("verdict") == "wrong" else "fails"
            yield Match(variant, device=str(row.get("device")), detail=str(row.get("detail")))


def all_well(facts: Facts) -> Iterator[Match]:
    good = [result for result in facts.tested if result.get("verdict") == "ok"]
    by_device: dict[str, list[str]] = {}
    for result in good:
        by_device.setdefault(str(result.get("device")), []).append(result["name"])
    if by_device:
        devices = "; ".join(f"{device}: {', '.join(names)}" for device, names in by_device.items())
        yield Match(count=len(good), devices=devices)
