"""A card of a chosen size and a small transformer, to run FramePack's sections on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from hy3d_rocm.framepack.sections import Part, own_tensors

CPU = torch.device("cpu")
CARD = torch.device("meta")  # stands for the card in messages; no tensor is ever put there


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.Linear(width, 1, bias=False)
        self.ff = nn.Linear(width, width, bias=False)


class Transformer(nn.Module):
    """Named as FramePack's: embedders, two lists of blocks, ends."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.x_embedder = nn.Linear(width, 2, bias=False)
        self.transformer_blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.single_transformer_blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.proj_out = nn.Linear(width, 2, bias=False)


class FakeCard:
    """A card of `total` bytes on which weights and a section's activations lie.

    held: the bytes of something else on it. log: what was done, in order.
    """

    def __init__(self, total: int, held: int = 0) -> None:
        self.total = total
        self.held = held
        self.on: set[str] = set()
        self.sizes: dict[str, int] = {}
        self.peak = 0
        self.retried = 0
        self.emptied = 0

    def know(self, parts: list[Part]) -> None:
        self.sizes = {part.name: part.size_bytes for part in parts}

    @property
    def resident(self) -> int:
        return sum(self.sizes[name] for name in self.on)

    def free(self) -> int:
        return self.total - self.held - self.resident

    def empty(self) -> None:
        self.emptied += 1

    def start(self) -> None:
        self.peak = self.retried = 0

    def need(self) -> int:
        return self.peak

    def retries(self) -> int:
        return self.retried

    def move(self, part: Part, device: torch.device) -> None:
        (self.on.add if device == CARD else self.on.discard)(part.name)
        assert self.free() >= 0, f"{part.name} was moved to a card without room for it"

    def allocate(self, size: int, near: int = 0) -> None:
        """A section's activations: out of memory if they do not fit beside the weights; a retry
        if less than `near` bytes remain."""
        if size > self.free():
            self.peak = max(self.free(), 0)
            raise torch.OutOfMemoryError(f"HIP out of memory. Tried to allocate {size} bytes.")
        self.peak = size
        self.retried += self.free() - size < near


def bytes_of(model: nn.Module) -> int:
    return sum(t.nbytes for module in model.modules() for t in own_tensors(module))


def section(card: FakeCard, size: int, done: list[int] | None = None) -> Callable[[], int]:
    def run() -> int:
        card.allocate(size)
        if done is not None:
            done.append(size)
        return size

    return run
