"""A decode into a sink: the one place that calls the executor for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.executor import decode_with_report
from hy3d_rocm.decode.report import DecodeCancelled, DecodeOptions, DecodeReport
from hy3d_rocm.decode.runner import Progress, asked_to_stop

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.output import Sink

_AT_ONCE = 32  # frames handed over between two looks at `cancel`


@dataclass(frozen=True)
class Choice:
    """As decode() takes them."""

    budget: str | None = None
    strategy: str = "auto"
    precision: str = "auto"


def deliver(
    vae: Any,
    latents: Tensor,
    sink: Sink,
    choice: Choice,
    plan: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    cancel: Any = None,
) -> tuple[Any, DecodeReport]:
    """What sink.finish() gives, and how the decode went. On any exception the sink is aborted.

    plan: what a sink was told at begin() by the decode that goes on here; the frames are made in
    the same way.
    """
    options = None if plan is None else DecodeOptions(level=int(plan["level"]))
    try:
        frames, report = decode_with_report(
            vae,
            latents,
            choice.budget,
            choice.strategy,
            choice.precision,
            progress,
            cancel,
            options,
        )
        made = {"strategy": report.strategy, "level": report.level, "dtype": report.dtype}
        b, c, t, h, w = frames.shape
        sink.begin((b, c, t, h, w), frames.dtype, made)
        _hand_over(frames, sink, cancel)
        return sink.finish(), report
    except BaseException:
        sink.abort()
        raise


def _hand_over(frames: Tensor, sink: Sink, cancel: Any) -> None:
    for sample in range(frames.shape[0]):
        for first in range(sink.first_wanted(sample), frames.shape[2], _AT_ONCE):
            if asked_to_stop(cancel):
                raise DecodeCancelled(f"stopped before frame {first} was written")
            sink.put(sample, first, frames[sample : sample + 1, :, first : first + _AT_ONCE])
