"""One call of the C conv3d: which layout its weights take, whether that is prepared, the run."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from hy3d_rocm import _native
from hy3d_rocm.conv import prepared

__all__ = ["Call", "Geometry", "accuracy_of", "format_of"]

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


@dataclass
class Call:
    """Arguments in the core's words, all of them checked but for what the core checks.

    weight: (Cout, C / groups, kT, kH, kW), ready to be read. owner: the caller's own tensor behind
    it where prepared weights may be kept for it, else None. geometry: stride, dilation, padding
    before and after. size, batch: of the input, up-sampled. fusion: keyword arguments of
    `_core.conv3d`.
    """

    weight: Any
    bias: Any
    geometry: Geometry
    modes: tuple[str, ...]
    groups: int
    accuracy: str
    size: tuple[int, ...]
    batch: int
    threads: int
    workspace_limit: int | None
    cancel: Any
    owner: Any = None
    fusion: dict[str, Any] = field(default_factory=dict)

    def run(self, x: Any, out: Any) -> None:
        """Into out; x is None where there are frames in the fusion."""
        ready = self._ready()
        try:
            self._convolve(x, out, ready)
        except MemoryError:
            # Nothing has been written yet: a running convolution allocates nothing.
            ready = None
            if not prepared.give_back():
                raise
            self._convolve(x, out, None)

    def _convolve(self, x: Any, out: Any, ready: Any) -> None:
        _native.conv3d(
            x, self.weight, self.bias, out, *self.geometry, self.modes, self.groups, self.threads,
            self.workspace_limit, self.cancel, self.accuracy, ready, **self.fusion,
        )  # fmt: skip

    def _ready(self) -> Any:
        """The weights prepared, or None: exact, no layout of their own, or no room for them."""
        if self.accuracy == "exact" or self.owner is None or not self.batch:
            return None
        weight = self.weight
        word = _NAMES[str(weight.dtype).rpartition(".")[2]]
        try:
            number, _, nbytes = format_of(
                self.size, weight.shape[1] * self.groups, weight.shape[0], tuple(weight.shape[2:]),
                *self.geometry, self.modes, self.groups, word, self.accuracy,
                self.fusion.get("upsample", _ONE), self.batch,
            )  # fmt: skip
        except ValueError:
            return None  # no such convolution: the call itself knows x, and says what is wrong
        if number == 0:
            return None
        return prepared.cache().get(
            weight, number, nbytes,
            lambda: _native.conv3d_prepare(weight, number, self.threads, self.cancel),
            owner=self.owner, threads=self.threads,
        )  # fmt: skip
