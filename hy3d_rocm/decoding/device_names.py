"""Devices as people name them for a decode: "all", "0,1", "cuda:1", "cpu,cpu". Pure: no torch until
the machine is asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hy3d_rocm.conv.verdict_store.records import started_architecture
from hy3d_rocm.units import brief

if TYPE_CHECKING:
    import torch

ONE, ALL = "one", "all"
_NAME = re.compile(r"(?:(?:cuda|hip|gpu):)?(\d{1,3})")


def parse_devices(text: str) -> tuple[str, ...]:
    """What is named, in order, as torch says it: () for "one" and "", ("all",), or "cuda:N" and
    "cpu", which may be there more than once. ValueError (a sentence) for anything else."""
    wanted = text.strip().lower()
    if wanted in ("", ONE):
        return ()
    if wanted == ALL:
        return (ALL,)
    found = []
    for part in wanted.replace(" ", ",").split(","):
        number = _NAME.fullmatch(part)
        if part and part != "cpu" and number is None:
            raise ValueError(
                f'devices is {brief(text)}: give "one", "all", or GPUs by their numbers such as '
                '"0,1"'
            )
        if part:
            found.append("cpu" if number is None else f"cuda:{int(number[1])}")
    return tuple(found)


def further_devices(names: tuple[str, ...], own: torch.device) -> list[torch.device]:
    """What is named beside `own` (with its number), which always takes part. "all": the GPUs of its
    architecture. ValueError (a sentence) for GPUs that are not there, and where CPU and GPU are
    mixed."""
    import torch

    if names == (ALL,):
        if own.type != "cuda":
            return []
        every = [torch.device("cuda", n) for n in range(torch.cuda.device_count())]
        kind = started_architecture(own.index)
        return [one for one in every if one != own and started_architecture(one.index) == kind]
    devices = [torch.device(name) for name in names]
    if own.type == "cuda":  # each GPU once
        devices = [device for device in devices if device != own]
    elif own in devices:
        devices.remove(own)
    for device in devices:
        if device.type != own.type:
            raise ValueError(f"{device} can't decode with {own}: name devices of that kind")
        if device.type == "cuda" and device.index >= torch.cuda.device_count():
            raise ValueError(
                f"there is no {device}: the numbers of the GPUs are 0 to "
                f"{torch.cuda.device_count() - 1}"
            )
    return devices if own.type == "cpu" else list(dict.fromkeys(devices))
