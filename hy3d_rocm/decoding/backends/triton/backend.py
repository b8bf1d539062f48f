"""TritonBackend: layers by Triton kernels."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hy3d_rocm.aliasing import overlaps
from hy3d_rocm.conv.attention import LARGEST_TRUSTED
from hy3d_rocm.conv.protection import note
from hy3d_rocm.conv.tiers.vendor import allows_tf32
from hy3d_rocm.conv.triton import ahead, configs, jit, work
from hy3d_rocm.conv.triton import launch as tier
from hy3d_rocm.conv.triton.ahead import Facts
from hy3d_rocm.conv.triton.plan import Strides, strides_of
from hy3d_rocm.conv.triton.work import ONES, Job, Piece, Target, last_strides
from hy3d_rocm.decoding import geometry
from hy3d_rocm.decoding.backends import attention, statistics, torch_ops
from hy3d_rocm.decoding.backends.statistics import NAMES, Affine
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend
from hy3d_rocm.decoding.backends.triton import selfcheck
from hy3d_rocm.decoding.backends.triton.launches import (
    AttentionJob,
    AttentionWork,
    PackWork,
    attention_of,
    factors_of,
    pack_of,
    shares_of,
)
from hy3d_rocm.decoding.layers import Conv, Moments, Norm, Pieces, Range, Weights

# Results of fewer channels lie as NCDHW, since a position of them is less than one store.
_FEWEST_LAST = 8
#: operands by number, as in the list of addresses; pieces of the source, x0 and so on, follow.
OPERANDS = ("out", "weight", "bias", "factor", "summand", "rows", "parts", "moments")


def refusal(device: torch.device, dtype: torch.dtype, arch: str = "") -> str | None:
    """Why no layer of this type can be computed on this device, in a few words, or None. arch: of
    a GPU that need not be here: whether the kernels can be asked what they would take there."""
    if device.type != "cuda":
        return f"the fused kernels run on GPUs, not on {device.type}"
    name = NAMES.get(dtype)
    if name is None:
        return f"the fused kernels have no {dtype}"
    given = arch or tier.architecture(device)
    if not configs.is_known(given) or not configs.offered(given, name):
        return f"the kernels were not checked for {name} on {given}"
    return None if arch else tier.kernel_problem() or selfcheck.why_not(device)


@dataclass(slots=True, eq=False)
class Part:
    """A job's launches and what they read beside the source: made once, launched many times, but
    for a weight that forget_weights() takes away. packing: what made that of the module's. small:
    of each operand, by number, whether 32-bit offsets reach all of it; once it has run."""

    work: Any  # Work, AttentionWork or FactorsWork
    weight: Tensor | None
    bias: Tensor | None
    factors: Affine | None
    packing: PackWork | None = None
    small: tuple[bool, ...] = ()


class _Form(NamedTuple):
    """What follows from the form of a layer and its sources, whatever is in them. reason: why the
    kernels can't; else works. by_copy: shuffle and residual come afterwards; alone: the residual
    does. in_place: the residual becomes the result, else a copy of it. into: the result is made in
    the given `out`, else beside it.
    """

    reason: str | None
    works: tuple[work.Work, ...] = ()
    size: tuple[int, ...] = ()
    layout: torch.memory_format = torch.contiguous_format
    by_copy: bool = False
    alone: bool = False
    in_place: bool = False
    into: bool = False


class _Layer(NamedTuple):
    """One layer on sources of one form, with its own weights."""

    layer: Conv  # its modules' ids are in the key, so that they stay taken
    form: _Form
    parts: tuple[Part, ...]


# Forms of all decodes: the next one has most of them.
_forms: dict[tuple[Any, ...], _Form] = {}
_MOST_FORMS = 4096
# Kernels of which a result was checked, by device, type and what they are compiled for.
_sound: set[tuple[Any, ...]] = set()


class TritonBackend(TorchBackend):
    """Layers with norm, activation, up-sampling and padding in the operand's load, and bias,
    residual and moments in the store. Results of 8 channels or more are channels-last. What the
    kernels can't compute goes to TorchBackend; `delegated` counts those calls by reason.

    Packed weights are kept as long as the backend, and so is what follows from a layer and the form
    of its source, the same for most chunks of a video. machine: instead of what the device is.
    is_tuned: whether tiles are those that `hy3d-rocm tune` found best on this GPU. The first result
    of each kernel of this process is checked (selfcheck.py): WrongKernelError.
    """

    is_channels_last = packs_weights = True
    #: elements of the largest heads that torch's attention computes
    heads_of_torch = LARGEST_TRUSTED
    #: where the first results are checked
    checked_on: tuple[str, ...] = ("cuda",)

    def __init__(
        self, weights: Weights, device: torch.device | str, machine: Target | None = None,
        is_tuned: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(weights)
        self.device = torch.device(device)
        if str(self.device) == "cuda":
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._machine, self._is_given, self._is_tuned = machine, machine is not None, is_tuned
        # Of a backend on shapes: takes each part that would be launched, and its operands.
        self.on_launch: Callable[[Part, Sequence[Tensor | None]], object] = lambda *_: None
        self._known: dict[tuple[Any, ...], _Layer] = {}
        self._unchecked: set[int] = set()  # of those
        self._packed: dict[tuple[Any, ...], tuple[Tensor, Tensor | None, PackWork, Any]] = {}
        self._fresh: list[Part] = []  # those with a packed weight
        self._affines: dict[tuple[Any, ...], tuple[Affine | None, Any]] = {}

    def convolve(
        self, layer: Conv, source: Pieces, frames: Range, *, affine: Affine | None = None,
        add: Tensor | None = None, moments: bool = False, out: Tensor | None = None,
    ) -> tuple[Tensor, Moments | None]:  # fmt: skip
        """As TorchBackend.convolve. ValueError where a frame of the source is missing."""
        norm, tensors = layer.norm, source.tensors
        if self._is_framed(layer, source):
            layer, source = self._framed(layer, source, frames)
            return self.convolve(layer, source, frames, add=add, moments=moments, out=out)
        source, frames = self._at_start(layer, source, frames)
        # Everything that launches depend on but addresses.
        call = (
            layer.shuffle, layer.before, layer.after, layer.modes, layer.stride, layer.act,
            layer.up, layer.keep_first, source.first, source.total, frames, affine is None, moments,
            add is None or _facts(add), out is None or _facts(out), out is add,
            *map(_facts, tensors),
        )  # fmt: skip
        target = tensors[0].dtype is torch.float32 and self.target()
        key = id(layer.module), id(norm), target, call
        known = self._known.get(key)
        if known is None:
            form = self._form(call, layer, source, frames, affine, add, moments, out)
            known = self._known[key] = _Layer(layer, form, self._parts(layer, form, affine))
            if form.works and self.device.type in self.checked_on:
                self._unchecked.add(id(known))
        form = known.form
        if form.reason is not None:
            self.delegated[form.reason] = self.delegated.get(form.reason, 0) + 1
            return super().convolve(
                layer, source, frames, affine=affine, add=add, moments=moments, out=out
            )
        start = None if form.by_copy or form.alone else add  # what the kernels add to
        if start is not None and form.in_place:
            made = start
        elif out is not None and form.into:
            made = out if start is None else out.copy_(start)
        elif start is not None:
            made = start.to(tensors[0].dtype, memory_format=torch.channels_last_3d, copy=True)
        else:
            layout, dtype = form.layout, tensors[0].dtype
            made = torch.empty(form.size, dtype=dtype, device=self.device, memory_format=layout)
        kept = self._carry_out(known, source, frames, affine, start, made)
        if form.by_copy and layer.shuffle is not None:  # few channels a phase
            return torch_ops.finished(made, layer.shuffle, frames, add, out), None
        if form.alone and add is not None:  # in the store its masks would cost all registers
            made.add_(add)
        if out is not None and made is not out:
            made = out.copy_(made)
        return made, kept

    def _carry_out(
        self, known: _Layer, source: Pieces, frames: Range, affine: Affine | None,
        start: Tensor | None, made: Tensor,
    ) -> Moments | None:  # fmt: skip
        """All launches, into `made`. start: what they add to."""
        layer, form, samples, new = known.layer, known.form, None, set[Any]()
        if id(known) in self._unchecked and (new := self._new_kernels(made.dtype, known.parts)):
            is_shuffled = layer.shuffle is not None and not form.by_copy
            with selfcheck.safely():
                samples = selfcheck.Samples(
                    layer, source, frames, form.size, affine or known.parts[0].factors,
                    is_shuffled, start,
                )  # fmt: skip
        every, at = [], 0
        for part in known.parts:
            if part.weight is None:  # since forget_weights()
                part.weight, _, part.packing = self._packed_for(layer, part.work.job)
                self._fresh.append(part)
            end = at + part.work.job.out_frames
            every.append(self._run(part, source.tensors, affine, made[:, :, at:end]))
            at = end
        kept = [m for m in every if m is not None]
        moments = statistics.combine(kept) if kept else None
        if samples is not None:
            with selfcheck.safely():
                tf32 = self.target().tf32 and source.tensors[0].dtype is torch.float32
                bias = self.weights.of(layer.module, "bias")
                samples.check(made, self._weight(layer), bias, tf32, moments)
                _sound.update(new)
        self._unchecked.discard(id(known))
        return moments

    def attend(
        self, q: Tensor, room: Tensor, target: Tensor, ranges: attention.KeyRanges,
        check: Callable[[], object],
    ) -> None:  # fmt: skip
        """As TorchBackend.attend; large heads in one launch. Torch's kernels for these are wrong on
        some AMD cards and slower on an H200."""
        made = self.attention_of(q, room, target, ranges)
        if made is None:
            if self.device.type != "meta":
                super().attend(q, room, target, ranges, check)
            return
        check()
        part = Part(made, None, None, None)
        self._launch(part, (target, *[None] * (len(OPERANDS) - 1), q, room[0], room[1]))
        if self.device.type in self.checked_on and (new := self._new_kernels(q.dtype, [part])):
            with selfcheck.safely():
                selfcheck.check_attention(q, room, target, ranges)
                _sound.update(new)

    def factors(self, norm: Norm, moments: Sequence[Moments], dtype: torch.dtype) -> Affine:
        """As TorchBackend.factors, in one launch in place of some twenty."""
        shares = shares_of([m.count for m in moments])
        plain = norm.scale is None and norm.shift is None
        why_not = None if self._is_given else refusal(self.device, dtype)
        if shares is None or why_not or not plain or dtype not in NAMES:
            return super().factors(norm, moments, dtype)
        channels = moments[0].rows.shape[1]
        both = weight, bias = [
            None if n is None else self.weights.of(norm.module, n) for n in (norm.weight, norm.bias)
        ]
        of = tuple("" if p is None else NAMES.get(p.dtype) for p in both)
        if None in of or any(p is not None and p.shape != (channels,) for p in both):
            return super().factors(norm, moments, dtype)
        rows = moments[0].rows if len(moments) == 1 else torch.stack([m.rows for m in moments])
        made = torch.empty((2, channels), dtype=torch.float32, device=self.device)
        part = Part(factors_of(channels, norm.groups, shares, norm.eps, of), weight, bias, None)
        self._launch(part, (None, weight, bias, made, None, None, None, rows))
        found = made[0], made[1]
        if self.device.type in self.checked_on and (new := self._new_kernels(dtype, [part])):
            with selfcheck.safely():
                selfcheck.check_factors(found, norm, moments, self.weights)
                _sound.update(new)
        return found

    def attends(self, dtype: torch.dtype, size: int) -> bool:
        """As TorchBackend.attends."""
        if size <= self.heads_of_torch or size % 8:
            return False
        if configs.attention(self.target().arch, NAMES.get(dtype, "")) is None:
            return False
        return self._is_given or not refusal(self.device, dtype)

    def attention_of(
        self, q: Tensor, room: Tensor, target: Tensor, ranges: attention.KeyRanges
    ) -> AttentionWork | None:
        """The launch, None where torch's attention is taken."""
        _, heads, _, size = q.shape
        if not self.attends(q.dtype, size):
            return None
        head, token, element = target.stride()
        begin = ranges.keys if ranges.span == "frame" else 0
        stop, stop_by = (room.shape[2], 0) if ranges.span == "video" else (ranges.keys, ranges.keys)
        job = AttentionJob(
            NAMES[q.dtype], size, heads, ranges.frames, ranges.tokens, ranges.first, begin, stop,
            stop_by, q.stride(1), room.stride(1), (head, token, element),
        )  # fmt: skip
        return attention_of(job, self.target().arch)

    def workspace(
        self, layer: Conv, source: Pieces, frames: Range, *, into: bool = False
    ) -> tuple[int, bool]:
        """As TorchBackend.workspace: rows, moments' parts; an upper bound for all options."""
        total, affine = 0, layer.norm is not None and layer.norm.kind == "group"
        if self._is_framed(layer, source):
            layer, source = self._framed(layer, source, frames, asks=True)
            frame = source.tensors[0][0, :, 0]  # their moments are taken in blocks
            total = whole(8 * min(statistics.block_elements(frame.device), frame.numel()))
            total += sum(whole(t.nbytes) for t in source.tensors)
        source, frames = self._at_start(layer, source, frames)
        job = self._job(layer, source, frames, affine, False, True)
        if isinstance(job, str):
            return total + super().workspace(layer, source, frames, into=into)[0], False
        parts, item = _parts(layer, job), work.ITEMSIZE[job.dtype]
        for part in parts:
            made = work.work_of(part, self.target(), last_strides(part.outputs, part.out_size))
            total += whole(made.rows_elems * item) + whole(made.parts_elems * 4)
            total += whole(16 * part.outputs)
        by_copy = layer.shuffle is not None and job.shuffle == ONES
        result = whole(job.outputs * job.out_frames * math.prod(job.out_size) * item)
        in_place = job.outputs % 8 == 0 and len(parts) == 1
        if by_copy:  # the result before the shuffle
            total += 2 * result
        elif into and not in_place:  # `add` is written last
            total += result
        return total, by_copy or in_place

    def kept_bytes(self, layer: Conv, is_first: bool) -> int:
        """As TorchBackend.kept_bytes: packed weights."""
        weight = self._weight(layer)
        x = weight.new_empty((1, weight.shape[1], self._kernel_t(layer) + 1, 8, 8), device="meta")
        job = self._job(layer, Pieces((x,), 0, None), (0, 2), False, False, False)
        return 0 if isinstance(job, str) else self._packed_bytes(layer, _parts(layer, job))

    def _packed_bytes(self, layer: Conv, parts: Sequence[Job]) -> int:
        """Of packed weights and biases."""
        total = 0
        for part in parts:
            view, item = work.view_of(part), work.ITEMSIZE[part.dtype]
            outputs = part.outputs * math.prod(view.phases)
            if view.phases == ONES:  # all that the weight has
                outputs = len(self._weight(layer))
            taps = view.taps * part.row_channels * view.kernel[2]
            total += whole(outputs * taps * item) + whole(outputs * item)
        return total

    def forget_weights(self) -> None:
        self._packed.clear()
        for part in self._fresh:
            part.weight = None
        self._fresh.clear()

    def target(self) -> Target:
        """What launches depend on of the GPU, with PyTorch's switch for TF32 as it is now."""
        if self._machine is None:
            measured = tier.measured(self.device) if self._is_tuned else None
            self._machine = tier.target_of(self.device)._replace(measured=measured)
        tf32 = self.device.type == "cuda" and allows_tf32()
        return self._machine._replace(tf32=tf32)

    def _kernel_t(self, layer: Conv) -> int:
        shape = self._weight(layer).shape
        return shape[2] if len(shape) == 5 else 1

    def _at_start(self, layer: Conv, source: Pieces, frames: Range) -> tuple[Pieces, Range]:
        """The call near the start of a video, where neither its start nor its end is read: chunks
        of a video then have all that follows in common."""
        away = source.first - (1 if layer.keep_first else 0)
        if away <= 0 or layer.stride[0] != 1:
            return source, frames
        low, end = geometry.read_frames(layer, frames, self._kernel_t(layer))
        first, last = (geometry.source_frame(layer, u) for u in (low, end - 1))
        step = away * layer.up[0]
        leads = layer.shuffle is not None and layer.shuffle.first is not None  # frame 0 is another
        held = source.first <= first and last < source.frames[1]
        if low < 0 or not held or (leads and frames[0] <= step):
            return source, frames
        placed = Pieces(source.tensors, source.first - away, None)
        return placed, (frames[0] - step, frames[1] - step)

    def _refusal(self, layer: Conv, source: Pieces) -> str | None:
        """Why this layer can't be computed by the kernels, in a few words, or None."""
        dtype = source.tensors[0].dtype
        if dtype not in NAMES or any(t.dtype is not dtype for t in source.tensors):
            return f"the fused kernels have no {dtype}"
        reason = None if self._is_given else refusal(self.device, dtype)
        return reason or torch_ops.not_fused(layer, source, "the kernels")

    def _form(
        self, call: tuple[Any, ...], layer: Conv, source: Pieces, frames: Range,
        affine: Affine | None, add: Tensor | None, moments: bool, out: Tensor | None,
    ) -> _Form:  # fmt: skip
        """All that follows from the form of a call. call: what of it that depends on, beside what
        is read here of the layer's weights and norm, and the target."""
        reason = self._refusal(layer, source)
        if reason is not None:  # of a device that is no GPU nothing else is known
            return _Form(reason)
        weight, module, norm = self._weight(layer), layer.module, layer.norm
        channels = source.tensors[0].shape[1]
        of_norm: tuple[Any, ...] = ()
        if norm is not None:
            has_factors = norm.kind != "group" and self._affine(norm, channels) is not None
            of_norm = norm.kind, norm.eps, has_factors
        of_layer = (
            weight.shape, self.weights.of(module, "bias") is None, of_norm,
            getattr(module, "groups", 1), getattr(module, "dilation", 1),
        )  # fmt: skip
        facts = (*of_layer, self._is_given, self.device, self.target(), call)
        form = _forms.get(facts)
        if form is None:
            form = self._new_form(layer, source, frames, affine, add, moments, out)
            if len(_forms) >= _MOST_FORMS:
                _forms.clear()
            _forms[facts] = form
        return form

    def _parts(self, layer: Conv, form: _Form, affine: Affine | None) -> tuple[Part, ...]:
        """The form's works with the layer's weights."""
        factors = None
        if affine is None and layer.norm is not None and form.works:
            factors = self._affine(layer.norm, form.works[0].job.channels)
        parts = []
        for made in form.works:
            weight, bias, packing = self._packed_for(layer, made.job)
            parts.append(Part(made, weight, bias, factors, packing))
        self._fresh += parts
        return tuple(parts)

    def _new_form(
        self, layer: Conv, source: Pieces, frames: Range, affine: Affine | None,
        add: Tensor | None, moments: bool, out: Tensor | None,
    ) -> _Form:  # fmt: skip
        job = self._job(layer, source, frames, affine is not None, add is not None, moments)
        if isinstance(job, str):
            return _Form(job)
        if layer.norm is not None and layer.norm.kind == "group" and affine is None:
            return _Form("a group norm came without its moments")
        alone = job.add and job.outputs % 8 != 0
        if alone:
            job = job._replace(add=False, moments=False)
        jobs = _parts(layer, job)
        size = (1, job.outputs, sum(part.out_frames for part in jobs), *job.out_size)
        layout = torch.channels_last_3d
        strides: Sequence[int] = last_strides(job.outputs, job.out_size)
        if job.outputs < _FEWEST_LAST:
            plane, width = math.prod(size[3:]), size[4]
            layout, strides = torch.contiguous_format, (size[2] * plane, plane, width, 1)
        in_place = False
        if add is not None and job.add:
            if tuple(add.shape) != size:
                raise ValueError(f"a residual of {tuple(add.shape)} for a result of {size}")
            # The second part may run out of memory when the first has been added: then the step is
            # made again, and the residual must be what it was.
            in_place = len(jobs) == 1 and _is_target(add, source.tensors[0].dtype)
            in_place = in_place and (out is None or out is add)
            strides = add.stride()[1:] if in_place else strides
        by_copy = layer.shuffle is not None and job.shuffle == ONES
        into = False
        if out is not None and not by_copy and not in_place and out is not add:
            if tuple(out.shape) != size:
                raise ValueError(f"an out of {tuple(out.shape)} for a result of {size}")
            into = _is_written(out, source.tensors[0].dtype)
            strides = out.stride()[1:] if into else strides
        works = tuple(
            work.work_of(
                one,
                self.target(),
                strides_of((job.outputs, one.out_frames, *job.out_size), strides),
            )
            for one in jobs
        )
        return _Form(None, works, size, layout, by_copy, alone, in_place, into)

    def _job(
        self, layer: Conv, source: Pieces, frames: Range, affine: bool, add: bool, moments: bool
    ) -> Job | str:
        """The call in integers, or why the kernels can't compute it."""
        reason = self._refusal(layer, source)
        if reason is not None:
            return reason
        weight, tensors, shuffle = self._weight(layer), source.tensors, ONES
        _, channels, _, height, width = tensors[0].shape
        if layer.shuffle is not None:
            factor = layer.shuffle.factor
            shuffle = factor if len(weight) >= work.FEWEST_SHUFFLED * math.prod(factor) else ONES
        whole = layer.shuffle is None or shuffle != ONES  # nothing is left to a copy
        norm = layer.norm if layer.norm is not None and layer.norm.kind != "group" else None
        if norm is not None:
            affine = self._affine(norm, channels) is not None
        t, h, w = (mode == "replicate" for mode in layer.modes)
        pieces = tuple(Piece(x.shape[2], _strides_of(x), x.data_ptr() % 16 == 0) for x in tensors)
        job = Job(
            dtype=NAMES[tensors[0].dtype], channels=channels,
            outputs=len(weight) // math.prod(shuffle), kernel=geometry.kernel_size(weight),
            size=(height, width), pieces=pieces, first=source.first, total=source.total,
            frames=frames, before=layer.before, after=layer.after, replicate=(t, h, w),
            stride=layer.stride, up=layer.up, keep_first=layer.keep_first, shuffle=shuffle,
            norm="" if norm is None else norm.kind, eps=0.0 if norm is None else norm.eps,
            affine=affine, silu=layer.act == "silu",
            bias=self.weights.of(layer.module, "bias") is not None, add=add and whole,
            moments=moments and whole,
        )  # fmt: skip
        return work.refusal(job) or job

    def _is_framed(self, layer: Conv, source: Pieces) -> bool:
        """Whether frames are normalised by themselves before the kernels read them."""
        framed = layer.norm is not None and layer.norm.kind == "frame"
        return framed and self._refusal(layer, source) is None

    def _framed(
        self, layer: Conv, source: Pieces, frames: Range, asks: bool = False
    ) -> tuple[Conv, Pieces]:
        """The layer without its GroupNorm of single frames, and the frames that it reads behind it:
        a kernel's factors are those of all its frames. asks: shapes are enough."""
        norm = layer.norm
        assert norm is not None
        numbers = geometry.frame_numbers(layer, source, frames, self._kernel_t(layer))
        first = min((n for n in numbers if n >= 0), default=source.first)
        stop = max(first, *numbers) + 1
        made, at = [], source.first
        for tensor in source.tensors:
            part = tensor[:, :, max(first - at, 0) : max(stop - at, 0)]
            at += tensor.shape[2]
            if part.shape[2]:
                made.append(torch.empty_like(part))
                if not asks:
                    torch_ops.own_norm(part[0], norm, self.weights, made[-1][0])
        return replace(layer, norm=None), Pieces(tuple(made), first, source.total)

    def _packed_for(self, layer: Conv, job: Job) -> tuple[Tensor, Tensor | None, PackWork]:
        """The layer's weight as the kernels read it, its bias by phase, and what packed it."""
        order = "" if layer.shuffle is None or job.shuffle == ONES else layer.shuffle.order
        key = (id(layer.module), job.dtype, job.folds, job.shuffle, order, job.outputs)
        found = self._packed.get(key)
        if found is None:
            made = self._pack(layer, job, order)
            found = self._packed[key] = (*made, layer.module)  # so that its id stays its own
        return found[:3]

    def _pack(
        self, layer: Conv, job: Job, order: str
    ) -> tuple[Tensor, Tensor | None, PackWork]:  # fmt: skip
        """order: of the shuffle whose phases are the job's, or ""."""
        weight, bias = self._weight(layer).detach(), self.weights.of(layer.module, "bias")
        weight = weight.view(*weight.shape[:2], *job.kernel)
        outputs, channels = weight.shape[:2]
        bias = None if bias is None else bias.detach()
        if order:  # as many channels as are kept
            outputs, phases = job.outputs, job.shuffle
            weight = torch_ops.by_phase(weight, phases, order)
            strides = weight.stride()
            if bias is not None:
                bias = torch_ops.by_phase(bias, phases, order)[:, :, :, :outputs].flatten()
        else:
            time, space = job.folds
            phases, strides = (1 + time, 1 + space, 1 + space), (0, 0, 0, *weight.stride())
            if bias is not None and space:
                bias = bias.repeat(math.prod(phases))
        made = pack_of(
            job.dtype, outputs, channels, job.row_channels, job.kernel, phases, job.folds, strides
        )
        packed = torch.empty(made.size, dtype=weight.dtype, device=self.device)
        self._launch(Part(made, None, None, None), (packed, *[None] * (len(OPERANDS) - 1), weight))
        return packed, None if bias is None else bias.contiguous(), made

    def _affine(self, norm: Norm, channels: int) -> Affine | None:
        """Float32 factor and summand (C,) that follow a norm over the channels, or None."""
        key = (id(norm.module), norm.kind, norm.weight, norm.bias, id(norm.scale), id(norm.shift))
        found = self._affines.get(key)
        if found is None:
            factor, summand = statistics.norm_parameters(norm, self.weights)
            made = None
            if factor is not None or summand is not None or norm.kind == "l2":
                one, zero = (torch.full((), n, device=self.device) for n in (1.0, 0.0))
                factor = (one if factor is None else factor).to(self.device, torch.float32)
                summand = (zero if summand is None else summand).to(self.device, torch.float32)
                if norm.kind == "l2":
                    factor = factor * math.sqrt(channels)
                made = factor.expand(channels).contiguous(), summand.expand(channels).contiguous()
            found = self._affines[key] = (made, norm)
        return found[0]

    def _run(
        self, part: Part, tensors: Sequence[Tensor], affine: Affine | None, out: Tensor
    ) -> Moments | None:
        """The part's job into `out`, which holds the residual if there is one."""
        made, job, device = part.work, part.work.job, self.device
        factor, summand = part.factors or (None, None)
        if affine is not None:
            factor, summand = (a.to(device, torch.float32).contiguous() for a in affine)
        rows = parts = moments = None
        if made.rows_elems:
            rows = torch.empty(made.rows_elems, dtype=tensors[0].dtype, device=device)
        if job.moments:
            parts = torch.empty(made.parts_elems, dtype=torch.float32, device=device)
            moments = torch.empty((2, job.outputs), dtype=torch.float64, device=device)
        operands = (out, part.weight, part.bias, factor, summand, rows, parts, moments, *tensors)
        start = time.perf_counter()
        self._launch(part, operands)
        if device.type != "meta":
            size = (1, job.channels, job.end - job.first, *job.size)
            note(size, job.outputs, out.dtype, "triton, fused", time.perf_counter() - start)
        if moments is None:
            return None
        return Moments(out[0, 0].numel(), moments)

    def _new_kernels(self, dtype: torch.dtype, parts: Sequence[Part]) -> set[tuple[Any, ...]]:
        """Those of which no result was found sound yet, as _sound has them."""
        works = [made for part in parts for made in (part.work, part.packing) if made is not None]
        launches = (one for made in works for one in made.launches)
        return {(self.device, dtype, one.compiled_for) for one in launches} - _sound

    def _launch(self, part: Part, operands: Sequence[Tensor | None]) -> None:
        device = self.device
        if device.type == "meta":
            self.on_launch(part, operands)
            return
        is_here = device.index is None or device.index == torch.cuda.current_device()
        with nullcontext() if is_here else torch.cuda.device(device.index):
            run_launches(part, operands, device.index)


