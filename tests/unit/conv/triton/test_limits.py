"""The Triton tier's numbers at any size: 32 bits, grids, the ends of tensors, predicted bytes.

Nothing is launched: what would be launched is looked at. Random problems reach 2^34 elements.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from typing import Any

import how_much
import pytest
import torch
from places import TESTS
from tier_calls import make_call

from hy3d_rocm.conv.problem import Problem
from hy3d_rocm.conv.tiers import vendor
from hy3d_rocm.conv.triton import configs, plan, steps, work
from hy3d_rocm.conv.triton.plan import Launch
from tools.dev import variants

pytest.importorskip("triton", reason="no triton in this environment")

COUNT, SEED = how_much.of(60, 140), 3
ARCHES = ("sm_90", "gfx1100")
MOST = 2**31 - 1
SHAPES = TESTS / "shapes" / "video_vae_layers.json"


def random_problem(rng: random.Random) -> Problem:
    """A convolution of up to 2^34 elements of input."""

    def some(*values: int) -> tuple[int, int, int]:
        return rng.choice(values), rng.choice(values), rng.choice(values)

    point = rng.random() < 0.2
    kernel, dilation = some(1) if point else some(1, 1, 2, 3, 3), some(1, 1, 1, 2)
    stride = some(1, 2, 3) if rng.random() < 0.3 and not point else (1, 1, 1)
    padded = rng.random() < 0.5 and not point
    before, after = (some(0, 1, 2) if padded else (0, 0, 0) for _ in range(2))
    groups = rng.choice((1, 1, 1, 2))
    channels = rng.choice((8, 64, 512)) if groups > 1 else rng.choice((1, 3, 8, 128, 1024))
    outputs = rng.choice((8, 256)) if groups > 1 else rng.choice((1, 3, 5, 8, 128, 1024))
    room = 2 ** rng.uniform(0, 34) / channels / groups
    t = rng.choice((1, 2, 9, 33))
    h = max(1, min(int(math.sqrt(room / t) * rng.choice((0.1, 1, 3))), 60_000))
    w = max(1, min(int(room / t / h), 20_000))
    w = -(-w // 8) * 8 if point else w
    least = [
        max(1, (k - 1) * d + 1 - a - b)
        for k, d, a, b in zip(kernel, dilation, before, after, strict=True)
    ]
    return Problem(
        batch=rng.choice((1, 1, 2)), channels=channels, outputs=outputs, groups=groups,
        size=(max(t, least[0]), max(h, least[1]), max(w, least[2])), kernel=kernel, stride=stride,
        dilation=dilation, pad_before=before, pad_after=after,
        itemsize=rng.choice((2, 4)),
    )  # fmt: skip


def arguments(item: Launch) -> dict[str, Any]:
    """What the launch gives its kernel after the pointers, by name."""
    names = list(variants._parameters(item.kernel))[len(item.operands) :]
    return dict(zip(names, (*item.numbers, *item.constants), strict=True))


def check_numbers(item: Launch) -> None:
    """Every argument fits its type, every program its grid, and rows beyond a tile 32 bits."""
    kinds = variants._parameters(item.kernel)
    names = list(kinds)[len(item.operands) :]
    for name, value in zip(names, item.numbers, strict=False):
        assert kinds[name] == "i64" or -MOST <= value <= MOST, f"{name} = {value}"
    x, y, z = item.grid
    assert 0 < x <= MOST, item.grid
    assert 0 < y <= 65535, item.grid
    assert 0 < z <= 65535, item.grid
    values = dict(zip(names, (*item.numbers, *item.constants), strict=True))
    if item.kernel == "conv_rows":
        steps_of = (("step_t", "taps"), ("step_h", "KH"), ("step_w", "KW"))
        reach = sum(values[step] * (max(values[n], 1) - 1) for step, n in steps_of[1:])
        reach += values["step_t"] * (values["taps"] // (values["KH"] * values["KW"]) - 1)
        assert values["P"] + values["BP"] + (reach if values["FLAT"] else 0) <= MOST
        assert values["taps"] * values["K8"] * 8 <= MOST
    elif item.kernel == "conv_points":
        assert values["PV"] * values["VECTOR"] + values["BP"] <= MOST


def last_row_read(item: Launch, p: Problem) -> int:
    """Elements of the source up to the end of the last row that conv_rows can read."""
    names = list(variants._parameters(item.kernel))[len(item.operands) :]
    v = dict(zip(names, (*item.numbers, *item.constants), strict=True))
    if v["FLAT"]:
        row = v["P"] - 1
    else:
        last = v["P"] - 1
        w, q = last % v["Wo"], last // v["Wo"]
        h, t = q % v["Ho"], q // v["Ho"]
        row = (t * v["ST"] * v["Hi"] + h * v["SH"]) * v["Wi"] + w * v["SW"]
    row += v["step_t"] * (p.kernel[0] - 1) + v["step_h"] * (p.kernel[1] - 1)
    row += v["step_w"] * (v["KW"] - 1)
    start = item.operands[0][1] + (p.groups - 1) * p.tap_length * (p.groups > 1)
    return start + row * v["C8"] * 8 + v["K8"] * 8


def test_no_number_overflows_no_row_lies_outside_and_no_byte_is_unforeseen() -> None:
    kernels: dict[str, int] = {}
    for index in range(COUNT):
        rng = random.Random(f"{SEED}/{index}")
        p = random_problem(rng)
        if plan.refusal(p) is not None:
            continue
        dtype = "f32" if p.itemsize == 4 else rng.choice(("f16", "bf16"))
        units = rng.choice((16, 132))
        for arch in ARCHES:
            lies = variants._layout(p, rng.random() < 0.4, rng.random() < 0.4)
            made = steps.make_steps(p, lies, dtype, True, work.Target(arch, units))
            assert bytes_taken(p, made) <= plan.most_bytes(p), (index, arch, p)
            whole = p.batch * math.prod(p.size) * p.channels * p.groups
            few = len(made.launches) <= 60
            for item in made.launches if few else rng.sample(made.launches, 60):
                kernels[item.kernel] = kernels.get(item.kernel, 0) + 1
                check_numbers(item)
                if item.kernel == "conv_rows":
                    most = whole if item.operands[0][0] == "x0" else made.rows_elems
                    assert last_row_read(item, p) <= most, (index, arch, p, item)
    assert kernels.keys() == {
        "conv_rows", "load_rows", "load_rows_and_weight", "conv_points", "add_parts",
    }  # fmt: skip


def layers() -> list[tuple[Problem, str]]:
    """Every distinct convolution of the two video VAEs' decodes, in each dtype."""
    found: dict[tuple[Problem, str], None] = {}
    for decode in json.loads(SHAPES.read_text(encoding="utf-8")).values():
        for layer in decode["layers"]:
            for dtype in (torch.bfloat16, torch.float32):
                x = torch.zeros(1, dtype=dtype).expand(layer["input"])
                weight = torch.zeros(1, dtype=dtype).expand(layer["weight"])
                options = {k: layer[k] for k in ("stride", "padding", "dilation", "groups")}
                spec = make_call(x, weight, **options).spec
                found[plan.problem(spec), variants.DTYPES[2 * (dtype == torch.float32)]] = None
    return list(found)


