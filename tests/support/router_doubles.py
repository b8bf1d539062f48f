"""Doubles and small-integer data for the router's tests. No test here depends on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from tier_calls import make_call

from hy3d_rocm import _native
from hy3d_rocm.conv.call import ConvCall, ConvSpec
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.conv.router import Guard
from hy3d_rocm.conv.tiers import CpuTier, CurrentTier, Limits, NativeTier, Tier


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch's threads wait for each other: on a busy machine small tensors take 20x as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fake_conv3d(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: Any, padding: Any,
    dilation: Any, groups: int, *, out: torch.Tensor | None = None, **options: Any,
) -> torch.Tensor:  # fmt: skip
    """Stands for the C core where that is not built: PyTorch in float64, rounded once.

    `padding` is (T, H, W), or three pairs (before, after), as hy3d_rocm.conv.functional takes it.
    """
    wide: list[Any] = [None if t is None else t.double() for t in (x, weight, bias)]
    if not isinstance(padding, int) and not isinstance(padding[0], int):
        wide[0] = F.pad(wide[0], [n for pair in reversed(padding) for n in pair])
        padding = 0
    made = F.conv3d(*wide, stride, padding, dilation, groups)
    return made.to(x.dtype) if out is None else out.copy_(made)


def cpu_tier() -> Tier:
    """The real C tier where it is built, else the double."""
    return CpuTier() if _native.available else CpuTier(conv3d=fake_conv3d)


def default_tiers() -> list[Tier]:
    return [CurrentTier(), NativeTier(), cpu_tier()]


def guarded(**options: Any) -> Guard:
    """protect() whose last tier works with and without the C core."""
    options.setdefault("tiers", default_tiers())
    return protect(**options)


def fake_result(call: ConvCall) -> torch.Tensor:
    """What a double returns that computes a call without options."""
    out = torch.empty(call.spec.out_size)
    return fake_conv3d(call.x, call.weight, call.bias, 1, 0, 1, 1, out=out)


class ScriptedTier:
    """A tier that does what `act` says, and counts its calls."""

    def __init__(
        self, name: str, act: Callable[[ConvCall], torch.Tensor], refuse: str | None = None
    ) -> None:
        self._name = name
        self.act = act
        self.refuse = refuse
        self.calls = 0

    @property
    def name(self) -> str:
        return self._name

    def label(self, call: ConvCall) -> str:
        return f"the {self._name} double"

    def workspace_bytes(self, spec: ConvSpec) -> int:
        return 0

    def refusal(self, call: ConvCall, limits: Limits) -> str | None:
        return self.refuse

    def run(self, call: ConvCall) -> torch.Tensor:
        self.calls += 1
        return self.act(call)


def raising(error: Callable[[], BaseException]) -> Callable[[ConvCall], torch.Tensor]:
    def act(call: ConvCall) -> torch.Tensor:
        raise error()

    return act


def integers(*size: int, high: int = 3, seed: int = 0) -> torch.Tensor:
    """Whole numbers in [-high, high]: sums of their products are exact in float32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-high, high + 1, size, generator=generator).float()


class SmallNet(torch.nn.Module):
    """Four convolutions (3D, strided 3D, replicate-padded 3D, 2D) with whole-number weights.

    With inputs in [-3, 3] the largest possible sum is below 2^24, so float32 is exact and every
    correct algorithm gives the same bits.
    """

    calls = 4

    def __init__(self) -> None:
        super().__init__()
        conv = torch.nn.Conv3d
        self.first = conv(2, 3, 3, padding=1)
        self.second = conv(3, 2, 3, stride=(1, 2, 2), padding=1)
        self.third = conv(2, 2, (1, 3, 3), padding=(0, 1, 1), padding_mode="replicate", bias=False)
        self.fourth = torch.nn.Conv2d(2, 1, 1)
        for index, parameter in enumerate(self.parameters()):
            parameter.data = integers(*parameter.shape, high=1, seed=index)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.third(self.second(self.first(x)))
        result: torch.Tensor = self.fourth(y[:, :, 0])
        return result


@contextmanager
def free_memory(monkeypatch: Any, values: Callable[[], int | None]) -> Iterator[None]:
    """Lets `values` answer for the free memory of every device."""
    with monkeypatch.context() as patch:
        patch.setattr("hy3d_rocm.memory.free_bytes", lambda device: values())
        yield


def conv_on_tier(tier: Tier, x: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
    """The convolution (arguments of make_call) on one tier, without another one below it.

    RuntimeError with the tier's own words where it refuses.
    """
    call = make_call(x, *arguments, **options)
    refusal = tier.refusal(call, call.limits)
    if refusal is not None:
        raise RuntimeError(f"the tier {tier.name!r} can't take this convolution: {refusal}")
    return tier.run(call)
