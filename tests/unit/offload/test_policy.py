"""The decision to offload: pure figures in, a sentence out."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hy3d_rocm.offload.memory import (
    HEADROOM_BYTES,
    POLICIES,
    Decision,
    Estimate,
    check_policy,
    decide,
)

GB = 2**30
BYTES = st.integers(0, 10**12)
MAYBE_BYTES = st.none() | BYTES
# A component's bytes: sizes of real ones, and nothing at all.
ESTIMATES = st.builds(
    lambda parts, activations: Estimate(
        sum(parts), {f"part{i}": part for i, part in enumerate(parts)}, activations, "measured"
    ),
    st.lists(st.integers(0, 10**11), max_size=5),
    st.none() | st.integers(0, 10**11),
)
SD = Estimate(
    round(3.4 * GB),
    {"unet": round(1.7 * GB), "text_encoder": round(1.5 * GB), "vae": round(0.2 * GB)},
    round(1.2 * GB),
    "measured",
)


def test_the_sentence_has_all_figures_when_it_fits() -> None:
    decision = decide("auto", SD, round(18.2 * GB), 20 * GB, headroom_bytes=GB)
    assert decision == Decision(
        False,
        "3.4 GB of weights + 1.2 GB of activations (measured) fit into 18.2 GB free "
        "less 1.0 GB headroom: resident",
    )


def test_the_sentence_has_all_figures_when_it_does_not_fit() -> None:
    decision = decide("auto", SD, 5 * GB, 8 * GB, headroom_bytes=GB)
    assert decision == Decision(
        True,
        "3.4 GB of weights + 1.2 GB of activations (measured) do not fit into 5.0 GB free "
        "less 1.0 GB headroom: offloaded",
    )


def test_unmeasured_activations_count_as_much_as_the_weights_and_are_said_to() -> None:
    unmeasured = Estimate(3 * GB, {"unet": 3 * GB})
    need = 6 * GB + HEADROOM_BYTES
    fits, misses = (decide("auto", unmeasured, free, 99 * GB) for free in (need, need - 1))
    assert (fits.offload, misses.offload) == (False, True)
    for decision in (fits, misses):
        assert "as much again for activations (not measured yet)" in decision.reason


def test_the_border_is_exact_and_the_headroom_is_in_it() -> None:
    need = SD.resident_bytes
    assert not decide("auto", SD, need + HEADROOM_BYTES, None).offload
    assert decide("auto", SD, need + HEADROOM_BYTES - 1, None).offload
    assert not decide("auto", SD, need, None, headroom_bytes=0).offload
    assert decide("auto", SD, need - 1, None, headroom_bytes=0).offload


def test_headroom_is_the_sum_of_its_stated_parts() -> None:
    assert HEADROOM_BYTES == 1000 * 1024 * 1024


def test_free_memory_that_nobody_knows_is_none() -> None:
    decision = decide("auto", SD, None, 20 * GB)
    assert decision.offload
    assert "free memory is unknown" in decision.reason


def test_what_a_driver_calls_free_beyond_the_device_does_not_count() -> None:
    # APUs have been seen to report 2^34 GiB as free (ComfyUI issue 2431).
    assert decide("auto", SD, 2**64, 5 * GB).offload
    assert not decide("auto", SD, 2**64, 20 * GB).offload


def test_a_component_that_does_not_even_fit_alone_is_named() -> None:
    decision = decide("auto", SD, round(2.5 * GB), 4 * GB)
    assert decision.offload
    assert "unet alone, 1.7 GB, with its activations does not fit either" in decision.reason


def test_on_is_obeyed_although_everything_fits() -> None:
    decision = decide("on", SD, 100 * GB, 128 * GB)
    assert decision.offload
    assert decision.reason.startswith("the setting is on: offloaded (3.4 GB of weights")


def test_off_is_obeyed_with_a_warning_where_it_does_not_fit() -> None:
    assert decide("off", SD, 50 * GB, 64 * GB).reason == "the setting is off: resident"
    tight = decide("off", SD, 3 * GB, 8 * GB)
    assert not tight.offload
    assert "though 3.4 GB of weights" in tight.reason
    assert "do not fit into 3.0 GB free" in tight.reason


def test_off_is_impossible_where_the_weights_exceed_the_device() -> None:
    decision = decide("off", SD, 3 * GB, 3 * GB)
    assert decision.offload
    assert decision.reason == (
        "the setting is off, but 3.4 GB of weights cannot stay on a device of 3.0 GB: offloaded"
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_without_weights_there_is_nothing_to_offload(policy: Any) -> None:
    decision = decide(policy, Estimate(0, {}), 0, 0)
    assert decision == Decision(False, "no weights were found: there is nothing to offload")


@given(ESTIMATES, MAYBE_BYTES, MAYBE_BYTES, BYTES)
def test_on_and_off_are_obeyed_wherever_possible(
    estimate: Estimate, free: int | None, total: int | None, headroom: int
) -> None:
    on, off = (decide(policy, estimate, free, total, headroom) for policy in ("on", "off"))  # type: ignore[arg-type]
    assert on.offload == (estimate.parameter_bytes > 0)
    impossible = total is not None and estimate.parameter_bytes > total
    assert off.offload == impossible
    for decision in (on, off):
        assert decision.reason.startswith(("the setting is o", "no weights"))


@given(ESTIMATES, BYTES, BYTES, MAYBE_BYTES, BYTES, st.sampled_from(POLICIES))
def test_more_free_memory_never_turns_offload_on(
    estimate: Estimate, free: int, more: int, total: int | None, headroom: int, policy: Any
) -> None:
    less_free = decide(policy, estimate, free, total, headroom)
    more_free = decide(policy, estimate, free + more, total, headroom)
    assert less_free.offload or not more_free.offload


@given(ESTIMATES, BYTES, MAYBE_BYTES, BYTES, BYTES)
def test_more_headroom_never_turns_offload_off(
    estimate: Estimate, free: int, total: int | None, headroom: int, more: int
) -> None:
    small = decide("auto", estimate, free, total, headroom)
    large = decide("auto", estimate, free, total, headroom + more)
    assert large.offload or not small.offload


@given(ESTIMATES, MAYBE_BYTES, MAYBE_BYTES, BYTES, BYTES, st.sampled_from(POLICIES))
def test_more_weights_or_activations_never_turn_offload_off(
    estimate: Estimate,
    free: int | None,
    total: int | None,
    weights: int,
    activations: int,
    policy: Any,
) -> None:
    grown = Estimate(
        estimate.parameter_bytes + weights,
        {**estimate.component_bytes, "more": weights},
        None if estimate.activation_bytes is None else estimate.activation_bytes + activations,
        estimate.source,
    )
    before, after = (decide(policy, e, free, total) for e in (estimate, grown))
    assert after.offload or not before.offload


@given(ESTIMATES, BYTES, BYTES)
def test_resident_means_that_it_fits_with_its_headroom(
    estimate: Estimate, free: int, total: int
) -> None:
    decision = decide("auto", estimate, free, total)
    if not decision.offload and estimate.parameter_bytes:
        assert estimate.resident_bytes + HEADROOM_BYTES <= min(free, total)


@given(ESTIMATES, MAYBE_BYTES, MAYBE_BYTES, BYTES, st.sampled_from(POLICIES))
def test_every_sentence_says_what_was_done(
    estimate: Estimate, free: int | None, total: int | None, headroom: int, policy: Any
) -> None:
    decision = decide(policy, estimate, free, total, headroom)
    word = "offloaded" if decision.offload else "resident"
    assert word in decision.reason or estimate.parameter_bytes == 0
    other = "resident" if decision.offload else "offloaded"
    assert other not in decision.reason


@pytest.mark.parametrize("bad", ["", "ON", "auto ", "yes", "true"])
def test_an_unknown_policy_is_a_sentence_with_the_known_ones(bad: str) -> None:
    with pytest.raises(ValueError, match="give one of off, auto, on"):
        check_policy(bad)
    with pytest.raises(ValueError, match="give one of off, auto, on"):
        decide(bad, SD, 1, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["free_bytes", "headroom_bytes"])
def test_negative_bytes_are_refused_by_name(name: str) -> None:
    given_bytes = {"free_bytes": 1, "total_bytes": 1, "headroom_bytes": 1, name: -1}
    with pytest.raises(ValueError, match=f"{name} is -1"):
        decide("auto", SD, **given_bytes)


def test_neither_the_package_nor_its_policy_imports_torch() -> None:
    code = (
        "import sys, hy3d_rocm.offload\n"
        "heavy = {'torch', 'diffusers', 'accelerate', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
