"""Attention over large heads, which PyTorch for ROCm may compute wrongly, without a word.

Fused attention there is AOTriton's, whose binaries for heads of more than 256 elements are missing
or wrong on RDNA3 in several builds that PyTorch calls all the same: what comes back is memory that
nobody wrote (https://github.com/vllm-project/vllm-omni/issues/7484, Wan's VAE on gfx1100), or 512
everywhere (https://github.com/pytorch/pytorch/issues/189849, gfx1151). RDNA4 is no exception
(https://github.com/ROCm/legacy-rocm-build/issues/6601, Qwen-Image's VAE). The one attention of a
VAE has such heads: 384 (Wan, Qwen-Image), 512 (HunyuanVideo, Stable Diffusion), 1024. So they are
not left to it: here they are two products and a softmax, some queries at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: elements of a head that a ROCm build's fused kernels are trusted with
LARGEST_TRUSTED = 256
#: of scores, in float32, that are in memory at a time
SCORE_BYTES = 256 << 20
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_HALF = (torch.float16, torch.bfloat16)


def trusts(device_type: str, size: int) -> bool:
    """Whether torch's own attention may take heads of `size` elements on such a device."""
    return size <= LARGEST_TRUSTED or device_type != "cuda" or torch.version.hip is None


def is_trusted(query: Tensor, value: Tensor) -> bool:
    """The same of queries and values, (..., tokens, elements)."""
    return trusts(query.device.type, max(query.shape[-1], value.shape[-1]))


def _lead(query: Tensor, key: Tensor) -> int:
    """Heads of all videos, where one of both may have fewer that several of the other share."""
    heads = 1
    for n, m in itertools.zip_longest(query.shape[-3::-1], key.shape[-3::-1], fillvalue=1):
        heads *= max(n, m) if n and m else 0
    return heads


def queries_at_once(query: Tensor, key: Tensor) -> int:
    """Queries of each head whose scores, in float32 or float64, keep below SCORE_BYTES; at least
    one."""
    each = _lead(query, key) * key.shape[-2] * max(4, query.element_size())
    return max(1, min(query.shape[-2], SCORE_BYTES // max(each, 1)))


def query_blocks(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False,
) -> Iterator[tuple[int, Tensor]]:  # fmt: skip
    """F.scaled_dot_product_attention without a fused kernel, as many queries at a time as
    queries_at_once() has: the first one's number and what they become. Scores and sums are
    float32's of half types, whatever autocast and torch's switches say."""
    device, dtype = query.device.type, query.dtype
    is_half = dtype in _HALF
    key, value = (t.float() if is_half and t.dtype == dtype else t for t in (key, value))
    more: dict[str, Any] = {"enable_gqa": True} if enable_gqa else {}  # torch 2.4 has none
    step = queries_at_once(query, key)
    for start in range(0, max(query.shape[-2], 1), step):
        some = query[..., start : start + step, :]
        mask = _of_rows(attn_mask, start, some)
        if is_causal and mask is None:
            seen = torch.ones((some.shape[-2], key.shape[-2]), dtype=torch.bool, device=some.device)
            mask = _added(seen.tril(start), dtype)
        some = some.float() if is_half else some
        casts = torch.is_autocast_enabled(device)
        with torch.autocast(device, enabled=False) if casts else nullcontext():
            made, _ = torch._scaled_dot_product_attention_math(
                some, key, value, mask, dropout_p, is_causal and attn_mask is not None,
                scale=scale, **more,
            )  # fmt: skip
        del some, mask
        yield start, made.to(dtype)
        del made


def _of_rows(mask: Tensor | None, start: int, some: Tensor) -> Tensor | None:
    """What is added to the scores of some queries from `start` on."""
    if mask is None:
        return None
    if mask.dim() > 1 and mask.shape[-2] != 1:
        mask = mask[..., start : start + some.shape[-2], :]
    return _added(mask, some.dtype) if mask.dtype == torch.bool else mask


def _added(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(seen.logical_not(), -torch.inf)


def composed(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """All of query_blocks(). Under autocast in the type that F.scaled_dot_product_attention has."""
    device = query.device.type
    if torch.is_autocast_enabled(device):
        into = torch.get_autocast_dtype(device)
        query, key, value = (
            t.to(into) if t.is_floating_point() and t.dtype != torch.float64 else t
            for t in (query, key, value)
        )
    parts = [made for _, made in query_blocks(query, key, value, *args, **kwargs)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


def composed_bytes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> int:
    """What composed() takes at most beside operands and result; of shapes. There are scores,
    their softmax, and scaled queries and keys; of half types queries, keys, values and sums in
    float32, too. Products copy what many heads share, or what lies between videos."""
    wide, lead = max(4, query.element_size()), _lead(query, key)
    rows, keys = queries_at_once(query, key), key.shape[-2]
    scores = lead * rows * keys
    asked, sums = lead * rows * query.shape[-1], lead * rows * value.shape[-1]
    of_keys, of_values = lead * keys * key.shape[-1], lead * keys * value.shape[-1]
    elements = 2 * scores + asked + of_keys
    if wide > query.element_size():
        elements += asked + of_keys + of_values + sums
    operands = (query, key, value)
    if any(_lead(t, t) < lead or (t.dim() > 3 and not t.is_contiguous()) for t in operands):
        elements += asked + of_keys + of_values
    result = lead * query.shape[-2] * value.shape[-1] * query.element_size()
    return elements * wide + result + (0 if mask is None else _mask_bytes(mask, query, rows))


def _mask_bytes(mask: Tensor, query: Tensor, rows: int) -> int:
    """Of what is made of a mask that says which keys are seen: that, the opposite."""
    if mask.dtype != torch.bool or not mask.numel():
        return 0
    of_row = mask.numel() // (mask.shape[-2] if mask.dim() > 1 else 1)
    return of_row * rows * (query.element_size() + 1)


def call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of F.scaled_dot_product_attention that a mode sees: torch's own where that is trusted,
    else without its fused kernels. No switch of torch's is touched: these are of all threads."""
    given = dict(zip(_NAMES, args, strict=False)) | kwargs
    operands = [given.get(name) for name in _NAMES[:3]]
    # A nested tensor has no sizes to ask for, and what torch does with it is its own affair.
    if not all(isinstance(t, Tensor) and not t.is_nested and t.dim() > 1 for t in operands):
        return func(*args, **kwargs)
    if is_trusted(given["query"], given["value"]):
        return func(*args, **kwargs)
    return composed(**given)


def unfused() -> AbstractContextManager[Any]:
    """A scope in which attention of this thread is computed as call() has it. protect() has that
    anyway. Nothing where torch is no ROCm build."""
    return nullcontext() if torch.version.hip is None else _Unfused()


class _Unfused(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return call(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))
