"""Weights prepared by the core: they change no bit, and refuse in sentences."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from typing import Any

import pytest
import torch
from core_memory import memory
from prepared_calls_support import (
    NAME,
    NBYTES,
    NUMBER,
    ONE,
    SIZE,
    C,
    X,
    layout,
    needs_layout,
    once,
    parameter,
)

import hy3d_rocm
from hy3d_rocm import _core


def test_exact_f64_and_small_weights_have_no_layout() -> None:
    assert layout(accuracy="exact") == (0, "none", 0)
    assert layout("f64") == (0, "none", 0)
    assert layout(batch=0)[0] in (0, NUMBER)
    assert _core.conv3d_format(
        SIZE, 4, 4, (1, 1, 1), ONE, ONE, (0, 0, 0), (0, 0, 0), "zeros", 1, "f32", "fast"
    ) == (0, "none", 0)


def test_what_no_layout_can_be_asked_for_is_told_in_a_sentence() -> None:
    def ask(size: Any = SIZE, dtype: Any = "f32", accuracy: Any = "fast", **options: Any) -> Any:
        return _core.conv3d_format(size, C, C, (3, 3, 3), ONE, ONE, ONE, ONE, "zeros", 1, dtype,
                                   accuracy, **options)  # fmt: skip

    with pytest.raises(ValueError, match="dtype is 'float32': it must be 'f32', 'f64'"):
        ask(dtype="float32")
    with pytest.raises(ValueError, match="accuracy is 3: it must be 'exact' or 'fast'"):
        ask(accuracy=3)
    with pytest.raises(ValueError, match=r"in_size is \(0, 1, 1\): each must be at least 1"):
        ask((0, 1, 1))
    with pytest.raises(ValueError, match="24 positions, which are no whole number of 5 repeats"):
        ask(upsample=(1, 5, 1))
    with pytest.raises(ValueError, match="batch is -1: it must be at least 0"):
        ask(batch=-1)


@pytest.mark.parametrize("groups", [0, -1, 4])
def test_groups_that_do_not_divide_the_channels_are_named(groups: int) -> None:
    """Of 6 output channels: by the layout's question, and by a call that asks it before it runs."""
    said = f"6 output channels cannot be cut into {groups} groups"
    with pytest.raises(ValueError, match=said):
        _core.conv3d_format(
            SIZE, 4, 6, (3, 3, 3), ONE, ONE, ONE, ONE, "zeros", groups, "f32", "fast"
        )
    x, weight = torch.ones(1, 4, 3, 3, 3), torch.ones(6, 1, 3, 3, 3)
    for accuracy in ("exact", "fast"):
        with pytest.raises(ValueError, match=f"4 input and {said}"):
            hy3d_rocm.conv3d(x, weight, groups=groups, padding=1, accuracy=accuracy)


def test_weights_without_a_layout_cannot_be_prepared() -> None:
    weight = parameter()
    for number in (0, 12345):
        with pytest.raises((ValueError, _core.Hy3dError), match="cannot be prepared in the layout"):
            _core.conv3d_prepare(weight, number)
    with pytest.raises(ValueError, match="weight has 2 dimensions: it needs 5"):
        _core.conv3d_prepare(weight[0, 0, 0], 1)
    with pytest.raises(ValueError, match="format is 4294967296: there are not so many"):
        _core.conv3d_prepare(weight, 2**32)
    with pytest.raises(TypeError, match=r"cannot create .*PreparedWeights"):
        _core.PreparedWeights()


@needs_layout
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_prepared_weights_change_no_bit(dtype: torch.dtype) -> None:
    weight, x = parameter(dtype=dtype), X.to(dtype)
    name = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    number, _, nbytes = layout(name)
    ready = _core.conv3d_prepare(weight, number, 2)
    assert (ready.format, ready.nbytes) == (number, nbytes)
    last = weight.detach().to(memory_format=torch.channels_last_3d)
    wanted = once(weight, x=x)
    for other in (ready, _core.conv3d_prepare(last, number, 1)):
        assert torch.equal(once(weight, other, x), wanted)


