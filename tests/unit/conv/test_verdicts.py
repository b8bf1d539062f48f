"""What the process remembers of failures, and what an exception means, rule by rule."""

from __future__ import annotations

import sys
from types import SimpleNamespace as Thing
from typing import Any

import pytest
import torch

from hy3d_rocm import memory
from hy3d_rocm.conv import errors, fallback, recording, verdicts
from hy3d_rocm.conv.errors import (
    BadResultError,
    DeviceLostError,
    DeviceMismatchError,
    Kind,
    classify,
    classify_own,
    classify_text,
    first_line,
)
from hy3d_rocm.conv.verdicts import Verdict, Verdicts

FAILED = Verdict(Kind.BACKEND, "it failed")
FULL = Verdict(Kind.OUT_OF_MEMORY, "full", scope="decode", free=100, needed=10)


def get(known: Verdicts, free: int | None = 0, scope: object = "decode") -> Verdict | None:
    return known.get("gemm", "shape", scope, lambda: free)


def test_a_failure_is_remembered_for_its_tier_and_configuration() -> None:
    known = Verdicts()
    assert get(known) is None
    known.record("gemm", "shape", FAILED)
    assert get(known) is FAILED
    assert known.failing("gemm", "shape") is FAILED
    assert known.failing("gemm", "other") is None
    assert known.failing("triton", "shape") is None
    assert known.standing(("triton", "gemm"), "shape") == (None, FAILED)
    assert len(known) == 1


@pytest.mark.parametrize(
    ("now", "holds"), [(None, True), (0, True), (109, True), (110, False), (500, False)]
)
def test_full_memory_counts_until_the_output_has_become_free(now: int | None, holds: bool) -> None:
    known = Verdicts()
    known.record("gemm", "shape", FULL)
    before = known.generation
    assert get(known, now) is (FULL if holds else None)
    assert known.generation == before + (not holds)
    assert len(known) == holds
    assert get(known, 0) is (FULL if holds else None)


def test_full_memory_counts_in_its_scope_alone_and_is_no_standing_failure() -> None:
    known = Verdicts()
    known.record("gemm", "shape", FULL)
    assert known.failing("gemm", "shape") is None
    assert get(known, 0, "another decode") is None
    assert len(known) == 0
    unknown = Verdict(Kind.OUT_OF_MEMORY, "full", "decode", None, 10)
    known.record("gemm", "shape", unknown)
    assert get(known, 10**9) is unknown


def test_a_broken_tier_is_left_out_everywhere_until_it_is_mended() -> None:
    known = Verdicts()
    assert known.break_tier("gemm", "no compiler") is True
    generation = known.generation
    assert known.break_tier("gemm", "again") is False
    assert known.generation == generation == 1
    broken = Verdict(Kind.BACKEND, "no compiler")
    assert get(known) == known.failing("gemm", "any") == broken
    assert known.standing(("gemm",), "any") == (broken,)
    known.record("gemm", "shape", FULL)
    assert known.failing("gemm", "shape") == broken
    known.mend_tier("triton")
    assert known.generation == generation + 1
    known.mend_tier("gemm")
    assert known.generation == generation + 2
    assert known.failing("gemm", "any") is None
    assert known.break_tier("gemm", "no compiler") is True


def test_a_symptom_is_seen_elsewhere_at_another_configuration_of_the_same_tier() -> None:
    known = Verdicts()
    assert known.is_seen_elsewhere("gemm", "x", "one") is False
    assert known.is_seen_elsewhere("gemm", "x", "one") is False
    assert known.is_seen_elsewhere("gemm", "y", "two") is False
    assert known.is_seen_elsewhere("triton", "x", "two") is False
    assert known.is_seen_elsewhere("gemm", "x", "two") is True
    known.mend_tier("gemm")
    assert known.is_seen_elsewhere("gemm", "x", "two") is False
    assert known.is_seen_elsewhere("triton", "x", "one") is True


def test_each_event_is_new_once_and_each_result_sound_from_then_on() -> None:
    known = Verdicts()
    assert [known.first_time("a"), known.first_time("a"), known.first_time("b")] == [
        True, False, True,
    ]  # fmt: skip
    assert known.is_sound("gemm", "shape") is False
    known.mark_sound("gemm", "shape")
    assert known.is_sound("gemm", "shape") is True
    assert known.is_sound("gemm", "other") is False


def test_of_too_many_the_oldest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_CAPACITY", 2)
    known = Verdicts()
    known.record("gemm", 1, FAILED)
    known.record("gemm", 2, FAILED)
    known.record("gemm", 1, FAILED)  # newer than 2 now
    assert len(known) == 2
    known.record("gemm", 3, FAILED)
    assert [known.failing("gemm", n) for n in (1, 2, 3)] == [FAILED, None, FAILED]
    for n in (1, 2):
        known.mark_sound("gemm", n)
    assert known.is_sound("gemm", 1)
    known.mark_sound("gemm", 3)
    assert [known.is_sound("gemm", n) for n in (1, 2, 3)] == [False, True, True]
    assert [known.first_time(n) for n in (1, 2, 1, 2)] == [True, True, False, False]
    assert [known.first_time(n) for n in (3, 2, 3, 1)] == [True, False, False, True]


