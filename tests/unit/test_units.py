"""Sizes as they are shown and typed: one meaning, and what is shown can be typed back."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT

from hy3d_rocm.memory import stage_line
from hy3d_rocm.units import (
    GB,
    KB,
    MB,
    TB,
    budget_bytes,
    parse_size,
    short_text,
    size_text,
    whole_number,
)

SIZES = {"B": 1, "kB": KB, "MB": MB, "GB": GB, "TB": TB}
PACKAGE = ROOT / "hy3d_rocm"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"), (0, "0 B"), (999, "999 B"), (1023, "1023 B"), (KB, "1.0 kB"),
        (1000 * MB, "1000.0 MB"), (GB - 1, "1.0 GB"), (round(18.2 * GB), "18.2 GB"),
        (round(1023.94 * MB), "1023.9 MB"), (round(1023.96 * MB), "1.0 GB"), (3 * TB, "3.0 TB"),
    ],
)  # fmt: skip
def test_sizes_are_powers_of_1024_and_never_1024_of_a_unit(count: int | None, text: str) -> None:
    assert size_text(count) == text


@given(st.integers(0, 10**15), st.integers(0, 3))
def test_a_size_is_right_to_the_digits_shown(count: int, digits: int) -> None:
    number, unit = size_text(count, digits).split()
    size = SIZES[unit]
    # Half a unit in the last place shown, and the rounding of the one division before it.
    bound = Fraction(size, 2 * 10**digits) + Fraction(count, 2**53)
    assert abs(Fraction(number) * size - count) <= bound
    assert Fraction(number) < 1024 or unit == "TB"


@pytest.mark.parametrize("prefix", ["k", "M", "G", "T"])
def test_however_it_is_spelt_a_unit_is_one_size(prefix: str) -> None:
    units = (prefix, f"{prefix}B", f"{prefix}iB", f" {prefix}B", f" {prefix}iB ")
    spelt = {parse_size(f"3{unit}") for unit in units}
    assert spelt == {3 * SIZES[f"{prefix}B"]} == {parse_size(f"3{prefix.lower()}b")}


@given(st.integers(0, 2**62))
def test_what_is_shown_can_be_typed_back(count: int) -> None:
    text = size_text(count)
    assert size_text(parse_size(text)) == text


def test_a_budget_copied_from_a_memory_line_is_what_was_free() -> None:
    free = re.search(r"Free: ([0-9.]+ GB)", stage_line("Now", 6 * GB, 0, None))
    assert free is not None
    assert budget_bytes(free[1]) == 6 * GB
    assert size_text(6 * GB, 2) == "6.00 GB"


@pytest.mark.parametrize("text", ["", "GB", "-1 GB", "6,5GB", "1e9", "6 XB", "six", "6 GB GB"])
def test_what_is_no_size_is_refused_with_what_was_given(text: str) -> None:
    with pytest.raises(ValueError, match="is no size; write it like") as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)


def test_short_texts_have_a_digit_only_where_it_says_something() -> None:
    assert [short_text(n) for n in (20 * GB, 39 * GB // 2, 20 * GB + 1)] == [
        "20GB",
        "19.5GB",
        "20GB",
    ]


def test_units_need_no_torch() -> None:
    code = "import sys, hy3d_rocm.units; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


PARTS = (
    "bench", "comfy", "conv/verdict_store", "decoding/plan.py", "diagnose/env", "memory.py",
    "offload", "tune",
)  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_no_other_size_of_a_gigabyte_is_written_down(part: str) -> None:
    """A division by a literal is how the second meaning came in."""
    where = PACKAGE / part
    files = [where] if where.is_file() else sorted(where.rglob("*.py"))
    literal = re.compile(r"/\s*(?:10 ?\*\* ?[69]|1e[69]|2 ?\*\* ?[23]0|1 ?<< ?[23]0)")
    assert files
    assert [str(path) for path in files if literal.search(path.read_text())] == []


def test_nothing_that_is_shown_spells_a_size_otherwise() -> None:
    """In the text of f-strings; what torch says (in errors.toml and faults.py) is torch's."""
    spelt = [
        f"{path.relative_to(PACKAGE)}: {text.value!r}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.JoinedStr)
        for text in node.values
        if isinstance(text, ast.Constant) and re.search(r"\b[KMGT]iB\b", str(text.value))
    ]
    assert spelt == []


@pytest.mark.parametrize(
    "text",
    ["9" * 400, "9" * 400 + "GB", "9" * 400 + ".5GB", "9" * 5000, "1" + "0" * 21 + "b"],
    ids=range(5),
)
def test_a_size_of_endless_digits_is_a_short_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="is more than any machine has") as told:
        parse_size(text)
    assert len(str(told.value)) < 120
    with pytest.raises(ValueError, match="budget is") as told:
        budget_bytes(text)
    assert len(str(told.value)) < 200
    assert parse_size("0" * 400 + "1kB") == KB


@pytest.mark.parametrize(
    "number", [10**400, -(10**400), 10**5000, float("inf")], ids=["400", "-400", "5000", "inf"]
)
def test_a_number_of_endless_digits_is_a_short_sentence(number: float) -> None:
    with pytest.raises(ValueError, match="budget is") as told:
        budget_bytes(number)  # type: ignore[arg-type]
    assert len(str(told.value)) < 200


def test_whole_numbers_are_nine_digits_at_most() -> None:
    texts = ["1", "999999999", "0", "", "-1", "1.0", "\u0663", "9" * 10, "9" * 5000, " 1"]
    assert [whole_number(text) for text in texts] == [1, 999999999, *[0] * 8]
