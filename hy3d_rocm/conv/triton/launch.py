"""The convolution from tensors: rows, weights, launches. What tiers/triton.py calls.

First use of a kernel compiles it, which takes a second or more; that is said (see progress.py) and
Triton keeps the result on disk.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.conv.triton import configs, plan
from hy3d_rocm.conv.triton.configs import Config

if TYPE_CHECKING:
    from hy3d_rocm.conv.call import ConvCall, ConvSpec

_NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}


@dataclass(frozen=True)
class Target:
    """What launches depend on: "gfx1100" or "sm_90", compute units, whether TF32 will do for f32."""

    arch: str
    units: int
    tf32: bool = False


def refusal(spec: ConvSpec) -> str | None:
    """Why this tier can't take a call like this, in a few words, or None."""
    if spec.device.type != "cuda":
        return f"Triton computes on GPUs, not on {spec.device.type}"
    if not has_triton():
        return "this Python has no triton (PyTorch for ROCm brings it on Linux)"
    name = _NAMES.get(spec.dtype)
    if name is None:
        return f"the kernel has no {spec.dtype}"
    arch = architecture(spec.device)
    if not configs.offered(arch, name):
        return f"no configuration for {name} on {arch} runs without spilling registers"
    return plan.refusal(plan.problem(spec))


def workspace_bytes(spec: ConvSpec) -> int:
    """Bytes beside input, weight and output: rows, packed weight, partial sums. An upper bound."""
    p = plan.problem(spec)
    weight = p.outputs * p.groups * p.taps * p.tap_length * p.itemsize
    return plan.make_plan(p, False).workspace_bytes + weight + plan.SPLIT_BYTES


@functools.cache
def has_triton() -> bool:
    """Whether triton can be imported."""
    return importlib.util.find_spec("triton") is not None


@functools.cache
def architecture(device: torch.device) -> str:
    """ "gfx1100" or "sm_90"."""
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"


