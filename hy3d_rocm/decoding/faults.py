"""What goes wrong in a decode: errors told apart, work tried again, a VAE's own code watched."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from hy3d_rocm.conv import attention
from hy3d_rocm.conv.errors import Kind, classify, described, is_out_of_memory
from hy3d_rocm.decoding.backends.triton.selfcheck import WrongKernelError

Result = TypeVar("Result")
#: recover(step, attempts, error): whether a step that failed so often is to be made again
Recover = Callable[[int, int, BaseException], bool]

ATTEMPTS = 3  # HY3D_STEP_ATTEMPTS

OUT_OF_MEMORY = "out of memory"
NOT_FINITE = "not finite"
CONVOLUTION = "a convolution that failed"
WRONG_KERNEL = "a kernel that gave wrong numbers"

_ADVICE = {
    OUT_OF_MEMORY: "free memory, or decode fewer frames or a smaller picture",
    NOT_FINITE: "look at the VAE's file (a broken download?) and at the latents' scale",
    CONVOLUTION: 'run "hy3d-rocm doctor", or decode under hy3d_rocm.protect()',
    WRONG_KERNEL: "install another Triton: this one compiles wrongly for this card",
}


@dataclass(frozen=True)
class Failure:
    """what: one of the words above. text: the error's. on_host: whether it was the host's memory
    that was short."""

    what: str
    text: str
    on_host: bool = False

    @property
    def reason(self) -> Literal["out of memory", "out of host memory", "no kernel"]:
        """As the C core takes it (hy3d_reason)."""
        if self.what == CONVOLUTION:
            return "no kernel"
        return "out of host memory" if self.on_host else "out of memory"

    def final(self, taken: str, why: Exception) -> Exception:
        """The error where nothing is left to try. taken: the way, in words."""
        text = (
            f"the decode ended: {self.what} in {taken} ({self.text}), and nothing is left to try "
            f"({why}): {_ADVICE[self.what]}"
        )
        return MemoryError(text) if self.what == OUT_OF_MEMORY else RuntimeError(text)


def failure_of(error: BaseException, on_cpu: bool) -> Failure:
    """What another way may cure; all else is raised again. on_cpu: the way computes there."""
    if isinstance(error, WrongKernelError):
        return Failure(WRONG_KERNEL, str(error))
    known, text = classify(error), described(error, 1000)
    if known is None or known.kind is Kind.DEVICE_LOST:
        raise error
    if known.kind is not Kind.OUT_OF_MEMORY:
        return Failure(CONVOLUTION, text)
    on_host = on_cpu or isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)
    return Failure(OUT_OF_MEMORY, text, on_host)


def attempt(
    work: Callable[..., Result], *given: Any, recover: Recover,
    check: Callable[[], object] | None = None, step: int = 0,
) -> Result:  # fmt: skip
    """work(*given), which must leave no trace when it fails, until it succeeds or `recover` gives
    up. check: called before each attempt. step: what recover is told of it."""
    failed = 0
    while True:
        try:
            if check is not None:
                check()
            return work(*given)
        except (RuntimeError, MemoryError) as error:
            traceback.clear_frames(error.__traceback__)  # they hold the attempt's tensors
            failed += 1
            if not recover(step, failed, error):
                raise


def retry_out_of_memory(relieve: Callable[[], object]) -> Recover:
    """What attempt() takes as `recover`: again after an out-of-memory error, twice at most, with
    relieve() before."""

    def recover(step: int, attempts: int, error: BaseException) -> bool:
        if attempts >= ATTEMPTS or not is_out_of_memory(error):
            return False
        relieve()
        return True

    return recover


_LAYERS = frozenset(
    (F.conv1d, F.conv2d, F.conv3d, F.linear, F.group_norm, F.scaled_dot_product_attention)
)


class LayerByLayer(TorchFunctionMode):
    """Calls `check` before each convolution, product, norm and attention of this thread in its
    scope; nothing of the VAE is touched. What `check` raises passes through the VAE's code.
    Attention that torch's kernels are not trusted with is computed without them."""

    def __init__(self, check: Callable[[], object]) -> None:
        super().__init__()
        self._check = check

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LAYERS:
            self._check()
        if func is F.scaled_dot_product_attention:
            return attention.call(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class Narrowing(TorchFunctionMode):
    """Notes the functions of torch that make narrower floating point numbers than `dtype` of
    floating point numbers, of this thread in its scope: x.float() in the middle of a float64 decode
    is float32's error in all that follows. Copies into memory that is there already are not meant,
    nor are shapes on "meta"."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._bytes = dtype.itemsize
        self.found: dict[str, torch.dtype] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        narrow = _is_float(made) and made.dtype.itemsize < self._bytes and not made.is_meta
        if narrow and func not in _COPIES and any(map(_is_float, args)):
            self.found.setdefault(getattr(func, "__name__", str(func)), made.dtype)
        return made

    def words(self) -> str:
        """What a report says of it, "" where nothing was found."""
        if not self.found:
            return ""
        names = ", ".join(list(self.found)[:3])
        kind = str(min(self.found.values(), key=lambda d: d.itemsize)).removeprefix("torch.")
        return f"but the VAE's own code computes in {kind} on the way ({names}), whose error it has"


_COPIES = frozenset((torch.Tensor.copy_, torch.Tensor.__setitem__))


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
