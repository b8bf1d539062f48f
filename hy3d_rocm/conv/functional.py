"""conv3d and conv2d on the CPU, for torch tensors and NumPy arrays, and conv3d with what stands
around it in a decoder fused in.

The sums are those of torch.nn.functional.conv3d (cross-correlation), computed by the C core in
bounded memory: a blocked implicit GEMM or Winograd, never a whole im2col. Forward only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hy3d_rocm import _fallback, _native
from hy3d_rocm.conv.arguments import check_dims, default_threads, geometry_of, modes_of, numbers_of
from hy3d_rocm.conv.arrays import TorchTensors, kind_of
from hy3d_rocm.conv.running import Call, accuracy_of

__all__ = ["conv2d", "conv3d", "fused_conv3d"]


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
        rest goes behind, as in torch).
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
        tensor; None is a frame of zeros that stays one. At least one is a tensor.
    weight (Cout, C, kT, kH, kW), or (Cout, C, kH, kW) for kT = 1; bias (Cout) or None; stride,
        padding, padding_mode, accuracy, threads, workspace_limit, cancel as in `conv3d`. Padding
        comes after all that is done to x: a padded zero stays zero.
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
    taken = {n: None if v is None else TorchTensors.operand(v, n) for n, v in names.items()}
    filters = TorchTensors.operand(weight, "weight")
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
        target = TorchTensors.target(out)
    fusion = {
        "frames": given, "scale": taken["scale"], "shift": taken["shift"], "upsample": repeats,
        "activation": activation, "residual": taken["residual"],
    }  # fmt: skip
    Call(
        filters, taken["bias"], geometry, modes_of(padding_mode, 3), 1,
        accuracy_of(accuracy, first), size, 1, default_threads(threads), workspace_limit, cancel,
        weight, fusion,
    ).run(None, target)  # fmt: skip
    return target if out is None else out


def _frames_of(frames: Sequence[Any]) -> tuple[Any, ...]:
    """Each ready to be read, or None."""
    given = tuple(
        None if frame is None else TorchTensors.operand(frame, f"frames[{i}]")
        for i, frame in enumerate(frames)
    )
    wrong = [tuple(frame.shape) for frame in given if frame is not None and frame.dim() != 3]
    if wrong or all(frame is None for frame in given):
        what = f"a tensor of shape {wrong[0]}" if wrong else "no tensor"
        raise ValueError(f"frames has {what}: give tensors (C, H, W), one at least, and None")
    return given


def _convolve(
    ndim: int,
    x: Any,
    weight: Any,
    bias: Any,
    stride: int | Sequence[int],
    padding: int | str | Sequence[int | Sequence[int]],
    dilation: int | Sequence[int],
    groups: int,
    padding_mode: str | Sequence[str],
    accuracy: str | None,
    threads: int | None,
    workspace_limit: int | None,
    out: Any,
    cancel: Any,
) -> Any:
    if not _native.available:
        _fallback.conv3d()  # refuses with a sentence
    optional = {name: value for name, value in (("bias", bias), ("out", out)) if value is not None}
    named = {"x": x, "weight": weight, **optional}
    kind = kind_of(named)
    words = accuracy_of(accuracy, x)
    batched = check_dims(ndim, named)

    def lift(array: Any) -> Any:
        """As (N, C, T, H, W): a view with the missing dimensions put in."""
        whole = array if array.ndim == ndim + 2 else kind.insert(array, 0)
        return whole if ndim == 3 else kind.insert(whole, 2)

    source, filters = lift(kind.operand(x, "x")), lift(kind.operand(weight, "weight"))
    addend = None if bias is None else kind.operand(bias, "bias")
    kernel = tuple(int(size) for size in filters.shape[2:])
    geometry = geometry_of(ndim, kernel, stride, padding, dilation)
    modes = ("zeros",) * (3 - ndim) + modes_of(padding_mode, ndim)
    if out is None:
        space = _native.conv3d_out_size(tuple(source.shape[2:]), kernel, *geometry)
        target = kind.empty((source.shape[0], filters.shape[0], *space), source)
    else:
        target = lift(kind.target(out))
    Call(
        filters, addend, geometry, modes, groups, words, tuple(source.shape[2:]), source.shape[0],
        default_threads(threads), workspace_limit, cancel,
        # NumPy's arrays as a rule live for a call.
        weight if kind is TorchTensors else None,
    ).run(source, target)  # fmt: skip
    if out is not None:
        return out
    result = target if ndim == 3 else kind.remove(target, 2)
    return result if batched else kind.remove(result, 0)
