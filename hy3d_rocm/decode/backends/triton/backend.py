"""TritonBackend: layers.Backend by Triton kernels."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hy3d_rocm.conv.router import note
from hy3d_rocm.conv.tiers.vendor import allows_tf32
from hy3d_rocm.conv.triton import configs, jit
from hy3d_rocm.conv.triton import launch as tier
from hy3d_rocm.conv.triton.item import Call, Launch
from hy3d_rocm.decode.backends.statistics import (
    block_elements,
    channel_moments,
    combine,
    norm_parameters,
)
from hy3d_rocm.decode.backends.torch_ops import (
    TorchBackend,
    finished,
    not_fused,
    overlaps,
    own_norm,
)
from hy3d_rocm.decode.backends.triton import packing, work
from hy3d_rocm.decode.backends.triton.work import ITEMSIZE, ONES, Job, Machine, Piece, last_strides
from hy3d_rocm.decode.geometry import frame_numbers, kernel_size, read_frames, source_frame
from hy3d_rocm.decode.layers import Conv, Moments, Norm, Pieces, Range, Weights

Affine = tuple[Tensor, Tensor]
_NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
# Results of fewer channels lie as NCDHW, since a position of them is less than one store.
_FEWEST_LAST = 8
# Operands by number, as in the list of addresses; pieces of the source come behind them.
_OPERANDS = ("out", "weight", "bias", "factor", "summand", "rows", "parts", "moments")


def whole(size_bytes: int) -> int:
    """Rounded up as PyTorch's allocator does."""
    return -(-size_bytes // 512) * 512


def refusal(device: torch.device, dtype: torch.dtype, arch: str = "") -> str | None:
    """Why no layer of this type can be computed on this device, in a few words, or None. arch: of
    a GPU that need not be here: whether the kernels can be asked what they would take there."""
    if device.type != "cuda":
        return f"the fused kernels run on GPUs, not on {device.type}"
    name = _NAMES.get(dtype)
    if name is None:
        return f"the fused kernels have no {dtype}"
    given = arch or tier.architecture(device)
    if not configs.is_known(given) or not configs.offered(given, name):
        return f"the kernels were not checked for {name} on {given}"
    return None if arch else tier.kernel_problem()


class _Part:
    """A job, its launches and what they read beside the source: made once, launched many times.

    calls: the launches ready to be called, once all of them are, where every address that was not
    there before is a multiple of 16.
    """

    __slots__ = ("bias", "calls", "factors", "job", "made", "weight")

    def __init__(
        self, job: Job, made: work.Work, weight: Tensor, bias: Tensor | None, factors: Affine | None
    ) -> None:
        self.job, self.made, self.weight, self.bias, self.factors = job, made, weight, bias, factors
        self.calls: tuple[Call, ...] | None = None


class _Layer(NamedTuple):
    """One layer on sources of one form. reason: why the kernels can't; else parts. alone: the
    residual is added afterwards. in_place: the residual becomes the result, else a copy of it.
    """

    layer: Conv  # its modules' ids are in the key, so that they stay taken
    reason: str | None
    parts: tuple[_Part, ...] = ()
    size: tuple[int, ...] = ()
    form: torch.memory_format = torch.contiguous_format
    by_copy: bool = False
    alone: bool = False
    in_place: bool = False


class TritonBackend(TorchBackend):
    """Layers with norm, activation, up-sampling and padding in the operand's load, and bias,
    residual and moments in the store. Results are channels-last (torch.channels_last_3d), but for
    those of fewer than 8 channels.

    What the kernels can't compute goes to TorchBackend; `delegated` counts those calls by reason.
    Packed weights are kept as long as the backend, and so is what follows from a layer and the form
    of its source, which is the same for most chunks of a video. machine: instead of what the
    device is.
    """

    is_channels_last = True

    def __init__(
        self, weights: Weights, device: torch.device | str, machine: Machine | None = None
    ) -> None:
        super().__init__(weights)
        self.device = torch.device(device)
        if str(self.device) == "cuda":
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.delegated: dict[str, int] = {}
        self._machine = machine
        self._is_given = machine is not None
        self._known: dict[tuple[Any, ...], _Layer] = {}
        self._packed: dict[tuple[Any, ...], tuple[Tensor, Tensor | None, Any]] = {}
        self._affines: dict[tuple[Any, ...], tuple[Affine | None, Any]] = {}

    def convolve(
        self, layer: Conv, source: Pieces, frames: Range, *, affine: Affine | None = None,
        add: Tensor | None = None, moments: bool = False,
    ) -> tuple[Tensor, Moments | None]:  # fmt: skip
        """As Backend.convolve. ValueError where a frame of the source is missing."""
        norm, shuffle, tensors = layer.norm, layer.shuffle, source.tensors
        if norm is not None and norm.kind == "frame":
            reason = self._refusal(layer, source, affine)
            if reason is None:
                layer, source = self._framed(layer, source, frames)
                return self.convolve(layer, source, frames, affine=affine, add=add, moments=moments)
        first, total, frames = _at_start(layer, source, frames, self._kernel_t(layer))
        # Everything that launches depend on but addresses.
        key = (
            id(layer.module), id(norm), shuffle, layer.before, layer.after, layer.modes,
            layer.stride, layer.act, layer.up, layer.keep_first, first, total, frames,
            affine is None, moments, add is None or _facts(add), *map(_facts, tensors),
            tensors[0].dtype is torch.float32 and self._target(),
        ) if tensors else ()  # fmt: skip
        known = self._known.get(key)
        if known is None:
            placed = source if first == source.first else Pieces(tensors, first, total)
            known = self._known[key] = self._made(layer, placed, frames, affine, add, moments)
        if known.reason is not None:
            self.delegated[known.reason] = self.delegated.get(known.reason, 0) + 1
            if first != source.first:
                source = Pieces(tensors, first, total)
            return super().convolve(layer, source, frames, affine=affine, add=add, moments=moments)
        if known.alone:  # in the store its masks would cost all registers
            made, _ = self.convolve(layer, Pieces(tensors, first, total), frames, affine=affine)
            assert add is not None
            made.add_(add)
            return made, channel_moments(made) if moments else None
        if known.by_copy:
            return self._shuffled(known, tensors, frames, affine, add, moments)
        dtype = tensors[0].dtype
        if add is None:
            out = torch.empty(known.size, dtype=dtype, device=self.device, memory_format=known.form)
        else:
            out = add
            if not known.in_place:
                out = add.to(dtype, memory_format=torch.channels_last_3d, copy=True)
        if len(known.parts) == 1:
            return out, self._run(known.parts[0], tensors, affine, out)
        found, at = [], 0
        for part in known.parts:
            target = out[:, :, at : at + part.job.out_frames]
            found.append(self._run(part, tensors, affine, target))
            at += part.job.out_frames
        return out, combine([m for m in found if m is not None]) if moments else None

    def workspace_bytes(self, layer: Conv, source: Pieces, frames: Range) -> int:
        """As Backend.workspace_bytes: rows, moments' parts; an upper bound for all options."""
        return self.step_bytes(layer, source, frames)[0]

    def step_bytes(self, layer: Conv, source: Pieces, frames: Range) -> tuple[int, bool, int]:
        """workspace_bytes; whether a residual that is laid out as results are becomes the result;
        bytes of the packed weight and bias, which are kept."""
        affine = layer.norm is not None and layer.norm.kind == "group"
        reason, total = self._refusal(layer, source, () if affine else None), 0
        if reason is None:
            if layer.norm is not None and layer.norm.kind == "frame":
                layer, source = self._framed(layer, source, frames, asks=True)
                total = _framed_bytes(source)
            first, end, frames = _at_start(layer, source, frames, self._kernel_t(layer))
            source = Pieces(source.tensors, first, end)
            job = self._job(layer, source, frames, affine, False, True)
            reason = work.refusal(job)
        if reason is not None:
            return total + super().workspace_bytes(layer, source, frames), False, 0
        parts = _parts(layer, job)
        for part in parts:
            out = last_strides(part.outputs, part.out_size)
            rows, moments = work.room_of(part, out, self._target())
            total += whole(rows * ITEMSIZE[part.dtype]) + whole(moments * 4)
            total += whole(16 * part.outputs)
        by_copy = layer.shuffle is not None and job.shuffle == ONES
        if by_copy:  # the result before the shuffle
            size = job.outputs * job.out_frames * job.out_size[0] * job.out_size[1]
            total += 2 * whole(size * ITEMSIZE[job.dtype])
        in_place = by_copy or (job.outputs % 8 == 0 and len(parts) == 1)
        every = int(self._weight(layer).shape[0])
        packed = sum(_packed_bytes(part, every) for part in parts)
        if job.folds[1] or job.shuffle != ONES:  # the first call puts taps or phases in order
            total += packed
        return total, in_place, packed

    def _target(self) -> Machine:
        if self._machine is None:
            found = tier.target_of(self.device)
            self._machine = Machine(found.arch, found.units, found.tf32)
        tf32 = self.device.type == "cuda" and allows_tf32()
        if tf32 != self._machine.tf32:
            self._machine = self._machine._replace(tf32=tf32)
        return self._machine

    def _kernel_t(self, layer: Conv) -> int:
        shape = self._weight(layer).shape
        return int(shape[2]) if len(shape) == 5 else 1

    def _refusal(self, layer: Conv, source: Pieces, affine: Any) -> str | None:
        """Why this layer can't be computed by the kernels, in a few words, or None."""
        tensors = source.tensors
        dtype = tensors[0].dtype if tensors else torch.float64
        if _NAMES.get(dtype) is None or any(t.dtype is not dtype for t in tensors):
            return f"the fused kernels have no {dtype}"
        reason = None if self._is_given else refusal(self.device, dtype)
        reason = reason or not_fused(layer, source, "the kernels")
        needs = layer.norm is not None and layer.norm.kind == "group"
        if reason is None and needs and affine is None:
            return "a group norm came without its moments"
        return reason

    def _made(
        self, layer: Conv, source: Pieces, frames: Range, affine: Affine | None,
        add: Tensor | None, moments: bool,
    ) -> _Layer:  # fmt: skip
        """All that follows from the form of a call."""
        reason = self._refusal(layer, source, affine)
        if reason is not None:
            return _Layer(layer, reason)
        job = self._job(layer, source, frames, affine is not None, add is not None, moments)
        reason = work.refusal(job)
        if reason is not None:
            return _Layer(layer, reason)
        by_copy = layer.shuffle is not None and job.shuffle == ONES
        if job.add and job.outputs % 8:
            return _Layer(layer, None, alone=True)
        jobs = _parts(layer, job)
        size = (1, job.outputs, sum(part.out_frames for part in jobs), *job.out_size)
        in_place = False
        if add is not None and job.add:
            if tuple(add.shape) != size:
                raise ValueError(f"a residual of {tuple(add.shape)} for a result of {size}")
            # The second part may run out of memory when the first has been added: then the step is
            # made again, and the residual must be what it was.
            in_place = len(jobs) == 1 and _is_target(add, source.tensors[0].dtype)
        last = job.outputs >= _FEWEST_LAST
        form = torch.channels_last_3d if last else torch.contiguous_format
        if in_place and add is not None:
            strides = add.stride()[1:]
        elif last or job.add:
            strides = last_strides(job.outputs, job.out_size)
        else:
            (high, wide), frames_made = job.out_size, size[2]
            strides = (frames_made * high * wide, high * wide, wide, 1)
        parts = []
        for one in jobs:
            target = _strides((job.outputs, one.out_frames, *job.out_size), strides)
            made = work.make_work(one, target, self._target())
            factors = None
            if affine is None and layer.norm is not None:
                factors = self._affine(layer.norm, one.channels)
            parts.append(_Part(one, made, *self._packed_for(layer, one), factors))
        return _Layer(layer, None, tuple(parts), size, form, by_copy, False, in_place)

    def _job(
        self, layer: Conv, source: Pieces, frames: Range, affine: bool, add: bool, moments: bool
    ) -> Job:
        """The call in integers."""
        weight = self._weight(layer)
        outputs, shuffle = int(weight.shape[0]), ONES
        if layer.shuffle is not None:
            factor = layer.shuffle.factor
            each = outputs // (factor[0] * factor[1] * factor[2])
            if each >= work.FEWEST_SHUFFLED:
                outputs, shuffle = each, factor
        by_copy = layer.shuffle is not None and shuffle == ONES
        norm = layer.norm if layer.norm is not None and layer.norm.kind != "group" else None
        tensors = source.tensors
        channels, has_affine = int(tensors[0].shape[1]), affine
        if norm is not None:
            has_affine = self._affine(norm, channels) is not None
        height, width = tensors[0].shape[3:]
        t, h, w = (mode == "replicate" for mode in layer.modes)
        pieces = tuple(
            Piece(int(x.shape[2]), _strides_of(x), x.data_ptr() % 16 == 0) for x in tensors
        )
        return Job(
            dtype=_NAMES[tensors[0].dtype], channels=channels, outputs=outputs,
            kernel=kernel_size(weight), size=(int(height), int(width)), pieces=pieces,
            first=source.first, total=source.total, frames=frames, before=layer.before,
            after=layer.after, replicate=(t, h, w), stride=layer.stride, up=layer.up,
            keep_first=layer.keep_first, shuffle=shuffle, norm="" if norm is None else norm.kind,
            eps=0.0 if norm is None else norm.eps, affine=has_affine, silu=layer.act == "silu",
            bias=self.weights.of(layer.module, "bias") is not None, add=add and not by_copy,
            moments=moments and not by_copy,
        )  # fmt: skip

    def _framed(
        self, layer: Conv, source: Pieces, frames: Range, asks: bool = False
    ) -> tuple[Conv, Pieces]:
        """The layer without its GroupNorm of single frames, and the frames that it reads behind it:
        a kernel's factors are those of all its frames. asks: shapes are enough."""
        norm = layer.norm
        assert norm is not None
        numbers = frame_numbers(layer, source, frames, self._kernel_t(layer))
        first = min((n for n in numbers if n >= 0), default=source.first)
        stop = max(first, *numbers) + 1
        made, at = [], source.first
        for tensor in source.tensors:
            part = tensor[:, :, max(first - at, 0) : max(stop - at, 0)]
            at += tensor.shape[2]
            if part.shape[2]:
                made.append(torch.empty_like(part))
                if not asks:
                    own_norm(part[0], norm, self.weights, made[-1][0])
        return replace(layer, norm=None), Pieces(tuple(made), first, source.total)

    def _packed_for(self, layer: Conv, job: Job) -> tuple[Tensor, Tensor | None]:
        shuffle = None
        if layer.shuffle is not None and job.shuffle != ONES:
            shuffle = packing.Phases(job.shuffle, layer.shuffle.order, job.outputs)
        key = (id(layer.module), job.dtype, job.folds, shuffle)
        found = self._packed.get(key)
        if found is None:
            bias = self.weights.of(layer.module, "bias")
            weight = packing.kernel_of(self._weight(layer).detach())
            packed = packing.pack(weight, job.folds, shuffle)
            made = None if bias is None else packing.pack_bias(bias.detach(), job.folds, shuffle)
            found = self._packed[key] = (packed, made, layer.module)  # so that its id stays its own
        return found[0], found[1]

    def _affine(self, norm: Norm, channels: int) -> Affine | None:
        """Float32 factor and summand (C,) that follow a norm over the channels, or None."""
        key = (id(norm.module), norm.kind, norm.weight, norm.bias, id(norm.scale), id(norm.shift))
        found = self._affines.get(key)
        if found is None:
            made = _affine_of(norm, channels, self.weights)
            if made is not None:
                made = _on(made, self.device)
            found = self._affines[key] = (made, norm)
        return found[0]

    def _run(
        self, part: _Part, tensors: Sequence[Tensor], affine: Affine | None, out: Tensor
    ) -> Moments | None:
        """The part's job into `out`, which holds the residual if there is one."""
        job, made, device = part.job, part.made, self.device
        factors = part.factors if affine is None else _on(affine, device)
        rows = parts = moments = None
        if made.rows_elems:
            rows = torch.empty(made.rows_elems, dtype=tensors[0].dtype, device=device)
        if job.moments:
            parts = torch.empty(made.parts_elems, dtype=torch.float32, device=device)
            moments = torch.empty((2, job.outputs), dtype=torch.float64, device=device)
        start = time.perf_counter()
        self._launch(part, (out, part.weight, part.bias, *(factors or (None, None)), rows, parts,
                            moments, *tensors))  # fmt: skip
        if out.device.type != "meta":
            size = (1, job.channels, job.end - job.first, *job.size)
            note(size, job.outputs, out.dtype, "triton, fused", time.perf_counter() - start)
        if moments is None:
            return None
        height, width = out.shape[3:]
        return Moments(out.shape[2] * height * width, moments[0], moments[1])

    def _launch(self, part: _Part, tensors: Sequence[Tensor | None]) -> None:
        """tensors: the operands, by number."""
        if self.device.type == "meta":  # shapes alone
            return
        index = self.device.index
        elsewhere = index is not None and index != torch.cuda.current_device()
        with torch.cuda.device(index) if elsewhere else contextlib.nullcontext():
            run_launches(part, tensors, index)

    def _shuffled(
        self, known: _Layer, tensors: Sequence[Tensor], frames: Range, affine: Affine | None,
        add: Tensor | None, moments: bool,
    ) -> tuple[Tensor, Moments | None]:  # fmt: skip
        """Few channels a phase: shuffled by a copy after the convolution."""
        assert known.layer.shuffle is not None
        plain = torch.empty(
            known.size, dtype=tensors[0].dtype, device=self.device, memory_format=known.form
        )
        self._run(known.parts[0], tensors, affine, plain)
        return finished(plain, known.layer.shuffle, frames, add, moments)


def _at_start(
    layer: Conv, source: Pieces, frames: Range, kernel_t: int
) -> tuple[int, int | None, Range]:
    """The call's first frame, total and frames; near the start of a video where neither its start
    nor its end is read: chunks of a video then have all that follows in common."""
    first, total = source.first, source.total
    away = first - (1 if layer.keep_first else 0)
    if away <= 0 or layer.stride[0] != 1:
        return first, total, frames
    low, end = read_frames(layer, frames, kernel_t)
    held = source_frame(layer, low) >= first and source_frame(layer, end - 1) < source.frames[1]
    step = away * layer.up[0]
    leads = layer.shuffle is not None and layer.shuffle.first is not None  # frame 0 is another
    if low < 0 or not held or (leads and frames[0] <= step):
        return first, total, frames
    return first - away, None, (frames[0] - step, frames[1] - step)


def _facts(x: Tensor) -> tuple[Any, ...]:
    """What launches depend on of a tensor (1, C, t, H, W) of the source, or a residual."""
    small = jit.is_small(x.untyped_storage().nbytes())
    return x.shape, x.stride(), x.dtype, x.data_ptr() & 15, small, x.is_neg()


def _strides(lengths: Sequence[int], strides: Sequence[int]) -> work.Strides:
    """Of (C, T, H, W): c, t, h, w; 0 along an axis of one position, 1 for a single channel."""
    c, t, h, w = (0 if n == 1 else s for n, s in zip(lengths, strides, strict=True))
    return (1 if lengths[0] == 1 else c, t, h, w)


def _strides_of(tensor: Tensor) -> work.Strides:
    """Of (1, C, T, H, W)."""
    return _strides(tensor.shape[1:], tensor.stride()[1:])


def _is_target(add: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernels can make their result in a residual's memory."""
    strides = _strides_of(add)
    whole_rows = strides[0] == 1 and not any(n % 8 for n in strides[1:])
    aligned = add.data_ptr() % 16 == 0
    return whole_rows and aligned and add.dtype is dtype and not add.is_neg() and not overlaps(add)


def _affine_of(norm: Norm, channels: int, weights: Weights) -> Affine | None:
    """Float32 (C,) factor and summand after a norm over the channels; None where there are none."""
    factor, summand = norm_parameters(norm, weights)
    like = factor if factor is not None else summand
    if like is None and norm.kind != "l2":
        return None
    if like is None:
        raise ValueError("an l2 norm without a weight: its channels have no place to be scaled")
    factor = like.new_ones(channels) if factor is None else factor
    summand = like.new_zeros(channels) if summand is None else summand
    if norm.kind == "l2":
        factor = factor * math.sqrt(channels)
    return factor.float().expand(channels), summand.float().expand(channels)


def _on(affine: Affine, device: torch.device) -> Affine:
    factor, summand = (part.to(device, torch.float32).contiguous() for part in affine)
    return factor, summand


def _framed_bytes(normed: Pieces) -> int:
    """Of normalised frames, and of the block that their moments are taken in."""
    frame = normed.tensors[0][0, :, 0]
    block = 8 * min(block_elements(frame.device), frame.numel())
    return sum(whole(t.nbytes) for t in normed.tensors) + whole(block)


def _packed_bytes(job: Job, every: int) -> int:
    """Of the packed weight and bias; every: outputs of the weight as it came."""
    view, item = work.view_of(job), ITEMSIZE[job.dtype]
    outputs = every if view.phases == ONES else job.outputs * math.prod(view.phases)
    length = view.taps * job.row_channels * view.kernel[2]
    return whole(outputs * length * item) + whole(outputs * item)


def _parts(layer: Conv, job: Job) -> list[Job]:
    """The job, its video's first frame by itself where that has a factor of its own."""
    if layer.shuffle is None or layer.shuffle.first is None or job.frames[0] or job.shuffle == ONES:
        return [job]
    lead = job._replace(frames=(0, 1), shuffle=layer.shuffle.first)
    return [lead, job._replace(frames=(1, job.frames[1]))] if job.frames[1] > 1 else [lead]


# Launching. Compiled kernels are kept for all launches of a process: a decode makes thousands that
# differ in numbers and addresses alone. A call of one is kept with its Launch (jit.bind).
_compiled: dict[tuple[Any, ...], Any] = {}


def run_launches(part: _Part, tensors: Sequence[Tensor | None], device: int | None) -> None:
    """All launches of a part on the current stream of the current device, which is `device`."""
    addresses = [0 if t is None else t.data_ptr() for t in tensors]
    odd = 0
    for address in addresses[: len(_OPERANDS)]:
        odd |= address
    launches, done = part.made.launches, 0
    if part.calls is not None and not odd & 15:
        done = jit.launch_ready(part.calls, addresses, device)
    if done == len(launches):
        return
    operands = {
        name: Operand(tensor, number, addresses[number])
        for number, (name, tensor) in enumerate(zip(_names(len(tensors)), tensors, strict=True))
        if tensor is not None
    }
    form = (tuple([(name, o.fact, o.address & 15) for name, o in operands.items()]), device)
    calls = part.made.calls.get(form)
    if calls is not None and not done:
        done = jit.launch_ready(calls, addresses, device)
    made = [launch(item, operands, addresses, device) for item in launches[done:]]
    if calls is None and not done and None not in made:
        calls = part.made.calls[form] = tuple(call for call in made if call is not None)
    if not odd & 15:
        part.calls = calls


@functools.cache
def _names(count: int) -> tuple[str, ...]:
    return (*_OPERANDS, *(f"x{k}" for k in range(count - len(_OPERANDS))))


class Operand:
    """A tensor with what a launch depends on of it."""

    __slots__ = ("address", "fact", "itemsize", "number", "tensor")

    def __init__(self, tensor: Tensor, number: int, address: int) -> None:
        self.tensor, self.number, self.address = tensor, number, address
        self.itemsize = tensor.element_size()
        # Small by the storage's size, as Triton's HIPBackend.is_within_2gb goes.
        self.fact = (tensor.dtype, jit.is_small(tensor.untyped_storage().nbytes()))


def launch(
    item: Launch, operands: Mapping[str, Operand], addresses: Sequence[int], device: int | None
) -> Call | None:
    """Runs one launch that was not ready, and makes it so; None where this Triton's kernels can't
    be called directly."""
    at: list[tuple[int, int]] = []
    facts: list[Any] = []
    for name, offset in item.operands:
        operand = operands[name]
        offset *= operand.itemsize
        at.append((operand.number, offset))
        facts.append((operand.fact, (operand.address + offset) % 16 == 0))
    kept = (tuple(facts), device)
    call, key = item.calls.get(kept), None
    if call is None:
        blocks = tuple([tuple(block) for _, _, block in item.blocks])
        key = (item.kernel, item.constants, item.num_warps, item.num_stages, blocks, kept)
        compiled = _compiled.get(key) if jit._direct.usable else None
        try:
            if compiled is not None:
                call = item.calls[kept] = jit.bind(item, compiled, at)
        except jit._FIRST_MISFITS as error:
            jit._direct.give_up(error)
    if call is not None and jit.launch_ready((call,), addresses, device):
        return call
    _first(item, operands, key)
    return None


def _first(item: Launch, operands: Mapping[str, Operand], key: tuple[Any, ...] | None) -> None:
    """Through Triton, which compiles the kernel or finds it in its cache."""
    from hy3d_rocm.decode.backends.triton import kernels

    tensors = {name: operand.tensor for name, operand in operands.items()}
    through_triton = jit.by_triton(kernels, item, tensors)
    if key is None or key in _compiled:  # launched this way for good
        through_triton()
        return
    launched = jit._shown(item.kernel, through_triton)
    if hasattr(launched, "metadata"):  # the interpreter returns none
        _compiled[key] = launched
