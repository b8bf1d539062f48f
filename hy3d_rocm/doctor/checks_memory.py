"""Checks of rules/memory.toml and rules/miopen.toml: memory, disks, MIOpen's caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hy3d_rocm.doctor.finding import Facts, Said
from hy3d_rocm.env.checks import FILLED
from hy3d_rocm.memory import is_apu
from hy3d_rocm.units import GB, MB, size_text

_PAGE_BYTES = 4096
_LITTLE_DISK_BYTES, _NO_DISK_BYTES = 5 * GB, 500 * MB
_DATABASES = ("find", "performance", "compiled")


def held_by_others(facts: Facts) -> Iterator[Said]:
    total = max((card.get("vram_total_bytes") or 0 for card in _cards(facts)), default=0)
    others = [h for h in facts.rows("memory.holders") if not h.get("own")]
    held = sum(int(h.get("vram_bytes") or 0) for h in others)
    if not total or held < max(GB, total // 10):
        return
    who = ", ".join(f"{_name(h)} {size_text(h.get('vram_bytes'))}" for h in others[:4])
    yield Said(
        "much" if held >= total // 4 else "",
        held=size_text(held), total=size_text(total), who=who, largest=_name(others[0]),
    )  # fmt: skip


def held_by_nobody(facts: Facts) -> Iterator[Said]:
    """What the driver counts as used and no process that may be looked at holds."""
    cards = _cards(facts)
    used = sum(int(card.get("vram_used_bytes") or 0) for card in cards)
    total = sum(int(card.get("vram_total_bytes") or 0) for card in cards)
    held = sum(int(h.get("vram_bytes") or 0) for h in facts.rows("memory.holders"))
    if not _is_apu(facts) and used - held >= max(2 * GB, total * 15 // 100):
        yield Said(used=size_text(used), total=size_text(total), held=size_text(held))


def idle_in_allocator(facts: Facts) -> Iterator[Said]:
    for gpu in facts.rows("torch.gpus"):
        reserved = int(gpu.get("reserved_bytes") or 0)
        idle = reserved - int(gpu.get("allocated_bytes") or 0)
        if idle >= 2 * GB and idle * 4 >= reserved:
            yield Said(idle=size_text(idle), reserved=size_text(reserved))


def card_full(facts: Facts) -> Iterator[Said]:
    for gpu in facts.rows("torch.gpus"):
        total, free = int(gpu.get("total_bytes") or 0), gpu.get("free_bytes")
        if total and isinstance(free, int) and 0 <= free < total // 10:
            yield Said(free=size_text(free), total=size_text(total), name=gpu.get("name"))


def apu_share(facts: Facts) -> Iterator[Said]:
    """On an APU the GPU has the firmware's carve-out and, beyond it, what TTM lets it take."""
    card = next((c for c in _cards(facts) if c.get("gtt_total_bytes")), None)
    host = facts.number("memory.host.total_bytes")
    if not _is_apu(facts) or card is None or not host:
        return
    carve_out, gtt = int(card.get("vram_total_bytes") or 0), int(card["gtt_total_bytes"])
    wanted = host * 3 // 4
    words = {
        "carve_out": size_text(carve_out), "gtt": size_text(gtt), "host": size_text(host),
        "pages": wanted // _PAGE_BYTES, "wanted": size_text(wanted),
    }  # fmt: skip
    if carve_out + gtt < (carve_out + host) * 6 // 10:
        yield Said(**words)
    elif carve_out > 2 * host:
        yield Said("carve-out", **words)


def host_low(facts: Facts) -> Iterator[Said]:
    total = facts.number("memory.host.total_bytes")
    free = facts.get("memory.host.available_bytes")
    if total and isinstance(free, int) and free < 4 * GB and free * 10 < total:
        yield Said(free=size_text(free), total=size_text(total))


def disk_full(facts: Facts) -> Iterator[Said]:
    for disk in facts.rows("disks"):
        free = disk.get("free_bytes")
        if isinstance(free, int) and free < _LITTLE_DISK_BYTES:
            yield Said(
                "full" if free < _NO_DISK_BYTES else "",
                free=size_text(free), uses=", ".join(disk.get("uses") or ()), path=disk.get("path"),
            )  # fmt: skip


