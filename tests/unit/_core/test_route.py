"""route() and Rates: what they refuse; the rules are tested in C and through conv.choice."""

from __future__ import annotations

from typing import Any

import pytest

from hy3d_rocm import _core

SETTING = (0, 0, 1, True, True, True, 0.0)
GEMM = (4, 0, 0, False, True, -1.0, 1.0, 0.0)
WORK = (2, 1e9, 1e6, 1e6, 1e6, 27, 3, 64)


def test_an_order_and_reasons_come_by_place() -> None:
    vendor = (1, *GEMM[1:])
    found = _core.route(SETTING, [vendor, GEMM])
    assert found == ((1,), (4, 0), -1, 1, -1, (1,), (), False)
    assert _core.route(setting=SETTING, candidates=()) == ((), (), -1, -1, -1, (), (), False)


@pytest.mark.parametrize(
    ("setting", "candidates", "error"),
    [
        ((9, *SETTING[1:]), [GEMM], ValueError),
        (SETTING, [GEMM, GEMM], ValueError),
        (SETTING, [(7, *GEMM[1:])], ValueError),
        (SETTING, [GEMM] * 8, ValueError),
        (SETTING[:-1], [GEMM], TypeError),
        (list(SETTING), [GEMM], TypeError),
        (SETTING, [GEMM[:-1]], TypeError),
        (SETTING, [list(GEMM)], TypeError),
        (SETTING, [("gemm", *GEMM[1:])], TypeError),
        (SETTING, 3, TypeError),
    ],
)
def test_what_stands_for_nothing_is_refused(setting: Any, candidates: Any, error: type) -> None:
    with pytest.raises(error):
        _core.route(setting, candidates)


def test_rates_learn_and_forget_nothing() -> None:
    rates = _core.Rates()
    base = rates.seconds(4, WORK)
    assert base is not None
    rates.learn(4, WORK, 3 * base)
    assert rates.seconds(4, WORK) == pytest.approx(3 * base)
    assert rates.seconds(9, WORK) is None


@pytest.mark.parametrize("work", [WORK[:-1], list(WORK), None, ("f16", *WORK[1:])])
def test_work_is_eight_numbers(work: Any) -> None:
    for call in (lambda: _core.Rates().seconds(0, work), lambda: _core.Rates().learn(0, work, 1.0)):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError):
        _core.Rates(3)  # type: ignore[call-arg]
