"""What operators take inside themselves, by rule: bytes that no tensor of the program shows.

Each rule gives the bytes beside operands and results, for the operator on one device:

* convolution: by torch's back-end for that very shape. oneDNN reorders input, output and weights to
  blocks of 16 channels (measured as VmHWM over the layers of tests/bench/measure_decode.py); the
  native path builds im2col, kernel volume x Cin x output positions, where TorchBackend does not
  avoid it (instead_of_im2col); a GPU library takes input and output once more. A plain result that
  follows a blocked one does not live beside the blocked input.
* attention: fused kernels keep no scores, on the CPU a block a thread; the composed form keeps
  scores, their softmax and scaled copies of q and k. Which of them it is, torch is asked.
* matrix products: an operand that is contiguous neither in rows nor in columns is copied; on a GPU
  the BLAS library takes its workspace once.
* what reads its input as contiguous copies one that is not.
* oneDNN generates code for each new shape of a convolution and keeps it (CODE_BYTES).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm.conv import attention
from hy3d_rocm.units import MB

BLOCKED_CHANNELS = 16
# torch's workspaces for cuBLAS and hipBLASLt come from its own allocator: 32 MiB on Hopper and less
# elsewhere, 8 MiB more for the second library (bf16 with a bias: 42.2 MB were seen on an H200).
BLAS_BYTES = 43 * MB
# What oneDNN keeps of one shape of a convolution, in types of 4 bytes and more and in narrower
# ones: its code and that of the reorders around it. By tests/bench/measure_generated_code.py 70 to
# 101 KB and 171 to 296 KB a shape. Its cache holds 1024 of these, so about 340 shapes. Those given
# up leave holes in the heap, ever fewer: 1500 shapes left 192 MB.
CODE_BYTES, CODE_LIMIT = (104 << 10, 300 << 10), 200 * MB
# The C conv3d's own limit a thread, where it is given none (conv/functional.py).
C_WORKSPACE_BYTES = 64 * MB
# The blocks that torch's CPU attention works in: queries, keys.
_QUERY_BLOCK, _KEY_BLOCK = 256, 512

# Columns that are worth avoiding. Below it nobody lacks the memory, and the native code is faster
# (C 64 to 32, 3x24x34: 13 ms of CPU time against 28; C 32 to 32, 3x82x200: 73 against 32).
_COLUMNS_BYTES = 8 * MB

_aten = torch.ops.aten
_PRODUCTS = {  # operator: where its matrices stand among the arguments
    _aten.mm.default: (0, 1), _aten.bmm.default: (0, 1), _aten.addmm.default: (1, 2),
    _aten.baddbmm.default: (1, 2),
}  # fmt: skip
_READ_CONTIGUOUS = frozenset(
    getattr(_aten, name).default
    for name in (
        "native_group_norm native_layer_norm replication_pad1d replication_pad2d replication_pad3d "
        "reflection_pad2d reflection_pad3d upsample_nearest2d upsample_nearest3d "
        "_upsample_nearest_exact2d _upsample_nearest_exact3d"
    ).split()
)


class OperatorWorkspace:
    """Bytes that operators take beside operands and results on `device`.

    is_pinned: the C conv3d computes convolutions there, not torch's own choice.
    Made in the thread that will decode: whether a mode watches its calls (protect()) is asked here.
    """

    def __init__(self, device: torch.device, is_pinned: bool = False) -> None:
        self.device, self.is_pinned = device, is_pinned
        self.is_watched = is_watched()
        self.code_scale = 1.0  # shapes that each one seen stands for
        self.forget()

    def forget(self) -> None:
        """As before anything was computed."""
        self.code_bytes = 0  # of code generated so far
        self.shapes: set[tuple[Any, ...]] = set()  # that code was generated for

    @property
    def key(self) -> tuple[Any, ...]:
        """What the rules depend on beside shapes: predictions are remembered by it."""
        switches = torch.get_num_threads(), torch.backends.cudnn.enabled, self.is_watched
        return str(self.device), *switches, *_fused_attention()

    def of(self, func: Any, args: Sequence[Any], out: Any) -> int:
        """Bytes beside operands and results while `func(*args)` makes `out`."""
        if func is _aten.convolution.default:
            return self.convolution(args, out)
        if func in _READ_CONTIGUOUS:
            return 0 if _is_dense(args[0]) else int(args[0].nbytes)
        return sum(_copied(args[i]) for i in _PRODUCTS.get(func, ()))

    def once(self, func: Any) -> int:
        """Bytes that the first call of `func` takes and that stay."""
        return BLAS_BYTES if self.device.type == "cuda" and func in _PRODUCTS else 0

    def convolution(self, args: Sequence[Any], out: Tensor, by_layer: bool = False) -> int:
        """Of aten.convolution(input, weight, bias, stride, padding, dilation, ...). by_layer: as
        TorchBackend computes it, not the VAE's own code."""
        threads, (x, weight, _, stride, padding, dilation) = torch.get_num_threads(), args[:6]
        if self.is_pinned:
            return C_WORKSPACE_BYTES * threads
        backend = conv_backend(
            x.shape, weight.shape, x.dtype, self.device.type, tuple(stride), tuple(padding),
            tuple(dilation), args[8], threads,
        )  # fmt: skip
        on_cpu = self.device.type == "cpu"
        copied: int = 0 if _is_dense(x) else int(x.nbytes)
        if backend.startswith("Slow"):
            positions = out.shape[0] * math.prod(out.shape[2:])
            columns: int = math.prod(weight.shape[2:]) * x.shape[1] * positions * x.itemsize
            may_avoid = by_layer and on_cpu and not self.is_watched
            if not (may_avoid and instead_of_im2col(backend, x.dtype, columns)):
                return copied + columns
        if not on_cpu:
            return copied + int(x.nbytes) + int(out.nbytes) + 2 * int(weight.nbytes)
        shape = x.shape, weight.shape, x.dtype, tuple(stride), tuple(padding)
        if shape not in self.shapes:
            self.shapes.add(shape)
            code = CODE_BYTES[x.itemsize < 4] * self.code_scale
            self.code_bytes = min(self.code_bytes + round(code), CODE_LIMIT)
        # input and output blocked, then the plain output in the place of the blocked input
        outputs, inputs, *kernel = weight.shape
        weights = int(_round_up(outputs) * _round_up(inputs) * math.prod(kernel) * x.itemsize)
        return copied + _blocked(out) + max(_blocked(x) - int(out.nbytes), 0) + weights

    def composes(self, dtype: torch.dtype, size: int) -> bool:
        """Whether torch composes attention of operators, of contiguous heads of `size` channels."""
        kind = self.device.type, dtype, 4, (size,) * 3, (True,) * 3, False
        if not attention.trusts(self.device.type, size):
            return True
        return _attention_is_composed(*kind, _fused_attention())

    def attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> int:
        dense = tuple(t.stride(-1) == 1 or t.shape[-1] == 1 for t in (q, k, v))
        heads = q.shape[-1], k.shape[-1], v.shape[-1]
        kind = self.device.type, q.dtype, q.dim(), heads, dense, mask is not None
        if not attention.trusts(self.device.type, max(q.shape[-1], v.shape[-1])):
            return attention.composed_bytes(q, k, v, mask)
        if _attention_is_composed(*kind, _fused_attention()):
            scores = math.prod(q.shape[:-1]) * k.shape[-2] * q.element_size()
            return 2 * scores + int(q.nbytes) + int(k.nbytes)
        if self.device.type != "cpu":
            return 0
        rows, columns = min(q.shape[-2], _QUERY_BLOCK), min(k.shape[-2], _KEY_BLOCK)
        return torch.get_num_threads() * rows * (2 * columns + v.shape[-1] + 2) * 4


