"""conv3d and conv2d on the CPU, for torch tensors and NumPy arrays, and conv3d with what stands
around it in a decoder fused in.

The sums are those of torch.nn.functional.conv3d (cross-correlation), computed by the C core in
bounded memory: a blocked implicit GEMM or Winograd, never a whole im2col. Forward only.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from hy3d_rocm import _fallback, _native
from hy3d_rocm.conv import prepared


def conv3d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    padding_mode: str | Sequence[str] = "zeros",
    accuracy: str | None = None,
    threads: int | None = None,
    workspace_limit: int | None = None,
    out: Any = None,
    cancel: Any = None,
) -> Any:
    """3D convolution on the CPU; a drop-in for torch.nn.functional.conv3d without autograd.

    x: (N, C, T, H, W) or (C, T, H, W), f32, f64, f16 or bf16 (torch only); any strides, read
        without a copy; N may be 0. torch tensors and NumPy arrays are not mixed in one call.
    weight: (Cout, C / groups, kT, kH, kW).  bias: (Cout) or None.  All of one dtype.
    stride, dilation: a number or (T, H, W), at least 1.
    padding: a number, (T, H, W), pairs ((before, after), ...) where the sides differ
        (causal in time: ((2, 0), (1, 1), (1, 1))), "valid" (none) or "same" (stride 1 only; an odd
        rest goes behind, as in torch). A negative one crops so much of x at that side, not all of
        it, as in torch.nn.functional.pad.
    padding_mode: "zeros", "replicate", or one of them an axis.
    accuracy: "exact" is the direct sum; "fast" may use Winograd, several times faster where it
        fits, with a larger rounding error (docs/numerics.md has its bound), and prepares weights
        of torch tensors once for all calls (hy3d_rocm/conv/prepared.py). None: "fast" for f16 and
        bf16, whose own rounding is far larger, "exact" for f32; f64 is always exact.
    threads: None takes torch.get_num_threads() of the calling thread where torch is imported, else
        every CPU this process may use. No thread count changes a bit of the result.
    workspace_limit: bytes of scratch memory at most, all threads together; None is 64 MB a
        thread. A tighter limit is slower, never different; a too small one, 0 too, is refused.
    out: array to write; returned. It must not lie in the memory of the others.
    cancel: a CancelFlag of hy3d_rocm._native, looked at while computing.

    Returns what x is, torch tensor or NumPy array: (N, Cout, T', H', W'), channels_last_3d where x
    is; without N where x has none. f16 and bf16 are summed in f32 and rounded once.

    Raises ValueError for shapes and values that do not fit, TypeError for other kinds of objects,
    MemoryError, and Hy3dError (cancelled, workspace_limit too small, no C core, no BLAS).
    Source: the definition in torch.nn.functional.conv3d's documentation.
    """
    return _convolve(3, x, weight, bias, stride, padding, dilation, groups, padding_mode,
                     accuracy, threads, workspace_limit, out, cancel)  # fmt: skip


def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    padding_mode: str | Sequence[str] = "zeros",
    accuracy: str | None = None,
    threads: int | None = None,
    workspace_limit: int | None = None,
    out: Any = None,
    cancel: Any = None,
) -> Any:
    """2D convolution on the CPU: `conv3d` with T = 1.

    x (N, C, H, W) or (C, H, W), weight (Cout, C / groups, kH, kW); axes are (H, W); channels_last
    is kept. Everything else, errors included, as in conv3d.
    """
    return _convolve(2, x, weight, bias, stride, padding, dilation, groups, padding_mode,
                     accuracy, threads, workspace_limit, out, cancel)  # fmt: skip


def fused_conv3d(
    frames: Sequence[Any],
    weight: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int | Sequence[int]] = 0,
    padding_mode: str | Sequence[str] = "zeros",
    upsample: Sequence[int] = (1, 1),
    scale: Any = None,
    shift: Any = None,
    activation: str | None = None,
    residual: Any = None,
    out: Any = None,
    accuracy: str | None = "fast",
    threads: int | None = None,
    workspace_limit: int | None = None,
    cancel: Any = None,
) -> Any:
    """conv3d(pad(upsample(activation(x * scale + shift)))) + residual, in one pass over x.

    frames: x's frames in order, torch tensors (C, H, W) of any strides, which need not lie in one
        tensor; None is a frame of zeros that stays one. At least one is a tensor. Where they come
        in twos, each two the same tensor, as after up-sampling in time, that is made use of.
    weight (Cout, C, kT, kH, kW), or (Cout, C, kH, kW) for kT = 1; bias (Cout) or None; stride,
        padding, padding_mode, accuracy, threads, workspace_limit, cancel as in `conv3d`. Padding
        comes after all that is done to x: a padded zero stays zero. A negative one crops up-sampled
        rows and columns.
    upsample: nearest repeats of (H, W).  scale, shift: float32 (C), both or none: GroupNorm's
        statistics and weights in two numbers a channel.  activation: "silu" or None.
    residual: (1, Cout, T', H', W') of x's type, added before the result is rounded to it; it may be
        `out` itself.

    Returns `out`, or a new tensor (1, Cout, T', H', W'). Raises as `conv3d` does.
    """
    if not _native.available:
        _fallback.conv3d()  # refuses with a sentence
    given = _frames_of(frames)
    names = {"bias": bias, "residual": residual, "scale": scale, "shift": shift}
    taken = {n: None if v is None else _operand(v, n) for n, v in names.items()}
    filters = _operand(weight, "weight")
    filters = filters.unsqueeze(2) if filters.dim() == 4 else filters
    kernel = tuple(filters.shape[2:])
    first = next(frame for frame in given if frame is not None)
    repeats = (1, *numbers_of(tuple(upsample), "upsample", 2))
    size = (len(given), first.shape[1] * repeats[1], first.shape[2] * repeats[2])
    geometry = geometry_of(3, kernel, stride, padding, 1)
    if out is None:
        space = _native.conv3d_out_size(size, kernel, *geometry)
        target = filters.new_empty((1, filters.shape[0], *space))
    else:
        target = _target(out)
    _compute(
        None, target, filters, taken["bias"], geometry, modes_of(padding_mode, 3), 1,
        accuracy_of(accuracy, first), size, 1, default_threads(threads), workspace_limit, cancel,
        weight, frames=given, scale=taken["scale"], shift=taken["shift"], upsample=repeats,
        activation=activation, residual=taken["residual"], pairs=_pairs_of(frames),
    )  # fmt: skip
    return target if out is None else out


def _pairs_of(frames: Sequence[Any]) -> int:
    """How frames come in twos, as those of a video do that was up-sampled in time: `_core.conv3d`'s
    `pairs`."""
    for first in (1, 2):
        if all(a is b for a, b in zip(frames[first - 1 :: 2], frames[first::2], strict=False)):
            return first
    return 0


def _frames_of(frames: Sequence[Any]) -> tuple[Any, ...]:
    """Each ready to be read, or None."""
    given = tuple(
        None if frame is None else _operand(frame, f"frames[{i}]") for i, frame in enumerate(frames)
    )
    wrong = [tuple(frame.shape) for frame in given if frame is not None and frame.dim() != 3]
    if wrong or all(frame is None for frame in given):
        what = f"a tensor of shape {wrong[0]}" if wrong else "no tensor"
        raise ValueError(f"frames has {what}: give tensors (C, H, W), one at least, and None")
    return given


def _convolve(
    ndim: int, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    groups: int, padding_mode: Any, accuracy: str | None, threads: int | None,
    workspace_limit: int | None, out: Any, cancel: Any,
) -> Any:  # fmt: skip
    if not _native.available:
        _fallback.conv3d()  # refuses with a sentence
    optional = {name: value for name, value in (("bias", bias), ("out", out)) if value is not None}
    named = {"x": x, "weight": weight, **optional}
    is_torch = check_kinds(named)
    words = accuracy_of(accuracy, x)
    batched = check_dims(ndim, named)

    def lift(array: Any) -> Any:
        """As (N, C, T, H, W): a view with the missing dimensions put in."""
        whole = array if array.ndim == ndim + 2 else array[None]
        return whole if ndim == 3 else whole[:, :, None]

    source, filters = lift(_operand(x, "x")), lift(_operand(weight, "weight"))
    addend = None if bias is None else _operand(bias, "bias")
    kernel = tuple(int(size) for size in filters.shape[2:])
    geometry = geometry_of(ndim, kernel, stride, padding, dilation)
    modes = ("zeros",) * (3 - ndim) + modes_of(padding_mode, ndim)
    if out is None:
        space = _native.conv3d_out_size(tuple(source.shape[2:]), kernel, *geometry)
        target = empty((source.shape[0], filters.shape[0], *space), source)
    else:
        target = lift(_target(out))
    _compute(
        source, target, filters, addend, geometry, modes, groups, words, tuple(source.shape[2:]),
        source.shape[0], default_threads(threads), workspace_limit, cancel,
        weight if is_torch else None,  # NumPy's arrays as a rule live for a call
    )  # fmt: skip
    if out is not None:
        return out
    result = target if ndim == 3 else target.squeeze(2)
    return result if batched else result.squeeze(0)


# What the convolution needs of torch tensors and NumPy arrays.


def check_kinds(named: dict[str, Any]) -> bool:
    """Whether the arrays, which are all of one kind, are torch tensors."""
    x = named["x"]
    for module, kind in (("torch", "Tensor"), ("numpy", "ndarray")):
        found = getattr(sys.modules.get(module), kind, None)  # if anybody has imported it
        if found is not None and isinstance(x, found):
            break
    else:
        raise TypeError(f"x must be a torch tensor or a NumPy array, not {type(x).__name__}")
    for name, value in named.items():
        if not isinstance(value, found):
            raise TypeError(
                f"{name} is {type(value).__name__} but x is {type(x).__name__}: pass all as torch "
                "tensors or all as NumPy arrays"
            )
    return module == "torch"


def _is_tensor(value: Any) -> bool:
    """Of torch; else it is an array."""
    return hasattr(value, "detach")


def _operand(value: Any, name: str) -> Any:
    """Ready to be read."""
    if _is_tensor(value):
        check_tensor(value, name)
        check_grad(value, name)
        check_recorded(value, name)
        return value.detach().resolve_neg()
    if value.dtype.kind != "f" or value.dtype.itemsize not in (2, 4, 8):
        raise ValueError(
            f"{name} is {value.dtype}: conv3d takes float32, float64 and float16 arrays "
            "(bfloat16 as torch tensors); convert it with .astype"
        )
    whole = all(step % value.itemsize == 0 for step in value.strides)
    if value.flags.aligned and value.dtype.isnative and whole:
        return value
    return value.astype(value.dtype.newbyteorder("="), order="C", copy=True)


def _target(value: Any) -> Any:
    """To be written; never a copy: what the core cannot write to, it refuses."""
    if not _is_tensor(value):
        return value
    if value.is_neg():
        raise ValueError("out is a lazily negated view: pass an ordinary tensor")
    return _operand(value, "out")


def empty(size: tuple[int, ...], like: Any, device: Any = "cpu") -> Any:
    """A result. like: what is convolved."""
    if not _is_tensor(like):
        import numpy as np

        return np.empty(size, dtype=like.dtype)
    import torch

    last = like.is_contiguous(memory_format=torch.channels_last_3d) and not like.is_contiguous()
    kept = torch.channels_last_3d if last else torch.contiguous_format
    return torch.empty(size, dtype=like.dtype, device=device, memory_format=kept)


def check_tensor(value: Any, name: str, devices: tuple[str, ...] = ("cpu",)) -> None:
    """Refuses other devices, layouts and types of numbers."""
    import torch

    if value.device.type not in devices or value.layout is not torch.strided:
        raise ValueError(
            f"{name} is a {value.layout} tensor on {value.device}: conv3d computes on the CPU "
            f"with dense tensors; pass {name}.cpu(), or let hy3d_rocm.protect() choose"
        )
    if value.dtype not in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        raise ValueError(
            f"{name} is {value.dtype}: conv3d takes float32, float64, float16 and bfloat16"
        )


def check_grad(value: Any, name: str) -> None:
    """Refuses what gradients are wanted of."""
    import torch

    if value.requires_grad and torch.is_grad_enabled():
        refuse_grad(name)


def refuse_grad(name: str) -> NoReturn:
    raise ValueError(
        f"{name} requires grad, and this conv3d has no backward pass: call it under "
        f"torch.no_grad(), or pass {name}.detach()"
    )


def check_recorded(value: Any, name: str, *, graphs: bool = True) -> None:
    """Refuses what is more than its numbers: those alone would come out."""
    from hy3d_rocm.conv.recording import loses

    lost = loses(value, graphs=graphs)
    if lost:
        raise ValueError(
            f"{name} is more than numbers ({lost}), and this conv3d computes numbers alone: "
            "call torch.nn.functional.conv3d there, or hy3d_rocm.conv.conv3d_op for a graph"
        )


# Arguments as torch takes them, put into the C core's words.

_AXES = {2: "(H, W)", 3: "(T, H, W)"}
_LAYOUT = {2: "(N, C, H, W) or (C, H, W)", 3: "(N, C, T, H, W) or (C, T, H, W)"}
_MODES = ("zeros", "replicate")
_Pads = tuple[tuple[int, ...], tuple[int, ...]]  # before and after, one number an axis


def numbers_of(value: int | Sequence[int], name: str, ndim: int) -> tuple[int, ...]:
    """One number an axis."""
    items = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(items) == 1:
        items *= ndim
    try:
        numbers = tuple(operator.index(item) for item in items)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: give an integer or {_AXES[ndim]}") from None
    if len(numbers) != ndim:
        raise ValueError(f"{name} is {value!r}: give an integer or {_AXES[ndim]}")
    return numbers


def _pads(
    padding: int | str | Sequence[int | Sequence[int]],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> _Pads:
    """Padding before and after, one number an axis."""
    ndim = len(kernel)
    if isinstance(padding, str):
        if padding == "valid":
            return (0,) * ndim, (0,) * ndim
        if padding != "same":
            raise ValueError(f"padding is {padding!r}: the words are 'valid' and 'same'")
        if any(step != 1 for step in stride):
            raise ValueError(f"padding='same' needs stride 1, not {stride}: give numbers")
        total = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
        before = tuple(t // 2 for t in total)
        return before, tuple(t - b for t, b in zip(total, before, strict=True))
    items = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,)
    if not any(isinstance(item, (tuple, list)) for item in items):
        numbers = numbers_of(items, "padding", ndim)
        return numbers, numbers
    pairs = [tuple(i) if isinstance(i, (tuple, list)) else (i, i) for i in items]
    if len(pairs) != ndim or any(len(pair) != 2 for pair in pairs):
        raise ValueError(
            f"padding is {padding!r}: give a number, {_AXES[ndim]}, or a pair (before, after) for "
            f"each of {_AXES[ndim]}"
        )
    return (
        numbers_of(tuple(p[0] for p in pairs), "padding", ndim),
        numbers_of(tuple(p[1] for p in pairs), "padding", ndim),
    )


def geometry_of(
    ndim: int,
    kernel: tuple[int, ...],
    stride: int | Sequence[int],
    padding: int | str | Sequence[int | Sequence[int]],
    dilation: int | Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Stride, dilation, padding before and after as (T, H, W); the kernel is that already."""
    step = numbers_of(stride, "stride", ndim)
    spread = numbers_of(dilation, "dilation", ndim)
    before, after = _pads(padding, kernel[3 - ndim :], step, spread)
    one, none = (1,) * (3 - ndim), (0,) * (3 - ndim)
    return one + step, one + spread, none + before, none + after


def modes_of(padding_mode: str | Sequence[str], ndim: int) -> tuple[str, ...]:
    modes = (padding_mode,) * ndim if isinstance(padding_mode, str) else tuple(padding_mode)
    if len(modes) != ndim or any(mode not in _MODES for mode in modes):
        raise ValueError(
            f"padding_mode is {padding_mode!r}: it must be 'zeros' or 'replicate', or one of them "
            f"for each of {_AXES[ndim]}; pad the input yourself for another"
        )
    return modes


def default_threads(threads: int | None) -> int:
    if threads is None:
        torch = sys.modules.get("torch")
        return int(torch.get_num_threads()) if torch is not None else 0
    if threads < 1:
        raise ValueError(f"threads is {threads}: it must be at least 1, or None")
    return threads


def check_dims(ndim: int, named: dict[str, Any]) -> bool:
    """Whether x has a batch dimension; a sentence where any array has a wrong number of them."""
    wanted = {"x": (ndim + 1, ndim + 2), "weight": (ndim + 2,), "bias": (1,)}
    wanted["out"] = (named["x"].ndim,)
    for name, value in named.items():
        if value.ndim not in wanted[name]:
            layout = {
                "x": f"x must be {_LAYOUT[ndim]}",
                "weight": f"weight must be (Cout, C / groups, ...) with a kernel {_AXES[ndim]}",
                "bias": "bias must be (Cout)",
                "out": "out needs as many dimensions as x",
            }[name]
            shape = tuple(int(size) for size in value.shape)
            raise ValueError(f"{name} has shape {shape}: {layout}")
    return bool(named["x"].ndim == ndim + 2)


# One call: which layout its weights take, whether that is prepared, the run.

_NAMES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}
_ONE = (1, 1, 1)
Geometry = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]

#: _core.conv3d_format. A decoder has some dozens of shapes; each is asked about once.
format_of = functools.lru_cache(maxsize=4096)(_native.conv3d_format)


def accuracy_of(accuracy: str | None, x: Any) -> str:
    """The core's word; None is by type: fast for two bytes an element."""
    if accuracy is None:
        return "fast" if x.dtype.itemsize == 2 else "exact"
    if accuracy not in ("exact", "fast"):
        raise ValueError(f"accuracy is {accuracy!r}: it must be 'exact' or 'fast'")
    return accuracy


def _compute(
    x: Any, out: Any, weight: Any, bias: Any, geometry: Geometry, modes: tuple[str, ...],
    groups: int, accuracy: str, size: tuple[int, ...], batch: int, threads: int,
    workspace_limit: int | None, cancel: Any, owner: Any, **fusion: Any,
) -> None:  # fmt: skip
    """Into out, from arguments in the core's words, all of them checked but for what it checks.

    x: None where there are frames in the fusion, keyword arguments of `_core.conv3d`. weight:
    (Cout, C / groups, kT, kH, kW), ready to be read. owner: the caller's own tensor behind it where
    prepared weights may be kept for it, else None. size, batch: of the input, up-sampled.
    """
    ready, number, nbytes = None, 0, 0
    if accuracy == "fast" and owner is not None and batch:
        word = _NAMES[str(weight.dtype).rpartition(".")[2]]
        with contextlib.suppress(ValueError):  # of no convolution: the call says so
            number, _, nbytes = format_of(
                size, weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:]),
                *geometry, modes, groups, word, accuracy, fusion.get("upsample", _ONE), batch,
                fusion.get("pairs", 0),
            )  # fmt: skip
    if number:
        ready = prepared.cache().get(
            weight, number, nbytes, lambda: _native.conv3d_prepare(weight, number, threads, cancel),
            owner=owner, threads=threads,
        )  # fmt: skip
    for is_last in (False, True):
        try:
            _native.conv3d(
                x, weight, bias, out, *geometry, modes, groups, threads, workspace_limit, cancel,
                accuracy, ready, **fusion,
            )  # fmt: skip
        except MemoryError:
            # Nothing has been written yet: a running convolution allocates nothing.
            ready = None
            if is_last or not prepared.give_back():
                raise
        else:
            return
