"""A layer on some frames by torch's own operators, on any device.

One tensor beside input and result: the convolution's padded input. The norm writes into it, SiLU
works in it, up-sampling and borders are strided copies inside it. The convolution itself runs
with padding 0, so that hy3d_rocm.protect() may take it over; on the CPU oneDNN is called itself
where nobody would and torch would build im2col (memory/workspace.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from hy3d_rocm.decoding import geometry
from hy3d_rocm.decoding.backends import attention, statistics
from hy3d_rocm.decoding.backends.statistics import Affine, channel_moments, wide_type
from hy3d_rocm.decoding.layers import Conv, Moments, Norm, Pieces, Range, Shuffle, Triple, Weights
from hy3d_rocm.decoding.memory import workspace
from hy3d_rocm.decoding.memory.dry_run import workspace_rules


def check_affine(layer: Conv, affine: Affine | None) -> None:
    """ValueError (a sentence) for a group norm whose factors are not given."""
    if layer.norm is not None and layer.norm.kind == "group" and affine is None:
        raise ValueError("a group norm was asked for without the moments of its video (affine)")


class TorchBackend:
    """Computes a layer on some frames; what other backends can't they leave to this one, their
    base. Holds no state of the video. Results are (1, C, T, H, W), contiguous but for 2D
    convolutions over several frames (those are frame by frame in memory).

    `add` is written last, after everything that can fail for want of memory, so a call that fails
    may simply be made again. is_channels_last: results of 8 channels or more are.
    """

    is_channels_last = False
    #: whether what it keeps are packed weights, which forget_weights() lets go of
    packs_weights = False

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.delegated: dict[str, int] = {}  # what a backend above leaves to this one, by reason

    def convolve(
        self, layer: Conv, source: Pieces, frames: Range, *, affine: Affine | None = None,
        add: Tensor | None = None, moments: bool = False, out: Tensor | None = None,
    ) -> tuple[Tensor, Moments | None]:  # fmt: skip
        """Frames `frames` of the convolution's output.

        `frames` counts the output before the shuffle; the result has shuffled_frames() of it. The
        shuffle's drop, skip_first and reread are run.py's: source and frames count from where
        the convolution's own video begins. source holds every frame that is read; ValueError (a
        sentence) where it does not. affine: (C,) factor and summand, float32 (of a float64 source
        float64), that stand for a "group" norm. add: the residual, of the result's shape; it may be
        overwritten and returned. moments: those of the result; None may come all the same from who
        has no quicker way to them, as here: the caller can take them again where memory is short
        for them alone.
        out: where the result is to be: (1, C, t, H, W) of the result's shape and the source's type,
        any strides (in practice rows of a larger tensor whose layout is as results are); returned.
        It is `add` itself or lies apart from it, and from the source; here the result is made
        beside it. Nothing is written to `add` before all that can fail for want of memory is done;
        to another `out` at any time.
        """
        check_affine(layer, affine)
        weight, bias = self._weight(layer), self.weights.of(layer.module, "bias")
        x = self._input(layer, source, frames, weight, affine)
        result = _multiply(x, weight, bias, layer.stride)
        del x  # a residual of another type is converted as it is added
        if layer.shuffle is not None:
            return finished(result, layer.shuffle, frames, add, out), None
        result = result if add is None else result.add_(add)
        return (result if out is None else out.copy_(result)), None

    def attend(
        self, q: Tensor, room: Tensor, target: Tensor, ranges: attention.KeyRanges,
        check: Callable[[], object],
    ) -> None:  # fmt: skip
        """As attention.by_frames()."""
        attention.by_frames(q, room, target, ranges, check)

    def factors(self, norm: Norm, moments: Sequence[Moments], dtype: torch.dtype) -> Affine:
        """Factor and summand (C,) that stand for a GroupNorm, over a video of `dtype` whose parts
        have these moments: float32, for a float64 video float64."""
        found = statistics.combine(moments)
        return statistics.group_affine(norm, found, self.weights, dtype)

    def attends(self, dtype: torch.dtype, size: int) -> bool:
        """Whether a kernel of the backend's own takes attention over heads of `size` elements: no
        memory beside the result."""
        return False

    def workspace(
        self, layer: Conv, source: Pieces, frames: Range, *, into: bool = False
    ) -> tuple[int, bool]:
        """Predicted bytes that `convolve` takes at its peak beside its operands and result; whether
        a residual that is laid out as results are becomes the result. into: the result goes to an
        `out`, which is not counted; what is made beside it is.

        Here: the padded input, what the convolution holds inside (by the rules of
        memory/workspace.py), a float block of norm or moments, the shuffled copy; the result where
        it is made beside an `out`."""
        weight = self._weight(layer).to("meta")
        kernel, x = geometry.kernel_size(weight), source.tensors[0]
        size, item = (x.shape[3], x.shape[4]), x.element_size()
        first, last = geometry.read_frames(layer, frames, kernel[0])
        padded = (1, x.shape[1], last - first, *geometry.padded_size(layer, size))
        out = (1, weight.shape[0], frames[1] - frames[0], *geometry.own_size(layer, size, kernel))
        direct = _direct(layer, source, frames, weight) is not None
        buffer, hidden = 0 if direct else math.prod(padded) * item, 0
        if not _pointwise(weight):
            rules = workspace_rules() or workspace.OperatorWorkspace(x.device)
            read, made = (torch.empty(s, dtype=x.dtype, device="meta") for s in (padded, out))
            weight, zeros = weight.view(*weight.shape[:2], *kernel), [0] * 3
            arguments = (read, weight, None, [*layer.stride], zeros, [1] * 3, False, zeros, 1)
            hidden = rules.convolution(arguments, made, by_layer=True)
        block = min(statistics.block_elements(x.device), max(math.prod(padded), math.prod(out)))
        block *= 2 * wide_type(x.dtype).itemsize
        result = math.prod(out) * item
        shuffled, beside = result if layer.shuffle is not None else 0, result if into else 0
        return max(buffer + block, buffer + hidden + beside, shuffled + beside), False

    def kept_bytes(self, layer: Conv, is_first: bool) -> int:
        """What the first call with this layer makes and keeps: here what a library takes. is_first:
        no matrix product was computed before."""
        rules = workspace_rules()
        return rules.once(torch.ops.aten.mm.default) if is_first and rules is not None else 0

    def forget_weights(self) -> None:
        """Lets go of packed weights; the next call packs its own again. Here there are none."""

    def _weight(self, layer: Conv) -> Tensor:
        weight = self.weights.of(layer.module, "weight")
        if weight is None or weight.dim() not in (2, 4, 5):
            found = "no weight" if weight is None else f"a weight of shape {tuple(weight.shape)}"
            wanted = "a convolution in 2D or 3D or a linear layer was expected"
            raise ValueError(f"{type(layer.module).__name__} has {found}: {wanted}")
        return weight

    def _input(
        self, layer: Conv, source: Pieces, frames: Range, weight: Tensor, affine: Affine | None
    ) -> Tensor:
        """The convolution's padded input (C, T, H, W); the frames themselves where they do. Each
        frame is written once, with its borders, and copied where it comes again."""
        direct = _direct(layer, source, frames, weight)
        if direct is not None:
            return direct
        (_, top, left), (_, bottom, right) = (
            tuple(max(n, 0) for n in pads) for pads in (layer.before, layer.after)
        )
        x = source.tensors[0]
        numbers = geometry.frame_numbers(layer, source, frames, geometry.kernel_size(weight)[0])
        rows, columns = geometry.padded_size(layer, (x.shape[3], x.shape[4]))
        if weight.dim() == 4 and not _pointwise(weight):  # frame by frame for conv2d
            buffer = x.new_empty((len(numbers), x.shape[1], rows, columns)).transpose(0, 1)
        else:
            buffer = x.new_empty((x.shape[1], len(numbers), rows, columns))
        body = buffer[:, :, top : rows - bottom, left : columns - right]
        # Of each frame the place where it is written: of the first, which padding may repeat, the
        # last one, so that it stands right before the second.
        places = {n: at for at, n in reversed(list(enumerate(numbers)))}
        places[numbers[0]] = numbers.count(numbers[0]) - 1
        at = source.first
        for tensor in source.tensors:
            here = sorted(n for n in places if at <= n < at + tensor.shape[2])
            for run in [here] if layer.up[0] == 1 and here else [[n] for n in here]:
                x, place = tensor[0, :, run[0] - at : run[-1] + 1 - at], places[run[0]]
                self._write(layer, x, affine, body[:, place : place + len(run)])
            at += tensor.shape[2]
        _border(buffer, 3, left, right, layer.modes[2])
        _border(buffer, 2, top, bottom, layer.modes[1])
        for at, n in enumerate(numbers):
            if n < 0:
                buffer[:, at].zero_()
            elif places[n] != at:
                buffer[:, at].copy_(buffer[:, places[n]])
        return buffer

    def _write(self, layer: Conv, x: Tensor, affine: Affine | None, out: Tensor) -> None:
        """out = x normalised, activated, up-sampled to rows and columns and cropped where padding
        is negative, all (C, t, H, W)."""
        norm = layer.norm
        if norm is not None and norm.kind == "frame" and min(*layer.before, *layer.after) < 0:
            for t in range(x.shape[1]):  # whole frames have their moments, not parts of them
                own = frame_affine(x[:, t], norm, self.weights)
                plain = replace(layer, norm=replace(norm, kind="group"))
                self._write(plain, x[:, t : t + 1], own, out[:, t : t + 1])
            return
        down, across = (_copies(layer, axis, x.shape[axis + 1]) for axis in (1, 2))
        for (rows, lines, fh), (columns, places, fw) in itertools.product(down, across):
            part = x[:, :, rows, columns]
            self._write_part(layer, part, affine, (fh, fw), out[:, :, lines, places])

    def _write_part(
        self, layer: Conv, x: Tensor, affine: Affine | None, up: tuple[int, int], out: Tensor
    ) -> None:
        """_write() of an x that nothing is cropped of, up-sampled by `up`."""
        (fh, fw), norm = up, layer.norm
        once = out[:, :, ::fh, ::fw]
        if norm is None:
            once.copy_(x)
        elif norm.kind == "group":
            assert affine is not None
            apply_affine(x, affine, once)
        else:
            own_norm(x, norm, self.weights, once)
        if layer.act == "silu":
            F.silu(once, inplace=True)
        elif layer.act is not None:
            raise ValueError(f"the activation {layer.act!r} is not known; known is 'silu'")
        for dh in range(fh):
            for dw in range(fw):
                if dh or dw:
                    out[:, :, dh::fh, dw::fw].copy_(once)


def own_norm(x: Tensor, norm: Norm, weights: Weights, out: Tensor) -> None:
    """out = the norm of x (C, T, H, W), of a kind that needs nothing but the frames themselves."""
    if norm.kind != "frame":
        position_norm(x, norm, weights, out)
        return
    for t in range(x.shape[1]):
        frame = slice(t, t + 1)
        apply_affine(x[:, frame], frame_affine(x[:, t], norm, weights), out[:, frame])


def frame_affine(x: Tensor, norm: Norm, weights: Weights) -> Affine:
    """Factor and summand of the GroupNorm of one frame (C, H, W)."""
    return statistics.group_affine(norm, channel_moments(x[None, :, None]), weights, x.dtype)


def apply_affine(x: Tensor, affine: Affine, out: Tensor) -> None:
    """out = x * factor + summand for x (C, T, H, W), in the factor's type inside, rounded once."""
    factor, summand = (a.view(-1, 1, 1, 1) for a in affine)
    if x.dtype in (torch.float32, torch.float64) or x.device.type == "cuda":
        # CUDA's kernel widens each element as it reads it; the CPU's would copy the whole.
        torch.addcmul(summand.to(factor.dtype), x, factor, out=out)
        return
    for channels, frames in statistics.blocks(x, statistics.block_elements(x.device)):
        wide = torch.addcmul(summand[channels], x[channels, frames].float(), factor[channels])
        out[channels, frames].copy_(wide)


