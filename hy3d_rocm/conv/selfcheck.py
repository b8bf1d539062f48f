"""What a tier returned, held against what was asked for: form, and values at random outputs.

A kernel that is wrong (a miscompiled one, a race, a driver's fault) gives a picture, not an error.
So the first result of each tier, shape and dtype is compared at SAMPLES random positions: the
input windows and weight rows are gathered on the device and summed in float64. The bound is that
of docs/numerics.md. Nothing here touches a global generator.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch

from hy3d_rocm.conv.call import ConvCall, ConvSpec, dtype_name, size_text
from hy3d_rocm.conv.errors import BadResultError

SAMPLES = 64
# Tiers whose algorithm a library chooses: Winograd is one of MIOpen's and cuDNN's, and a BLAS
# library may add the parts of a long sum in the data's own type.
_FREE_ALGORITHM = frozenset({"current", "vendor", "conv2d", "native"})
UNIT = {
    torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}  # fmt: skip
_TINY = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134}  # half the smallest spacing
# Matrix units of GPUs add with truncation, not to nearest: twice the unit roundoff (Fasi, Higham,
# Mikaitis, Pranesh, Numerical behavior of NVIDIA tensor cores, 2021).
GPU_SUM_UNIT = 2.0**-23
# TF32 keeps ten bits of each factor; cut off, not rounded, at worst.
TF32_UNIT = 2.0**-10
# Row sums of |B|, |G| and |A| of Winograd's F(2, 3) are 2, 3/2 and 3; their product, squared for
# two dimensions, is how much it may magnify the rounding of its transformed operands.
_WINOGRAD = 81.0


@dataclass(frozen=True)
class Finding:
    """What a check says. fault: "" (sound), "tier" (wrong result) or "precision" (the value itself
    does not fit into the result's dtype: no other tier would do better)."""

    fault: str = ""
    detail: str = ""


SOUND = Finding()


@dataclass(frozen=True)
class _Sums:
    """At the sampled positions, float64 on the CPU: the result, the exact sum, sum |x w| + |b|,
    sqrt of sum (x w)^2."""

    got: torch.Tensor
    exact: torch.Tensor
    size: torch.Tensor
    norm: torch.Tensor


def check_form(result: torch.Tensor, call: ConvCall, synchronize: bool) -> None:
    """A tier that lies is a tier that failed: BadResultError."""
    spec = call.spec
    if not isinstance(result, torch.Tensor):
        raise BadResultError(f"it returned {type(result).__name__} instead of a tensor")
    got = (tuple(result.shape), result.dtype, result.device)
    if got != (spec.result_size, spec.dtype, spec.device):
        raise BadResultError(
            f"it returned {size_text(got[0])} {dtype_name(got[1])} on {got[2]} instead of"
            f" {size_text(spec.result_size)} {dtype_name(spec.dtype)} on {spec.device}"
        )
    if synchronize and spec.device.type == "cuda":
        torch.cuda.synchronize(spec.device)


def check_values(tier: str, result: torch.Tensor, call: ConvCall, *, is_first: bool) -> str:
    """BadResultError where the values are the tier's fault; else "" or, where the result's dtype
    can't hold the values, the sentence about that.

    The first result is compared with exact sums; a later one only looked through for NaN.
    """
    if is_first:
        found = check(tier, call, result)
    else:
        found = SOUND if bool(torch.isfinite(result).all()) else diagnose(call, result)
    if found.fault == "tier":
        raise BadResultError(f"its result is wrong: {found.detail}")
    return found.detail


def check(
    tier: str, call: ConvCall, result: torch.Tensor, picker: random.Random | None = None
) -> Finding:
    """Compares `result` (of `tier`, for `call`) at SAMPLES positions, and looks for NaN in it all.

    Waits for the device. Takes about 64 * prod(weight size) / Cout * 20 bytes of it.
    """
    spec = call.spec
    if not result.numel():
        return SOUND
    whole = result if spec.batched else result.unsqueeze(0)
    places = _random_places(spec, picker or random.Random())
    with torch.no_grad():
        finding = _compare(tier, call, _sums(call, whole, places))
        if finding.fault or _is_finite(whole):
            return finding
        return diagnose(call, result)


def diagnose(call: ConvCall, result: torch.Tensor) -> Finding:
    """Whose fault it is that `result` is not finite: the input's (then it is sound), the
    precision's or the tier's."""
    tensors = (call.x, call.weight, call.bias)
    if not all(_is_finite(t) for t in tensors if t is not None):
        return SOUND
    whole = result if call.spec.batched else result.unsqueeze(0)
    places = _places_that_are_not_finite(whole)
    sums = _sums(call, whole, places)
    largest = torch.finfo(call.spec.dtype).max
    overflows = (sums.exact.abs() + _slack(call, sums)) > largest
    position, value = places[0], float(sums.exact[0])
    if bool(overflows.all()):
        return Finding(
            "precision",
            f"output {position} is {value:.4g}, more than {call.spec.dtype} can hold"
            f" ({largest:.4g}); use bfloat16 or float32",
        )
    index = int((~overflows).nonzero()[0])
    return Finding(
        "tier",
        f"output {places[index]} is {float(sums.got[index])} instead of"
        f" {float(sums.exact[index]):.6g}, from finite input",
    )


def _compare(tier: str, call: ConvCall, sums: _Sums) -> Finding:
    dtype, bound = call.spec.dtype, _bound(call, sums)
    wrong = beyond(sums.got, sums.exact, bound, dtype)
    if not bool(wrong.any()) or (tier in _FREE_ALGORITHM and _within_winograd(call, sums)):
        return SOUND
    if not bool(sums.got[wrong].isfinite().all()):
        return SOUND  # check() goes on to diagnose()
    return Finding("tier", wrong_words(sums.got, sums.exact, bound, wrong))


def _judged(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Where there is something to compare: an input that is not finite makes exact values that are
    not, and what the type can't hold is no fault."""
    return exact.isfinite() & (exact.abs() <= torch.finfo(dtype).max)


def beyond(
    got: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Which values of type `dtype` are further from the exact ones than that; NaN is."""
    return _judged(exact, dtype) & ~((got - exact).abs() <= bound)


def wrong_words(
    got: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor, wrong: torch.Tensor
) -> str:
    """How many are wrong, and the worst, for a sentence."""
    worst = int(torch.where(wrong, (got - exact).abs(), -1).nan_to_num(torch.inf).argmax())
    found, meant, most = (float(t.flatten()[worst]) for t in (got, exact, bound))
    return (
        f"{int(wrong.sum())} of {wrong.numel()} outputs are wrong; one is {found:.6g}"
        f" instead of {meant:.6g} (bound {most:.2g})"
    )


def _slack(call: ConvCall, sums: _Sums) -> torch.Tensor:
    """|sum in the tier's arithmetic - exact|, before the last rounding; plus our own error."""
    spec = call.spec
    count = math.prod(spec.weight_size[1:]) + 1
    unit = UNIT[torch.float64]
    if spec.dtype is not torch.float64:
        unit = GPU_SUM_UNIT if spec.device.type != "cpu" else UNIT[torch.float32]
    factor = gamma(count, unit) + gamma(count, UNIT[torch.float64])
    if spec.dtype is torch.float32 and _may_use_tf32(spec):
        factor += 2 * TF32_UNIT + TF32_UNIT**2
    return factor * sums.size


def _bound(call: ConvCall, sums: _Sums) -> torch.Tensor:
    """docs/numerics.md: S, and for f16 and bf16 the rounding of the result."""
    slack = _slack(call, sums)
    if call.spec.dtype not in _TINY:
        return slack
    unit = UNIT[call.spec.dtype]
    return slack + unit * (sums.exact.abs() + slack) + _TINY[call.spec.dtype]


def _within_winograd(call: ConvCall, sums: _Sums) -> bool:
    """Whether the root mean square error is what a transform in the data's type may cause.

    A bound for each output would need the whole tile; rounding errors of different terms are as
    good as independent, so over many outputs the mean square is what tells noise from a fault.
    """
    unit, judged = UNIT[call.spec.dtype], _judged(sums.exact, call.spec.dtype)
    if call.spec.dtype is torch.float32 and _may_use_tf32(call.spec):
        unit = TF32_UNIT
    error = torch.where(judged, sums.got - sums.exact, torch.zeros_like(sums.got))
    allowed = _WINOGRAD * unit * torch.where(judged, sums.norm, torch.zeros_like(sums.norm))
    return bool(error.square().sum() <= allowed.square().sum())


def gamma(count: int, unit: float) -> float:
    return count * unit / (1 - count * unit)


def _may_use_tf32(spec: ConvSpec) -> bool:
    """Whether PyTorch's settings let a tier round float32 factors to TF32."""
    if spec.device.type != "cuda":
        return False
    try:
        library = bool(torch.backends.cudnn.allow_tf32)
        return library or torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # the user has chosen by fp32_precision, which forbids the older names
        return True


_Place = tuple[int, ...]


def _random_places(spec: ConvSpec, picker: random.Random) -> list[_Place]:
    """SAMPLES positions (n, channel, [t,] h, w); the corners' padding is met by the last two."""
    places = [tuple(picker.randrange(n) for n in spec.out_size) for _ in range(SAMPLES - 2)]
    channel = picker.randrange(spec.out_size[1])
    last = tuple(n - 1 for n in spec.out_size[2:])
    return [*places, (0, channel, *(0,) * spec.ndim), (spec.out_size[0] - 1, channel, *last)]


def _places_that_are_not_finite(whole: torch.Tensor) -> list[_Place]:
    """Up to SAMPLES of them, found sample by sample so that the mask stays small."""
    places: list[_Place] = []
    for n in range(whole.shape[0]):
        for c in range(whole.shape[1]):
            part = whole[n, c]
            if _is_finite(part):
                continue
            rows = (~part.isfinite()).nonzero()[: SAMPLES - len(places)].tolist()
            places += [(n, c, *row) for row in rows]
            if len(places) >= SAMPLES:
                return places
    return places


def _sums(call: ConvCall, whole: torch.Tensor, places: list[_Place]) -> _Sums:
    """The three sums at `places`, and what the tier gave there."""
    spec, device = call.spec, call.spec.device
    x = call.x if spec.batched else call.x.unsqueeze(0)
    weight, bias = call.weight, call.bias
    at = torch.tensor(places, device=device)  # (P, 2 + ndim)
    n, channel = at[:, 0], at[:, 1]
    cin, cout = spec.weight_size[1], spec.weight_size[0] // spec.groups
    first = torch.div(channel, cout, rounding_mode="floor") * cin
    channels = first[:, None] + torch.arange(cin, device=device)
    ones = (1,) * spec.ndim
    index = [n.view(-1, 1, *ones), channels.view(-1, cin, *ones)]
    inside = torch.ones((), dtype=torch.bool, device=device)
    for d in range(spec.ndim):
        length = spec.x_size[2 + d]
        start = at[:, 2 + d] * spec.stride[d] - spec.pad_before[d]
        taps = torch.arange(spec.kernel[d], device=device) * spec.dilation[d]
        row = start[:, None] + taps  # (P, k)
        shape = (len(places), 1, *(spec.kernel[d] if e == d else 1 for e in range(spec.ndim)))
        inside = inside & ((row >= 0) & (row < length)).view(shape)
        index.append(row.clamp(0, length - 1).view(shape))
    window = x[tuple(index)]
    window = torch.where(inside, window, torch.zeros_like(window))
    # As operands(): in the dtype of the computation (autocast), but of what was gathered only.
    window = _wide(window.to(spec.dtype))
    # In place and by norms: for many channels the products of 64 windows are some megabytes.
    products = window.mul_(_wide(weight[channel].to(spec.dtype))).flatten(1)
    addend = products.new_zeros(())
    if bias is not None:
        addend = _wide(bias[channel].to(spec.dtype))
    exact = products.sum(1) + addend
    size = torch.linalg.vector_norm(products, 1, dim=1) + addend.abs()
    norm = torch.linalg.vector_norm(products, dim=1)
    got = _wide(whole[tuple(at.T)])
    return _Sums(*torch.stack([got, exact, size, norm]).cpu())


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """In float64: on the device where that has it, else on the CPU."""
    if tensor.device.type not in ("cpu", "cuda"):
        tensor = tensor.cpu()
    return tensor.double()


def _is_finite(tensor: torch.Tensor) -> bool:
    """One pass without a mask of the tensor's size: NaN and infinity show in the extremes."""
    if not tensor.numel():
        return True
    low, high = torch.aminmax(tensor.detach())
    return math.isfinite(float(low)) and math.isfinite(float(high))