def is_watched() -> bool:
    """Whether a mode of this thread (protect(), inject_faults(), another's) sees or changes calls,
    or oneDNN is switched off or absent."""
    return (
        torch._C._len_torch_function_stack() > 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch.is_autocast_enabled("cpu")
        or not torch._C._has_mkldnn
        or not bool(torch.backends.mkldnn.enabled)
    )


def instead_of_im2col(backend: str, dtype: torch.dtype, columns_bytes: int) -> bool:
    """Whether oneDNN is taken in place of torch's im2col, by TorchBackend and in its plan alike.

    On the CPU torch sends a float32 convolution in 3D whose N*C*T*H is at most 20480 to its native
    code, which builds im2col: 27 times the input for 3x3x3. oneDNN does the same layer in input
    plus output. It is called directly only where nobody would miss the call to F.conv3d: under
    protect() the router must see it, as any mode over torch's functions or operators must, and
    autocast. Of a convolution on the CPU that is not watched, backend as conv_backend() names
    torch's choice."""
    return backend == "Slow3d" and dtype == torch.float32 and columns_bytes >= _COLUMNS_BYTES


@lru_cache(maxsize=4096)
def conv_backend(
    x: tuple[int, ...], weight: tuple[int, ...], dtype: torch.dtype, device: str,
    stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...], groups: int,
    threads: int,
) -> str:  # fmt: skip
    """Name of the back-end that torch takes for this convolution, e.g. "Mkldnn", "Slow3d".

    Asked with tensors of one element expanded to the shape; "Unknown" for a device that is not
    here. `threads` matters to the choice.
    """
    del threads
    if device == "cuda" and not torch.cuda.is_available():
        return "Unknown"
    one = torch.empty((), dtype=dtype, device=device)
    chosen = torch._C._select_conv_backend(
        one.expand(x), one.expand(weight), None, stride, padding, dilation, False,
        (0,) * len(stride), groups,
    )  # fmt: skip
    return str(chosen).rsplit(".", 1)[-1]


