"""Layers of the HunyuanVideo decoder for bench_fused.py: operands, and the two ways to compute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

SLICE_BYTES = 256 << 20


@dataclass(frozen=True)
class Shape:
    """A layer: source size, how often the decoder has it."""

    name: str
    channels: int
    outputs: int
    size: tuple[int, int, int]
    count: int
    kernel: int = 3
    up: tuple[int, int, int] = (1, 1, 1)
    norm: bool = True
    add: bool = False
    moments: bool = True

    @property
    def out(self) -> tuple[int, int, int]:
        t, h, w = self.size
        return 1 + (t - 1) * self.up[0], h * self.up[1], w * self.up[2]


LAYERS = (
    Shape("16>512 in", 16, 512, (9, 80, 76), 1, norm=False),
    Shape("512>512 a", 512, 512, (9, 80, 76), 5),
    Shape("512>512 a +", 512, 512, (9, 80, 76), 5, add=True),
    Shape("512>512 a up", 512, 512, (9, 80, 76), 1, up=(1, 2, 2), norm=False),
    Shape("512>512 b", 512, 512, (9, 160, 152), 3),
    Shape("512>512 b +", 512, 512, (9, 160, 152), 3, add=True),
    Shape("512>512 b up", 512, 512, (9, 160, 152), 1, up=(2, 2, 2), norm=False),
    Shape("512>256", 512, 256, (17, 320, 304), 1),
    Shape("512>256 1x1", 512, 256, (17, 320, 304), 1, kernel=1, norm=False, moments=False),
    Shape("256>256", 256, 256, (17, 320, 304), 2),
    Shape("256>256 +", 256, 256, (17, 320, 304), 3, add=True),
    Shape("256>256 up", 256, 256, (17, 320, 304), 1, up=(2, 2, 2), norm=False),
    Shape("256>128", 256, 128, (33, 640, 608), 1),
    Shape("256>128 1x1", 256, 128, (33, 640, 608), 1, kernel=1, norm=False, moments=False),
    Shape("128>128", 128, 128, (33, 640, 608), 2),
    Shape("128>128 +", 128, 128, (33, 640, 608), 3, add=True),
    Shape("128>3 out", 128, 3, (33, 640, 608), 1, moments=False),
)


def divided(shape: Shape, by: int) -> Shape:
    """The layer `by` times smaller in channels, height and width; few frames."""
    t, h, w = shape.size
    fields = asdict(shape) | {
        "channels": max(8, shape.channels // by), "outputs": max(3, shape.outputs // by),
        "size": (min(t, 3), max(2, h // (by * 4)), max(2, w // (by * 4))),
    }  # fmt: skip
    return Shape(**fields)


class Clock:
    """Milliseconds of a call on the device: the shortest of `times` after one to warm up."""

    def __init__(self, device: Any, times: int) -> None:
        self.device, self.times = device, times

    def __call__(self, call: Callable[[], Any]) -> tuple[float, float]:
        """(device, host) milliseconds; host: until the last launch was handed over."""
        import torch

        call()
        best, host = float("inf"), float("inf")
        for _ in range(self.times):
            self._wait()
            start = time.perf_counter()
            if self.device.type == "cuda":
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
            call()
            handed = time.perf_counter() - start
            if self.device.type == "cuda":
                end.record()
                self._wait()
                best = min(best, begin.elapsed_time(end))
            else:
                best = min(best, handed * 1e3)
            host = min(host, handed * 1e3)
        return best, host

    def _wait(self) -> None:
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize()


class Bench:
    """Operands of one layer, and the two ways to compute it."""

    def __init__(self, shape: Shape, dtype: Any, device: Any) -> None:
        import torch

        from hy3d_rocm.decoding import layers

        self.shape, self.dtype, self.device = shape, dtype, device
        torch.manual_seed(1)
        s, k = shape, shape.kernel
        self.module = torch.nn.Module()
        fan = (s.channels * k**3) ** -0.5
        self.module.weight = self.random(s.outputs, s.channels, k, k, k) * fan
        self.module.bias = self.random(s.outputs)
        self.weight32 = torch.rand(s.channels, device=device) + 0.5
        self.bias32 = torch.rand(s.channels, device=device) - 0.5
        p = k // 2
        norm = layers.Norm("group", self.module, 1e-6, 32) if s.norm else None
        self.layer = layers.Conv(
            self.module, (2 * p, p, p), (0, p, p), ("replicate",) * 3, norm=norm,
            act="silu" if s.norm else None, up=s.up, keep_first=s.up[0] > 1,
        )  # fmt: skip
        self.source = [
            self.random(1, s.channels, b - a, *s.size[1:]).contiguous(
                memory_format=torch.channels_last_3d
            )
            for a, b in self.slices(s.channels, s.size)
        ]
        self.residual = self.random(1, s.outputs, *s.out) if s.add else None

    def random(self, *size: int) -> Any:
        import torch

        return torch.randn(size, dtype=self.dtype, device=self.device)

    def slices(self, channels: int, size: tuple[int, int, int]) -> Iterator[tuple[int, int]]:
        """As the engine cuts: a result of few channels is cut like what it is read from."""
        t, h, w = size
        step = max(1, SLICE_BYTES // (max(channels, 64) * h * w * self.dtype.itemsize))
        for a in range(0, t, step):
            yield a, min(a + step, t)

    def affine(self) -> Any:
        """Factor and summand from the source's moments, as an engine has them from before."""
        import torch

        if not self.shape.norm:
            return None
        groups = min(32, self.shape.channels)
        x = torch.cat([piece.flatten(2) for piece in self.source], 2)
        parts = [part.float() for part in x.unflatten(1, (groups, -1)).unbind(1)]
        mean = torch.stack([part.mean() for part in parts])
        var = torch.stack([part.var(correction=0) for part in parts])
        each = self.shape.channels // groups
        factor = (var + 1e-6).rsqrt().repeat_interleave(each) * self.weight32
        return factor, self.bias32 - mean.repeat_interleave(each) * factor

    def calls(self) -> Iterator[tuple[Any, tuple[int, int]]]:
        """Pieces and frames of each slice of the result."""
        from hy3d_rocm.decoding import geometry, layers

        starts, n = [], 0
        for piece in self.source:
            starts.append(n)
            n += piece.shape[2]
        total = self.shape.size[0]
        for a, b in self.slices(self.shape.outputs, self.shape.out):
            low, top = geometry.read_frames(self.layer, (a, b), self.shape.kernel)
            first = geometry.source_frame(self.layer, max(low, 0))
            last = geometry.source_frame(self.layer, max(top - 1, 0))
            held = [k for k, piece in enumerate(self.source)
                    if starts[k] <= last and starts[k] + piece.shape[2] > first]  # fmt: skip
            tensors = tuple(self.source[k] for k in held)
            yield layers.Pieces(tensors, starts[held[0]], total), (a, b)

    def fused(self, backend: Any, affine: Any) -> None:
        """All slices."""
        for source, (a, b) in self.calls():
            backend.convolve(
                self.layer, source, (a, b), affine=affine, add=self.added.get(a),
                moments=self.shape.moments,
            )  # fmt: skip

    def make_residuals(self) -> None:
        """Channels-last slices of the residual, which the fused calls write over."""
        import torch

        self.added = {}
        if self.residual is not None:
            for a, b in self.slices(self.shape.outputs, self.shape.out):
                self.added[a] = self.residual[:, :, a:b].clone(memory_format=torch.channels_last_3d)

    def apart(self, x: Any, weight: Any, bias: Any, residual: Any) -> Any:
        """As diffusers does it."""
        import torch.nn.functional as F

        s = self.shape
        if s.norm:
            x = F.group_norm(
                x, min(32, s.channels), self.weight32.to(x.dtype), self.bias32.to(x.dtype), 1e-6
            )
            x = F.silu(x)
        if s.up[0] > 1:
            import torch

            first, rest = x[:, :, :1], x[:, :, 1:]
            first = F.interpolate(first[:, :, 0], scale_factor=s.up[1:], mode="nearest")[:, :, None]
            rest = F.interpolate(rest.contiguous(), scale_factor=s.up, mode="nearest")
            x = torch.cat((first, rest), 2)
        elif s.up[1] > 1:
            x = F.interpolate(x, scale_factor=s.up, mode="nearest")
        p = s.kernel // 2
        if p:
            x = F.pad(x, (p, p, p, p, 2 * p, 0), mode="replicate")
        x = F.conv3d(x, weight, bias)
        return x if residual is None else x + residual


def operations(shape: Shape) -> tuple[float, float]:
    """Of the layer as it is written, and of what is left."""
    t, h, w = shape.out
    each = 2.0 * t * h * w * shape.channels * shape.outputs
    done = each * shape.kernel**3
    if shape.up[0] > 1:
        done = each * 8
    elif shape.up[1] > 1:
        done = each * 12
    return each * shape.kernel**3, done


def moved(shape: Shape, itemsize: int) -> int:
    """Bytes of source, residual and result."""
    t, h, w = shape.size
    to, ho, wo = shape.out
    result = to * ho * wo * shape.outputs
    return itemsize * (t * h * w * shape.channels + result * (2 if shape.add else 1))
