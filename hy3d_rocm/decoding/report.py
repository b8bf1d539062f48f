"""What can be chosen about a decode, and what it says about itself afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from hy3d_rocm.decoding.checks import check_choice, check_count
from hy3d_rocm.decoding.precision import PRECISIONS, SHORT
from hy3d_rocm.units import MB, size_text


class DecodeCancelled(RuntimeError):  # noqa: N818  the field's word for it
    """The caller's `cancel` asked to stop; nothing of the result exists."""


BACKENDS = ("auto", "torch", "native")
#: The least and the most of each; what the C core takes (include/hy3d/schedule.h)
SIZES = {
    "chunk_size": (1, 2**31 - 1), "slice_bytes": (1, 2**63 - 1),
    "cleanup_frequency": (0, 2**63 - 1), "statistic_passes": (0, 64),
    "halo_pixels": (0, 2**31 - 1), "overlap_pixels": (0, 2**31 - 1),
    "min_tile_pixels": (1, 2**31 - 1),
}  # fmt: skip
_MAY_BE_NONE = ("halo_pixels", "chunk_size", "slice_bytes", "cleanup_frequency")


@dataclass(frozen=True)
class DecodeOptions:
    """Settings of a decode; each has a default. docs/decode_tools.md says when to change which.

    chunk_size: latent frames that go through all layers at a time where norms are per position or
    frame (Wan, HunyuanVideo 1.5, LTX, SeedVR2) and in tiles. None or "auto" (which becomes None):
    1, on a GPU more for small pictures. Where it has no effect the report and the log say that it
    is ignored; likewise slice_bytes.
    slice_bytes: at most so much of one layer's result is computed at a time, where norms see the
    whole video.
    memory_threshold: share of the free memory that budget "auto" takes.
    memory_fraction: the largest share of the device's memory for this process; None for no cap.
    cpu_offload: activations that do not fit go to host memory.
    cleanup_frequency: after so many results of a decode in parts the allocators return unused
    memory; 0: never; None: the host's heap each time, a GPU's only when memory is short.
    synchronization: wait for the device after each step or tile, so that a log's last line tells
    where it stopped; costs time.
    fallback_precision: used if the first precision gives NaN: "auto" (float32) or a precision.
    statistic_passes: for `tiled` with GroupNorm: passes over all tiles that correct the statistics
    estimated from a part of the latent; each costs one more decode of the tiles.
    halo_pixels: decoded beyond a tile and dropped; None: the whole receptive field.
    overlap_pixels: shared by neighbouring tiles and blended. min_tile_pixels: no smaller tiles.
    backend: what computes the layers where the VAE's own code does not: "auto" (fused kernels on a
    GPU, the C convolution on the CPU, torch's operators where these can't), "torch" (torch's
    operators everywhere) or "native" (on the CPU the C convolution, or an error).
    """

    chunk_size: int | Literal["auto"] | None = None
    slice_bytes: int | None = None
    memory_threshold: float = 0.8
    memory_fraction: float | None = None
    cpu_offload: bool = True
    cleanup_frequency: int | None = None
    synchronization: bool = False
    fallback_precision: str = "auto"
    statistic_passes: int = 1
    halo_pixels: int | None = 32
    overlap_pixels: int = 16
    min_tile_pixels: int = 32
    backend: str = "auto"

    def __post_init__(self) -> None:
        if self.chunk_size == "auto":
            object.__setattr__(self, "chunk_size", None)
        for name, (low, most) in SIZES.items():
            value = getattr(self, name)
            if value is not None or name not in _MAY_BE_NONE:
                other = ', or "auto"' if name == "chunk_size" else ""
                check_count(f"DecodeOptions.{name}", value, low, most, other)
        for name in ("cpu_offload", "synchronization"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"DecodeOptions.{name} is {getattr(self, name)!r}; give True or False"
                )
        check_choice("DecodeOptions.fallback_precision", self.fallback_precision, PRECISIONS)
        check_choice("DecodeOptions.backend", self.backend, BACKENDS)


class Step(NamedTuple):
    """One step of the work, as `progress` gets it."""

    kind: str  # "whole", "frames" (of a tile), "statistics", or a step of a program (run.OPS)
    sample: int  # batch item
    tile: int
    chunk: int
    frames: tuple[int, int]  # of the video, half open
    rows: tuple[int, int]
    columns: tuple[int, int]


Progress = Callable[[int, int, Step], object]  # done, total (0 where unknown), what was done


