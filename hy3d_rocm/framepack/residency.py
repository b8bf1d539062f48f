"""Which weights of a transformer are on the card, and moving them there or off it.

FramePack's DynamicSwapInstaller fetches a weight from main memory at each use where it is not on
the card, so any part of the transformer may be resident. Kept first is what every step uses, also
one that TeaCache skips: the embedders and the ends. The blocks follow in their order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

logger = logging.getLogger("hy3d_rocm")


@dataclass(frozen=True)
class Part:
    """One module's own weights. everyday: whether every step uses them."""

    name: str
    module: nn.Module
    size_bytes: int
    everyday: bool


def parts_of(model: nn.Module) -> list[Part]:
    """The modules that have weights of their own, in the order in which they are kept."""
    from torch import nn

    blocks = tuple(
        f"{name}." for name, child in model.named_children() if isinstance(child, nn.ModuleList)
    )
    first_norm = f"{blocks[0]}0.norm1" if blocks else ""  # TeaCache compares what it makes
    found = []
    for name, module in model.named_modules():
        size = sum(t.nbytes for t in own_tensors(module))
        if size:
            everyday = not name.startswith(blocks) or name.startswith(first_norm)
            found.append(Part(name, module, size, everyday))
    return sorted(found, key=lambda part: not part.everyday)


def own_tensors(module: nn.Module) -> list[torch.Tensor]:
    """The parameters and buffers that `module` has itself, where they are: nothing is fetched."""
    held = [*module._parameters.values(), *module._buffers.values()]
    return [tensor for tensor in held if tensor is not None]


def choose(sizes: Sequence[int], room_bytes: int) -> int:
    """How many of the first parts fit into `room_bytes`. More room keeps the same ones and more,
    so that a changed room moves only the difference."""
    total = 0
    for index, size in enumerate(sizes):
        total += size
        if total > room_bytes:
            return index
    return len(sizes)


def is_on(part: Part, device: torch.device) -> bool:
    """Whether all of the part's weights are on `device`."""
    return all(_same(tensor.device, device) for tensor in own_tensors(part.module))


def move(part: Part, device: torch.device) -> None:
    """The part's own weights to `device`."""
    apply: Callable[..., object] = part.module._apply  # the one that moves no child along
    apply(lambda tensor: tensor.to(device), recurse=False)


@dataclass(frozen=True)
class Placed:
    """What a placing did. moved: parts in either direction."""

    resident_bytes: int
    total_bytes: int
    moved: int


def place(
    parts: Sequence[Part],
    device: torch.device,
    offload: torch.device,
    preserved_bytes: int,
    free: Callable[[], int],
    empty: Callable[[], None],
    move: Callable[[Part, torch.device], None] = move,
) -> Placed:
    """Has as many weights on `device` as leave `preserved_bytes` free there.

    parts: as parts_of gives them. free: bytes free on `device` now; empty: gives the allocator's
    cache back, called once if anything went off the card. What goes, goes before anything comes.
    """
    here = [is_on(part, device) for part in parts]
    held = sum(part.size_bytes for part, on in zip(parts, here, strict=True) if on)
    room = free() + held - preserved_bytes
    count = choose([part.size_bytes for part in parts], room)
    leaving = [part for part, on in zip(parts[count:], here[count:], strict=True) if on]
    coming = [part for part, on in zip(parts[:count], here[:count], strict=True) if not on]
    for part in leaving:
        move(part, offload)
    if leaving:
        empty()
    for part in coming:
        move(part, device)
    resident = sum(part.size_bytes for part in parts[:count])
    total = sum(part.size_bytes for part in parts)
    return Placed(resident, total, len(leaving) + len(coming))


def _same(one: torch.device, other: torch.device) -> bool:
    """Whether two devices are one; "cuda" without a number is any."""
    numbers = {one.index, other.index}
    return one.type == other.type and (None in numbers or len(numbers) == 1)