def position_norm(x: Tensor, norm: Norm, weights: Weights, out: Tensor) -> None:
    """out = the norm of x (C, T, H, W) over the channels at each position, float32 inside, of a
    float64 x float64."""
    wide = wide_type(x.dtype)
    weight, bias = statistics.norm_parameters(norm, weights)
    channels, frames, height, width = x.shape
    if norm.kind == "l2":
        root = math.sqrt(channels)
        weight = weight * root if weight is not None else x.new_full((), root, dtype=wide)
    rows = max(1, statistics.block_elements(x.device) // max(channels * width, 1))
    for t in range(frames):
        for top in range(0, height, rows):
            source, made = x[:, t, top : top + rows], out[:, t, top : top + rows]
            if source.dtype is made.dtype is wide:
                _normed(source, norm, weight, bias, made)
            else:
                room = source.to(wide, copy=True)
                _normed(room, norm, weight, bias, room)
                made.copy_(room)


def _normed(
    x: Tensor, norm: Norm, weight: Tensor | None, bias: Tensor | None, out: Tensor
) -> None:  # fmt: skip
    """out = the norm of x (C, H, W), float32 or float64; out may be x. (A sum of squares takes the
    CPU a tenth of the time of vector_norm() or var_mean() over the first dimension.)"""
    if norm.kind == "rms":
        torch.mul(x, (x.square().mean(dim=0, keepdim=True) + norm.eps).rsqrt_(), out=out)
    elif norm.kind == "l2":
        length = x.square().sum(dim=0, keepdim=True).sqrt_().clamp_min_(norm.eps)
        torch.mul(x, length.reciprocal_(), out=out)
    elif norm.kind == "layer":
        torch.sub(x, x.mean(dim=0, keepdim=True), out=out)
        out.mul_((out.square().mean(dim=0, keepdim=True) + norm.eps).rsqrt_())
    else:
        words = "is not known; known are group, frame, rms, l2, layer"
        raise ValueError(f"the norm {norm.kind!r} {words}")
    if weight is not None:
        out.mul_(weight.view(-1, 1, 1))
    if bias is not None:
        out.add_(bias.view(-1, 1, 1))


def _copies(layer: Conv, axis: int, size: int) -> list[tuple[slice, slice, int]]:
    """Where the entries of an axis of a source go, up-sampled and cropped: entries, their places,
    and how often each stands there. The first and the last may stand there less often."""
    up, cut = layer.up[axis], [max(-n, 0) for n in (layer.before[axis], layer.after[axis])]
    if max(cut) >= up:
        raise ValueError(
            f"the padding {-max(cut)} crops rows or columns that are there {up} times each: it "
            f"must be more than {-up}"
        )
    runs = [(0, 1, up - sum(cut))]
    if size > 1:
        low, high = int(cut[0] > 0), size - int(cut[1] > 0)
        runs = [(0, low, up - cut[0]), (low, high, up), (high, size, up - cut[1])]
    found, at = [], 0
    for begin, end, copies in runs:
        if begin < end and copies > 0:
            found.append((slice(begin, end), slice(at, at + (end - begin) * copies), copies))
            at += (end - begin) * copies
    return found


def _border(x: Tensor, axis: int, before: int, after: int, mode: str) -> None:
    """Fills `before` first and `after` last entries of an axis of x."""
    if mode not in ("zeros", "replicate", "reflect"):
        raise ValueError(f"the padding {mode!r} is not known; known are zeros, replicate, reflect")
    end = x.shape[axis] - after
    if mode == "reflect" and max(before, after) >= end - before:
        raise ValueError(
            f"{end - before} {'rows' if axis == 2 else 'columns'} can't be padded by reflection of "
            f"{max(before, after)}: at least {max(before, after) + 1} are needed"
        )
    for start, count, edge in ((0, before, before), (end, after, end - 1)):
        part = x.narrow(axis, start, count)
        if mode == "zeros":
            part.zero_()
        elif count and mode == "replicate":
            part.copy_(x.narrow(axis, edge, 1).expand_as(part))
        elif count:
            inner = before + 1 if start == 0 else end - 1 - count
            part.copy_(x.narrow(axis, inner, count).flip(axis))


def not_fused(layer: Conv, source: Pieces, where: str) -> str | None:
    """Why a backend that fuses layers leaves this one to torch, in a few words, or None."""
    if any(t.is_neg() for t in source.tensors):
        return "the source is a view with its sign in a flag"
    if getattr(layer.module, "groups", 1) != 1:
        return "the convolution has groups"
    if getattr(layer.module, "dilation", 1) not in (1, (1,), (1, 1), (1, 1, 1)):
        return "the convolution is dilated"
    if "reflect" in layer.modes:
        return "the convolution pads by reflection"
    if layer.act not in (None, "silu"):
        return f"the activation {layer.act!r} is not in {where}"
    return None


def _pointwise(weight: Tensor) -> bool:
    return math.prod(weight.shape[2:]) == 1


def _direct(layer: Conv, source: Pieces, frames: Range, weight: Tensor) -> Tensor | None:
    """The frames that are read, (C, T, H, W), where nothing is to be done to them and they lie in
    one piece."""
    plain = layer.norm is None and layer.act is None and layer.up == (1, 1, 1)
    plain = plain and (weight.dim() != 4 or _pointwise(weight))
    if not plain or any(layer.before) or any(layer.after):
        return None
    first, last = geometry.read_frames(layer, frames, geometry.kernel_size(weight)[0])
    at = source.first
    for tensor in source.tensors:
        if at <= first and last <= at + tensor.shape[2]:
            return tensor[0, :, first - at : last - at]
        at += tensor.shape[2]
    return None


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Triple) -> Tensor:
    """The convolution of x (C, T, H, W) without padding; (1, O, T, H, W)."""
    if _pointwise(weight):
        x = x[:, :: stride[0], :: stride[1], :: stride[2]]
        flat, matrix = x.reshape(x.shape[0], -1), weight.reshape(weight.shape[0], -1)
        out = matrix @ flat if bias is None else torch.addmm(bias[:, None], matrix, flat)
        return out.view(1, -1, *x.shape[1:])
    if weight.dim() == 4:
        planes = x.transpose(0, 1)[:: stride[0]]
        return F.conv2d(planes, weight, bias, stride[1:]).transpose(0, 1)[None]
    if _takes_onednn(x, weight, stride):
        dense = x[None].contiguous()
        return torch.mkldnn_convolution(dense, weight, bias, [0] * 3, [*stride], [1] * 3, 1)
    return F.conv3d(x[None], weight, bias, stride)