def test_symptoms_beyond_the_capacity_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_CAPACITY", 1)
    known = Verdicts()
    for symptom in ("a", "b"):
        known.is_seen_elsewhere("gemm", symptom, "one")
    # Two are there now, one more than allowed: the next question begins anew.
    assert known.is_seen_elsewhere("gemm", "a", "two") is False
    assert known.is_seen_elsewhere("gemm", "a", "one") is True


def test_forgetting_drops_everything_and_says_how_many() -> None:
    known = Verdicts()
    known.record("gemm", 1, FAILED)
    known.record("gemm", 2, FAILED)
    known.break_tier("triton", "x")
    known.mark_sound("gemm", 1)
    known.first_time("event")
    known.is_seen_elsewhere("gemm", "x", 1)
    generation = known.generation
    assert generation == 3
    assert known.forget() == 2
    assert known.generation == generation + 1
    assert len(known) == 0
    assert known.failing("triton", 1) is None
    assert not known.is_sound("gemm", 1)
    assert known.first_time("event")
    assert not known.is_seen_elsewhere("gemm", "x", 2)
    verdicts.VERDICTS.record("gemm", "a test's", FAILED)
    assert verdicts.forget() >= 1
    assert verdicts.forget() == 0


def test_a_text_is_classified_by_the_first_rule_that_knows_it() -> None:
    found = classify_text("HIP out of memory. Tried to allocate")
    assert found is not None
    assert (found.kind, found.reason) == (Kind.OUT_OF_MEMORY, "the GPU is out of memory")
    assert found is errors.RULES[0]
    assert classify_text("hip OUT OF memory") is None
    mismatch = classify_text(
        "INPUT TYPE (torch.FloatTensor) and weight type (cuda) should be the same"
    )
    assert mismatch is not None
    assert mismatch.kind is Kind.DEVICE_MISMATCH


def the(error: BaseException) -> tuple[Kind, str] | None:
    found = classify(error)
    return None if found is None else (found.kind, found.reason)


def test_exceptions_are_classified_by_type_with_these_reasons() -> None:
    assert the(MemoryError()) == (Kind.OUT_OF_MEMORY, "the host is out of memory")
    assert the(BadResultError("HIP out of memory")) == (Kind.WRONG_RESULT, "HIP out of memory")
    assert the(DeviceMismatchError("HIP out of memory")) is None
    assert the(DeviceLostError("HIP error: x")) is None
    assert the(RuntimeError("nobody knows")) is None
    own_words = torch.OutOfMemoryError("nobody knows")
    assert the(own_words) == (Kind.OUT_OF_MEMORY, "the device is out of memory")
    said = torch.OutOfMemoryError("HIP out of memory")
    assert the(said) == (Kind.OUT_OF_MEMORY, "the GPU is out of memory")
    lost = torch.AcceleratorError("nobody knows")
    assert the(lost) == (
        Kind.DEVICE_LOST, "the accelerator reported an error that is not about memory",
    )  # fmt: skip
    lost.error_code = 3
    assert the(lost) is not None
    assert the(lost)[0] is Kind.DEVICE_LOST  # type: ignore[index]
    lost.error_code = 2
    assert the(lost) == (Kind.OUT_OF_MEMORY, "the device is out of memory")
    known = torch.AcceleratorError("miopenStatusUnknownError")
    assert the(known) is not None
    assert the(known)[0] is Kind.NO_ALGORITHM  # type: ignore[index]


def test_without_torch_only_texts_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    error = torch.OutOfMemoryError("nobody knows")
    monkeypatch.delitem(sys.modules, "torch")
    assert classify(error) is None
    monkeypatch.setitem(sys.modules, "torch", Thing(OutOfMemoryError="no type"))
    assert classify(error) is None


def test_an_own_tiers_exception_is_its_failure_unless_it_is_a_cancel() -> None:
    found = classify_own(TypeError("first\nsecond"))
    assert found is not None
    assert (found.kind, found.reason) == (Kind.BACKEND, "TypeError: first")
    assert not found.patterns, "no text decided"
    known = classify_own(RuntimeError("miopenStatusUnknownError"))
    assert known is not None
    assert known.kind is Kind.NO_ALGORITHM
    assert classify_own(DeviceLostError("x")) is None
    assert classify_own(DeviceMismatchError("x")) is None

    class InterruptProcessingException(Exception):  # noqa: N818  # ComfyUI's name
        pass

    assert classify_own(InterruptProcessingException("x")) is None


def test_the_first_line_is_short_and_never_empty() -> None:
    assert first_line(RuntimeError("\n  a \nb")) == "a "
    assert first_line(RuntimeError("x" * 300)) == "x" * 200
    assert first_line(RuntimeError(" \n")) == "RuntimeError"