@needs_layout
def test_prepared_weights_that_do_not_fit_are_refused_in_a_sentence() -> None:
    weight = parameter()
    ready = _core.conv3d_prepare(weight, NUMBER)
    with pytest.raises(ValueError, match=rf"has the layout '{NAME}', but this .* takes 'none'"):
        once(weight, ready, accuracy="exact")
    wide = _core.conv3d_prepare(torch.ones(2 * C, C, 3, 3, 3), NUMBER)
    with pytest.raises(ValueError, match=r"made from weights \(64, 32, 3, 3, 3\), but weight is"):
        once(weight, wide)


@needs_layout
def test_preparing_looks_at_its_flag_and_keeps_nothing_then() -> None:
    flag = _core.CancelFlag()
    flag.request()
    weight = torch.ones(256, 256, 3, 3, 3)
    gc.collect()
    with pytest.raises(_core.Hy3dError, match="preparation of weights was cancelled"):
        _core.conv3d_prepare(weight, NUMBER, 1, flag)
    live = memory.live()
    flag.reset()
    assert _core.conv3d_prepare(weight, NUMBER, 1, flag).nbytes > weight.nbytes
    gc.collect()
    assert memory.live() == live


@needs_layout
def test_other_threads_run_while_weights_are_prepared_and_read() -> None:
    weight = torch.ones(384, 384, 3, 3, 3)
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.0005)

    watcher = threading.Thread(target=tick)
    watcher.start()
    try:
        times = [time.monotonic()]
        _core.conv3d_prepare(weight, NUMBER, 1)
        times.append(time.monotonic())
        for _ in range(10):
            _core.fingerprint(weight, 1)
        times.append(time.monotonic())
    finally:
        done.set()
        watcher.join()
    for begin, end in itertools.pairwise(times):
        inside = sum(begin < t < end for t in ticks)
        # With the GIL held the watcher could not tick once between begin and end.
        assert inside >= 3, f"{inside} ticks in {end - begin:.3f} s"


@needs_layout
def test_every_failed_allocation_of_preparing_is_a_memory_error_and_leaks_nothing() -> None:
    weight = parameter()
    _core.conv3d_prepare(weight, NUMBER)
    gc.collect()
    live, start = memory.live(), memory.asked()
    _core.conv3d_prepare(weight, NUMBER)
    for k in range(1, memory.asked() - start + 1):
        memory.fail(k)
        try:
            with pytest.raises(
                MemoryError, match=f"No memory for prepared weights .{NBYTES} bytes"
            ):
                _core.conv3d_prepare(weight, NUMBER)
        finally:
            memory.fail(0)
        assert memory.live() == live, f"allocation {k} leaked"


@needs_layout
def test_prepared_weights_dropped_by_everybody_else_live_until_the_call_ends() -> None:
    weight = torch.randn(64, 64, 3, 3, 3)
    x = torch.randn(1, 64, 4, 64, 64)
    wanted = once(weight, x=x)
    number = _core.conv3d_format((4, 64, 64), 64, 64, (3, 3, 3), ONE, ONE, ONE, ONE, "zeros", 1,
                                 "f32", "fast")[0]  # fmt: skip
    options = {"prepared": _core.conv3d_prepare(weight, number)}
    gc.collect()
    results: list[torch.Tensor] = []
    live = memory.live()

    def work() -> None:
        out = torch.empty_like(x)
        _core.conv3d(x, weight, None, out, ONE, ONE, ONE, ONE, "zeros", 1, 1, accuracy="fast",
                     **options)  # fmt: skip
        results.append(out)

    thread = threading.Thread(target=work)
    thread.start()
    while memory.live() <= live and thread.is_alive():
        time.sleep(0.0005)  # until it has its workspace, and so its arguments
    options.clear()
    thread.join()
    gc.collect()
    assert torch.equal(results[0], wanted)
    assert memory.live() < live
