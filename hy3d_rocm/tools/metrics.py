"""How close frames are to the exact ones, and whether cuts show: PSNR, SSIM, seams, flicker.

All take frames (B, C, T, H, W) on the CPU, go frame by frame, and count in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

# Z. Wang, A. C. Bovik, H. R. Sheikh, E. P. Simoncelli, "Image quality assessment: from error
# visibility to structural similarity", 2004: a Gaussian of sigma 1.5 over 11 x 11, K1, K2.
_WINDOW, _SIGMA, _K1, _K2 = 11, 1.5, 0.01, 0.03
_REACH = 8  # neighbours on each side that a border is held against


def span(frames: Tensor) -> float:
    """max - min, which errors are counted against."""
    return float(frames.max()) - float(frames.min())


def psnr(frames: Tensor, exact: Tensor) -> float:
    """dB, with the range of `exact` as the peak; infinite where equal. ValueError for other
    shapes."""
    _check(frames, exact)
    total = sum(float((a - b).square().sum()) for a, b in _pairs(frames, exact))
    if total == 0.0:
        return math.inf
    return 10.0 * math.log10(span(exact) ** 2 * exact.numel() / total)


def largest_error(frames: Tensor, exact: Tensor) -> float:
    """As a share of the range of `exact`."""
    _check(frames, exact)
    worst = max(float((a - b).abs().max()) for a, b in _pairs(frames, exact))
    reach = span(exact)
    return worst / reach if reach else (0.0 if worst == 0.0 else math.inf)


def ssim(frames: Tensor, exact: Tensor) -> float:
    """Mean structural similarity over all frames and channels where the window is inside; 1 for
    equal frames. Pictures narrower than the window get a smaller one."""
    _check(frames, exact)
    height, width = exact.shape[3:]
    size = min(_WINDOW, height - (height + 1) % 2, width - (width + 1) % 2)
    line = torch.arange(size, dtype=torch.float64, device="cpu") - (size - 1) / 2
    weights = torch.exp(-line.square() / (2 * _SIGMA**2))
    weights = weights / weights.sum()
    reach = span(exact) or 1.0
    values = [_ssim(a, b, weights, reach) for a, b in _pairs(frames, exact)]
    return sum(values) / len(values)


def _ssim(a: Tensor, b: Tensor, weights: Tensor, reach: float) -> float:
    """a, b: (B, C, H, W), float64."""
    blurred = _blur(torch.stack([a, b, a * a, b * b, a * b]), weights)
    mean_a, mean_b, aa, bb, ab = blurred.unbind(0)
    var_a, var_b, cov = aa - mean_a**2, bb - mean_b**2, ab - mean_a * mean_b
    c1, c2 = (_K1 * reach) ** 2, (_K2 * reach) ** 2
    value = (2 * mean_a * mean_b + c1) * (2 * cov + c2)
    value = value / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    return float(value.mean())


def _blur(x: Tensor, weights: Tensor) -> Tensor:
    """Over the last two axes, where the window is inside."""
    size = len(weights)
    x = sum(w * x[..., i : x.shape[-2] - size + 1 + i, :] for i, w in enumerate(weights))
    made: Tensor = sum(w * x[..., i : x.shape[-1] - size + 1 + i] for i, w in enumerate(weights))
    return made


def seams(frames: Tensor, rows: Iterable[int], columns: Iterable[int]) -> float:
    """How much stronger the step across tiles' borders is than beside them: 1 where borders do not
    show, NaN where there are none.

    rows, columns: r is the border between r - 1 and r. For each the energy (mean square) of the
    step across it, over that of the 8 steps on each side that are no borders; then the mean.
    """
    vertical, horizontal = _step_energies(frames)
    return _mean([*_against_neighbours(vertical, rows), *_against_neighbours(horizontal, columns)])


def flicker(frames: Tensor, cuts: Iterable[int]) -> float:
    """The same in time: the energy of the step from frame c - 1 to c over that of the steps beside
    it that are no cuts. NaN where there are none."""
    steps = [
        float((frames[:, :, t].double() - frames[:, :, t - 1].double()).square().mean())
        for t in range(1, frames.shape[2])
    ]
    return _mean(list(_against_neighbours(steps, cuts)))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _step_energies(frames: Tensor) -> tuple[list[float], list[float]]:
    """Of the steps between rows and between columns: entry i is the step from i to i + 1."""
    height, width = frames.shape[3:]
    rows, columns = (torch.zeros(n - 1, dtype=torch.float64, device="cpu") for n in (height, width))
    for frame in frames.unbind(2):
        frame = frame.double()
        rows += frame.diff(dim=2).square().mean((0, 1, 3))
        columns += frame.diff(dim=3).square().mean((0, 1, 2))
    return rows.tolist(), columns.tolist()


def _against_neighbours(steps: Sequence[float], borders: Iterable[int]) -> Iterator[float]:
    marked = sorted({b for b in borders if 0 < b <= len(steps)})
    for border in marked:
        around = range(max(border - _REACH, 1), min(border + _REACH, len(steps)) + 1)
        beside = [steps[b - 1] for b in around if b not in marked]
        usual = sum(beside) / len(beside) if beside else 0.0
        if usual > 0:
            yield steps[border - 1] / usual


def error_map(frames: Tensor, exact: Tensor) -> Tensor:
    """(H, W): mean absolute error over samples, channels and frames, as a share of the range."""
    _check(frames, exact)
    total = torch.zeros(exact.shape[3:], dtype=torch.float64, device="cpu")
    for a, b in _pairs(frames, exact):
        total += (a - b).abs().mean((0, 1))
    return total / exact.shape[2] / (span(exact) or 1.0)


def _pairs(frames: Tensor, exact: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """(B, C, H, W) of both, in float64, frame by frame."""
    for a, b in zip(frames.unbind(2), exact.unbind(2), strict=True):
        yield a.double(), b.double()


def _check(frames: Tensor, exact: Tensor) -> None:
    if frames.shape != exact.shape or exact.ndim != 5 or 0 in exact.shape:
        raise ValueError(
            f"frames of {tuple(frames.shape)} can't be held against {tuple(exact.shape)}: give two "
            "videos (B, C, T, H, W) of one size"
        )
