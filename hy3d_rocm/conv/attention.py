"""Attention over large heads, which PyTorch for ROCm may compute wrongly, without a word.

Fused attention there is AOTriton's, whose binaries for heads of more than 256 elements are missing
or wrong on RDNA3 in several builds that PyTorch calls all the same: what comes back is memory that
nobody wrote (https://github.com/vllm-project/vllm-omni/issues/7484, Wan's VAE on gfx1100), or 512
everywhere (https://github.com/pytorch/pytorch/issues/189849, gfx1151). The one attention of a VAE
has such heads: 384 (Wan, Qwen-Image), 512 (HunyuanVideo, Stable Diffusion), 1024. So they are not
left to it: here they are two products and a softmax, some queries at a time.
"""

from __future__ import annotations

from collections.abc import Callable
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
_PLAIN = ("query", "key", "value", "scale")


def trusts(device_type: str, size: int) -> bool:
    """Whether torch's own attention may take heads of `size` elements on such a device."""
    return size <= LARGEST_TRUSTED or device_type != "cuda" or torch.version.hip is None


def is_trusted(query: Tensor) -> bool:
    """The same of queries (..., tokens, elements)."""
    return trusts(query.device.type, query.shape[-1])


def rows_at_once(query: Tensor, key: Tensor) -> int:
    """Queries of each head whose scores, in float32 or float64, keep below SCORE_BYTES; at least
    one."""
    each = query[..., 0, 0].numel() * key.shape[-2] * max(4, query.element_size())
    return max(1, min(query.shape[-2], SCORE_BYTES // max(each, 1)))


def by_products(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
    """softmax(q k^T * scale) v without a fused kernel: (..., tokens, elements), in the queries'
    type; scores and sums are float32's of half types."""
    step, parts = rows_at_once(query, key), []
    for start in range(0, query.shape[-2], step):
        some = query[..., start : start + step, :]
        parts.append(torch._scaled_dot_product_attention_math(some, key, value, scale=scale)[0])
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


def by_products_bytes(query: Tensor, key: Tensor, value: Tensor) -> int:
    """What by_products() takes at most beside operands and result; of shapes. Of half types there
    are queries, keys, values and sums in float32, too, and scaled ones."""
    wide = max(4, query.element_size())
    rows = rows_at_once(query, key)
    of_token = query[..., 0, :].numel()
    copies = 3 if wide > query.element_size() else 1
    scores = query[..., 0, 0].numel() * rows * key.shape[-2] * wide
    result = query[..., 0].numel() * value.shape[-1] * query.element_size()
    return 2 * scores + copies * (rows * of_token + key.numel()) * wide + result


def call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of F.scaled_dot_product_attention that a mode sees: torch's own where that is trusted,
    else without its fused kernels."""
    query = args[0] if args else kwargs.get("query")
    if not isinstance(query, Tensor) or query.dim() < 2 or is_trusted(query):
        return func(*args, **kwargs)
    given = dict(zip(_NAMES, args, strict=False)) | kwargs
    query, key, value, scale = (given.pop(name, None) for name in _PLAIN)
    others = any(isinstance(what, Tensor) or what for what in given.values())
    records = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if not others and not records:
        return by_products(query, key, value, scale)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return func(*args, **kwargs)


def right() -> AbstractContextManager[Any]:
    """A scope in which attention of this thread is computed as call() has it. protect() has that
    anyway. Nothing where torch is no ROCm build."""
    return nullcontext() if torch.version.hip is None else _Right()


class _Right(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return call(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))
