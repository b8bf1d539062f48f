"""The recommendations of `hy3d-rocm bench`, as a table of figures and what follows from them."""

from __future__ import annotations

import math

import pytest

from hy3d_rocm.bench.benches import (
    ROUNDING_PSNR,
    Closeness,
    break_even,
    compile_advice,
    offload_advice,
    precision_advice,
    resolution_advice,
)
from hy3d_rocm.bench.timing import Measured
from hy3d_rocm.offload.memory import HEADROOM_BYTES
from hy3d_rocm.units import GB


def row(
    name: str,
    seconds: list[float] | None = None,
    peak: float | None = None,
    first: float | None = None,
    reason: str | None = None,
) -> Measured:
    bytes_at_peak = None if peak is None else int(peak * GB)
    return Measured(name, first, list(seconds or []), bytes_at_peak, reason)


RESIDENT, OFFLOAD = row("resident", [1.0, 1.1], 4.0), row("offload", [1.5, 1.6], 2.5)
OUT_OF_MEMORY = "out of memory (OutOfMemoryError: HIP out of memory)"


@pytest.mark.parametrize(
    ("resident", "offload", "free_gb", "choice"),
    [
        (RESIDENT, OFFLOAD, 8.0, "resident"),
        (RESIDENT, OFFLOAD, 4.5, "offload"),  # the headroom is not there
        (RESIDENT, OFFLOAD, 3.0, None),  # neither fits
        (RESIDENT, OFFLOAD, None, "resident"),
        (RESIDENT, row("offload", [1.05, 1.2], 2.5), 8.0, "offload"),  # not told apart: memory
        (RESIDENT, row("offload", [0.8, 0.9], 2.5), 8.0, "offload"),
        (row("resident", [1.0]), row("offload", [1.5]), 8.0, "resident"),  # a CPU
        (row("resident", reason=OUT_OF_MEMORY), OFFLOAD, 3.0, "offload"),
        (RESIDENT, row("offload", reason="no accelerator"), 8.0, "resident"),
        (row("resident"), row("offload"), 8.0, None),  # interrupted at once
    ],
)
def test_offload_is_recommended_where_the_figures_ask_for_it(
    resident: Measured, offload: Measured, free_gb: float | None, choice: str | None
) -> None:
    free = None if free_gb is None else int(free_gb * GB)
    advice = offload_advice(resident, offload, free)
    assert advice.choice == choice
    assert advice.lines


def test_the_memory_limit_is_peak_plus_headroom_to_the_byte() -> None:
    assert RESIDENT.peak_bytes is not None
    line = RESIDENT.peak_bytes + HEADROOM_BYTES
    assert offload_advice(RESIDENT, OFFLOAD, line).choice == "resident"
    assert offload_advice(RESIDENT, OFFLOAD, line - 1).choice == "offload"


@pytest.mark.parametrize(
    ("resident_gb", "offload_seconds", "below_12", "from_16"),
    [
        (4.0, 1.5, False, True),  # a card of 8 GB keeps it resident
        (13.0, 1.5, True, True),  # the line lies between the two: both hold
        (17.0, 1.5, True, False),  # a card of 16 GB needs offload
        (4.0, 0.5, True, False),  # offload is faster: it always pays
    ],
)
def test_the_claims_about_12_and_16_gb_are_tested_against_the_figures(
    resident_gb: float, offload_seconds: float, below_12: bool, from_16: bool
) -> None:
    offload = row("offload", [offload_seconds], 2.5)
    lines = offload_advice(row("resident", [1.0], resident_gb), offload, 40 * GB).lines
    verdicts = [line for line in lines if line.startswith('"')]
    assert ["holds here" in line for line in verdicts] == [below_12, from_16]
    assert all("holds here" in line or "does not hold here" in line for line in verdicts)


@pytest.mark.parametrize(
    ("eager", "compiled", "pictures"),
    [
        ((1.0, 1.0), (61.0, 0.5), 121),  # 60 s more, 0.5 s saved a picture after the first
        ((1.0, 1.0), (1.5, 0.5), 2),
        ((1.0, 1.0), (0.9, 0.5), 1),
        ((1.0, 1.0), (61.0, 1.0), None),
        ((1.0, 1.0), (61.0, 1.5), None),
    ],
)
def test_break_even_is_the_first_number_of_pictures_that_is_not_dearer(
    eager: tuple[float, float], compiled: tuple[float, float], pictures: int | None
) -> None:
    def total(figures: tuple[float, float], count: int) -> float:
        return figures[0] + (count - 1) * figures[1]

    first = row("eager", [eager[1]], first=eager[0])
    second = row("compiled", [compiled[1]], first=compiled[0])
    assert break_even(first, second) == pictures
    if pictures is not None:
        assert total(compiled, pictures) <= total(eager, pictures)
        assert pictures == 1 or total(compiled, pictures - 1) > total(eager, pictures - 1)