@functools.cache
def _units(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def target(device: torch.device) -> Target:
    """The Target of a GPU, with PyTorch's switch for TF32 as it is now."""
    return Target(architecture(device), _units(device), bool(torch.backends.cudnn.allow_tf32))


def run(call: ConvCall, config: Config | None = None) -> torch.Tensor:
    """The convolution. config: instead of the tuned or guessed one."""
    spec = call.spec
    x, weight, bias = call.operands()
    out = torch.empty(
        spec.out_size, dtype=spec.dtype, device=spec.device, memory_format=spec.memory_format
    )
    if spec.ndim == 2:  # the batch is the time
        x, weight = x.transpose(0, 1).unsqueeze(0), weight.unsqueeze(2)
        view = out.transpose(0, 1).unsqueeze(0)
    else:
        view = out
    with torch.cuda.device(spec.device):
        convolve(plan.problem(spec), x, weight, bias, view, target(spec.device), config)
    return out if spec.batched else out.squeeze(0)


def convolve(
    p: plan.Problem, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    out: torch.Tensor, target: Target, config: Config | None = None,
    limit_bytes: int = plan.WORKSPACE_BYTES,
) -> None:  # fmt: skip
    """out (N, C, T, H, W; w or c contiguous) = x * weight + bias. All five-dimensional."""
    made = plan.make_plan(p, _is_rows(x, p), limit_bytes)
    launcher = _Launcher(p, pack(weight, p), bias, out, target, config)
    if made.direct:
        launcher.conv(_as_rows(x), p.batch, p.padded, p.out, out)
        return
    room = torch.empty(made.workspace_bytes // p.itemsize, dtype=x.dtype, device=x.device)
    rows = room.view(-1, p.row_channels)
    for box in made.boxes():
        frames, lines = box.lines(p)
        origin = (box.t0 * p.stride[0], box.h0 * p.stride[1])
        launcher.fill(x[box.n], rows, origin, (frames, lines))
        part = out[box.n : box.n + 1, :, box.t0 : box.t1, box.h0 : box.h1]
        size = (frames, lines, p.padded[2])
        launcher.conv(rows, 1, size, (box.t1 - box.t0, box.h1 - box.h0, p.out[2]), part)


def _is_rows(x: torch.Tensor, p: plan.Problem) -> bool:
    """Whether x lies in memory as rows of exactly row_channels, 16-byte aligned."""
    if p.row_channels != x.shape[1] or not plan.is_aligned(
        x.data_ptr(), p.row_channels, p.itemsize
    ):
        return False
    return x.permute(0, 2, 3, 4, 1).is_contiguous()


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 2, 3, 4, 1).reshape(-1, x.shape[1])


def pack(weight: torch.Tensor, p: plan.Problem) -> torch.Tensor:
    """(O, C, kt, kh, kw) -> (O, taps, tap_length): the order in which the kernel reads."""
    order = weight.permute(0, 2, 3, 4, 1)
    channels = p.channels if p.groups > 1 else p.row_channels
    if channels == p.channels:
        packed = order.contiguous()
        if packed.data_ptr() % 16:
            packed = packed.clone()
        return packed.view(packed.shape[0], -1)
    packed = weight.new_zeros((*order.shape[:4], channels))
    packed[..., : p.channels] = order
    return packed.view(packed.shape[0], -1)


class _Launcher:
    """What the launches of one call share."""

    def __init__(
        self, p: plan.Problem, packed: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor,
        target: Target, config: Config | None,
    ) -> None:  # fmt: skip
        self.p, self.packed, self.config, self.target = p, packed, config, target
        self.bias = packed if bias is None else bias.contiguous()
        self.has_bias = bias is not None
        self.channels_last = out.stride(1) == 1 and out.shape[1] > 1
        self.dtype = _NAMES[out.dtype]
        self.descriptors = configs.uses_descriptors(target.arch) and p.is_flat and p.groups == 1
        self.precision = configs.precision(target.arch, self.dtype, target.tf32)

    def fill(
        self, x: torch.Tensor, rows: torch.Tensor, origin: tuple[int, int], lines: tuple[int, int]
    ) -> None:
        """Copies `lines` (frames, lines) of padded input from `origin` on into rows."""
        from hy3d_rocm.conv.triton import kernel

        p = self.p
        wide = p.padded[2]
        block_w, block_c = copy_block(p, x.stride(1) == 1)
        total = lines[0] * lines[1] * -(-wide // block_w) * -(-p.row_channels // block_c)
        kernel.to_rows[(total,)](
            x, rows, x.shape[0], p.row_channels // 8, *p.size, lines[1], wide,
            origin[0] - p.pad_before[0], origin[1] - p.pad_before[1], -p.pad_before[2],
            *x.stride(),
            *p.replicate, p.is_padded, x.stride(3) == 1, block_w, block_c, num_warps=4,
        )  # fmt: skip

    def conv(
        self, rows: torch.Tensor, batch: int, size: plan.Triple, out_size: plan.Triple,
        out: torch.Tensor,
    ) -> None:  # fmt: skip
        """One launch over rows of `size` (t, h, w), for out (N, C, *out_size)."""
        p = self.p
        ti, hi, wi = size
        to, ho, wo = out_size
        if p.is_flat:
            positions = (((batch - 1) * ti + to - 1) * hi + ho - 1) * wi + wo
        else:
            positions = batch * to * ho * wo
        config = self.config or self._choose(positions)
        tiles = -(-positions // config.block_p) * -(-p.outputs // config.block_n) * p.groups
        steps = p.taps * -(-p.tap_length // config.block_k)
        stored = batch * to * ho * wo
        parts = plan.splits(tiles, steps, p.outputs * p.groups, stored, self.target.units)
        if parts == 1:
            strides = (*out.stride(), 0)
            self._launch(rows, size, out_size, positions, out, strides, config, 1, steps)
            return
        per = -(-steps // parts)
        parts = -(-steps // per)
        self._split(rows, size, out_size, positions, out, config, parts, per, stored)

    def _choose(self, positions: int) -> Config:
        p = self.p
        every = configs.offered(self.target.arch, self.dtype)
        return configs.guess(every, positions, p.outputs, p.tap_length, self.target.units)

    def _split(
        self, rows: torch.Tensor, size: plan.Triple, out_size: plan.Triple, positions: int,
        out: torch.Tensor, config: Config, parts: int, per: int, stored: int,
    ) -> None:  # fmt: skip
        """The sum in parts, each in float32, added up in a fixed order."""
        from hy3d_rocm.conv.triton import kernel

        total = self.p.outputs * self.p.groups
        to, ho, wo = out_size
        sums = torch.empty((parts, stored, total), dtype=torch.float32, device=out.device)
        strides = (to * ho * wo * total, 1, ho * wo * total, wo * total, total, stored * total)
        self._launch(rows, size, out_size, positions, sums, strides, config, parts, per)
        grid = (-(-stored // 64), -(-total // 64))
        kernel.add_splits[grid](
            sums, self.bias, out, stored, total, wo, ho, to, *out.stride(),
            stored * total, parts, self.has_bias, 64, 64, num_warps=4,
        )  # fmt: skip

    def _launch(
        self, rows: torch.Tensor, size: plan.Triple, out_size: plan.Triple, positions: int,
        out: torch.Tensor, strides: tuple[int, ...], config: Config, parts: int, per: int,
    ) -> None:  # fmt: skip
        from hy3d_rocm.conv.triton import kernel

        p = self.p
        ti, hi, wi = size
        to, ho, wo = out_size
        split = parts > 1
        channels_last = split or self.channels_last
        total = p.outputs * p.groups
        x: Any = rows
        w: Any = self.packed
        if self.descriptors:
            x, w = self._descriptors(rows, size, config)
        grid = (
            -(-positions // config.block_p) * -(-p.outputs // config.block_n), p.groups, parts,
        )  # fmt: skip
        kernel.conv_rows[grid](
            x, w, self.bias, out,
            positions, p.outputs, p.row_channels // 8, p.tap_length // 8, wo, ho, to, wi, hi, ti,
            p.stride[2], p.stride[1], p.stride[0],
            p.dilation[0] * hi * wi, p.dilation[1] * wi, p.dilation[2],
            *strides, per,
            p.taps, p.kernel[1], 1 if p.merged else p.kernel[2],
            -(-p.tap_length // config.block_k), EVEN_K=p.tap_length % config.block_k == 0,
            FLAT=p.is_flat, DESC=self.descriptors, BIAS=self.has_bias and not split,
            CHANNELS_LAST=channels_last, VECTOR=8 if total % 8 == 0 else 1, SPLIT=split,
            GROUPED=p.groups > 1, PRECISION=self.precision,
            BP=config.block_p, BN=config.block_n, BK=config.block_k, GROUP=config.group,
            num_warps=config.num_warps, num_stages=config.num_stages,
        )  # fmt: skip

    def _descriptors(self, rows: torch.Tensor, size: plan.Triple, config: Config) -> Any:
        """Overlapping rows: each reads on into the rows that follow it."""
        from triton.tools.tensor_descriptor import TensorDescriptor

        p = self.p
        length = p.tap_length
        count = rows.shape[0] - (length // p.row_channels - 1)
        x = TensorDescriptor(
            rows, [count, length], [p.row_channels, 1], [config.block_p, config.block_k]
        )
        wide = self.packed.shape[1]
        w = TensorDescriptor(
            self.packed, [self.packed.shape[0], wide], [wide, 1], [config.block_n, config.block_k]
        )
        return x, w


def copy_block(p: plan.Problem, is_channels_last: bool) -> tuple[int, int]:
    """Positions along w and channels of one program of to_rows."""
    channels = 16
    while channels < p.row_channels and channels < 128:
        channels *= 2
    return (4096 // channels if not is_channels_last else 2048 // channels), channels