def _takes_onednn(x: Tensor, weight: Tensor, stride: Triple) -> bool:
    """Of x (C, T, H, W), where F.conv3d would build im2col and nobody has to see the call."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or workspace.is_watched():
        return False
    sizes = zip(x.shape[1:], weight.shape[2:], stride, strict=True)
    columns = weight[0].nbytes * math.prod((n - k) // s + 1 for n, k, s in sizes)
    backend = workspace.conv_backend(
        (1, *x.shape), tuple(weight.shape), x.dtype, "cpu", tuple(stride), (0, 0, 0), (1, 1, 1), 1,
        torch.get_num_threads(),
    )  # fmt: skip
    return workspace.instead_of_im2col(backend, x.dtype, columns)


def by_phase(x: Tensor, factor: Triple, order: str) -> Tensor:
    """A convolution's outputs (K, ...) as (rt, rh, rw, C, ...), a view."""
    (rt, rh, rw), rest = factor, x.shape[1:]
    channels = x.shape[0] // (rt * rh * rw)
    if order == "channel first":
        return x.reshape(channels, rt, rh, rw, *rest).movedim(0, 3)
    if order == "space first":
        return x.reshape(rh, rw, rt, channels, *rest).movedim(2, 0)
    if order in ("factor first", "time first"):
        return x.reshape(rt, rh, rw, channels, *rest)
    raise ValueError(f"the order of a shuffle is {order!r}, which is not known")