def bytes_taken(p: Problem, made: steps.Steps) -> int:
    return made.offsets[-1] + (0 if made.packed_elems else p.weight_bytes)


def test_layers_of_the_video_vaes_take_what_is_foreseen_and_what_the_docs_say() -> None:
    every = layers()
    assert len(every) > 30
    mib = 2**20
    for (p, dtype), arch, units in itertools.product(every, ARCHES, (16, 132)):
        for last in (False, True):
            made = steps.make_steps(
                p, variants._layout(p, last, last), dtype, True, work.Target(arch, units)
            )
            assert bytes_taken(p, made) <= plan.most_bytes(p)
            rows = max(56 * mib - p.weight_bytes, 14 * mib)
            assert made.rows_elems * p.itemsize <= rows
            assert made.sums_elems * 4 <= 16 * mib
            assert bytes_taken(p, made) <= 62.1 * mib
            assert plan.most_bytes(p) <= rows + p.weight_bytes + 16 * mib


def test_boxes_of_one_size_have_one_tile_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    ranked = configs.ranked

    def counted(every: Any, positions: int, *rest: Any) -> list[configs.Config]:
        asked.append(positions)
        return ranked(every, positions, *rest)

    monkeypatch.setattr(configs, "ranked", counted)
    maker, boxes = steps.make_steps.__wrapped__, 0
    for (p, dtype), last in itertools.product(layers(), (False, True)):
        asked.clear()
        made = maker(p, variants._layout(p, last, last), dtype, True, work.Target("gfx1100", 96))
        tiles: dict[int, set[Any]] = {}
        for item in made.launches:
            if item.kernel == "conv_rows":
                values = arguments(item)
                tile = (*(values[k] for k in ("BP", "BN", "BK", "GROUP")), item.num_warps)
                tiles.setdefault(values["P"], set()).add(tile)
                # The parts of a sum were counted in steps of this tile.
                assert item.grid[2] * values["per_split"] >= values["taps"] * values["CHUNKS"]
                assert (item.grid[2] - 1) * values["per_split"] < values["taps"] * values["CHUNKS"]
                boxes += 1
        assert all(len(found) == 1 for found in tiles.values())
        assert len(asked) == len(set(asked)) <= len(tiles) + 1
    assert boxes > 100


