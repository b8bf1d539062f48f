"""The stage lines' form, and what the cap variables mean."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hy3d_rocm.memory import (
    CAP_GB,
    CAP_SHARE,
    stage_line,
    wanted_cap,
)
from hy3d_rocm.units import GB


def test_the_line_has_the_form_that_was_asked_for() -> None:
    line = stage_line("Before VAE Load", round(18.2 * GB), round(1.8 * GB), 20 * GB)
    assert line == "[Before VAE Load] Free: 18.2 GB | Allocated: 1.8 GB (9.0% of 20GB limit)"


def test_gb_are_those_of_a_cards_box() -> None:
    assert stage_line("x", 2**30, 2**30, None) == "[x] Free: 1.0 GB | Allocated: 1.0 GB"


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("limit", "(50.0% of 23.5GB limit)"),
        ("card", "(50.0% of the card's 23.5GB)"),
        ("host", "(50.0% of the host's 23.5GB)"),
    ],
)
def test_without_a_cap_the_line_says_of_what_the_share_is(kind: str, ending: str) -> None:
    line = stage_line("x", 0, 47 * GB // 4, 47 * GB // 2, kind)  # type: ignore[arg-type]
    assert line.endswith(ending)


def test_no_number_can_break_the_line() -> None:
    assert stage_line("x", 0, GB, 0) == "[x] Free: 0.0 GB | Allocated: 1.0 GB"
    above = stage_line("x", -GB, 3 * GB, 2 * GB)
    assert above == "[x] Free: 0.0 GB | Allocated: 3.0 GB (150.0% of 2GB limit)"
    assert stage_line(" a\nb  c ", 0, 0, None).startswith("[a b c] ")


@pytest.mark.parametrize(
    ("environ", "cap"),
    [
        ({}, None),
        ({CAP_GB: ""}, None),
        ({CAP_GB: "20"}, 20 * GB),
        ({CAP_GB: " 19.5 GB "}, 39 * GB // 2),
        ({CAP_GB: "24"}, None),  # all of the card is no cap
        ({CAP_SHARE: "0.5"}, 12 * GB),
        ({CAP_SHARE: "50%"}, 12 * GB),
        ({CAP_SHARE: "50 %"}, 12 * GB),
        ({CAP_SHARE: "1"}, None),
        ({CAP_SHARE: "100%"}, None),
    ],
)
def test_a_cap_is_gb_or_a_share_of_the_card(environ: dict[str, str], cap: int | None) -> None:
    assert wanted_cap(environ, 24 * GB) == (cap, [])


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (CAP_GB, "lots", "give a number of GB"),
        (CAP_GB, "19,5", "give a number of GB"),
        (CAP_GB, "-3", "give a number of GB"),
        (CAP_GB, "nan", "give a number of GB"),
        (CAP_GB, "1.2.3", "give a number of GB"),
        (CAP_GB, "48", "the card has only 24GB"),
        (CAP_GB, "0", "nothing works below 512.0 MB"),
        (CAP_SHARE, "85", "give a share"),
        (CAP_SHARE, "0", "give a share"),
        (CAP_SHARE, "inf", "give a share"),
        (CAP_SHARE, "-5%", "give a share"),
        (CAP_SHARE, "120%", "give a share"),
        (CAP_SHARE, "1%", "that is 245.8 MB, and nothing works"),
    ],
)
def test_nonsense_is_one_sentence_and_no_cap(name: str, value: str, why: str) -> None:
    cap, said = wanted_cap({name: value}, 24 * GB)
    assert cap is None
    assert len(said) == 1
    assert said[0].startswith(f"{name}={value} is passed over: ")
    assert why in said[0]


def test_of_two_caps_the_smaller_counts_and_that_is_said() -> None:
    cap, said = wanted_cap({CAP_GB: "20", CAP_SHARE: "0.5"}, 24 * GB)
    assert cap == 12 * GB
    assert said == [f"{CAP_GB} and {CAP_SHARE} are both set: the smaller cap counts"]
    assert wanted_cap({CAP_GB: "20", CAP_SHARE: "85"}, 24 * GB)[0] == 20 * GB


def test_the_module_needs_no_torch() -> None:
    code = "import sys, hy3d_rocm.memory; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
