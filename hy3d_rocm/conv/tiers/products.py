"""Matrix products whose sums are made in f32 (f64 for f64), whatever PyTorch offers for it here."""

from __future__ import annotations

import functools

import torch

_HALF = (torch.float16, torch.bfloat16)


def is_half(dtype: torch.dtype) -> bool:
    return dtype in _HALF


def work_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """What operands are copied as: half types go to f32 where sums of them would be rounded in
    between. Some kernels of the CPU do that, and cuBLAS where it can't be asked for f32 results; on
    ROCm the libraries keep the parts of a split sum in f32."""
    if not is_half(dtype):
        return dtype
    rounds = device.type == "cpu" or (torch.version.hip is None and not can_widen(device, dtype))
    return torch.float32 if rounds else dtype


def _wide_product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    return torch.bmm(a, b, out_dtype=torch.float32, out=out)


def _add_wide_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    torch.baddbmm(total, a, b, out_dtype=torch.float32, out=total)


@functools.cache
def can_widen(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products of this half type can be summed into f32 matrices here.

    PyTorch has it for CUDA since 2.8 (`out_dtype`), for ROCm later; asked once, by trying.
    """
    if not is_half(dtype) or device.type == "cpu":
        return False
    ones = torch.ones(1, 16, 16, dtype=dtype, device=device)
    total = torch.full((1, 16, 16), 0.5, dtype=torch.float32, device=device)
    try:
        _wide_product(ones, ones, None)
        _add_wide_product(total, ones, ones)
        again = _wide_product(ones, ones, torch.empty_like(total))
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
    return bool((total == 16.5).all()) and bool((again == 16).all())


def sum_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """What `multiply` returns for operands of work_dtype."""
    work = work_dtype(device, dtype)
    return torch.float32 if can_widen(device, work) else work


def multiply(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """bmm, (B, M, K) @ (B, K, N), in sum_dtype. `bias` is added before the only rounding where
    that dtype is a half type; it is left out, for the caller to add, where it is wider. The result
    is written into `out`, if given."""
    if can_widen(a.device, a.dtype):
        return _wide_product(a, b, out)
    if bias is None or not is_half(a.dtype):
        return torch.bmm(a, b, out=out)
    return torch.baddbmm(bias, a, b, out=out)


def accumulate(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """total += a @ b, in place; total is of sum_dtype, which must be no half type."""
    if total.dtype is a.dtype:
        torch.baddbmm(total, a, b, out=total)
    else:
        _add_wide_product(total, a, b)


def write(place: torch.Tensor, total: torch.Tensor, bias: torch.Tensor | None) -> None:
    """place = total + bias, rounded once: PyTorch adds them in the wider of the two types."""
    if bias is None:
        place.copy_(total)
    else:
        torch.add(total, bias, out=place)
