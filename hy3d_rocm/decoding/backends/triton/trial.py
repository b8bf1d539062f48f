"""The fused decode's kernels on small layers, each result held against exact sums: what
`hy3d-rocm doctor` asks for, in a child process (diagnose/doctor/selftest.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hy3d_rocm.conv.errors import first_line
from hy3d_rocm.decoding.backends.attention import KeyRanges
from hy3d_rocm.decoding.backends.triton import backend as fused
from hy3d_rocm.decoding.backends.triton.backend import TritonBackend
from hy3d_rocm.decoding.backends.triton.selfcheck import WrongKernelError
from hy3d_rocm.decoding.layers import Conv, ModuleWeights, Norm, Pieces
from hy3d_rocm.device import gpus_of_each_kind

_CHANNELS, _HEAD, _TOKENS = 64, 384, 80
_TYPES = (torch.bfloat16, torch.float16)


def kernels_here() -> list[dict[str, Any]]:
    """A row for one GPU of each kind: "device", "kernels" (how many were held against exact sums),
    "verdict" ("ok", "wrong", "error", or "refused": decode() has no kernels for this GPU) and
    "detail"."""
    rows = list[dict[str, Any]]()
    for device in gpus_of_each_kind():
        with torch.cuda.device(device):
            rows.append(tried(device))
    return rows


def tried(device: torch.device, backend: TritonBackend | None = None) -> dict[str, Any]:
    """A row of kernels_here(). backend: instead of the one that a decode there has."""
    row: dict[str, Any] = {"device": str(device), "kernels": 0, "verdict": "ok", "detail": ""}
    whys = [None if backend else fused.refusal(device, dtype) for dtype in _TYPES]
    if None not in whys:
        return row | {"verdict": "refused", "detail": whys[0]}
    dtype = _TYPES[whys.index(None)]
    backend = backend or TritonBackend(ModuleWeights(dtype, device), device)
    before = len(fused._sound)
    try:
        with torch.no_grad():
            _layers(backend, dtype)
    except WrongKernelError as error:
        row |= {"verdict": "wrong", "detail": first_line(error, 300)}
    except RuntimeError as error:
        row |= {"verdict": "error", "detail": first_line(error, 300)}
    row["kernels"] = len(fused._sound) - before
    if row["verdict"] == "ok" and not row["kernels"]:
        row |= {"verdict": "error", "detail": "no result was checked"}
    return row


def _layers(backend: TritonBackend, dtype: torch.dtype) -> None:
    """A residual block's layer with its statistics, an up-sampled one, and attention over a large
    head where the backend has a kernel for that. Raises where a result is wrong."""
    rng, channels = torch.Generator().manual_seed(7), _CHANNELS

    def values(*size: int, scale: float = 1.0) -> Tensor:
        made = torch.randn(size, generator=rng, device="cpu") * scale
        return made.to(backend.device, dtype)

    def layer(**more: Any) -> Conv:
        module = nn.Conv3d(channels, channels, 3, device="meta")
        module.weight = nn.Parameter(values(channels, channels, 3, 3, 3, scale=1 / 40), False)
        module.bias = nn.Parameter(values(channels), False)
        return Conv(module, (2, 1, 1), (0, 1, 1), ("replicate",) * 3, **more)

    x = values(1, channels, 3, 16, 20).contiguous(memory_format=torch.channels_last_3d)
    source = Pieces((x,), 0, 3)
    up = layer(up=(2, 2, 2), keep_first=True)
    made, moments = backend.convolve(up, source, (0, 5), moments=True)
    assert moments is not None, "an up-sampled layer gives its result's statistics"
    module = nn.GroupNorm(32, channels, device="meta")
    module.weight, module.bias = (nn.Parameter(values(channels), False) for _ in range(2))
    norm = Norm("group", module, module.eps, 32, bias="bias")
    factors = backend.factors(norm, [moments], dtype)
    normed = layer(norm=norm, act="silu")
    backend.convolve(
        normed, Pieces((made,), 0, 5), (0, 5), affine=factors, add=made.clone(), moments=True
    )
    if backend.attends(dtype, _HEAD):
        q, room = values(1, 1, _TOKENS, _HEAD), values(2, 1, _TOKENS, _HEAD)
        ranges = KeyRanges(1, _TOKENS, _TOKENS, 0, "frame")
        backend.attend(q, room, torch.empty_like(q[0]), ranges, lambda: None)
