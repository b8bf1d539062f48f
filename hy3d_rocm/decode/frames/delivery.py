"""A decode into a sink: the one place that calls the executor for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.executor import decode_into
from hy3d_rocm.decode.report import DecodeOptions, DecodeReport

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.counter import Progress
    from hy3d_rocm.decode.frames.output import Sink


@dataclass(frozen=True)
class Choice:
    """As decode() takes them. chunk_size: see DecodeOptions."""

    budget: str | None = None
    strategy: str = "auto"
    precision: str = "auto"
    chunk_size: int | None = None


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
    return decode_into(
        sink, vae, latents, choice.budget, choice.strategy, choice.precision, progress, cancel,
        options=DecodeOptions(chunk_size=choice.chunk_size), making=plan,
    )  # fmt: skip
