"""The decision to offload at each of its borders, with the sentence that it gives."""

from __future__ import annotations

import pytest

from hy3d_rocm.offload.memory import HEADROOM_BYTES, Decision, Estimate, check_policy, decide

GB = 2**30
PARTS = {"unet": 2 * GB, "vae": GB}
MEASURED = Estimate(3 * GB, PARTS, GB, "measured at 512x512")


def test_needs_are_sums_and_maxima() -> None:
    assert MEASURED.resident_bytes == 4 * GB
    assert MEASURED.assumed_activation_bytes == GB
    assert Estimate(3 * GB, PARTS).resident_bytes == 6 * GB
    assert Estimate(3 * GB, PARTS, 0).resident_bytes == 3 * GB
    assert MEASURED.largest_component == ("unet", 2 * GB)
    assert Estimate(3 * GB).largest_component == ("", 0)


def test_the_three_policies_are_known_and_no_other() -> None:
    assert [check_policy(policy) for policy in ("off", "auto", "on")] == ["off", "auto", "on"]
    for wrong in ("ON", "", "always"):
        with pytest.raises(
            ValueError, match=rf"^offload policy is {wrong!r}; give one of off, auto, on$"
        ):
            check_policy(wrong)
        with pytest.raises(ValueError, match=r"^offload policy is"):
            decide(wrong, MEASURED, None, None)  # type: ignore[arg-type]


def test_bytes_below_nothing_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^free_bytes is -1; give a number of bytes, 0 or more$"):
        decide("auto", MEASURED, -1, None)
    with pytest.raises(ValueError, match=r"^headroom_bytes is -1; give"):
        decide("auto", MEASURED, 0, None, -1)
    assert decide("auto", MEASURED, 0, None, 0).offload


@pytest.mark.parametrize(("free", "names_it"), [(3 * GB, False), (3 * GB - 1, True), (0, True)])
def test_a_component_is_named_only_where_it_does_not_fit_alone(free: int, names_it: bool) -> None:
    decision = decide("auto", MEASURED, free, None)
    assert decision.offload
    said = (
        "; unet alone, 2.0 GB, with its activations does not fit either: free memory first, or use "
        "a smaller picture: offloaded"
    )
    assert decision.reason.endswith(said if names_it else "headroom: offloaded")
    unmeasured = decide("auto", Estimate(3 * GB, PARTS), free, None)
    assert "alone" not in unmeasured.reason


def test_unknown_free_memory_is_offloaded_with_the_need() -> None:
    assert decide("auto", MEASURED, None, None) == Decision(
        True,
        "3.0 GB of weights + 1.0 GB of activations (measured at 512x512); free memory is unknown: "
        "offloaded",
    )
    assert decide("on", Estimate(3 * GB, PARTS), None, None) == Decision(
        True,
        "the setting is on: offloaded (3.0 GB of weights + as much again for activations (not "
        "measured yet))",
    )


def test_off_warns_from_the_byte_that_is_missing() -> None:
    enough = MEASURED.resident_bytes + HEADROOM_BYTES
    assert decide("off", MEASURED, enough, None).reason == "the setting is off: resident"
    assert decide("off", MEASURED, None, None).reason == "the setting is off: resident"
    assert decide("off", MEASURED, enough - 1, None) == Decision(
        False,
        "the setting is off: resident, though 3.0 GB of weights + 1.0 GB of activations (measured "
        "at 512x512) do not fit into 5.0 GB free less 1000.0 MB headroom",
    )


def test_off_is_obeyed_up_to_the_whole_device() -> None:
    assert not decide("off", MEASURED, 9 * GB, 3 * GB).offload
    assert decide("off", MEASURED, 9 * GB, 3 * GB - 1).offload
    assert "into 3.0 GB free" in decide("off", MEASURED, 9 * GB, 3 * GB).reason