def few_outputs(last: bool) -> steps.Steps:
    """The last layer of a video VAE, 33 frames of 768x1280 with its padding."""
    p = Problem(1, 128, 3, 1, (35, 770, 1282), (3, 3, 3), (1,) * 3, (1,) * 3, (0,) * 3, (0,) * 3,
                2)  # fmt: skip
    return steps.make_steps(p, variants._layout(p, last, last), "bf16", True,
                            work.Target("sm_90", 132))  # fmt: skip


@pytest.mark.parametrize("last", [False, True])
def test_the_sums_of_few_outputs_stay_within_their_share(last: bool) -> None:
    assert 4 * few_outputs(last).sums_elems <= plan.SPLIT_BYTES


def test_every_output_of_a_few_is_written_once() -> None:
    """Frames of sums that are too large are cut into lines."""
    seen: set[tuple[int, int]] = set()
    for item in few_outputs(last=True).launches:
        if item.kernel != "add_parts":
            continue
        ho = item.numbers[3]
        to = item.numbers[0] // (ho * item.numbers[2])
        t, rest = divmod(item.operands[2][1], 768 * 1280 * 3)
        h, rest = divmod(rest, 1280 * 3)
        assert rest == 0
        lines = {(t + i, h + j) for i in range(to) for j in range(ho)}
        assert not lines & seen
        seen |= lines
    assert len(seen) == 33 * 768


def layout_of(x: torch.Tensor) -> tuple[Problem, plan.Layout]:
    weight = torch.zeros(16, x.shape[1], 1, 1, 1, dtype=x.dtype)
    call = make_call(x, weight)
    out = torch.empty(call.spec.out_size, dtype=x.dtype)
    aligned = x.data_ptr() % 16 == 0
    return plan.problem(call.spec), plan.Layout(x.stride(), out.stride(), aligned)  # type: ignore[arg-type]


def points(x: torch.Tensor) -> bool:
    return plan.is_points(*layout_of(x))


def test_a_1x1x1_is_read_in_place_only_where_whole_vectors_are_aligned() -> None:
    """The kernel takes 16 bytes at a time from every channel of every sample."""
    half = torch.float16
    assert points(torch.zeros(2, 16, 2, 4, 8, dtype=half))
    wide = torch.zeros(2 * 16 * 64 + 64, dtype=half)
    assert points(wide.as_strided((2, 16, 2, 4, 8), (1024, 64, 32, 8, 1)))
    assert not points(wide.as_strided((2, 16, 2, 4, 8), (1025, 64, 32, 8, 1)))
    assert not points(wide.as_strided((2, 15, 2, 4, 8), (1024, 68, 32, 8, 1)))
    assert not points(wide[1:].as_strided((1, 16, 2, 4, 8), (1024, 64, 32, 8, 1)))
    assert not points(wide[::2].as_strided((1, 16, 2, 4, 2), (512, 32, 16, 4, 2)))
    assert not points(torch.zeros(2, 16, 1, 1, 1, dtype=half).expand(2, 16, 2, 4, 8))
    assert points(torch.zeros(1, 16, 2, 4, 8, dtype=half).expand(3, 16, 2, 4, 8))
    # A grid has 65535 programs in this direction.
    many = torch.zeros(1, 8, 1, 1, 8, dtype=half).expand(70_000, 8, 1, 1, 8)
    assert not points(many)


