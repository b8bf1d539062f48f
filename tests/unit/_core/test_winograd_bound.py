"""Fast convolutions against float64, held to the bound of docs/numerics.md, whose constant is
computed here from exact fractions: random, +-1 and adversarial inputs."""

from __future__ import annotations

import math
from fractions import Fraction as Fr

import how_much
import pytest
import torch
import torch.nn.functional as functional
import winograd_points as points

from hy3d_rocm import _core

ONE, NONE = (1, 1, 1), (0, 0, 0)
ZEROS = ("zeros", "zeros", "zeros")
# channels in, taps of time, frames, rows, columns: together they reach several kinds.
SHAPES = [
    (64, 1, 3, 40, 40), (64, 3, 2, 40, 40), (96, 3, 8, 20, 20), (160, 3, 5, 25, 20),
    (528, 3, 4, 10, 10), (256, 1, 3, 16, 16), (64, 3, 8, 25, 25), (128, 3, 4, 12, 12),
]  # fmt: skip
KINDS = ("adversarial", "random", "signs")  # of values


def winograd_of(shape: tuple[int, int, int, int, int]) -> tuple[int, int]:
    """(m, frames at once) of the layout that a shape takes; (0, 0) for none."""
    channels, taps, frames, rows, columns = shape
    size = (frames + taps - 1, rows + 2, columns + 2)
    number, name, _ = _core.conv3d_format(
        size,
        channels,
        min(channels, 128),
        (taps, 3, 3),
        ONE,
        ONE,
        NONE,
        NONE,
        ZEROS,
        1,
        "f32",
        "fast",
    )
    if number == 0:
        return 0, 0
    return points.sizes_of(name)


def signs_of(m: int, side: int) -> torch.Tensor:
    """+-1 of (rows, columns) that make B^T d as large as it can be at the point of most gain."""
    ours = {4: points.OURS4, 5: points.OURS5}
    result, weights, data = points.UP if m == 6 else points.matrices(ours[m])
    most = max(
        range(len(data)),
        key=lambda p: max(abs(a[p]) for a in result) * sum(map(abs, data[p]))
        * max(map(abs, weights[p])),
    )  # fmt: skip
    step = 3 if m == 6 else m
    line = torch.tensor([-1.0 if data[most][i % step] < 0 else 1.0 for i in range(side)])
    return line[:, None] * line[None, :]