def _fused_attention() -> tuple[bool, ...]:
    """Which fused kernels torch may take for attention (sdpa_kernel() switches them)."""
    cuda: Any = torch.backends.cuda  # on the CPU the first switch counts, too
    return cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled()


@lru_cache(maxsize=256)
def _attention_is_composed(
    device: str, dtype: torch.dtype, ndim: int, heads: tuple[int, int, int],
    dense: tuple[bool, ...], masked: bool, switches: tuple[bool, ...],
) -> bool:  # fmt: skip
    """Whether torch composes attention of operators, scores and all, for operands of this kind.
    `switches` matter to the choice."""
    del switches
    if device == "cuda" and not torch.cuda.is_available():
        return not all(dense)
    lead = (1,) * (ndim - 2)

    def operand(size: int, is_dense: bool) -> Tensor:
        if is_dense:
            return torch.empty((*lead, 8, size), dtype=dtype, device=device)
        return torch.empty((*lead, size, 8), dtype=dtype, device=device).transpose(-1, -2)

    q, k, v = (operand(n, d) for n, d in zip(heads, dense, strict=True))
    mask = torch.zeros((8, 8), dtype=torch.bool, device=device) if masked else None
    return int(torch._fused_sdp_choice(q, k, v, mask)) == 0


def _is_dense(x: Tensor) -> bool:
    if x.is_contiguous():
        return True
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    return last is not None and x.is_contiguous(memory_format=last)


def _copied(matrix: Tensor) -> int:
    """Bytes of the copy that a product makes of a matrix (or a batch of them); 0 for none."""
    rows, columns = matrix.stride()[-2:]
    ordered = (columns == 1 and rows >= matrix.shape[-1]) or (
        rows == 1 and columns >= matrix.shape[-2]
    )
    return 0 if ordered else int(matrix.nbytes)


def _blocked(x: Tensor) -> int:
    elements: int = x.numel() // max(x.shape[1], 1) * _round_up(x.shape[1])
    return elements * x.element_size()


def _round_up(channels: int) -> int:
    return -(-channels // BLOCKED_CHANNELS) * BLOCKED_CHANNELS
