"""The sections of one video: weights placed before each, memory measured, a section repeated.

FramePack's DynamicSwapInstaller fetches a weight from main memory at each use where it is not on
the card, so any part of the transformer may be resident. Kept first is what every step uses, also
one that TeaCache skips: the embedders and the ends. The blocks follow in their order.

A section that runs out of memory is run again with more left free. It begins where it began the
first time (the caller puts its random generator and its caches back), so the video is the same;
the sections before it are not touched.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import nn

from hy3d_rocm.conv.errors import first_line, is_out_of_memory
from hy3d_rocm.framepack.preservation import Preservation, after, begin
from hy3d_rocm.memory import gpu_bytes
from hy3d_rocm.units import size_text

logger = logging.getLogger("hy3d_rocm")

Answer = TypeVar("Answer")

_TEACACHE = ("enable_teacache", "num_steps", "rel_l1_thresh")
_MOST = 16
_known: dict[Hashable, Preservation] = {}  # how runs of a shape ended, for the next prompt


@dataclass(frozen=True)
class Part:
    """One module's own weights. everyday: whether every step uses them."""

    name: str
    module: nn.Module
    size_bytes: int
    everyday: bool


def parts_of(model: nn.Module) -> list[Part]:
    """The modules that have weights of their own, in the order in which they are kept."""
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
    return bisect_right(list(accumulate(sizes)), room_bytes)


def is_on(part: Part, device: torch.device) -> bool:
    """Whether all of the part's weights are on `device`; "cuda" without a number is any."""
    found = {tensor.device for tensor in own_tensors(part.module)}
    return all(
        one.type == device.type and (None in (one.index, device.index) or one == device)
        for one in found
    )


def move(part: Part, device: torch.device) -> None:
    apply: Callable[..., object] = part.module._apply  # the one that moves no child along
    apply(lambda tensor: tensor.to(device), recurse=False)


class Card:
    """The memory of one of torch's GPUs as the sections need it; all sizes in bytes.

    free: what is free on it, if something else than the driver knows it.
    """

    def __init__(self, device: torch.device, free: Callable[[], int] | None = None) -> None:
        self.device = device
        self._free = free
        self._base = 0
        self._retries = 0

    def free(self) -> int:
        """What can still be allocated."""
        return max(gpu_bytes(self.device)[0] if self._free is None else self._free(), 0)

    def empty(self) -> None:
        torch.cuda.empty_cache()

    def start(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)
        self._base = int(torch.cuda.memory_allocated(self.device))
        self._retries = self._retries_so_far()

    def need(self) -> int:
        """The most that was allocated above what was at `start`."""
        return max(int(torch.cuda.max_memory_allocated(self.device)) - self._base, 0)

    def retries(self) -> int:
        """How often since `start` the allocator had to give its cache back to get memory."""
        return self._retries_so_far() - self._retries

    def _retries_so_far(self) -> int:
        return int(torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0))


def card_of(device: torch.device, free: Callable[[], int] | None = None) -> Card | None:
    """The card behind `device`; None where torch.cuda knows none: nothing is moved or measured."""
    return Card(device, free) if device.type == "cuda" else None


def restorer(arguments: Mapping[str, Any]) -> Callable[[], None]:
    """Puts back what a call of `sample_hunyuan` with these arguments changes: the state of its
    generator, from which the noise is drawn, and TeaCache's memory of the last steps.

    What TeaCache was told (initialize_teacache, just before the call) is told again.
    """
    generator: Any = arguments.get("generator")
    state = generator.get_state() if generator is not None else None
    transformer = arguments.get("transformer")

    def restore() -> None:
        if state is not None:
            generator.set_state(state)
        initialize = getattr(transformer, "initialize_teacache", None)
        if initialize is None:
            return
        held = vars(transformer)
        told = {name: held[name] for name in _TEACACHE if name in held}
        if told:
            initialize(**told)

    return restore


def runner_for(
    model: torch.nn.Module, device: torch.device, offload: torch.device, card: Card,
    wanted_bytes: int | None, key: Hashable,
) -> SectionRunner:  # fmt: skip
    """For the sections of a video made by `model`. wanted_bytes: see begin(). key: what a section's
    need depends on; the last run of the same (see remember) says what is known of it."""
    parts = parts_of(model)
    free = card.free() + held_bytes(parts, device)
    return SectionRunner(parts, device, offload, card, begin(free, wanted_bytes, _known.get(key)))


def held_bytes(parts: Sequence[Part], device: torch.device) -> int:
    return sum(part.size_bytes for part in parts if is_on(part, device))


def remember(key: Hashable, state: Preservation) -> None:
    """Keep what a run that measured at least one section has ended with."""
    if not state.need_bytes:
        return
    _known.pop(key, None)
    _known[key] = state
    while len(_known) > _MOST:
        del _known[next(iter(_known))]


@dataclass
class SectionRunner:
    """Runs the sections of one video on one card.

    parts: of the transformer (parts_of). state: what to leave free; it is replaced after each
    section. offload: where weights wait. what: what one of them is called in the log. sections,
    repeats: so many so far.
    """

    parts: Sequence[Part]
    device: torch.device
    offload: torch.device
    card: Card
    state: Preservation
    move: Callable[[Part, torch.device], None] = move
    what: str = "section"
    sections: int = 0
    repeats: int = 0
    _said: str = ""

    def place(self, more_bytes: int = 0) -> tuple[int, int]:
        """Has as many weights on the card as the state allows, and says so if it is new; bytes of
        those there, and of all.

        more_bytes: to be left free too, for what is yet to be loaded. What goes, goes before
        anything comes.
        """
        room = self.card.free() + held_bytes(self.parts, self.device)
        room -= self.state.preserved_bytes + more_bytes
        count = choose([part.size_bytes for part in self.parts], room)
        staying, others = self.parts[:count], self.parts[count:]
        coming = [part for part in staying if not is_on(part, self.device)]
        leaving = [part for part in others if is_on(part, self.device)]
        for part in leaving:
            self.move(part, self.offload)
        if leaving:
            self.card.empty()
        for part in coming:
            self.move(part, self.device)
        resident, total = (sum(p.size_bytes for p in parts) for parts in (staying, self.parts))
        line = (
            f"{self.state.line()}; {size_text(resident)} of the transformer's "
            f"{size_text(total)} stay on {self.device}"
        )
        if line != self._said:
            self._said = line
            logger.info("%s", line)
        return resident, total

    def run(self, section: Callable[[], Answer], restore: Callable[[], None]) -> Answer:
        """What `section` answers; again after `restore` while it runs out of memory and there is
        more to give. Any other error, and the last of these, goes on."""
        while True:
            failure, measured = "", False
            try:
                self.place()
                self.card.start()
                measured = True
                answer = section()
            except Exception as error:
                if self.state.exhausted or not is_out_of_memory(error):
                    raise
                failure = first_line(error)
            # Not in the except block: there the error holds the tensors of the failed section.
            need = self.card.need() if measured else 0
            if not failure:
                self.sections += 1
                self.state = after(self.state, need, self.card.retries())
                return answer
            self._again(failure, need)
            restore()

    def _again(self, failure: str, need: int) -> None:
        self.card.empty()
        self.repeats += 1
        self.state = after(self.state, need, out_of_memory=True)
        logger.warning(
            "hy3d_rocm: %s %d ran out of memory (%s): it is run again, with %s left free; "
            "what was made before is kept",
            self.what, self.sections + 1, failure, size_text(self.state.preserved_bytes),
        )  # fmt: skip
