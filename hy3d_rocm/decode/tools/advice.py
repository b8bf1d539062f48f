"""What to do differently next time: sentences from a decode's report. Pure; no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hy3d_rocm.units import MB, size_text

if TYPE_CHECKING:
    from hy3d_rocm.decode.report import DecodeReport

# Of multiply-accumulates a second: one desktop CPU does 0.1 to 0.5 in float32, the smallest GPU
# that a video model runs on several. A GPU below it waits for something.
_SLOW_GPU_GMACS = 500.0
_LONG_SECONDS = 20.0
_EXACT = ("whole", "streamed")


def recommendations(report: DecodeReport) -> list[str]:
    """Sentences, the most useful first; empty where nothing is to be done."""
    found = [*_after_faults(report), *_about_speed(report), *_about_exactness(report)]
    return list(dict.fromkeys(found))


def _after_faults(report: DecodeReport) -> list[str]:
    said = []
    kinds = [str(event.get("event", "")) for event in report.events]
    memory = report.predicted_peak_bytes
    if "out of memory" in kinds:
        smaller = max(int(report.budget_bytes * 0.8) // MB * MB, MB)
        said.append(
            f"Memory ran out although {size_text(report.budget_bytes, 2)} were to be had: another "
            "program took it meanwhile, or it is fragmented. Close other programs, or give budget="
            f'"{smaller // MB}MB", so that the decode begins with what ends.'
        )
    if "not finite" in kinds:
        said.append(
            "The type of the first attempt gave NaN or infinite values, and the decode began again "
            f'in {report.dtype}: give precision="{_short(report.dtype)}" at once.'
        )
    if "a convolution that failed" in kinds:
        said.append(
            "A convolution failed: decode inside hy3d_rocm.protect(), which takes another back-end "
            "for that layer alone, and look at what `hy3d-rocm doctor` says."
        )
    if memory and report.measured_peak_bytes > memory:
        said.append(
            f"The peak was {size_text(report.measured_peak_bytes, 2)}, planned were "
            f"{size_text(memory, 2)}: please send a capture (HY3D_ROCM_CAPTURE=DIR) with an issue."
        )
    return said


def _about_speed(report: DecodeReport) -> list[str]:
    said = []
    if report.strategy == "cpu" and report.device != "cpu":
        said.append(
            "Nothing fitted the GPU, so the host decoded, which takes much longer: free GPU memory "
            "or decode fewer frames."
        )
    gmacs = float(report.plan.get("gmacs") or 0.0)
    is_long = report.seconds > _LONG_SECONDS
    on_gpu = report.device.startswith("cuda") and report.strategy != "cpu"
    if on_gpu and is_long and gmacs and gmacs / report.seconds < _SLOW_GPU_GMACS:
        said.append(
            f"{gmacs / report.seconds:.0f} billion multiply-accumulates a second are slow for a "
            "GPU: on AMD cards MIOpen searches for kernels or has none. Run `hy3d-rocm tune`, or "
            "decode inside hy3d_rocm.protect(); the second decode of a size is faster, too."
        )
    resident = report.plan.get("resident_bytes")
    if resident is not None and is_long:
        said.append(
            f"Activations went through host memory, {size_text(int(resident))} of them stayed on "
            "the GPU: a larger budget, or fewer frames, makes this faster."
        )
    if report.planning_seconds > max(report.seconds, 1.0):
        said.append(
            f"Planning took {report.planning_seconds:.1f} s, the decode {report.seconds:.1f} s: "
            f'strategy="{report.strategy}" looks at that one alone.'
        )
    return said


def _about_exactness(report: DecodeReport) -> list[str]:
    if _engine(report.plan) == "own tiles":
        return [
            "The frames are an approximation whose error can't be known, since the layers of this "
            'VAE are not: compare with strategy="whole" and a larger budget, or give '
            "DecodeOptions(halo_pixels=64, overlap_pixels=64)."
        ]
    is_tiled = report.strategy == "tiled" or _engine(report.plan) == "tiles"
    if not is_tiled or report.estimate_error == 0:
        return []
    if report.estimate_error is None:
        said = ["The frames are an approximation: GroupNorm saw one tile in place of a frame."]
    else:
        said = [
            "The frames are an approximation: GroupNorm's statistics were estimated, off by "
            f"{report.estimate_error:.1%} at most. DecodeOptions(statistic_passes=2) corrects them "
            "for the time of one more decode."
        ]
    exact = [
        int(c["device_bytes"])
        for c in report.plan.get("candidates", ())
        if c["strategy"] in _EXACT and c["device_bytes"] is not None
    ]
    if exact:
        said.append(f"An exact decode needs a budget of {size_text(min(exact), 2)} here.")
    return said


def _engine(plan: dict[str, Any]) -> str:
    return str((plan.get("parameters") or {}).get("engine", ""))


def _short(name: str) -> str:
    return {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(name, name)
