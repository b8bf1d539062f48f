"""The cache of prepared weights behind conv3d: changes of weights, threads, failures."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from core_memory import memory
from prepared_calls_support import (  # noqa: F401
    NBYTES,
    C,
    X,
    empty_cache,
    needs_layout,
    once,
    parameter,
)
from torch import nn

import hy3d_rocm
from hy3d_rocm import _core, _native
from hy3d_rocm.conv import functional, releasing
from hy3d_rocm.conv.prepared import WeightCache


@needs_layout
def test_fast_calls_find_their_weights_and_exact_ones_and_numpy_s_ask_for_none(
    cache: WeightCache,
) -> None:
    weight = parameter()
    first = hy3d_rocm.conv3d(X, weight, padding=1, accuracy="fast")
    assert torch.equal(first, once(weight))
    assert torch.equal(hy3d_rocm.conv3d(X, weight, padding=1, accuracy="fast"), first)
    assert torch.equal(hy3d_rocm.conv3d(X[0], weight, padding=1, accuracy="fast"), first[0])
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.made, stats.bytes) == (2, 1, 1, NBYTES)
    hy3d_rocm.conv3d(X, weight, padding=1)
    hy3d_rocm.conv3d(X, weight, padding=1, accuracy="exact")
    hy3d_rocm.conv3d(X.double(), weight.double(), padding=1, accuracy="fast")
    hy3d_rocm.conv3d(X[:0], weight, padding=1, accuracy="fast")
    by_numpy = hy3d_rocm.conv3d(X.numpy(), weight.numpy(), padding=1, accuracy="fast")
    assert torch.equal(torch.from_numpy(by_numpy), first)
    assert cache.stats() == stats


@needs_layout
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_two_bytes_an_element_are_fast_unless_told(cache: WeightCache, dtype: torch.dtype) -> None:
    weight, x = parameter(dtype=dtype), X.to(dtype)
    assert torch.equal(hy3d_rocm.conv3d(x, weight, padding=1), once(weight, x=x))
    assert cache.stats().made == 1
    exact = hy3d_rocm.conv3d(x, weight, padding=1, accuracy="exact")
    assert torch.equal(exact, once(weight, x=x, accuracy="exact"))


def test_f32_is_the_direct_sum_unless_told() -> None:
    weight = parameter()
    assert torch.equal(hy3d_rocm.conv3d(X, weight, padding=1), once(weight, accuracy="exact"))
    x, w = X.round(), weight.round()
    assert torch.equal(hy3d_rocm.conv3d(x, w, padding=1), F.conv3d(x, w, padding=1))


def other_values(weight: nn.Parameter) -> torch.Tensor:
    return parameter(9).data.clone()


CHANGES: dict[str, Callable[[nn.Parameter], Any]] = {
    "in place": lambda w: w.mul_(2),
    ".data.copy_": lambda w: w.data.copy_(other_values(w)),
    ".data = ": lambda w: setattr(w, "data", other_values(w)),
    "through NumPy": lambda w: w.numpy().__setitem__((0, 0, 0, 0, 0), 7),
    "channels last": lambda w: setattr(w, "data", w.data.to(memory_format=torch.channels_last_3d)),
}


@needs_layout
@pytest.mark.parametrize("how", CHANGES)
def test_changed_weights_are_never_computed_with_as_they_were(cache: WeightCache, how: str) -> None:
    weight = parameter()
    hy3d_rocm.conv3d(X, weight, padding=1, accuracy="fast")
    with torch.inference_mode():
        CHANGES[how](weight)
    y = hy3d_rocm.conv3d(X, weight, padding=1, accuracy="fast")
    assert torch.equal(y, once(weight))


@needs_layout
def test_eight_threads_at_once_get_the_bits_of_one(cache: WeightCache) -> None:
    weights = [parameter(seed) for seed in range(4)]
    wanted = [once(weight) for weight in weights]
    cache._admission = _native.Admission(2 * NBYTES)  # some find theirs, some never do
    wrong: list[str] = []

    def work(place: int) -> None:
        torch.set_num_threads(1 + place % 3)  # the calling thread's own number
        for i in range(8):
            number = (place + i) % 4
            y = hy3d_rocm.conv3d(X, weights[number], padding=1, accuracy="fast")
            if not torch.equal(y, wanted[number]):
                wrong.append(f"thread {place}, call {i}, weight {number}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    stats = cache.stats()
    assert stats.hits + stats.misses == 64
    assert 0 < stats.made <= stats.misses
    assert stats.bytes <= 2 * NBYTES


@needs_layout
@pytest.mark.parametrize("forever", [False, True])
def test_a_fast_call_survives_failed_allocations_or_says_so_and_leaks_nothing(
    cache: WeightCache, forever: bool
) -> None:
    weight = parameter()

    def call() -> torch.Tensor:
        y: torch.Tensor = hy3d_rocm.conv3d(X, weight, padding=1, accuracy="fast")
        return y

    wanted = call()
    cache.clear()
    gc.collect()
    live, start = memory.live(), memory.asked()
    call()
    allocations = memory.asked() - start
    survived = 0
    for k in range(1, allocations + 1):
        cache.clear()
        memory.fail(k, forever)
        try:
            assert torch.equal(call(), wanted)
            survived += 1
        except MemoryError as error:
            assert "No memory" in str(error)  # noqa: PT017
        finally:
            memory.fail(0)
        cache.clear()
        gc.collect()
        assert memory.live() == live, f"allocation {k} of {allocations} leaked"
    assert survived > 0 or forever, "what fails once for the cache costs no call"


def test_a_call_without_memory_gives_the_cache_s_back_and_tries_once_more(
    cache: WeightCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Needs no layout: the core's functions are doubles."""
    seen: list[Any] = []

    def conv3d(*args: Any, **_fusion: Any) -> None:
        seen.append(args[-1])
        if len(seen) == 1:
            raise MemoryError("once")

    functional.format_of.cache_clear()
    monkeypatch.setattr(functional, "format_of", lambda *_a: (3, "double", 100))
    monkeypatch.setattr(_native, "conv3d_prepare", lambda *_a: "ready")
    monkeypatch.setattr(_native, "conv3d", conv3d)
    hy3d_rocm.conv3d(X, parameter(), padding=1, accuracy="fast")
    assert seen == ["ready", None]
    assert cache.stats().bytes == 0
    seen.clear()
    with pytest.raises(MemoryError, match="once"):  # nothing to give back
        hy3d_rocm.conv3d(X, parameter(), padding=1)


