"""Why Winograd's points are what they are: rounding errors of F(m,3) for sets of points.

    python tests/long/winograd_points.py [--channels 512] [--size 24]

Simulates F(m x m, 3x3) over rows and columns in float32 (transforms, sums of 64 channels,
weights transformed in float64), taps of time summed or by F(2,3), and prints the
largest error against float64 relative to the largest output, beside that of a direct convolution,
and the gain that the proven bound grows with (docs/numerics.md). Inputs are SiLU of normal values,
weights normal, seed 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fractions import Fraction as Fr
from typing import Any

Matrix = list[list[Fr]]
USUAL = tuple(map(Fr, (0, 1, -1, 2, -2)))
OURS4 = (Fr(0), Fr(3, 4), Fr(-3, 4), Fr(5, 4), Fr(-5, 4))
OURS5 = (Fr(3, 8), Fr(-3, 8), Fr(7, 8), Fr(-7, 8), Fr(3, 2), Fr(-3, 2))
BEST6 = (Fr(0), Fr(5, 8), Fr(-5, 8), Fr(1), Fr(-1), Fr(7, 4), Fr(-7, 4))
USUAL6 = (Fr(0), Fr(1), Fr(-1), Fr(2), Fr(-2), Fr(1, 2), Fr(-1, 2))
TIME = (Fr(0), Fr(1), Fr(-1))
TIME3 = (Fr(1, 2), Fr(-1, 2), Fr(5, 4), Fr(-5, 4))
SETS = {
    "4x4, 0 +-1 +-2": USUAL,
    "4x4, 0 +-3/4 +-5/4 (ours)": OURS4,
    "5x5, 0 +-1 +-2 1/2": (*USUAL, Fr(1, 2)),
    "5x5, +-3/8 +-7/8 +-3/2 (ours)": OURS5,
    "6x6, 0 +-1 +-2 +-1/2": USUAL6,
    "6x6, 0 +-5/8 +-1 +-7/4": BEST6,
}
CHAIN = 64


def polynomial(roots: Sequence[Fr]) -> list[Fr]:
    """Coefficients of the product of (x - root), lowest first."""
    out = [Fr(1)]
    for root in roots:
        longer = [Fr(0), *out]
        for i, value in enumerate(out):
            longer[i] -= root * value
        out = longer
    return out


def matrices(points: Sequence[Fr]) -> tuple[Matrix, Matrix, Matrix]:
    """A^T (m, n), G (n, 3) and B^T (n, n) of F(m,3) with these points and infinity."""
    m, n = len(points) - 1, len(points) + 1
    result = [[p**i for p in points] + [Fr(i == m - 1)] for i in range(m)]
    weights, data = [], []
    for j, point in enumerate(points):
        others = [p for k, p in enumerate(points) if k != j]
        factor = Fr(1)
        for other in others:
            factor *= point - other
        weights.append([point**c / factor for c in range(3)])
        row = polynomial(others)
        data.append(row + [Fr(0)] * (n - len(row)))
    return result, [*weights, [Fr(0), Fr(0), Fr(1)]], [*data, polynomial(points)]


def _fractions(*rows: str) -> Matrix:
    return [[Fr(word) for word in row.split()] for row in rows]


# As A^T, G and a row of B^T for each product: outputs 2j + 1 and 2j + 2, j = 0, 1, 2, of three taps
# on four positions that were up-sampled twice; and the same of three, j = 0, 1.
UP = (
    _fractions("0 1 1 0 1 0 0", "1 0 1 1 0 0 0", "0 0 1 0 -1 0 0", "0 0 1 -1 0 0 0",
               "0 0 1 0 1 0 1", "0 0 1 1 0 1 0"),
    _fractions("1 0 0", "1 1 0", "1/2 1/2 1/2", "1/2 -1/2 -1/2", "1/2 1/2 -1/2", "0 1 1", "0 0 1"),
    _fractions("1 0 -1 0", "1 0 -1 0", "0 1 1 0", "0 -1 1 0", "0 -1 1 0", "0 -1 0 1", "0 -1 0 1"),
)  # fmt: skip
PAIRS = (
    _fractions("0 1 1 0 0", "1 0 1 0 0", "0 0 1 0 1", "0 0 1 1 0"),
    _fractions("1 0 0", "1 1 0", "1 1 1", "0 1 1", "0 0 1"),
    _fractions("1 -1 0", "1 -1 0", "0 1 0", "0 -1 1", "0 -1 1"),
)


def gain(points: Sequence[Fr]) -> Fr:
    """Of F(m,3) with these points and infinity."""
    return gain_of(*matrices(points))


def gain_of(result: Matrix, weights: Matrix, data: Matrix) -> Fr:
    """max over i, a of sum_p |A_ip| (sum_q |B_pq|) |G_pa|: what rounding errors grow by."""
    rows = [sum(map(abs, row), Fr(0)) for row in data]
    return max(
        sum((abs(a[p]) * rows[p] * abs(weights[p][c]) for p in range(len(rows))), Fr(0))
        for a in result
        for c in range(3)
    )


def sizes_of(name: str) -> tuple[int, int]:
    """(m, frames made at once) of a layout of prepared weights, by its name."""
    *frames, m, again = name.removeprefix("winograd-").removeprefix("up-").split("x")
    assert m == again
    return int(m), int(frames[0]) if frames else 1


def roundings(m: int, frames: int, channels: int, taps: int) -> int:
    """How many roundings a product passes at most; products rounded before they are added. frames:
    made at once, 4 of frames in twos."""
    k = -(-channels // 16) * 16
    segments, most = (taps, 192 // taps) if frames == 1 else (1, 128)
    equal = -(-k // -(-k // most))
    chunk = -(-equal // 16) * 16
    sums = segments * chunk + -(-k // chunk) - 1
    transforms = 10 if m == 6 else 4 * m + 8
    return sums + transforms + {1: 0, 2: 5, 3: 13, 4: 4}[frames] + 2


def bound(m: int, frames: int, channels: int, taps: int) -> Fr:
    """C of |computed - exact| <= C max|x| max sum|w|; m = 6: of an up-sampled input."""
    terms = Fr(roundings(m, frames, channels, taps), 2**24)
    time = {1: Fr(1), 2: gain(TIME), 3: gain(TIME3), 4: gain_of(*PAIRS)}[frames]
    space = gain_of(*UP) if m == 6 else gain(OURS4 if m == 4 else OURS5)
    return terms / (1 - terms) * space**2 * time


def applied(matrix: Matrix, values: Any, axis: int) -> Any:
    """matrix along an axis, every product and sum rounded."""
    import torch

    parts = values.movedim(axis, -1).unbind(-1)
    rows = []
    for row in matrix:
        terms = [part * float(c) for c, part in zip(row, parts, strict=True) if c != 0]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        rows.append(total)
    return torch.stack(rows, -1).movedim(-1, axis)


def summed(weights: Any, values: Any, text: str) -> Any:
    """Sums over channels in chains of at most CHAIN."""
    import torch

    total = None
    for c in range(0, values.shape[0], CHAIN):
        part = torch.einsum(text, weights[:, c : c + CHAIN], values[c : c + CHAIN])
        total = part if total is None else total + part
    return total


def simulated(points: Sequence[Fr], x: Any, weight: Any, *, in_time: bool) -> Any:
    """x (C, T + 2, H + 2, W + 2), weight (M, C, 3, 3, 3): (M, T, H, W) in float32."""
    import torch

    result, g, data = matrices(points)
    m, n = len(result), len(data)
    exact = torch.tensor([[float(v) for v in row] for row in g], dtype=torch.float64)
    u = torch.einsum("ia,mctab,jb->mctij", exact, weight.double(), exact)
    v = applied(data, applied(data, x.unfold(2, n, m).unfold(3, n, m), 4), 5)
    if in_time:
        result_t, g_t, data_t = matrices(TIME)
        exact_t = torch.tensor([[float(v) for v in row] for row in g_t], dtype=torch.float64)
        u = torch.einsum("pt,mctij->mcpij", exact_t, u).float()
        v = applied(data_t, v.unfold(1, 4, 2), 6)
        y = applied(result_t, summed(u, v, "mcpij,ctabijp->mtabijp"), 6)
        y = y.movedim(6, 2).flatten(1, 2)
    else:
        frames = x.shape[1] - 2
        y = sum(
            summed(u[:, :, t].float(), v[:, t : t + frames], "mcij,ctabij->mtabij")
            for t in range(3)
        )
    y = applied(result, applied(result, y, 4), 5)
    return y.permute(0, 1, 2, 4, 3, 5).flatten(4, 5).flatten(2, 3)


def measured(points: Sequence[Fr], channels: int, size: int) -> tuple[float, float, float]:
    """Largest error over largest output: taps summed, F(2,3) in time, direct."""
    import torch
    import torch.nn.functional as functional

    generator = torch.Generator().manual_seed(0)
    m = len(points) - 1
    side = size // m * m
    x = functional.silu(torch.randn(channels, 4, side + 2, side + 2, generator=generator))
    weight = torch.randn(16, channels, 3, 3, 3, generator=generator)
    wanted = functional.conv3d(x[None].double(), weight.double())[0]
    got = [simulated(points, x, weight, in_time=in_time) for in_time in (False, True)]
    got.append(functional.conv3d(x[None], weight)[0])
    first, second, direct = (float((y - wanted).abs().max() / wanted.abs().max()) for y in got)
    return first, second, direct


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--size", type=int, default=24)
    options = parser.parse_args()
    print(f"{options.channels} channels: error / max|y|, with F(2,3) in time, direct, gain^2")
    for name, points in SETS.items():
        first, second, direct = measured(points, options.channels, options.size)
        print(f"{name:32} {first:.1e} {second:.1e} {direct:.1e} {float(gain(points) ** 2):7.0f}")


if __name__ == "__main__":
    main()
