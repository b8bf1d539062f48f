"""Rules about memory, who holds it, and disks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hy3d_rocm.doctor.finding import Facts, Rule, Said, Severity
from hy3d_rocm.memory import is_apu
from hy3d_rocm.units import GB, MB, size_text

_PAGE_BYTES = 4096
_LITTLE_DISK_BYTES, _NO_DISK_BYTES = 5 * GB, 500 * MB


def held_by_others(facts: Facts) -> Iterator[Said]:
    total = max((card.get("vram_total_bytes") or 0 for card in _cards(facts)), default=0)
    others = [h for h in facts.rows("memory.holders") if not h.get("own")]
    held = sum(int(h.get("vram_bytes") or 0) for h in others)
    if not total or held < max(GB, total // 10):
        return
    largest = others[0]
    who = ", ".join(f"{_name(h)} {size_text(h.get('vram_bytes'))}" for h in others[:4])
    yield Said(
        "Other programs hold much of the card's memory",
        f"{size_text(held)} of {size_text(total)}: {who}",
        f"close {_name(largest)}",
        severity=Severity.WARNING if held >= total // 4 else Severity.ADVICE,
    )


def held_by_nobody(facts: Facts) -> Iterator[Said]:
    """What the driver counts as used and no process that may be looked at holds."""
    cards = _cards(facts)
    used = sum(int(card.get("vram_used_bytes") or 0) for card in cards)
    total = sum(int(card.get("vram_total_bytes") or 0) for card in cards)
    held = sum(int(h.get("vram_bytes") or 0) for h in facts.rows("memory.holders"))
    if _is_apu(facts) or used - held < max(2 * GB, total * 15 // 100):
        return
    yield Said(
        "Memory of the card is held by processes that can't be seen from here",
        f"{size_text(used)} of {size_text(total)} are used, the processes that can be seen hold "
        f"{size_text(held)}",
        "sudo fuser -v /dev/kfd /dev/dri/renderD* names who has the card open; end that process",
    )


def idle_in_allocator(facts: Facts) -> Iterator[Said]:
    for gpu in facts.rows("torch.gpus"):
        reserved = int(gpu.get("reserved_bytes") or 0)
        idle = reserved - int(gpu.get("allocated_bytes") or 0)
        if idle >= 2 * GB and idle * 4 >= reserved:
            yield Said(
                "Much memory lies idle in PyTorch's allocator",
                f"{size_text(idle)} of the {size_text(reserved)} that this process has taken",
                "run the node Free Memory, or ComfyUI's POST /free",
            )


def card_full(facts: Facts) -> Iterator[Said]:
    for gpu in facts.rows("torch.gpus"):
        total, free = int(gpu.get("total_bytes") or 0), gpu.get("free_bytes")
        if total and isinstance(free, int) and 0 <= free < total // 10:
            yield Said(
                "Little memory of the card is free",
                f"{size_text(free)} of {size_text(total)} on {gpu.get('name')}",
                "unload models: the node Free Memory, or ComfyUI's button \"Free model cache\"",
            )  # fmt: skip


def apu_share(facts: Facts) -> Iterator[Said]:
    """On an APU the GPU has the firmware's carve-out and, beyond it, what TTM lets it take."""
    card = next((c for c in _cards(facts) if c.get("gtt_total_bytes")), None)
    host = facts.number("memory.host.total_bytes")
    if not _is_apu(facts) or card is None or not host:
        return
    carve_out, gtt = int(card.get("vram_total_bytes") or 0), int(card["gtt_total_bytes"])
    evidence = (
        f"{size_text(carve_out)} are set aside for the GPU by the firmware, it may take "
        f"{size_text(gtt)} of the other {size_text(host)}"
    )
    if carve_out + gtt < (carve_out + host) * 6 // 10:
        wanted = host * 3 // 4
        yield Said(
            "The GPU may use only part of this machine's memory", evidence,
            f"boot with ttm.pages_limit={wanted // _PAGE_BYTES} (three quarters, "
            f"{size_text(wanted)})",
        )  # fmt: skip
    elif carve_out > 2 * host:
        yield Said(
            "The host has little memory left beside the GPU's share", evidence,
            "set a smaller graphics memory (UMA frame buffer) in the firmware: models are loaded "
            "through the host's memory",
            id="apu-carve-out", source="",
        )  # fmt: skip


def host_low(facts: Facts) -> Iterator[Said]:
    total = facts.number("memory.host.total_bytes")
    free = facts.get("memory.host.available_bytes")
    if total and isinstance(free, int) and free < 4 * GB and free * 10 < total:
        yield Said(
            "The host has little memory left",
            f"{size_text(free)} of {size_text(total)} are available",
            "close other programs: models are loaded, and offloaded, to the host's memory",
        )


def disk_full(facts: Facts) -> Iterator[Said]:
    for disk in facts.rows("disks"):
        free = disk.get("free_bytes")
        if not isinstance(free, int) or free >= _LITTLE_DISK_BYTES:
            continue
        is_full = free < _NO_DISK_BYTES
        uses = ", ".join(disk.get("uses") or ())
        yield Said(
            "A disk that caches are written to is " + ("full" if is_full else "nearly full"),
            f"{size_text(free)} are free where these are: {uses} ({disk.get('path')})",
            "make room there: kernels that can't be kept are compiled at every start",
            severity=Severity.ERROR if is_full else Severity.WARNING,
        )


def _cards(facts: Facts) -> list[Mapping[str, Any]]:
    return [card for card in facts.amd_cards if card.get("vram_total_bytes")]


def _is_apu(facts: Facts) -> bool:
    return bool(facts.architectures) and all(map(is_apu, facts.architectures))


def _name(holder: Mapping[str, Any]) -> str:
    return f"{holder.get('name')} (process {holder.get('pid')})"


RULES = (
    Rule("memory-held", Severity.WARNING, held_by_others),
    Rule("memory-unseen", Severity.WARNING, held_by_nobody),
    Rule("memory-full", Severity.WARNING, card_full),
    Rule("memory-idle", Severity.ADVICE, idle_in_allocator),
    Rule("apu-share", Severity.ADVICE, apu_share,
         "https://github.com/noamsto/nix-amd-ai/pull/96 "
         "https://github.com/rjmalagon/ollama-linux-amd-apu/issues/4"),
    Rule("host-memory", Severity.WARNING, host_low),
    Rule("disk-full", Severity.WARNING, disk_full),
)  # fmt: skip
