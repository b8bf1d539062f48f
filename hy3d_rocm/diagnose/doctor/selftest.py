"""Each convolution back-end, PyTorch's attention and the fused decode's kernels, tried in child
processes and held against float64 sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hy3d_rocm.conv.probe import probe
from hy3d_rocm.conv.probe.parent import Case, NoAnswerError, Outcome, Progress, ask

# The library last: it is what may hang, and a hang takes a new child and its share of the time.
GPU_TIERS = ("triton", "gemm", "conv2d", "native", "cpu", "vendor")
CPU_TIERS = ("gemm", "conv2d", "native", "cpu")
REFUSED = "could not be tried: RefusedError"
#: elements of the heads that attention is tried with: a language model's, Wan's, HunyuanVideo's
HEADS = (64, 384, 512)
_ATTENTION = f"{__name__}:attention_here"
_KERNELS = "hy3d_rocm.decoding.backends.triton.trial:kernels_here"
_ATTENTION_S, _KERNELS_S = 20.0, 40.0  # of the kernels ten or so are compiled


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
    """{"ran", "why", "results", "attention", "decode_kernels"}: never later than about `seconds` +
    2, whatever the tiers do.

    CPU and GPU have children of their own: a GPU that can't be started must not keep the CPU's
    tiers from being tried; attention and the decode's kernels have one each. tell(text) is called
    as each case begins.
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
    of_attention = min(_ATTENTION_S, seconds / 4) if on_gpu else 0.0
    of_kernels = min(_KERNELS_S, seconds / 3) if on_gpu else 0.0
    seconds -= of_attention + of_kernels
    for group, share in ((on_cpu, seconds / 3 if on_gpu else seconds), (on_gpu, seconds * 2 / 3)):
        if group:
            outcomes += probe(group, limit_s=share, progress=progress, cancel=cancel)
    results = [_result(outcome) for outcome in outcomes]
    tried = any(result["verdict"] != "not-run" for result in results)
    made = {"ran": tried, "why": "" if tried else results[0]["detail"], "results": results}
    if on_gpu:
        if tell is not None:
            tell("trying PyTorch's attention")
        made["attention"] = _rows_of(_ATTENTION, of_attention, size=0)
        if tell is not None:
            tell("trying the kernels of decode()")
        made["decode_kernels"] = _rows_of(_KERNELS, of_kernels, kernels=0)
    return made


def _rows_of(call: str, seconds: float, **fields: int) -> list[dict[str, Any]]:
    """What a function gives in a child, or one row that says why nothing came."""
    try:
        found = ask(call, limit_s=seconds)
    except NoAnswerError as error:
        verdict = "hang" if error.is_hang else "error"
        return [{"device": "the GPU", **fields, "verdict": verdict, "detail": str(error)}]
    return found if isinstance(found, list) else []


def attention_here() -> list[dict[str, Any]]:
    """PyTorch's own attention on one GPU of each kind, for heads of each of HEADS: rows with
    "device", "size", "is_large" (this pack leaves such heads to no fused kernel of ROCm's),
    "verdict" ("ok", "wrong" or "error") and "detail". In a child."""
    from hy3d_rocm.device import gpus_of_each_kind

    return [attended(device, size) for device in gpus_of_each_kind() for size in HEADS]


def attended(device: Any, size: int) -> dict[str, Any]:
    """A row of attention_here(). Tried three times, into memory that holds large numbers: a kernel
    that does not run leaves them there."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from hy3d_rocm.conv.attention import LARGEST_TRUSTED

    row: dict[str, Any] = {"device": str(device), "size": size, "verdict": "ok", "detail": ""}
    row["is_large"] = size > LARGEST_TRUSTED
    rng = torch.Generator().manual_seed(7)
    q, k, v = (
        torch.randn(1, 1, 256, size, generator=rng, device="cpu").bfloat16() for _ in range(3)
    )
    weights = (q.double() @ k.double().mT * size**-0.5).softmax(-1)
    exact = weights @ v.double()
    # bfloat16 has 8 bits: weights are rounded, the result is, and the sum of the weights may be.
    allowed = 4 * 2.0**-8 * (weights @ v.double().abs())
    worst = 0.0
    try:
        q, k, v = (t.to(device) for t in (q, k, v))
        for _ in range(3):
            filled = torch.full_like(q, 1e30)
            del filled
            made = scaled_dot_product_attention(q, k, v).cpu().double()
            off = ((made - exact).abs() / allowed).nan_to_num(nan=float("inf"))
            worst = max(worst, float(off.max()))
    except RuntimeError as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        return row | {"verdict": "error", "detail": text[0][:300]}
    if worst > 1:
        row |= {"verdict": "wrong", "detail": f"{worst:.3g} times as far off as rounding explains"}
    return row


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