@pytest.mark.parametrize(
    "x_size", [(0, 8, 3, 4, 5), (0, 8, 4, 5)], ids=["conv3d", "conv2d"]
)  # fmt: skip
def test_an_empty_batch_is_no_launch(x_size: tuple[int, ...], monkeypatch: Any) -> None:
    from hy3d_rocm.conv.triton import launch

    x = torch.zeros(x_size)
    call = make_call(x, torch.zeros(4, 8, *(1,) * (x.dim() - 2)))
    assert launch.workspace_bytes(call.spec) == 0
    monkeypatch.setattr(launch, "_carry_out", None)
    assert launch.run(call).shape == (0, 4, *x_size[2:])


def test_weights_beyond_32_bit_numbers_are_refused_in_words() -> None:
    sizes: Any = {"stride": (1,) * 3, "dilation": (1,) * 3}
    p = Problem(1, 2**28, 1, 1, (3, 3, 3), (3, 3, 3), pad_before=(0,) * 3, pad_after=(0,) * 3,
                itemsize=2, **sizes)  # fmt: skip
    assert "32-bit" in str(plan.refusal(p))


def test_a_switch_for_tf32_that_pytorch_no_longer_tells_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch raises where the user has chosen by the newer fp32_precision."""

    class Switches:
        @property
        def allow_tf32(self) -> bool:
            raise RuntimeError("please use the new API")

    monkeypatch.setattr(torch.backends, "cudnn", Switches())
    assert vendor.allows_tf32() is False


def cost_of(p: Problem, th: int, hh: int, tiling: plan.Tiling) -> float:
    """Of all boxes of th frames and hh lines: what they copy, and whole waves and half a one."""
    copied, computed = 0, 0.0
    for t0 in range(0, p.out[0], th):
        for h0 in range(0, p.out[1], hh):
            t, h = min(th, p.out[0] - t0), min(hh, p.out[1] - h0)
            reach = [
                (n - 1) * s + d * (k - 1) + 1
                for n, s, d, k in zip((t, h), p.stride, p.dilation, p.kernel, strict=False)
            ]
            copied += reach[0] * reach[1]
            lines = (t - 1) * reach[1] + h if p.is_flat else t * h
            blocks = -(-lines * p.padded[2] // tiling.block_p)
            waves = -(-blocks * tiling.blocks_n // tiling.units)
            computed += (waves + 0.5) * tiling.units * tiling.block_p / tiling.blocks_n
    moved = copied * p.padded[2] * p.row_channels * p.itemsize * 2
    return moved * 200 / (2 * math.prod(p.kernel) * p.channels * p.outputs * p.groups) + computed


def bytes_of(p: Problem, th: int, hh: int) -> int:
    """Of the rows of a box."""
    return p.reach(0, th) * p.reach(1, hh) * p.padded[2] * p.row_channels * p.itemsize


def test_no_boxes_that_fit_are_cheaper_than_those_that_are_taken() -> None:
    rng = random.Random(SEED)
    for _ in range(60):
        kernel = rng.choice((1, 3)), rng.choice((1, 2, 3)), 3
        p = Problem(
            1, rng.choice((8, 128)), rng.choice((8, 128, 512)), 1,
            (rng.randint(3, 12), rng.randint(3, 24), rng.randint(8, 400)), kernel,
            rng.choice(((1, 1, 1), (2, 2, 2), (1, 3, 1))), (1, rng.choice((1, 2)), 1), (0, 2, 0),
            (2, 2, 0), 2,
        )  # fmt: skip
        tiling = plan.Tiling(rng.choice((64, 128)), rng.choice((1, 4)), rng.choice((1, 60, 304)))
        limit = p.padded[2] * p.row_channels * p.itemsize * rng.randint(4, 200)
        most = plan.make_plan(p, limit, tiling)
        fitting = [
            cost_of(p, th, hh, tiling)
            for th in range(1, p.out[0] + 1)
            for hh in range(1, p.out[1] + 1)
            if bytes_of(p, th, hh) <= limit
            and th == -(-p.out[0] // -(-p.out[0] // th))
            and hh == -(-p.out[1] // -(-p.out[1] // hh))
        ]
        if fitting:
            assert bytes_of(p, *most) <= limit
            mine = cost_of(p, *most, tiling)
            assert mine <= min(fitting) * (1 + 1e-9), (p, tiling, limit)
        else:
            assert most == (1, 1)
