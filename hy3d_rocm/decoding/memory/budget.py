"""How much memory a decode may take. Pure: no torch, nothing is read from the machine here.

A budget is what comes on top of what is there when the decode begins: activations, workspace,
converted weights, and on the CPU the result. On a GPU the result and what is spilled lie on the
host, which has a budget of its own; on an APU both are the same chips, so everything counts
against one budget and spilling gains nothing.

Headroom is what no prediction counts and others may take meanwhile:

* GPU: 400 MB for what the allocator takes beyond live tensors (segments of 2 and 20 MB and their
  rests, see offload/memory.py) and 100 MB for kernels that the driver loads when first called.
* host: 256 MB for the rest of the process (code, thread stacks, other threads' small needs).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hy3d_rocm.memory import Machine
from hy3d_rocm.units import MB, brief, budget_bytes, size_text

# Bytes, a share of the device's memory, or None for "auto".
Request = int | float | None

MEMORY_THRESHOLD = 0.8  # the specification's
DEVICE_HEADROOM_BYTES = (400 + 100) * MB
HOST_HEADROOM_BYTES = 256 * MB
# From here on a budget is none: of a plan for a machine that is not here.
NO_LIMIT = 1 << 50

_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*%\s*")


@dataclass(frozen=True)
class Budget:
    """What a decode may take, in bytes above what is in use when it begins.

    device_bytes: on the device. host_bytes: on the host (the result, what is spilled).
    is_unified: both come out of device_bytes together, and the host's part is at most host_bytes.
    rule: a sentence that says how it came about. of_ranks: where several share a decode, each one's
    device_bytes. beside_bytes: what was given beside device_bytes, see without(). device_room: that
    PyTorch's allocator can get on a GPU in all, of which between blocks in use it can give none; 0:
    not known.
    """

    device_bytes: int
    host_bytes: int
    is_unified: bool
    rule: str
    of_ranks: tuple[int, ...] = ()
    beside_bytes: int = 0
    device_room: int = 0

    def without(self, taken: int, purpose: str = "to write the frames") -> Budget:
        """What remains where what takes the frames, or has another purpose, holds so many bytes of
        the host."""
        host = max(self.host_bytes - taken, 0)
        if not self.is_unified or not taken:
            return replace(self, host_bytes=host)
        return replace(
            self, device_bytes=max(self.device_bytes - taken, 0), host_bytes=host,
            beside_bytes=taken, rule=f"{self.rule}; {size_text(taken)} of it {purpose}",
        )  # fmt: skip

    def fits(self, device_bytes: int, host_bytes: int) -> bool:
        """Whether needs fit; on the CPU host_bytes is 0, all of them are the device's."""
        on_device = device_bytes + host_bytes if self.is_unified else device_bytes
        return on_device <= self.device_bytes and host_bytes <= self.host_bytes

    def has_ample_room(self, device_bytes: int) -> bool:
        """Whether the allocator finds room for so much, however it is laid out."""
        return not self.device_room or 2 * device_bytes <= self.device_room


def parse_budget(budget: str | int | float | None) -> Request:
    """Bytes of 6000000000, "6GB", "512 MiB" (int), the share of "80%" (float), None for "auto".

    Units are powers of 1024 however they are spelt (hy3d_rocm/units.py). ValueError (a sentence)
    for anything else.
    """
    if budget is None or (isinstance(budget, str) and budget.strip().lower() == "auto"):
        return None
    if isinstance(budget, str):
        percent = _PERCENT.fullmatch(budget)
        if percent is not None:
            share = float(percent[1]) / 100
            if not 0 < share <= 1:
                raise ValueError(
                    f"budget is {brief(budget)}; a percentage is of the device's whole memory, so "
                    'give more than 0% and at most 100%, a size such as "6GB", or "auto"'
                )
            return share
    try:
        if isinstance(budget, float):
            raise ValueError(f"budget is {brief(budget)}; give whole bytes")
        return budget_bytes(budget)
    except ValueError as error:
        text = str(error).rstrip(".")
        raise ValueError(f'{text}. A share is written "80%", what is free now "auto"') from None


def check_share(name: str, value: float) -> float:
    """`value` as a share; ValueError (a sentence) unless it is above 0 and at most 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ValueError(f"{name} is {value!r}; give a share above 0 and at most 1, such as 0.8")
    return float(value)


def make_budget(
    request: str | int | float | None, machine: Machine, *,
    memory_threshold: float = MEMORY_THRESHOLD, memory_fraction: float | None = None,
) -> Budget:  # fmt: skip
    """The budget that `request` (see parse_budget) gives on `machine`.

    "auto": (free - headroom) * memory_threshold. A percentage: that share of the device's whole
    memory, no more than is free less headroom. Bytes are taken as they are given. memory_fraction:
    this process never takes more than that share of the device's whole memory, what it holds
    already included; None for no such cap. Never raises for a machine that is full: a budget may
    be 0, and the planner says what would do.
    """
    threshold = check_share("memory_threshold", memory_threshold)
    wanted, total = parse_budget(request), machine.device_total
    host, host_rule = _share_of(machine.host_free, "available", HOST_HEADROOM_BYTES, threshold)
    free, where, headroom = machine.device_free, machine.device, DEVICE_HEADROOM_BYTES
    if machine.on_cpu:
        free, where, headroom = machine.host_free, "the host", HOST_HEADROOM_BYTES
    elif machine.is_unified:
        free = min(free, machine.host_free + machine.device_carved)
        where += " (memory shared with the host)"
    if wanted is None:
        device, rule = _share_of(free, f"free on {where}", headroom, threshold)
    elif isinstance(wanted, float):
        device, room = int(total * wanted), max(free - headroom, 0)
        rule = f"{wanted:.4g} of the {size_text(total, 2)} of {where}"
        if device <= room:
            rule = f"{size_text(device, 2)} = {rule}"
        else:
            device = room
            rule = (
                f"{size_text(room, 2)}: {rule} were asked for, {size_text(free, 2)} are free less "
                f"{size_text(headroom)} headroom"
            )
    else:
        device, rule = wanted, f"{size_text(wanted, 2)} as given"
        if wanted > free:
            rule += f" ({size_text(free, 2)} are free on {where} now)"
    if memory_fraction is not None:
        cap_share = check_share("memory_fraction", memory_fraction)
        cap = max(int(total * cap_share) - machine.device_held, 0)
        if cap < device:
            device = cap
            rule += (
                f", capped at {size_text(cap, 2)} by memory_fraction {cap_share:g} of "
                f"{size_text(total, 2)} ({size_text(machine.device_held, 2)} held)"
            )
    if machine.on_cpu:
        return Budget(device, device, True, rule)
    if machine.is_unified:
        host = min(host, device)
        return Budget(device, host, True, f"{rule}; the host's needs come out of it too")
    return Budget(
        device, host, False, f"{rule}; host: {host_rule}", device_room=machine.device_free
    )  # fmt: skip


def _share_of(free: int, what: str, headroom: int, threshold: float) -> tuple[int, str]:
    count = int(max(free - headroom, 0) * threshold)
    return count, (
        f"{size_text(count, 2)} = {threshold:g} of the {size_text(free, 2)} {what} less "
        f"{size_text(headroom)} headroom"
    )