def whole(size_bytes: int) -> int:
    """Rounded up as PyTorch's allocator does."""
    return -(-size_bytes // 512) * 512


def _facts(x: Tensor) -> tuple[Any, ...]:
    """What launches depend on of a tensor (1, C, t, H, W) of the source, or a residual."""
    small = jit.is_small(x.untyped_storage().nbytes())
    return x.shape, x.stride(), x.dtype, x.data_ptr() & 15, small, x.is_neg()


def _strides_of(tensor: Tensor) -> Strides:
    """Of (1, C, T, H, W)."""
    return strides_of(tensor.shape[1:], tensor.stride()[1:])


def _is_target(add: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernels can make their result in a residual's memory."""
    strides = _strides_of(add)
    whole_rows = strides[0] == 1 and not any(n % 8 for n in strides[1:])
    aligned = add.data_ptr() % 16 == 0
    plain = add.dtype is dtype and not add.is_neg() and not overlaps(add)
    return whole_rows and aligned and plain


def _is_written(out: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernels can make their result in `out`: its channels or its columns follow each
    other."""
    c, _, _, w = _strides_of(out)
    plain = out.dtype is dtype and not out.is_neg() and not overlaps(out)
    return plain and ((c == 1 and out.shape[1] > 1) or w in (0, 1))


def _parts(layer: Conv, job: Job) -> list[Job]:
    """The job, its video's first frame by itself where that has a factor of its own."""
    if layer.shuffle is None or layer.shuffle.first is None or job.frames[0] or job.shuffle == ONES:
        return [job]
    lead = job._replace(frames=(0, 1), shuffle=layer.shuffle.first)
    return [lead, job._replace(frames=(1, job.frames[1]))] if job.frames[1] > 1 else [lead]


def wanted(part: Part, tensors: Sequence[Tensor | None]) -> Iterator[ahead.Wanted]:
    """What the launches of a part will be compiled for. tensors: the operands, on shapes."""
    names = _names(len(tensors))
    for item in part.work.launches:
        facts = []
        for name, offset in item.operands:
            x = tensors[names.index(name)]
            assert x is not None, f"a launch without its operand {name}"
            is_aligned = (x.storage_offset() + offset) * x.element_size() % 16 == 0
            facts.append(Facts(x.dtype, jit.is_small(x.untyped_storage().nbytes()), is_aligned))
        yield ahead.Wanted(item, tuple(facts))


def _names(count: int) -> tuple[str, ...]:
    """Of so many operands."""
    return (*OPERANDS, *(f"x{k}" for k in range(count - len(OPERANDS))))


def run_launches(part: Part, tensors: Sequence[Tensor | None], device: int | None) -> None:
    """All launches of a part on the current stream of the current device, which is `device`.
    tensors: the operands, by number."""
    addresses = [0 if t is None else t.data_ptr() for t in tensors]
    ends = tuple([a & 15 for a in addresses])
    if not part.small:  # by the storage's size, as Triton's HIPBackend.is_within_2gb goes
        part.small = tuple(t is None or jit.is_small(t.untyped_storage().nbytes()) for t in tensors)
    form = (ends, part.small, device, None if part.bias is None else part.bias.dtype)
    ready = part.work.calls.get(form)
    done = 0 if ready is None else jit.launch_ready(ready, addresses, device)
    if done < len(part.work.launches):
        operands = jit.Operands(_names(len(tensors)), addresses, part.small, device, tensors)
        jit.launch_all(part.work, form, operands, done)