def inputs(
    kind: str, shape: tuple[int, int, int, int, int], m: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    channels, taps, frames, rows, columns = shape
    x = torch.randn(1, channels, frames + taps - 1, rows + 2, columns + 2, generator=generator)
    weight = torch.randn(min(channels, 128), channels, taps, 3, 3, generator=generator)
    if kind == "signs":
        x, weight = x.sign(), weight.sign()
    elif kind == "adversarial":
        x = (
            signs_of(m, max(rows, columns) + 2)[: rows + 2, : columns + 2]
            * x[:, :, :, :1, :1].sign()
        )
        x = x * 0.99999994  # all bits set: every product rounds
        weight = weight.new_zeros(weight.shape).add_(weight[..., :1, :1].sign() * 1e-3)
        weight[..., 0, 0] *= 1000.0
    return x, weight


@pytest.mark.parametrize(("shape", "kind"), how_much.in_turns(SHAPES, KINDS), ids=str)
def test_errors_stay_within_the_bound_from_exact_fractions(
    shape: tuple[int, int, int, int, int], kind: str
) -> None:
    m, frames = winograd_of(shape)
    if m == 0:
        pytest.skip("this CPU level takes the direct way here")
    x, weight = inputs(kind, shape, m, torch.Generator().manual_seed(sum(shape)))
    wanted = functional.conv3d(x.double(), weight.double())
    out = torch.full_like(wanted, math.nan, dtype=torch.float32)
    used = _core.conv3d(
        x.contiguous(), weight, None, out, ONE, ONE, NONE, NONE, ZEROS, 1, 1, accuracy="fast"
    )
    assert used[0].startswith("winograd")
    limit = (
        float(points.bound(m, frames, shape[0], shape[1]))
        * float(x.abs().max())
        * float(weight.double().abs().sum((1, 2, 3, 4)).max())
    )
    error = float((out.double() - wanted).abs().max())
    # Shown with -s or where it fails; relative to max|y| it says little for adversarial weights.
    print(f"{used[0]} {kind} {shape}: {error / limit:.1e} of the bound, "
          f"{error / float(wanted.abs().max()):.1e} of max|y|")  # fmt: skip
    assert error <= limit


# channels in, taps of time, frames, rows and columns before up-sampling, pairs.
UPSAMPLED = [(64, 1, 3, 20, 20, 0), (64, 3, 1, 20, 20, 0), (96, 3, 6, 11, 10, 0),
             (64, 3, 9, 13, 12, 2), (160, 3, 8, 9, 10, 1)]  # fmt: skip


@pytest.mark.parametrize(("shape", "kind"), how_much.in_turns(UPSAMPLED, KINDS), ids=str)
def test_errors_of_an_upsampled_input_stay_within_the_bound_from_exact_fractions(
    shape: tuple[int, int, int, int, int, int], kind: str
) -> None:
    channels, taps, frames, rows, columns, pairs = shape
    x, weight = inputs(
        kind, (channels, taps, frames, rows, columns), 6, torch.Generator().manual_seed(sum(shape))
    )
    given = [x[0, :, t].contiguous() for t in range(frames + taps - 1)]
    if pairs:
        given = [given[(t + pairs - 1) // 2] for t in range(len(given))]
    wide = torch.stack(given, 1)[None].double()
    wide = wide.repeat_interleave(2, 3).repeat_interleave(2, 4)
    wanted = functional.conv3d(wide, weight.double())
    out = torch.full_like(wanted, math.nan, dtype=torch.float32)
    used = _core.conv3d(
        None, weight, None, out, ONE, ONE, NONE, NONE, ZEROS, 1, 1, accuracy="fast",
        frames=given, upsample=(1, 2, 2), pairs=pairs,
    )  # fmt: skip
    m, at_once = points.sizes_of(used[0])
    assert (at_once == 4) == bool(pairs)
    limit = (
        float(points.bound(m, at_once, channels, taps))
        * float(x.abs().max())
        * float(weight.double().abs().sum((1, 2, 3, 4)).max())
    )
    error = float((out.double() - wanted).abs().max())
    print(f"{used[0]} {kind} {shape}: {error / limit:.1e} of the bound, "
          f"{error / float(wanted.abs().max()):.1e} of max|y|")  # fmt: skip
    assert error <= limit


@pytest.mark.parametrize(("matrices", "inputs_of_tile"), [(points.UP, 4), (points.PAIRS, 3)])
def test_matrices_of_an_upsampled_input_give_its_convolution_exactly(
    matrices: tuple[points.Matrix, points.Matrix, points.Matrix], inputs_of_tile: int
) -> None:
    result, weights, data = matrices
    x = [Fr(7 * i * i - 3 * i + 1, 5) for i in range(inputs_of_tile)]
    g = [Fr(2), Fr(-3, 7), Fr(11, 4)]
    u = [sum(a * b for a, b in zip(row, g, strict=True)) for row in weights]
    v = [sum(a * b for a, b in zip(row, x, strict=True)) for row in data]
    twice = [value for value in x for _ in range(2)]
    for i, row in enumerate(result):
        made = sum(a * b * c for a, b, c in zip(row, u, v, strict=True))
        assert made == sum(g[k] * twice[i + k] for k in range(3))


def test_matrices_give_the_convolution_exactly() -> None:
    for chosen in (points.OURS4, points.OURS5, points.TIME, points.TIME3, points.BEST6):
        result, weights, data = points.matrices(chosen)
        n = len(data)
        x = [Fr(7 * i * i - 3 * i + 1, 5) for i in range(n)]
        g = [Fr(2), Fr(-3, 7), Fr(11, 4)]
        u = [sum(a * b for a, b in zip(row, g, strict=True)) for row in weights]
        v = [sum(a * b for a, b in zip(row, x, strict=True)) for row in data]
        for i, row in enumerate(result):
            assert sum(a * b * c for a, b, c in zip(row, u, v, strict=True)) == sum(
                g[j] * x[i + j] for j in range(3)
            )


def test_the_constants_written_down_are_the_computed_ones() -> None:
    assert points.gain(points.OURS4) == Fr(133, 9)
    assert round(float(points.gain(points.OURS5)), 2) == 25.59
    assert points.gain(points.TIME) == 4
    assert points.gain(points.TIME3) == Fr(1737, 224)
    assert points.gain_of(*points.UP) == 4
    assert points.gain_of(*points.PAIRS) == 3


def spread_of(value: float) -> torch.Tensor:
    """Outputs that are not finite, of one bad input among ones: (T, H, W)."""
    x = torch.ones(1, 64, 10, 42, 42)
    x[0, 5, 4, 20, 21] = value
    out = torch.zeros(1, 64, 8, 40, 40)
    weight = torch.ones(64, 64, 3, 3, 3)
    used = _core.conv3d(x, weight, None, out, ONE, ONE, NONE, NONE, ZEROS, 1, 1, accuracy="fast")
    assert used[0].startswith("winograd")
    return ~out[0, 0].isfinite()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_spreads_within_its_tiles_only(value: float) -> None:
    bad = spread_of(value)
    exact = torch.zeros_like(bad)
    exact[2:5, 18:21, 19:22] = True
    assert bool(bad[exact].all())
    t, h, w = (torch.nonzero(bad)[:, i] for i in range(3))
    # F(3,3)'s frames 3 to 5 are made together; in rows and columns two tiles of at most five.
    assert (int(t.min()), int(t.max())) == (2, 5)
    assert int(h.max() - h.min()) < 10
    assert int(w.max() - w.min()) < 10
