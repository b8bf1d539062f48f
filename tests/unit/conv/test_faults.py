"""The fault injector fails what it is told to, and nothing when it is not asked."""

from __future__ import annotations

import ast
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from router_doubles import guarded, integers

from hy3d_rocm.conv import faults, forget, prepared
from hy3d_rocm.conv.errors import DeviceMismatchError
from hy3d_rocm.conv.faults import Fault, inject_faults, parse
from hy3d_rocm.conv.tiers import TIER_NAMES

X, W = integers(1, 2, 4, 6, 6), integers(3, 2, 3, 3, 3)


@pytest.fixture(autouse=True)
def no_injection(monkeypatch: pytest.MonkeyPatch, nothing_remembered: None) -> Iterator[None]:
    monkeypatch.delenv(faults.ENVIRONMENT, raising=False)
    yield
    monkeypatch.setenv(faults.ENVIRONMENT, "")
    faults.load_environment()
    assert not faults.active()


def outcomes(fault: Fault, calls: int) -> str:
    """x where the unprotected call failed, . where it ran."""
    said = ""
    with inject_faults(fault):
        for _ in range(calls):
            try:
                F.conv3d(X, W)
                said += "."
            except RuntimeError:
                said += "x"
    return said


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(), "xxxxxx"),
        (Fault(first=2), "..xxxx"),
        (Fault(every=2), "x.x.x."),
        (Fault(every=3, first=1), ".x..x."),
        (Fault(count=2), "xx...."),
        (Fault(every=2, first=1, count=1), ".x...."),
        (Fault(count=0), "......"),
        (Fault(op="conv2d"), "......"),
        (Fault(tier="native"), "......"),
        (Fault(shape="1x2x*"), "xxxxxx"),
        (Fault(shape="2x*"), "......"),
        (Fault(match=lambda call: call.spec.groups == 2), "......"),
        (Fault(match=lambda call: call.spec.kernel == (3, 3, 3)), "xxxxxx"),
    ],
)
def test_a_fault_hits_exactly_the_calls_it_names(fault: Fault, said: str) -> None:
    assert outcomes(fault, 6) == said


def test_unprotected_convolutions_fail_as_they_do_for_users() -> None:
    with (
        inject_faults(Fault(text=faults.MIOPEN_UNKNOWN)),
        pytest.raises(RuntimeError, match=r"^miopenStatusUnknownError$"),
    ):
        F.conv3d(X, W)
    F.conv3d(X, W)


def test_a_protected_call_is_hit_once_in_either_order() -> None:
    with inject_faults(Fault()) as (fault,), guarded():
        F.conv3d(X, W)
    assert (fault.seen, fault.fired) == (1, 1)
    forget()
    with guarded(), inject_faults(Fault()) as (fault,):
        F.conv3d(X, W)
    assert (fault.seen, fault.fired) == (1, 1)


@pytest.mark.parametrize("scope", ["thread", "process"])
def test_the_scope_decides_which_threads_are_hit(scope: str) -> None:
    counts = []

    def other() -> None:
        with torch.inference_mode(), guarded() as guard:
            F.conv3d(X, W)
            counts.append(guard.stats.failures)

    with inject_faults(Fault(), scope=scope):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert counts == [scope == "process"]
    assert not faults.active()


def test_blocks_nest_and_all_their_faults_act() -> None:
    with inject_faults(Fault("current")), guarded() as guard:
        with inject_faults(Fault("native")):
            F.conv3d(X, W)
            assert guard.stats.failures == 2
        forget()
        F.conv3d(X, W)
        assert guard.stats.failures == 3
    assert not faults.active()


def test_the_exception_type_is_the_one_asked_for() -> None:
    with (
        inject_faults(Fault(text=faults.HIP_OOM, exception=torch.OutOfMemoryError)),
        pytest.raises(torch.OutOfMemoryError),
    ):
        F.conv3d(X, W)
    interrupt = Fault(exception=KeyboardInterrupt)
    with inject_faults(interrupt), guarded(), pytest.raises(KeyboardInterrupt):
        F.conv3d(X, W)


