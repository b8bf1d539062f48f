"""The cache of prepared weights: within its limit, made once, gone with its tensor.

Without the core: tests/unit/conv/test_prepared_calls.py has it with the core.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from typing import Any

import pytest
import torch
from prepared_support import MB, Made, Rig, Stopped, all_bytes, parameter

from hy3d_rocm.conv import prepared
from hy3d_rocm.conv.prepared import WeightCache


def test_the_limit_holds_and_a_limit_of_nothing_keeps_nothing() -> None:
    rig = Rig(limit=25)
    weights = [parameter() for _ in range(5)]
    for _ in range(3):
        for weight in weights:
            rig.get(weight)
            assert rig.cache.stats().bytes <= 25
    assert rig.cache.stats().entries == 2
    none, weight = Rig(limit=0), parameter()
    assert none.get(weight) is None
    assert none.get(weight) is None
    stats = none.cache.stats()
    assert (stats.misses, stats.refused, none.made) == (2, 2, 0)
    assert stats.since(stats).misses == 0


@pytest.mark.parametrize(("percent", "hits"), [(50, 1), (90, 1), (110, 40 / 44)])
def test_decodes_in_turn_find_the_share_that_fits(percent: int, hits: float) -> None:
    rig = Rig(limit=400)
    weights = [parameter() for _ in range(40 * percent // 100)]
    for weight in weights:
        rig.get(weight)
    before = rig.cache.stats()
    for _ in range(4):
        for weight in weights:
            rig.get(weight)
    assert rig.cache.stats().since(before).hit_rate == hits


def test_the_next_model_finds_room_at_once_when_the_last_one_is_gone() -> None:
    rig = Rig(limit=400)
    for _ in range(3):
        weights = [parameter() for _ in range(40)]
        for _ in range(2):
            for weight in weights:
                rig.get(weight)
        del weights, weight
        gc.collect()
        assert rig.cache.stats().entries == 0
    assert rig.cache.stats().hit_rate == 0.5


def test_eight_threads_that_ask_at_once_make_it_once_and_wait_for_it() -> None:
    cache, weight, made = WeightCache(100, fingerprint=all_bytes), parameter(), []
    results: list[Any] = []
    together = threading.Barrier(8)

    def make() -> Made:
        time.sleep(0.05)
        made.append(threading.get_ident())
        return Made(weight)

    def work() -> None:
        together.wait()
        results.append(cache.get(weight.detach(), 1, 10, make, owner=weight))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(made) == 1
    assert len(results) == 8
    assert len(set(map(id, results))) == 1
    assert (cache.stats().hits, cache.stats().misses) == (7, 1)


def test_eight_threads_with_many_layers_get_the_right_ones_within_the_limit() -> None:
    rig = Rig(limit=200)
    weights = [parameter() for _ in range(30)]
    wrong: list[BaseException] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        try:
            for i in torch.randint(30, (300,), generator=generator).tolist():
                rig.get(weights[i])
                assert rig.cache.stats().bytes <= 200
        except BaseException as error:  # noqa: BLE001  (told below)
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    stats = rig.cache.stats()
    assert stats.hits + stats.misses == 2400
    assert stats.made == rig.made


@pytest.mark.parametrize("error", [MemoryError, Stopped, KeyboardInterrupt])
def test_a_failure_of_make_reaches_its_caller_alone_and_nothing_waits_forever(
    error: type[BaseException],
) -> None:
    cache, weight = WeightCache(100, fingerprint=all_bytes), parameter()
    begun, answers = threading.Event(), []

    def fail() -> Any:
        begun.set()
        time.sleep(0.05)
        raise error

    def wait() -> None:
        begun.wait(20)
        answers.append(cache.get(weight.detach(), 1, 10, lambda: 1 / 0, owner=weight))

    thread = threading.Thread(target=wait)
    thread.start()
    if error is MemoryError:
        assert cache.get(weight.detach(), 1, 10, fail, owner=weight) is None
    else:
        with pytest.raises(error):
            cache.get(weight.detach(), 1, 10, fail, owner=weight)
    thread.join(20)
    assert answers == [None]
    assert (cache.stats().bytes, cache.stats().hits) == (0, 0)
    made = Made(weight)
    assert cache.get(weight.detach(), 1, 10, lambda: made, owner=weight) is made


def test_a_failed_allocation_gives_the_others_memory_back(caplog: Any) -> None:
    rig, weight = Rig(), parameter()
    kept = [parameter() for _ in range(3)]
    for other in kept:
        rig.get(other)

    def fail() -> Any:
        raise MemoryError

    with caplog.at_level(logging.INFO, "hy3d_rocm"):
        assert rig.cache.get(weight.detach(), 1, 10, fail, owner=weight) is None
    assert rig.cache.stats().bytes == 0
    assert "30 B of others given back" in caplog.text


def test_clear_gives_everything_back_and_the_cache_goes_on() -> None:
    rig, weight = Rig(), parameter()
    rig.get(weight)
    assert rig.cache.clear() == 10
    assert rig.cache.stats().bytes == 0
    assert rig.get(weight) is not None
    assert rig.cache.stats().bytes == 10


def test_weights_without_a_fingerprint_are_left_to_the_call() -> None:
    cache = WeightCache(100, fingerprint=lambda _w, _t: None)
    weight = parameter()
    assert cache.get(weight.detach(), 1, 10, lambda: 1 / 0, owner=weight) is None

    def no_memory(_weight: Any, _threads: int) -> Any:
        raise MemoryError

    short = WeightCache(100, fingerprint=no_memory)
    assert short.get(weight.detach(), 1, 10, lambda: 1 / 0, owner=weight) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("", 1638 * MB), ("0", 0), ("100", 100 * MB), ("0.5", MB // 2), (" 7 ", 7 * MB)],
)
def test_the_limit_is_the_variable_s_or_a_tenth_of_memory(
    monkeypatch: pytest.MonkeyPatch, text: str, wanted: int
) -> None:
    monkeypatch.setenv(prepared.VARIABLE, text)
    assert prepared.default_limit(16380 * MB) == wanted
    if not text:
        assert prepared.default_limit(1 << 40) == 3 << 30


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf", "1e300"])
def test_a_wrong_limit_costs_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: Any, text: str
) -> None:
    monkeypatch.setenv(prepared.VARIABLE, text)
    assert prepared.default_limit(1000 * MB) == 100 * MB
    assert len(caplog.records) == 1
    assert f"{prepared.VARIABLE} is '{text}'" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is a POSIX call")
def test_a_child_after_fork_begins_with_an_empty_cache_even_if_the_lock_was_held() -> None:
    cache = prepared.cache()
    assert prepared.cache() is cache
    with cache._lock, prepared._made_lock:
        child = os.fork()
        if child == 0:  # only _exit from here on: no pytest in the child
            fresh = False
            try:
                fresh = prepared.cache() is not cache and prepared.cache().stats().entries == 0
            finally:
                os._exit(0 if fresh else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert prepared.cache() is cache