@dataclass
class DecodeReport:
    """How a decode went. Bytes and seconds; `as_dict()` is JSON-able."""

    vae: str
    latent_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    device: str
    dtype: str
    budget_bytes: int
    budget_rule: str
    strategy: str = ""
    reason: str = ""
    plan: dict[str, Any] = field(default_factory=dict)
    predicted_peak_bytes: int = 0
    predicted_host_bytes: int = 0
    measured_peak_bytes: int = 0
    seconds: float = 0.0
    planning_seconds: float = 0.0
    steps: int = 0
    precision_reason: str = ""
    ignored: list[str] = field(default_factory=list)  # sizes that meant nothing to it: sentences
    estimate_error: float | None = None  # of GroupNorm statistics, relative (tiled)
    delegated: dict[str, int] = field(default_factory=dict)  # what was left to torch's operators
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def recommendations(self) -> list[str]:
        """What to do differently next time: sentences, the most useful first; a function of the
        rest alone."""
        return [*_about_work(self), *_about_exactness(self)]

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it: tuples are lists."""
        plain: dict[str, Any] = json.loads(
            json.dumps({**asdict(self), "recommendations": self.recommendations})
        )
        return plain


# Of multiply-accumulates a second: one desktop CPU does 0.1 to 0.5 in float32, the smallest GPU
# that a video model runs on several. A GPU below it waits for something.
_SLOW_GPU_GMACS = 500.0
_LONG_SECONDS = 20.0


def _about_work(report: DecodeReport) -> Iterator[str]:
    """Faults first, then speed."""
    kinds = {event.get("event") for event in report.events}
    if "out of memory" in kinds:
        smaller = max(int(report.budget_bytes * 0.8) // MB * MB, MB)
        yield (
            f"Memory ran out although {size_text(report.budget_bytes, 2)} were to be had: another "
            "program took it meanwhile, or it is fragmented. Close other programs, or give budget="
            f'"{smaller // MB}MB", so that the decode begins with what ends.'
        )
    if any("next_dtype" in event for event in report.events):
        name = SHORT.get(report.dtype, report.dtype)
        yield (
            "The type of the first attempt gave NaN or infinite values, and the decode began again "
            f'in {report.dtype}: give precision="{name}" at once.'
        )
    without = report.events[-1].get("without") if report.events else None
    if without is not None:
        yield (
            f"{without} was to blame: without it the decode ended. Inside hy3d_rocm.protect() only "
            "shapes are left to it that `hy3d-rocm tune` has tried."
        )
    elif "a convolution that failed" in kinds:
        yield (
            "A convolution failed: decode inside hy3d_rocm.protect(), which takes another back-end "
            "for that layer alone, and look at what `hy3d-rocm doctor` says."
        )
    planned, measured = report.predicted_peak_bytes, report.measured_peak_bytes
    if 0 < planned < measured:
        yield (
            f"The peak was {size_text(measured, 2)}, planned were {size_text(planned, 2)}: please "
            "send a capture (HY3D_ROCM_CAPTURE=DIR) with an issue."
        )
    on_host, is_long = report.strategy == "cpu", report.seconds > _LONG_SECONDS
    if on_host and report.device != "cpu":
        yield (
            "Nothing fitted the GPU, so the host decoded, which takes much longer: free GPU memory "
            "or decode fewer frames."
        )
    rate = float(report.plan.get("gmacs") or 0.0) / max(report.seconds, _LONG_SECONDS)
    if is_long and report.device.startswith("cuda") and not on_host and 0 < rate < _SLOW_GPU_GMACS:
        yield (
            f"{rate:.0f} billion multiply-accumulates a second are slow for a "
            "GPU: on AMD cards MIOpen searches for kernels or has none. Run `hy3d-rocm tune`, or "
            "decode inside hy3d_rocm.protect(); the second decode of a size is faster, too."
        )
    resident = report.plan.get("resident_bytes")
    if resident is not None and is_long:
        yield (
            f"Activations went through host memory, {size_text(int(resident))} of them stayed on "
            "the GPU: a larger budget, or fewer frames, makes this faster."
        )
    if report.planning_seconds > max(report.seconds, 1.0):
        yield (
            f"Planning took {report.planning_seconds:.1f} s, the decode {report.seconds:.1f} s: "
            f'strategy="{report.strategy}" looks at that one alone.'
        )


def _about_exactness(report: DecodeReport) -> Iterator[str]:
    engine = (report.plan.get("parameters") or {}).get("engine", "")
    if engine == "own tiles":
        yield (
            "The frames are an approximation whose error can't be known, since the layers of this "
            'VAE are not: compare with strategy="whole" and a larger budget, or give '
            "DecodeOptions(halo_pixels=64, overlap_pixels=64)."
        )
        return
    if (report.strategy != "tiled" and engine != "tiles") or report.estimate_error == 0:
        return
    if report.estimate_error is None:
        yield "The frames are an approximation: GroupNorm saw one tile in place of a frame."
    else:
        yield (
            "The frames are an approximation: GroupNorm's statistics were estimated, off by "
            f"{report.estimate_error:.1%} at most. DecodeOptions(statistic_passes=2) corrects them "
            "for the time of one more decode."
        )
    exact = [
        int(c["device_bytes"])
        for c in report.plan.get("candidates", ())
        if c["strategy"] in ("whole", "streamed") and c["device_bytes"] is not None
    ]
    if exact:
        yield f"An exact decode needs a budget of {size_text(min(exact), 2)} here."
