"""The peak memory of a piece of work, known before anything runs.

The very function that will run is run on "meta" tensors, which have shapes and no data, in a
thread of its own; a dispatch mode follows every storage from its birth to its death. So the peak
of live tensors is exact for any VAE, with no constants per model; what operators
take inside themselves comes from workspace.py.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from hy3d_rocm.decode.memory.live import (
    Live,
    NoScores,
    begin,
    given,
    given_empty,
    on_host,
    predicting,
)
from hy3d_rocm.decode.memory.workspace import OperatorWorkspace
from hy3d_rocm.units import MB

if TYPE_CHECKING:
    from torch import Tensor


__all__ = [
    "MetaWeights",
    "Prediction",
    "Predictor",
    "given",
    "on_host",
    "planned_bytes",
    "predict",
    "predicting",
]

# Planned = predicted + this share, on the CPU at least the allowance: generated code, thread
# stacks and heap fragments, 20 to 30 MB by tests/bench/measure_decode.py.
PLANNED_SHARE = 0.05
CPU_ALLOWANCE_BYTES = 32 * MB


@dataclass(frozen=True)
class Prediction:
    """Peak bytes above what was there before: on the device, on the host, and of both together
    (which may be less than their sum); multiply-accumulates of the convolutions."""

    device_bytes: int
    host_bytes: int = 0
    both_bytes: int = 0
    macs: int = 0

    def planned(self, on_cpu: bool) -> Prediction:
        """With the allowance for what is not predicted."""
        if on_cpu:
            both = planned_bytes(self.both_bytes, True)
            return replace(self, device_bytes=both, host_bytes=0, both_bytes=both)
        device = planned_bytes(self.device_bytes, False)
        return replace(self, device_bytes=device, both_bytes=device + self.host_bytes)


def planned_bytes(predicted: int, on_cpu: bool) -> int:
    """predicted + 5 %, on the CPU at least 32 MiB more."""
    allowance = math.ceil(predicted * PLANNED_SHARE)
    return predicted + (max(allowance, CPU_ALLOWANCE_BYTES) if on_cpu else allowance)


def predict(
    run: Callable[[], object],
    *,
    known: Iterable[Tensor] = (),
    workspace: OperatorWorkspace,
) -> Prediction:
    """Peaks of `run()`, its result included, on the device of `workspace`.

    known: tensors that are there before and after. run is called once, in another thread: the
    caller's function modes (protect()), grad and inference mode do not reach it. What it raises is
    raised here.
    """

    def task() -> Prediction:
        live = Live(known, workspace)
        begin(live)
        with torch.no_grad(), NoScores(live), live:
            kept = run()  # the result lives until the peak is read
            del kept
        return Prediction(live.device_peak, live.host_peak, live.both_peak, live.macs)

    with ThreadPoolExecutor(1, thread_name_prefix="hy3d-predict") as worker:
        return worker.submit(task).result()


# Predictions already made, by VAE: the next decode of the same shape plans in no time.
_MEMO: weakref.WeakKeyDictionary[Any, dict[Any, Prediction]] = weakref.WeakKeyDictionary()


class Predictor:
    """Predicts for one VAE on one device, each thing once.

    owner: what the predictions belong to and die with (the VAE's module).
    """

    def __init__(self, owner: Any, workspace: OperatorWorkspace) -> None:
        self.workspace = workspace
        self._memo = _MEMO.setdefault(owner, {})

    def of(
        self, key: Hashable, run: Callable[[], object], known: Iterable[Tensor] = ()
    ) -> Prediction:
        """predict(run), remembered under `key`, which names all that the run depends on."""
        full = (self.workspace.key, key)
        if full not in self._memo:
            self._memo[full] = predict(run, known=known, workspace=self.workspace)
        return self._memo[full]


class MetaWeights:
    """Weights for a prediction: parameters of the right shape on "meta".

    Those that have the type and device of the computation already count as given, the others are
    converted once and live as long as the decode, as ModuleWeights has it.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self._made: dict[tuple[int, str], Tensor | None] = {}

    def of(self, module: Any, name: str) -> Tensor | None:
        """See layers.Weights."""
        key = (id(module), name)
        if key not in self._made:
            self._made[key] = self._make(getattr(module, name, None))
        return self._made[key]

    def _make(self, parameter: Tensor | None) -> Tensor | None:
        if parameter is None:
            return None
        shape = tuple(parameter.shape)
        same_place = parameter.device.type in (self.device.type, "meta")
        if parameter.dtype == self.dtype and same_place:
            return given_empty(shape, self.dtype)
        return torch.empty(shape, dtype=self.dtype, device="meta")