@pytest.mark.parametrize(
    ("compiled", "choice"),
    [
        (row("compiled", [0.5, 0.6], first=61.0), "compiled"),
        (row("compiled", [0.9, 1.1], first=61.0), "eager"),  # ranges overlap
        (row("compiled", [1.5, 1.6], first=61.0), "eager"),
        (row("compiled", reason="InvalidCxxCompiler: no compiler"), "eager"),
        (row("compiled", first=61.0), "eager"),  # interrupted after its first call
    ],
)
def test_compiling_is_recommended_only_where_it_pays(compiled: Measured, choice: str) -> None:
    advice = compile_advice(row("eager", [1.0, 1.05], first=1.2), compiled)
    assert advice.choice == choice
    if choice == "compiled":
        assert any("121 pictures" in line or "pictures or more" in line for line in advice.lines)


SAME = Closeness(math.inf, 0.0, 0)
CLOSE, FAR = Closeness(70.0, 0.001, 0), Closeness(45.0, 0.02, 0)
NAN = Closeness(math.nan, math.nan, 12)


@pytest.mark.parametrize(
    ("half", "brain", "close", "choice"),
    [
        ([0.5, 0.6], [0.5, 0.6], {"float16": CLOSE, "bfloat16": FAR}, "float16"),
        ([0.5, 0.6], [0.5, 0.6], {"float16": NAN, "bfloat16": FAR}, "bfloat16"),
        ([0.5, 0.6], [0.2, 0.3], {"float16": CLOSE, "bfloat16": FAR}, "bfloat16"),
        ([3.0, 3.1], [4.0, 4.1], {"float16": CLOSE, "bfloat16": FAR}, "float32"),
        ([2.0, 2.1], [2.0, 2.2], {"float16": CLOSE, "bfloat16": FAR}, "float32"),  # ties: closest
    ],
)
def test_the_fastest_precision_without_nan_is_recommended(
    half: list[float], brain: list[float], close: dict[str, Closeness], choice: str
) -> None:
    rows = [row("float32", [2.0, 2.1]), row("float16", half), row("bfloat16", brain)]
    advice = precision_advice(rows, {"float32": SAME, **close}, random_weights=False)
    assert advice.choice == choice
    assert any("NaN" in line for line in advice.lines) == (close["float16"] is NAN)


def test_without_float32_the_others_are_still_recommended() -> None:
    rows = [row("float32", reason=OUT_OF_MEMORY), row("float16", [1.0])]
    advice = precision_advice(rows, {"float16": SAME}, random_weights=True)
    assert advice.choice == "float16"
    assert any(OUT_OF_MEMORY in line for line in advice.lines)


def test_a_difference_is_weighed_against_rounding_to_8_bits() -> None:
    assert abs(ROUNDING_PSNR - 58.92) < 0.01  # 20 log10(255) + 10 log10(12), by hand
    rows = [row("float32", [2.0]), row("float16", [1.0])]
    for near, word in ((CLOSE, " less "), (FAR, " more ")):
        advice = precision_advice(rows, {"float32": SAME, "float16": near}, random_weights=False)
        assert any(word in line and "8 bits" in line for line in advice.lines)


@pytest.mark.parametrize(
    ("free_gb", "choice"), [(16.0, "512x512"), (6.0, "384x384"), (3.5, "256x256"), (2.0, None)]
)
def test_the_largest_size_that_fits_is_recommended(free_gb: float, choice: str | None) -> None:
    rows = [
        row("512x512", [4.0], 7.0),
        row("384x384", [2.0], 4.0),
        row("256x256", [1.0], 2.4),
    ]
    advice = resolution_advice(rows, [512, 384, 256], int(free_gb * GB))
    assert advice.choice == choice
    assert any("50% of the time" in line and "3.00 GB less" in line for line in advice.lines)


def test_a_size_that_failed_is_named_and_the_next_one_taken() -> None:
    rows = [row("512x512", reason=OUT_OF_MEMORY), row("384x384", [2.0], 4.0)]
    advice = resolution_advice(rows, [512, 384], 8 * GB)
    assert advice.choice == "384x384"
    assert OUT_OF_MEMORY in advice.lines[0]
