"""The peak memory of a decode step, known before anything runs.

The decoder's modules are copied with parameters on the "meta" device and run on shapes alone; a
dispatch mode follows every storage from its birth to its death, so the peak of live tensors is
exact for any VAE, with no constants per model. What operators take inside themselves is added by
rule: a convolution's hidden buffers, by the back-end that torch selects for that very shape:

* oneDNN reorders input and output to blocks of 16 channels: in + out, channels rounded up to 16.
  (Measured as VmHWM on one AVX-512 machine over the layers of tests/bench/measure_decode.py.)
* the native path builds im2col: kernel volume x Cin x output positions.
* GPU libraries: counted as input and output once more; a library's own workspace may be larger.
"""

from __future__ import annotations

import math
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hy3d_rocm.decode.live import workspace_rules
from hy3d_rocm.decode.norms import NormPass
from hy3d_rocm.decode.vaes import Carry
from hy3d_rocm.decode.workspace import conv_backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from hy3d_rocm.decode.vaes import VideoVae

BLOCKED_CHANNELS = 16

# Prices already paid, by decoder: the next decode of the same shape plans in no time.
_COSTS: weakref.WeakKeyDictionary[Any, dict[Any, dict[tuple[Any, ...], Cost]]]
_COSTS = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Cost:
    """Peak bytes above what was there before, and multiply-accumulates of the convolutions."""

    peak_bytes: int
    macs: int


class _Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows storages that operators make; those in `known` were there before."""

    def __init__(self, known: list[torch.Tensor], device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = [t.untyped_storage() for t in known]  # kept, so that addresses stay taken
        self._seen: dict[int, Any] = {s._cdata: None for s in self._known}
        self._device = device
        self.live = self.peak = self.macs = 0

    def _freed(self, key: int, size: int) -> None:
        self.live -= size
        self._seen.pop(key, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution.default:
            hidden, macs = conv_hidden(args, out, self._device)
            self.macs += macs
            self.peak = max(self.peak, self.live + hidden)
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._born(leaf.untyped_storage())
        return out

    def _born(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._seen:
            return
        size = storage.nbytes()
        self._seen[key] = weakref.finalize(storage, self._freed, key, size)
        self.live += size
        self.peak = max(self.peak, self.live)


class _NoScores(TorchFunctionMode):
    """Attention kernels keep no score matrix; on "meta" torch would compose one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return torch.empty_like(args[0])
        return func(*args, **(kwargs or {}))


def conv_hidden(args: Any, out: torch.Tensor, device: torch.device) -> tuple[int, int]:
    """Bytes alive inside aten.convolution (its output not yet among them), and its MACs."""
    x, weight = args[0], args[1]
    rules = workspace_rules()
    if rules is not None:  # in a prediction, which knows the tier, too
        macs = out.numel() * math.prod(weight.shape[1:])
        return rules.convolution(args, out) + out.nbytes, macs
    positions = out.shape[0] * math.prod(out.shape[2:])
    taps = math.prod(weight.shape[2:])
    macs = positions * weight.shape[0] * weight.shape[1] * taps
    backend = conv_backend(
        tuple(x.shape),
        tuple(weight.shape),
        x.dtype,
        device.type,
        tuple(args[3]),
        tuple(args[4]),
        tuple(args[5]),
        args[8],
        torch.get_num_threads(),
    )
    size: int = x.element_size()
    if backend.startswith("Slow"):
        columns = taps * x.shape[1] * positions * size
        return columns + out.numel() * size, macs

    def blocked(t: torch.Tensor) -> int:
        elements: int = t.numel() // max(t.shape[1], 1) * _round_up(t.shape[1])
        return elements * size

    weights = _round_up(weight.shape[0]) * _round_up(weight.shape[1]) * taps * size
    return blocked(x) + blocked(out) + weights, macs


def _round_up(channels: int) -> int:
    return -(-channels // BLOCKED_CHANNELS) * BLOCKED_CHANNELS


class Footprint:
    """Predicts the steps of decoding one VAE. Cheap: about 40 ms for a pass of a real decoder."""

    def __init__(self, adapter: VideoVae, device: torch.device) -> None:
        self._meta = adapter.cast(device="meta")
        self._device = device
        known = _COSTS.setdefault(adapter.decoder, {})
        self._memo = known.setdefault((adapter.dtype, device, torch.get_num_threads()), {})

    def whole(self, latent: tuple[int, ...]) -> Cost:
        """`vae.decode` unsplit, its output included."""
        z = self._empty(latent)
        return self._cost(("whole", *latent), [z], lambda: self._meta.whole(z))

    def trunk(self, latent: tuple[int, ...], depth: int) -> Cost:
        """The trunk of one sample, its output included."""
        z = self._empty((1, *latent[1:]))
        return self._cost(("trunk", *latent[1:], depth), [z], lambda: self._meta.trunk(z, depth))

    def trunk_channels(self, latent: tuple[int, ...], depth: int) -> int:
        """Channels of the trunk's output."""
        key = ("channels", depth)
        if key not in self._memo:
            shape: list[int] = []
            z = self._empty((1, latent[1], 1, 1, 1))
            self._cost(
                (*key, "run"), [z], lambda: shape.append(self._meta.trunk(z, depth).shape[1])
            )
            self._memo[key] = Cost(int(shape[0]), 0)
        return self._memo[key].peak_bytes

    def head(self, chunks: tuple[int, ...], size: tuple[int, int, int], depth: int) -> Cost:
        """The head over one tile. `chunks`: grid frames of the first chunk and of later ones (each
        length once is enough); `size`: channels, height and width of the tile."""
        channels, h, w = size
        parts = [self._empty((1, channels, n, h, w)) for n in chunks]

        def run() -> None:
            carry = Carry()
            for part in parts:
                norms = NormPass()
                norms.start(0, w)
                self._meta.head(part, depth, carry, norms, len(parts) == 1)

        return self._cost(("head", chunks, size, depth), parts, run)

    def _empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=self._meta.dtype, device="meta")

    def _cost(
        self, key: tuple[Any, ...], inputs: list[torch.Tensor], run: Callable[[], object]
    ) -> Cost:
        if key not in self._memo:
            modules = (self._meta.decoder, self._meta.post_quant_conv)
            known = [*inputs, *(p for m in modules for p in (*m.parameters(), *m.buffers()))]
            self._memo[key] = _in_own_thread(lambda: _measure(known, self._device, run))
        return self._memo[key]


def _measure(known: list[torch.Tensor], device: torch.device, run: Callable[[], object]) -> Cost:
    with torch.no_grad(), _NoScores(), _Live(known, device) as live:
        kept = run()  # the result lives until the peak is read
        del kept
    return Cost(live.peak, live.macs)


def _in_own_thread(task: Callable[[], Cost]) -> Cost:
    """Function modes (protect()), grad and inference mode belong to the caller's thread: in another
    one the shapes meet none of them."""
    with ThreadPoolExecutor(1, thread_name_prefix="hy3d-footprint") as worker:
        return worker.submit(task).result()
