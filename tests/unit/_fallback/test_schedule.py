"""Claims about the schedule: the twin by properties, the core by its agreement with the twin."""

from __future__ import annotations

from itertools import product
from typing import Any

import check_plans as checker
import how_much
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hy3d_rocm import _native
from hy3d_rocm._fallback import schedule as twin

needs_core = pytest.mark.skipif(not _native.available, reason=f"no core: {_native.missing}")

# Mostly small numbers, now and then one near the edge of 63 bits or below the range.
odd = st.one_of(
    st.integers(1, 40), st.integers(0, 9), st.sampled_from((-1, 2**31, 2**62, 2**63 - 1, 2**63))
)
triples = st.tuples(odd, odd, odd)
descriptions = st.fixed_dictionaries(
    {"latent": triples, "factor": triples},
    optional={
        "causal": st.sampled_from((0, 1, 1, -7, 2)),
        "overlap": triples,
        "halo": triples,
        "min_tile": triples,
        "fixed_bytes": odd,
        "bytes_per_voxel": odd,
        "bytes_per_token_pair": odd,
        "resident_bytes": odd,
        "budget_bytes": odd,
        "max_in_flight": odd,
        "level": st.integers(-2, 70),
        "shrink": st.integers(-1, 9),
    },
)


def outcome(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A result, or the name of what was raised."""
    try:
        return function(*args, **kwargs)
    except (ValueError, TypeError) as error:
        return type(error).__name__
    except RuntimeError as error:
        return getattr(error, "name", repr(error))


def test_random_plans_of_the_twin_keep_their_contract() -> None:
    assert checker.run(60, 7, twin, False) == 0


@needs_core
def test_random_plans_of_the_core_keep_their_contract() -> None:
    assert checker.run(how_much.of(700, 2000), 7, _native, False) == 0


@needs_core
def test_core_and_twin_give_the_same_plans_tiles_and_windows() -> None:
    assert checker.run(how_much.of(20, 50), 8, _native, True) == 0


class BrokenCore:
    """The twin with one fault."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def schedule_plan(self, **fields: Any) -> dict[str, Any]:
        plan = twin.schedule_plan(**fields)
        if self.fault == "peak":
            plan["peak_bytes"] += 1
        if self.fault == "cost":
            plan["tile_bytes"] -= 1
        return plan

    def schedule_tile(self, plan: dict[str, Any], index: int) -> dict[str, Any]:
        tile = twin.schedule_tile(plan, index)
        if self.fault == "gap" and index > 0:
            tile["out_start"] = tuple(start + 1 for start in tile["out_start"])
        if self.fault == "trim":
            tile["trim_start"] = tuple(trim + 1 for trim in tile["trim_start"])
        return tile

    def schedule_window(self, length: int, before: int, after: int) -> memoryview:
        window = twin.schedule_window(length, before, after)
        if self.fault == "window":
            window[0] += 2.0**-23
        return window


@pytest.mark.parametrize("fault", ["peak", "cost", "gap", "trim", "window"])
def test_the_checker_notices_a_broken_core(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert checker.run(6, 9, BrokenCore(fault), False) > 0
    assert "plan 0 of seed 9" in capsys.readouterr().out or fault == "gap"


@needs_core
@settings(max_examples=how_much.of(80, 250), deadline=None)
@given(descriptions)
def test_core_and_twin_agree_on_every_description_however_odd(desc: dict[str, Any]) -> None:
    ours, theirs = (outcome(side.schedule_plan, **desc) for side in (_native, twin))
    assert ours == theirs
    if isinstance(ours, dict):
        for index in (-1, 0, ours["tiles"] - 1, ours["tiles"]):
            same = [outcome(side.schedule_tile, ours, index) for side in (_native, twin)]
            assert same[0] == same[1]


@needs_core
@pytest.mark.parametrize("sizes", [(0, 0, 0), (4, 3, 2), (-1, 0, 0), (3, -1, 0), (2**31, 0, 0)])
def test_core_and_twin_refuse_the_same_windows(sizes: tuple[int, int, int]) -> None:
    assert outcome(twin.schedule_window, *sizes) == "ValueError"
    assert outcome(_native.schedule_window, *sizes) == "ValueError"


@settings(max_examples=how_much.of(70, 200), deadline=None)
@given(st.integers(1, 60), st.integers(0, 20), st.integers(0, 20), st.integers(1, 5), st.booleans())
def test_the_largest_tile_is_found_without_looking_at_all(
    latent: int, overlap: int, halo: int, factor: int, causal: bool
) -> None:
    desc = twin._read_desc(
        {
            "latent": (latent, 1, 1),
            "factor": (factor, 1, 1),
            "overlap": (overlap, 0, 0),
            "halo": (halo, 0, 0),
            "causal": int(causal),
        }
    )
    axis = twin._Axis.of(desc, 0)
    for count in range(1, axis.max_count + 1):
        inputs = [axis.input(count, tile) for tile in range(count)]
        assert axis.max_extent(count) == max(stop - start for start, stop in inputs)


@pytest.mark.parametrize("side", [pytest.param(_native, marks=needs_core), twin])
def test_every_frame_of_every_length_is_made_by_the_latent_it_belongs_to(side: Any) -> None:
    for frames, causal, overlap in product(range(1, 65), (0, 1), (0, 1, 3)):
        plan = side.schedule_plan(
            latent=(frames, 1, 1),
            factor=(4, 8, 8),
            causal=causal,
            overlap=(overlap, 0, 0),
            level=0,
        )
        plan = side.schedule_plan(**{**plan["desc"], "level": plan["levels"] - 1})
        made = [0] * ((frames - 1) * 4 + 1 if causal else frames * 4)
        for index in range(plan["tiles"]):
            tile = side.schedule_tile(plan, index)
            for frame in range(tile["out_start"][0], tile["out_stop"][0]):
                owner = (frame + 3) // 4 if causal else frame // 4
                assert tile["in_start"][0] <= owner < tile["in_stop"][0]
                # A causal chunk's first latent makes its last frame only.
                whole = not causal or owner > tile["in_start"][0] or owner == 0
                assert whole
                made[frame] += 1
        assert set(made) <= {1, 2}


def test_blending_the_tiles_of_a_clip_gives_the_clip_back() -> None:
    torch = pytest.importorskip("torch")
    plan = twin.schedule_plan(
        latent=(5, 9, 8), factor=(4, 2, 2), causal=1, overlap=(1, 2, 3), level=4
    )
    clip = torch.randint(0, 2, (1, 2, *plan["out"])).float()
    out = torch.zeros_like(clip)
    for index in range(plan["tiles"]):
        tile = twin.schedule_tile(plan, index)
        place = [slice(a, b) for a, b in zip(tile["out_start"], tile["out_stop"], strict=True)]
        windows = [
            twin.schedule_window(
                tile["out_stop"][i] - tile["out_start"][i],
                tile["ramp_before"][i],
                tile["ramp_after"][i],
            )
            for i in range(3)
        ]
        tile, target = clip[:, :, *place].clone(), out[:, :, *place]
        twin.blend_accumulate(tile, *windows, target)
        if _native.available and index == 0:
            other = torch.zeros_like(target)
            _native.blend_accumulate(tile, *windows, other)
            assert torch.equal(other, target)
    assert plan["tiles"] > 8
    assert torch.equal(out, clip)


@needs_core
@pytest.mark.parametrize(
    ("of_tile", "of_out"),
    [
        *((name, name) for name in ("float32", "float16", "bfloat16", "float64")),
        ("float64", "float32"), ("float32", "float64"), ("bfloat16", "float64"),
    ],
)  # fmt: skip
def test_blends_of_core_and_twin_have_the_same_bits(of_tile: str, of_out: str) -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(20264)
    size, wide = (2, 3, 4, 5, 6), torch.float64
    tile = torch.randn(size, generator=generator, dtype=wide).to(getattr(torch, of_tile))
    start = torch.randn(size, generator=generator, dtype=wide).to(getattr(torch, of_out))
    windows = [torch.rand(n, generator=generator).numpy() for n in (4, 5, 6)]
    ours, theirs = start.clone(), start.clone().to(memory_format=torch.channels_last_3d)
    _native.blend_accumulate(tile, *windows, ours)
    twin.blend_accumulate(tile, *windows, theirs)
    assert torch.equal(ours, theirs)
