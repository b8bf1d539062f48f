"""Each convolution back-end, tried in a child process and held against float64 sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hy3d_rocm.conv.probe import probe
from hy3d_rocm.conv.probe.parent import Case, Outcome, Progress

# The library last: it is what may hang, and a hang takes a new child and its share of the time.
GPU_TIERS = ("triton", "gemm", "conv2d", "native", "cpu", "vendor")
CPU_TIERS = ("gemm", "conv2d", "native", "cpu")
REFUSED = "could not be tried: RefusedError"


@dataclass(frozen=True)
class Shape:
    """A layer as a VAE has them, told without torch: for probe.parent.Spec."""

    device: str
    dtype: str
    channels: int
    size: tuple[int, int, int]

    def to_json(self) -> dict[str, Any]:
        """As ConvSpec.to_json."""
        ones, c = [1, 1, 1], self.channels
        return {
            "ndim": 3, "batched": True, "x_size": [1, c, *self.size],
            "weight_size": [c, c, 3, 3, 3], "has_bias": True, "stride": ones, "pad_before": ones,
            "pad_after": ones, "dilation": ones, "groups": 1, "out_size": [1, c, *self.size],
            "dtype": self.dtype, "device": self.device, "channels_last": False,
        }  # fmt: skip

    def __str__(self) -> str:
        size = "x".join(map(str, (1, self.channels, *self.size)))
        return f"conv3d {size} -> {self.channels}, {self.dtype}"


def cases_for(torch: Mapping[str, Any]) -> list[Case]:
    """What is tried on a machine whose torch says this: the CPU, and one GPU of each kind."""
    if "version" not in torch:
        return []
    cases = [Case(tier, Shape("cpu", "f32", 16, (3, 12, 12)), check=True) for tier in CPU_TIERS]
    seen: set[str] = set()
    for index, gpu in enumerate(torch.get("gpus", ())):
        kind = str(gpu.get("architecture") or gpu.get("name"))
        if kind not in seen:
            seen.add(kind)
            shape = Shape(f"cuda:{index}", "bf16", 64, (5, 34, 34))
            cases += [Case(tier, shape, check=True) for tier in GPU_TIERS]
    return cases


def run(
    torch: Mapping[str, Any],
    seconds: float,
    *,
    tell: Callable[[str], None] | None = None,
    cancel: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """{"ran", "why", "results"}: never later than about `seconds` + 1, whatever the tiers do.

    CPU and GPU have children of their own: a GPU that can't be started must not keep the CPU's
    tiers from being tried. tell(text) is called as each case begins.
    """
    cases = cases_for(torch)
    if not cases:
        return {"ran": False, "why": "PyTorch does not work here", "results": []}

    def progress(now: Progress) -> None:
        if tell is not None and now.outcome is None and not now.seconds:
            tell(f"trying {now.case.tier} on {now.case.spec.device}")

    on_cpu = [case for case in cases if case.spec.device == "cpu"]
    on_gpu = [case for case in cases if case.spec.device != "cpu"]
    outcomes: list[Outcome] = []
    for group, share in ((on_cpu, seconds / 3 if on_gpu else seconds), (on_gpu, seconds * 2 / 3)):
        if group:
            outcomes += probe(group, limit_s=share, progress=progress, cancel=cancel)
    results = [_result(outcome) for outcome in outcomes]
    tried = any(result["verdict"] != "not-run" for result in results)
    return {"ran": tried, "why": "" if tried else results[0]["detail"], "results": results}


def _result(outcome: Outcome) -> dict[str, Any]:
    """JSON-able. verdict: probe's, and "refused" where the tier says that it is not made for it."""
    refused = outcome.verdict == "not-run" and outcome.detail.startswith(REFUSED)
    return {
        "device": str(outcome.case.spec.device),
        "tier": outcome.case.tier,
        "shape": str(outcome.case.spec),
        "verdict": "refused" if refused else outcome.verdict,
        "first_seconds": outcome.first_seconds,
        "seconds": outcome.seconds,
        "detail": outcome.detail.removeprefix(REFUSED).lstrip(": ") if refused else outcome.detail,
        "limit_s": outcome.limit_s,
    }
