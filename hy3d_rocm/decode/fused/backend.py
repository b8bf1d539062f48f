"""FusedBackend: layers.Backend by Triton kernels."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.conv.router import note
from hy3d_rocm.conv.tiers.vendor import allows_tf32
from hy3d_rocm.conv.triton import configs
from hy3d_rocm.conv.triton import launch as tier
from hy3d_rocm.decode.fused import packing, work
from hy3d_rocm.decode.fused.job import ITEMSIZE, ONES, Job
from hy3d_rocm.decode.fused.launching import launch, operand
from hy3d_rocm.decode.fused.overlap import Beside
from hy3d_rocm.decode.fused.tensors import (
    affine_of,
    all_of,
    last_strides,
    overlaps,
    piece_of,
    strides_of,
    triple,
)
from hy3d_rocm.decode.fused.work import Machine, Work
from hy3d_rocm.decode.geometry import source_range
from hy3d_rocm.decode.layers import Backend, Conv, Moments, Norm, Pieces, Range, Weights
from hy3d_rocm.decode.moments import block_elements, channel_moments, combine
from hy3d_rocm.decode.torch_backend import (
    TorchBackend,
    _add_parts,
    _put_together,
    _shuffled_parts,
    own_norm,
)

_NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
# Fewer channels than this a phase would waste the matrix units: such are shuffled by a copy.
_FEWEST_SHUFFLED = 16
# Results of fewer channels lie as NCDHW, since a position of them is less than one store.
_FEWEST_LAST = 8


def whole(size_bytes: int) -> int:
    """Rounded up as PyTorch's allocator does."""
    return -(-size_bytes // 512) * 512


def refusal(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why no layer of this type can be computed on this device, in a few words, or None."""
    if device.type != "cuda":
        return f"the fused kernels run on GPUs, not on {device.type}"
    name = _NAMES.get(dtype)
    if name is None:
        return f"the fused kernels have no {dtype}"
    arch = tier.architecture(device)
    if not configs.is_known(arch) or not configs.offered(arch, name):
        return f"the kernels were not checked for {name} on {arch}"
    return tier.kernel_problem()


class FusedBackend:
    """Layers with norm, activation, up-sampling and padding in the operand's load, and bias,
    residual and moments in the store. Results are channels-last (torch.channels_last_3d), but for
    those of fewer than 8 channels.

    What the kernels can't compute goes to TorchBackend; `delegated` counts those calls by reason.
    Packed weights are kept as long as the backend. machine: instead of what the device is.
    """

    is_channels_last = True

    def __init__(
        self, weights: Weights, device: torch.device | str, machine: Machine | None = None
    ) -> None:
        self.weights = weights
        self.device = torch.device(device)
        if str(self.device) == "cuda":
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.delegated: dict[str, int] = {}
        self._machine = machine
        self._packed: dict[tuple[Any, ...], tuple[Tensor, Tensor | None, Any]] = {}
        self._affines: dict[tuple[Any, ...], tuple[tuple[Tensor, Tensor] | None, Any]] = {}
        self._other: Backend | None = None
        self._beside: Beside | None = None

    def convolve(
        self, layer: Conv, source: Pieces, frames: Range, *,
        affine: tuple[Tensor, Tensor] | None = None, add: Tensor | None = None,
        moments: bool = False,
    ) -> tuple[Tensor, Moments | None]:  # fmt: skip
        """As Backend.convolve. ValueError where a frame of the source is missing."""
        reason = self._refusal(layer, source, affine)
        if reason is None:
            layer, source = self._framed(layer, source, frames)
            job = self._job(layer, source, frames, affine is not None, add is not None, moments)
            reason = work.refusal(job)
        if reason is not None:
            self.delegated[reason] = self.delegated.get(reason, 0) + 1
            return self._torch().convolve(
                layer, source, frames, affine=affine, add=add, moments=moments
            )
        if layer.shuffle is not None and job.shuffle == ONES:
            return self._shuffled(layer, job, source, affine, add, moments)
        if job.add and job.outputs % 8:  # in the store its masks would cost all registers
            made, _ = self.convolve(layer, source, frames, affine=affine)
            assert add is not None
            made.add_(add)
            return made, channel_moments(made) if moments else None
        jobs = _parts(layer, job)
        if add is not None and len(jobs) > 1:
            # The second part may run out of memory when the first has been added: then the grain is
            # tried again, and `add` must be what it was.
            add = add.clone()
        out = self._out(job, sum(part.out_frames for part in jobs), add)
        found, at = [], 0
        for part in jobs:
            target = out[:, :, at : at + part.out_frames] if len(jobs) > 1 else out
            found.append(self._run(layer, part, source, affine, target))
            at += part.out_frames
        return out, _together(found)

    def workspace_bytes(self, layer: Conv, source: Pieces, frames: Range) -> int:
        """As Backend.workspace_bytes: rows, moments' parts; an upper bound for all options."""
        return self.step_bytes(layer, source, frames)[0]

    def step_bytes(self, layer: Conv, source: Pieces, frames: Range) -> tuple[int, bool, int]:
        """workspace_bytes; whether a residual that is laid out as results are becomes the result;
        bytes of the packed weight and bias, which are kept."""
        affine = layer.norm is not None and layer.norm.kind == "group"
        reason, total = self._refusal(layer, source, () if affine else None), 0
        if reason is None:
            given = source
            layer, source = self._framed(layer, given, frames, asks=True)
            if source is not given:
                total = _framed_bytes(source)
            job = self._job(layer, source, frames, affine, False, True)
            reason = work.refusal(job)
        if reason is not None:
            return total + self._torch().workspace_bytes(layer, source, frames), False, 0
        parts = _parts(layer, job)
        for part in parts:
            out = last_strides(part.outputs, part.out_frames, part.out_size)
            rows, moments = work.room_of(part, out, self._target())
            total += whole(rows * ITEMSIZE[part.dtype]) + whole(moments * 4)
            total += whole(16 * part.outputs)
        by_copy = layer.shuffle is not None and job.shuffle == ONES
        if by_copy:  # the result before the shuffle
            size = job.outputs * job.out_frames * job.out_size[0] * job.out_size[1]
            total += 2 * whole(size * ITEMSIZE[job.dtype])
        in_place = by_copy or (job.outputs % 8 == 0 and len(parts) == 1)
        packed = self._packed_bytes(layer, parts)
        if job.folds[1] or job.shuffle != ONES:  # the first call puts taps or phases in order
            total += packed
        return total, in_place, packed

    def _packed_bytes(self, layer: Conv, parts: list[Job]) -> int:
        weight, total = self._weight(layer), 0
        for part in parts:
            taps, outputs = weight[0, 0].numel(), int(weight.shape[0])
            if part.folds[1]:
                taps = 4 * (2 if part.folds[0] else int(weight.shape[2]))
                outputs *= 8 if part.folds[0] else 4
            elif part.shuffle != ONES:
                outputs = part.outputs * math.prod(part.shuffle)
            rows, item = -(-int(weight.shape[1]) // 8) * 8, ITEMSIZE[part.dtype]
            total += whole(outputs * taps * rows * item) + whole(outputs * item)
        return total

    def _torch(self) -> Backend:
        if self._other is None:
            self._other = TorchBackend(self.weights)
        return self._other

    def _target(self) -> Machine:
        if self._machine is None:
            found = tier.target_of(self.device)
            self._machine = Machine(found.arch, found.units, found.tf32)
        tf32 = self.device.type == "cuda" and allows_tf32()
        if tf32 != self._machine.tf32:
            self._machine = replace(self._machine, tf32=tf32)
        return self._machine

    def _refusal(self, layer: Conv, source: Pieces, affine: Any) -> str | None:
        """Why this layer can't be computed by the kernels, in a few words, or None."""
        tensors = source.tensors
        dtype = tensors[0].dtype if tensors else torch.float64
        if _NAMES.get(dtype) is None or any(t.dtype is not dtype for t in tensors):
            return f"the fused kernels have no {dtype}"
        reason = refusal(self.device, dtype) if self._machine is None else None
        if reason is not None:
            return reason
        if any(t.is_neg() for t in tensors):
            return "the source is a view with its sign in a flag"
        if getattr(layer.module, "groups", 1) != 1:
            return "the convolution has groups"
        if any(n != 1 for n in all_of(getattr(layer.module, "dilation", 1))):
            return "the convolution is dilated"
        if layer.act not in (None, "silu"):
            return f"the activation {layer.act!r} is not in the kernels"
        kind = None if layer.norm is None else layer.norm.kind
        if kind == "group" and affine is None:
            return "a group norm came without its moments"
        return None

    def _job(
        self, layer: Conv, source: Pieces, frames: Range, affine: bool, add: bool, moments: bool
    ) -> Job:
        """The call in integers."""
        weight = self._weight(layer)
        outputs, shuffle = int(weight.shape[0]), ONES
        if layer.shuffle is not None:
            factor = layer.shuffle.factor
            each = outputs // (factor[0] * factor[1] * factor[2])
            if each >= _FEWEST_SHUFFLED:
                outputs, shuffle = each, factor
        by_copy = layer.shuffle is not None and shuffle == ONES
        norm = layer.norm if layer.norm is not None and layer.norm.kind != "group" else None
        tensors = source.tensors
        channels, has_affine = int(tensors[0].shape[1]), affine
        if norm is not None:
            has_affine = self._affine(norm, channels) is not None
        height, width = tensors[0].shape[3:]
        t, h, w = (mode == "replicate" for mode in layer.modes)
        return Job(
            dtype=_NAMES[tensors[0].dtype], channels=channels, outputs=outputs,
            kernel=triple(weight.shape[2:]), size=(int(height), int(width)),
            pieces=tuple(piece_of(tensor) for tensor in tensors), first=source.first,
            total=source.total, frames=frames, before=layer.before, after=layer.after,
            replicate=(t, h, w), stride=layer.stride, up=layer.up, keep_first=layer.keep_first,
            shuffle=shuffle, norm="" if norm is None else norm.kind,
            eps=0.0 if norm is None else norm.eps, affine=has_affine, silu=layer.act == "silu",
            bias=self.weights.of(layer.module, "bias") is not None, add=add and not by_copy,
            moments=moments and not by_copy,
        )  # fmt: skip

    def _framed(
        self, layer: Conv, source: Pieces, frames: Range, asks: bool = False
    ) -> tuple[Conv, Pieces]:
        """The layer without a GroupNorm of single frames, and the frames that it reads behind it: a
        kernel's factors are those of all its frames. asks: shapes are enough."""
        norm = layer.norm
        if norm is None or norm.kind != "frame":
            return layer, source
        kernel_t = triple(self._weight(layer).shape[2:])[0]
        first, stop = source_range(layer, frames, kernel_t, source.total)
        made, at = [], source.first
        for tensor in source.tensors:
            part = tensor[:, :, max(first - at, 0) : max(stop - at, 0)]
            at += tensor.shape[2]
            if part.shape[2]:
                made.append(torch.empty_like(part))
                if not asks:
                    own_norm(part[0], norm, self.weights, made[-1][0])
        return replace(layer, norm=None), Pieces(
            tuple(made), max(first, source.first), source.total
        )

    def _weight(self, layer: Conv) -> Tensor:
        """(O, C, kt, kh, kw). ValueError where the module has none."""
        weight = self.weights.of(layer.module, "weight")
        if weight is None:
            raise ValueError(f"{type(layer.module).__name__} has no weight to convolve with")
        return packing.kernel_of(weight.detach())

    def _packed_for(self, layer: Conv, job: Job) -> tuple[Tensor, Tensor | None]:
        shuffle = None
        if layer.shuffle is not None and job.shuffle != ONES:
            shuffle = packing.Phases(job.shuffle, layer.shuffle.order, job.outputs)
        key = (id(layer.module), job.dtype, job.folds, shuffle)
        found = self._packed.get(key)
        if found is None:
            bias = self.weights.of(layer.module, "bias")
            packed = packing.pack(self._weight(layer), job.folds, shuffle)
            made = None if bias is None else packing.pack_bias(bias.detach(), job.folds, shuffle)
            found = self._packed[key] = (packed, made, layer.module)  # so that its id stays its own
        return found[0], found[1]

    def _affine(self, norm: Norm, channels: int) -> tuple[Tensor, Tensor] | None:
        """Float32 factor and summand (C,) that follow a norm over the channels, or None."""
        key = (id(norm.module), norm.kind, norm.weight, norm.bias, id(norm.scale), id(norm.shift))
        found = self._affines.get(key)
        if found is None:
            found = self._affines[key] = (affine_of(norm, channels, self.weights), norm)
        return found[0]

    def _run(
        self, layer: Conv, job: Job, source: Pieces, affine: tuple[Tensor, Tensor] | None,
        out: Tensor,
    ) -> Moments | None:  # fmt: skip
        """The job into `out`, which holds the residual if there is one."""
        made = work.make_work(job, strides_of(out), self._target())
        packed, bias = self._packed_for(layer, job)
        if affine is None and layer.norm is not None:
            affine = self._affine(layer.norm, job.channels)
        tensors = self._tensors(job, made, source, affine)
        tensors |= {"weight": packed, "out": out}
        if bias is not None:
            tensors["bias"] = bias
        start = time.perf_counter()
        self._launch(made, tensors)
        if out.device.type != "meta":
            size = (1, job.channels, job.end - job.first, *job.size)
            note(size, job.outputs, out.dtype, "triton, fused", time.perf_counter() - start)
        if not job.moments:
            return None
        count = job.out_frames * job.out_size[0] * job.out_size[1]
        mean, deviations = tensors["moments"]
        return Moments(count, mean, deviations)

    def _tensors(
        self, job: Job, made: Work, source: Pieces, affine: tuple[Tensor, Tensor] | None
    ) -> dict[str, Tensor]:
        """The operands but for weight, bias and result; workspaces."""
        dtype, device = source.tensors[0].dtype, self.device
        found = {f"x{k}": tensor for k, tensor in enumerate(source.tensors)}
        if made.rows_elems:
            found["rows"] = torch.empty(made.rows_elems, dtype=dtype, device=device)
        if made.parts_elems:
            found["parts"] = torch.empty(made.parts_elems, dtype=torch.float32, device=device)
            found["moments"] = torch.empty((2, job.outputs), dtype=torch.float64, device=device)
        if affine is not None:
            found["factor"], found["summand"] = (
                part.to(device, torch.float32).contiguous() for part in affine
            )
        return found

    def _launch(self, made: Work, tensors: dict[str, Tensor]) -> None:
        if self.device.type == "meta":  # shapes alone
            return
        operands = {name: operand(tensor) for name, tensor in tensors.items()}
        index = self.device.index
        elsewhere = index is not None and index != torch.cuda.current_device()
        with torch.cuda.device(index) if elsewhere else contextlib.nullcontext():
            overlap = self._target().overlap
            if not overlap or index is None:
                for item in made.launches:
                    launch(item, operands, index)
                return
            if self._beside is None:
                self._beside = Beside(index, overlap == 2)
            self._beside.run(made, operands, launch)

    def _out(self, job: Job, frames: int, add: Tensor | None) -> Tensor:
        """Where the result goes: over the residual where its layout allows."""
        size = (1, job.outputs, frames, *job.out_size)
        if add is None:
            last = job.outputs >= _FEWEST_LAST
            form = torch.channels_last_3d if last else torch.contiguous_format
            return torch.empty(
                size, dtype=_DTYPES[job.dtype], device=self.device, memory_format=form
            )
        if tuple(add.shape) != size:
            raise ValueError(f"a residual of {tuple(add.shape)} for a result of {size}")
        strides = strides_of(add)
        whole_rows = strides[0] == 1 and not any(n % 8 for n in strides[1:])
        aligned = add.data_ptr() % 16 == 0
        if (
            whole_rows
            and aligned
            and add.dtype is _DTYPES[job.dtype]
            and not add.is_neg()
            and not overlaps(add)
        ):
            return add
        return add.to(_DTYPES[job.dtype], memory_format=torch.channels_last_3d, copy=True)

    def _shuffled(
        self, layer: Conv, job: Job, source: Pieces, affine: tuple[Tensor, Tensor] | None,
        add: Tensor | None, moments: bool,
    ) -> tuple[Tensor, Moments | None]:  # fmt: skip
        """Few channels a phase: shuffled by a copy after the convolution."""
        assert layer.shuffle is not None
        plain = self._out(job, job.out_frames, None)
        self._run(layer, job, source, affine, plain)
        parts = _shuffled_parts(plain, layer.shuffle, job.frames)
        result = _put_together(parts) if add is None else _add_parts(parts, add)
        return result, channel_moments(result) if moments else None


def _framed_bytes(normed: Pieces) -> int:
    """Of normalised frames, and of the block that their moments are taken in."""
    frame = normed.tensors[0][0, :, 0]
    block = 8 * min(block_elements(frame.device), frame.numel())
    return sum(whole(t.nbytes) for t in normed.tensors) + whole(block)


def _parts(layer: Conv, job: Job) -> list[Job]:
    """The job, its video's first frame by itself where that has a factor of its own."""
    if layer.shuffle is None or layer.shuffle.first is None or job.frames[0] or job.shuffle == ONES:
        return [job]
    lead = replace(job, frames=(0, 1), shuffle=layer.shuffle.first)
    return [lead, replace(job, frames=(1, job.frames[1]))] if job.frames[1] > 1 else [lead]


def _together(found: list[Moments | None]) -> Moments | None:
    made = [moments for moments in found if moments is not None]
    return combine(made) if len(made) > 1 else made[0] if made else None


_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