@needs_layout
def test_a_cancelled_preparation_ends_the_call_and_keeps_nothing(cache: WeightCache) -> None:
    flag = _core.CancelFlag()
    flag.request()
    weight = parameter()
    with pytest.raises(_core.Hy3dError, match="cancelled"):
        hy3d_rocm.conv3d(X, weight, padding=1, accuracy="fast", cancel=flag)
    assert cache.stats().bytes == 0
    flag.reset()
    y = hy3d_rocm.conv3d(X, weight, padding=1, accuracy="fast", cancel=flag)
    assert torch.equal(y, once(weight))


@needs_layout
def test_protect_computes_fast_and_exactly_when_told(cache: WeightCache) -> None:
    weight = parameter()
    with torch.no_grad():
        once(weight)
        hy3d_rocm.conv3d(X, parameter(1), padding=1, accuracy="fast")
        with hy3d_rocm.protect(tiers=["cpu"]) as guard:
            for _ in range(2):
                assert torch.equal(F.conv3d(X, weight, padding=1), once(weight))
        counted = guard.stats.prepared_weights()
        assert (counted.made, counted.hits, counted.misses) == (1, 1, 1)
        assert guard.stats.as_dict()["prepared_weights"]["hits"] == 1
        last = guard.stats.table().splitlines()[-1]
        assert last.startswith("prepared weights: 1 of 2 calls found theirs (50%), 2 kept in")
        with hy3d_rocm.protect(tiers=["cpu"], accuracy="exact"):
            assert torch.equal(F.conv3d(X, weight, padding=1), once(weight, accuracy="exact"))
    with pytest.raises(ValueError, match="accuracy='best' is neither 'fast' nor 'exact'"):
        hy3d_rocm.protect(accuracy="best")


@needs_layout
def test_giving_back_host_memory_empties_the_cache(cache: WeightCache) -> None:
    hy3d_rocm.conv3d(X, parameter(), padding=1, accuracy="fast")
    assert releasing.release(torch.device("cpu")) == NBYTES
    assert releasing.release(torch.device("cpu")) == 0
    assert cache.stats().bytes == 0


def test_numpy_keeps_out_of_the_cache(cache: WeightCache) -> None:
    x, weight = np.ones((1, C, 2, 9, 9), np.float32), np.ones((C, C, 3, 3, 3), np.float32)
    hy3d_rocm.conv3d(x, weight, padding=1, accuracy="fast")
    assert cache.stats().misses == 0