def test_sentences_for_a_device_end_with_what_pytorch_said() -> None:
    mismatch = errors.mismatch_error("conv3d", "x on cpu", RuntimeError("said\nmore"))
    assert str(mismatch).startswith(
        "conv3d: its tensors are on different devices (x on cpu). Move the input"
    )
    assert str(mismatch).endswith("PyTorch said: said")
    lost = errors.lost_error("conv3d", "a reason", RuntimeError("said\nmore"))
    assert str(lost).startswith("conv3d: a reason. The process can't use this GPU any more")
    assert str(lost).endswith("PyTorch said: said")
    assert lost.error_code is None


def classified(kind: Kind) -> errors.Rule:
    return errors.Rule(kind, "a reason")


def test_only_errors_of_the_device_are_translated_and_chained() -> None:
    what: Any = "conv3d 1x2"
    error = RuntimeError("said")
    for kind in errors.RETRIED:
        assert fallback.translate(error, classified(kind), what, "all on cpu") is None
    mismatch = fallback.translate(error, classified(Kind.DEVICE_MISMATCH), what, "all on cpu")
    assert isinstance(mismatch, DeviceMismatchError)
    assert str(mismatch).startswith("conv3d 1x2: its tensors are on different devices (all on cpu)")
    assert mismatch.__cause__ is error
    lost = fallback.translate(error, classified(Kind.DEVICE_LOST), what, "all on cpu")
    assert isinstance(lost, DeviceLostError)
    assert str(lost).startswith("conv3d 1x2: a reason. The process")
    assert str(lost).endswith("PyTorch said: said")
    assert lost.__cause__ is error


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:  # noqa: BLE001
        return caught


def test_a_kept_exception_has_no_frames_nor_has_what_led_to_it() -> None:
    inner = raised(ValueError("inner"))
    try:
        raise inner
    except ValueError:
        outer = raised(RuntimeError("outer"))
    assert outer.__context__ is inner
    caused = raised(RuntimeError("caused"), outer)
    assert fallback.strip(caused) is caused
    assert [e.__traceback__ for e in (inner, outer, caused)] == [None, None, None]


def test_what_the_caller_was_handling_keeps_its_frames() -> None:
    kept = []
    try:
        raise KeyError("the caller's")
    except KeyError as callers:
        error = raised(RuntimeError("ours"))
        fallback.strip(error)
        kept = [error.__traceback__ is not None, callers.__traceback__ is not None]
    assert kept == [False, True]


def call_on(device: str) -> Any:
    return Thing(spec=Thing(device=torch.device(device)))


@pytest.mark.parametrize(
    ("device", "in_use", "capturing", "text", "lost"),
    [
        ("cuda:0", True, False, "HIP error: an illegal memory access was encountered", True),
        ("cuda:0", True, False, "HIP out of memory", False),
        ("cuda:0", True, False, "nobody knows", False),
        ("cuda:0", True, True, "HIP error: an illegal memory access was encountered", False),
        ("cuda:0", False, False, "HIP error: an illegal memory access was encountered", False),
        ("cpu", True, False, "HIP error: an illegal memory access was encountered", False),
    ],
)
def test_a_device_is_asked_where_it_is_in_use_and_may_wait(
    monkeypatch: pytest.MonkeyPatch, device: str, in_use: bool, capturing: bool, text: str,
    lost: bool,
) -> None:  # fmt: skip
    asked: list[torch.device] = []

    def synchronize(where: torch.device) -> None:
        asked.append(where)
        raise RuntimeError(text)

    monkeypatch.setattr(memory, "gpu_in_use", lambda: in_use)
    monkeypatch.setattr(fallback, "is_capturing", lambda where: capturing)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    said = fallback.ask_device(call_on(device))
    assert [str(error) for error in said] == ([text] if lost else [])
    is_asked = device == "cuda:0" and in_use and not capturing
    assert asked == ([torch.device("cuda:0")] if is_asked else [])


@pytest.mark.parametrize(
    ("device", "in_use", "capturing"),
    [("cuda:0", True, True), ("cuda:0", True, False), ("cuda:0", False, True), ("cpu", True, True)],
)
def test_capturing_is_asked_of_a_gpu_in_use(
    monkeypatch: pytest.MonkeyPatch, device: str, in_use: bool, capturing: bool
) -> None:
    import contextlib

    entered: list[object] = []

    @contextlib.contextmanager
    def on(where: object) -> Any:
        entered.append(where)
        yield

    monkeypatch.setattr(memory, "gpu_in_use", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    where = torch.device(device)
    wanted = device == "cuda:0" and in_use and capturing
    assert fallback.is_capturing(where) is wanted
    assert entered == ([where] if device == "cuda:0" and in_use else [])
    assert fallback.can_retry(call_on(device)) is not wanted


def test_a_retry_is_not_made_where_something_is_recorded() -> None:
    seen: list[bool] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(bool(recording.recorder()))
        seen.append(fallback.can_retry(call_on("cpu")))
        return x * 2

    x = torch.ones(2)
    assert not recording.recorder()
    torch.func.vmap(look)(x)
    torch.jit.trace(look, x, check_trace=False)
    with torch.autograd.forward_ad.dual_level():
        look(x)
    assert seen == [True, False] * 3
    assert fallback.can_retry(call_on("cpu"))