def shuffled(x: Tensor, shuffle: Shuffle) -> Tensor:
    """Channels of all frames to space and time; nothing dropped."""
    return finished(x, shuffle, (0, x.shape[2]), None)


def finished(
    made: Tensor, shuffle: Shuffle, frames: Range, add: Tensor | None, out: Tensor | None = None
) -> Tensor:
    """Outputs `frames` of a convolution, shuffled, over the residual where there is one, in `out`
    where there is one. The video's first frame goes by itself where it has a factor of its own."""
    cuts = [(0, made.shape[2], shuffle.factor)]
    if shuffle.first is not None and frames[0] == 0:
        cuts = [(0, 1, shuffle.first), (1, made.shape[2], shuffle.factor)]
    channels = made.shape[1] // math.prod(shuffle.factor)
    parts = [
        by_phase(made[0, :, a:b], factor, shuffle.order)[:, :, :, :channels]
        .permute(3, 4, 0, 5, 1, 6, 2)
        for a, b, factor in cuts if a == 0 or a < b
    ]  # fmt: skip
    sizes = [(t * rt, h * rh, w * rw) for _, t, rt, h, rh, w, rw in (p.shape for p in parts)]
    over = add is not None and (out is None or out is add)
    if len(parts) == 1 and add is not None and over:  # in place: no shuffled copy is made
        add[0].view(parts[0].shape).add_(parts[0])
        return add
    counts = [t for t, _, _ in sizes]
    result = out
    if result is None or result is add:
        result = made.new_empty((1, channels, sum(counts), *sizes[0][1:]))
    for target, part in zip(result[0].split_with_sizes(counts, 1), parts, strict=True):
        target.view(part.shape).copy_(part)
    # One write to the residual is the last, so that the call may be made again.
    if add is None:
        return result
    return add.add_(result) if over else result.add_(add)