def _cards(facts: Facts) -> list[Mapping[str, Any]]:
    return [card for card in facts.amd_cards if card.get("vram_total_bytes")]


def _is_apu(facts: Facts) -> bool:
    return bool(facts.architectures) and all(map(is_apu, facts.architectures))


def _name(holder: Mapping[str, Any]) -> str:
    return f"{holder.get('name')} (process {holder.get('pid')})"


# MIOpen


def _concerned(facts: Facts) -> bool:
    """Whether MIOpen is what convolutions run on, or would."""
    return bool(facts.get("torch.hip") or facts.get("machine.runs_on_amd"))


def _mode(facts: Facts) -> str:
    number = {"1": "NORMAL", "2": "FAST", "3": "HYBRID", "5": "DYNAMIC_HYBRID"}
    value = str(facts.get("variables.MIOPEN_FIND_MODE.value", "")).strip().upper()
    return number.get(value, value)


def _files(facts: Facts) -> Iterator[Mapping[str, Any]]:
    for place in facts.rows("miopen.places"):
        for file in place.get("files") or ():
            if isinstance(file, Mapping):
                yield file


def _found(facts: Facts) -> tuple[int, int]:
    """Find results for the MIOpen that torch has, and for others; all, where that isn't known."""
    own = str(facts.get("torch.library", ""))
    mine = others = 0
    for file in _files(facts):
        if file.get("holds") == "find":
            is_other = bool(own and file.get("version") and file["version"] != own)
            mine += 0 if is_other else int(file.get("entries") or 0)
            others += int(file.get("entries") or 0) if is_other else 0
    return mine, others


def empty(facts: Facts) -> Iterator[Said]:
    mine, others = _found(facts)
    mode = _mode(facts)
    if not _concerned(facts) or mine or mode == "FAST" or not facts.get("miopen"):
        return
    mode = mode or "not set, so DYNAMIC_HYBRID"
    yield Said("others" if others else "", others=others, mode=mode)


def filled(facts: Facts) -> Iterator[Said]:
    mine, _ = _found(facts)
    if _concerned(facts) and mine >= FILLED and _mode(facts) == "FAST":
        yield Said(results=mine)


def not_writable(facts: Facts) -> Iterator[Said]:
    if not _concerned(facts):
        return
    for place in facts.rows("miopen.places"):
        error = place.get("error")
        if error or not place.get("writable", True):
            saying = "error" if error else ""
            yield Said(saying, kind=place.get("kind"), path=place.get("path"), error=error)


def on_network_disk(facts: Facts) -> Iterator[Said]:
    network = [p for p in facts.rows("miopen.places") if p.get("chosen_by") == "network"]
    if _concerned(facts) and network:
        yield Said(path=network[0].get("path"))


def damaged(facts: Facts) -> Iterator[Said]:
    bad = [
        str(file.get("path"))
        for file in _files(facts)
        if file.get("holds") in _DATABASES and file.get("entries") is None and file.get("bytes")
        and not file.get("in_use")  # open in MIOpen: not counted
        and not str(file.get("path")).endswith(("-wal", "-shm", "-journal", ".txt"))
    ]  # fmt: skip
    if _concerned(facts) and bad:
        yield Said(files=", ".join(bad[:4]))


def outgrown(facts: Facts) -> Iterator[Said]:
    """Files of versions that are no longer used."""
    by_version: dict[str, int] = {}
    for place in facts.rows("miopen.places"):
        for version, size in (place.get("versions") or {}).items():
            if version:
                by_version[version] = by_version.get(version, 0) + int(size or 0)
    own = str(facts.get("torch.library", "")) or (max(by_version, default=""))
    old = {version: size for version, size in by_version.items() if version != own}
    if sum(old.values()) >= GB and own in by_version:
        which = ", ".join(f"{version}: {size_text(size)}" for version, size in old.items())
        yield Said(which=which, own=own)