def test_the_environment_acts_inside_protect_and_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text = "current:conv3d:1x2x*:unknown,first=1,count=1; native:*:*:hip_oom"
    monkeypatch.setenv(faults.ENVIRONMENT, text)
    prepared.give_back()  # what other tests left: a tier is tried again where memory was released
    with caplog.at_level(logging.WARNING, "hy3d_rocm"):
        for _ in range(2):
            with guarded() as guard:
                F.conv3d(X, W)
    lines = [r.getMessage() for r in caplog.records]
    assert lines[0] == f"fault injection is ON: HY3D_FAULTS={text}"
    assert sum("fault injection" in line for line in lines) == 1
    assert guard.stats.recovered == 1, "the second call: first=1"
    rows = {row["tier"]: row["calls"] for row in guard.stats.as_dict()["rows"]}
    assert rows == {"current": 1, "native": 1, "cpu": 1}
    F.conv3d(X, W)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("current:conv3d:no_algorithm", "is not tier:op:shape:text"),
        ("gpu:conv3d:*:no_algorithm", "tier 'gpu'"),
        ("current:conv1d:*:no_algorithm", "op 'conv1d'"),
        ("current:conv3d:*:boom", "text 'boom'.*no_algorithm"),
        ("current:conv3d:*:unknown,often=2", "'often=2'"),
        ("current:conv3d:*:unknown,every=x", "'every=x'"),
        ("current:conv3d:*:unknown,every=0", "every must be"),
    ],
)
def test_a_wrong_entry_gets_a_sentence(
    monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)
    monkeypatch.setenv(faults.ENVIRONMENT, text)
    with pytest.raises(ValueError, match=words), guarded():
        pass


def test_wrong_arguments_of_the_injector_get_a_sentence() -> None:
    with pytest.raises(ValueError, match="neither 'thread' nor"), inject_faults([], scope="x"):
        pass
    with pytest.raises(TypeError, match="is no Fault"), inject_faults(["current"]):  # type: ignore[list-item]
        pass
    with pytest.raises(ValueError, match="op 'conv1d'"):
        Fault(op="conv1d")
    with pytest.raises(ValueError, match="effect 'explode'"):
        Fault(effect="explode")


def test_a_fault_may_let_a_tier_lie_or_dawdle_protected_or_not() -> None:
    expected = F.conv3d(X, W)
    with inject_faults(Fault(effect="wrong")):
        assert bool((F.conv3d(X, W) != expected).any())
    with inject_faults(Fault(effect="nan")):
        assert bool(F.conv3d(X, W).isnan().all())
    with inject_faults(Fault(effect="slow")):
        start = time.perf_counter()
        assert torch.equal(F.conv3d(X, W), expected)
        assert time.perf_counter() - start >= 0.05
    for effect in ("wrong", "nan"):
        forget()
        with inject_faults(Fault(effect=effect)), guarded() as guard:
            assert torch.equal(F.conv3d(X, W), expected)
        assert guard.stats.recovered == 1


def test_the_environment_knows_every_tier_and_the_lies() -> None:
    read = parse("triton:*:*:nan;gemm:conv3d:1x2x*:wrong,count=1;vendor:*:*:slow,every=2")
    assert [(f.tier, f.effect) for f in read] == [
        ("triton", "nan"), ("gemm", "wrong"), ("vendor", "slow"),
    ]  # fmt: skip
    assert all(parse(f"{tier}:*:*:hip_oom") for tier in TIER_NAMES)


def test_the_injector_knows_nothing_of_the_router() -> None:
    names = {"router", "fallback", "policy"}
    tree = ast.parse(Path(faults.__file__).read_text())
    imported = {
        alias.name.rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in [*node.names, ast.alias(getattr(node, "module", None) or "")]
    }
    assert not names & imported


def test_every_text_of_the_injector_is_retried_or_a_sentence() -> None:
    expected = F.conv3d(X, W)
    for key, text in faults.TEXTS.items():
        forget()
        with inject_faults(Fault(text=text)), guarded():
            if key.endswith("mismatch"):
                with pytest.raises(DeviceMismatchError):
                    F.conv3d(X, W)
            elif key in ("illegal_access", "device_assert"):
                with pytest.raises(RuntimeError, match="restart"):
                    F.conv3d(X, W)
            else:
                assert torch.equal(F.conv3d(X, W), expected)
