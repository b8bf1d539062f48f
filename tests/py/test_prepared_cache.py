"""The cache of prepared weights: never stale, never above its limit, made once. Without the core.

`make` is a callable and the fingerprint all bytes of the tensor, so that what is tested here is
the cache alone; test_prepared_calls.py has it with the core.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hy3d_rocm.conv import prepared
from hy3d_rocm.conv.prepared import WeightCache

MB = 1 << 20


def all_bytes(tensor: Any, _threads: int = 0) -> Any:
    return (tensor.dtype, tensor.shape, tensor.stride(), tensor.detach().numpy().tobytes())


class Made:
    """Prepared weights that remember what they were made from."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight.detach().clone()


class Rig:
    """A cache, and a counter of what was made."""

    def __init__(self, limit: int = 100) -> None:
        self.cache = WeightCache(limit, fingerprint=all_bytes)
        self.made = 0

    def get(self, weight: Any, nbytes: int = 10, number: int = 1) -> Any:
        def make() -> Made:
            self.made += 1
            return Made(weight)

        found = self.cache.get(weight.detach(), number, nbytes, make, owner=weight)
        assert found is None or torch.equal(found.weight, weight.detach()), "stale weights"
        return found


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*(shape or (2, 2))), requires_grad=False)


def test_the_second_request_finds_what_the_first_made() -> None:
    rig, weight = Rig(), parameter()
    first = rig.get(weight)
    assert first is not None
    assert rig.get(weight) is first
    assert rig.get(weight, number=2) is not first, "another layout is another thing"
    stats = rig.cache.stats()
    assert (stats.hits, stats.misses, stats.made, stats.bytes, rig.made) == (1, 2, 2, 20, 2)
    assert stats.hit_rate == 1 / 3
    assert stats.text().startswith("prepared weights: 1 of 3 calls found theirs (33%), 2 kept in")


def test_a_copy_a_view_and_a_cast_of_the_same_values_are_found_too() -> None:
    rig, weight = Rig(), parameter(3, 4)
    first = rig.get(weight)
    assert rig.get(weight.clone()) is first
    assert rig.get(weight.view(12).view(3, 4)) is first
    assert rig.get(weight.double().float()) is first
    assert rig.get(weight.view(4, 3)) is not first
    assert rig.get(weight.t().contiguous().t()) is not first, "other strides"
    assert rig.get(weight.double()) is not first


def load_state(weight: nn.Parameter, values: torch.Tensor) -> None:
    module = nn.Module()
    module.weight = weight
    module.load_state_dict({"weight": values})


def in_inference_mode(weight: nn.Parameter, values: torch.Tensor) -> None:
    with torch.inference_mode():
        weight.data.copy_(values)


CHANGES: dict[str, Callable[[nn.Parameter, torch.Tensor], Any]] = {
    "copy_": lambda w, v: w.copy_(v),
    "load_state_dict": load_state,
    ".data.copy_": lambda w, v: w.data.copy_(v),
    ".data.copy_ in inference mode": in_inference_mode,
    ".data = ": lambda w, v: setattr(w, "data", v),
    "detach().copy_": lambda w, v: w.detach().copy_(v),
    "set_": lambda w, v: w.set_(v),
    "through NumPy": lambda w, v: w.numpy().__setitem__(slice(None), v.numpy()),
    "through the storage": lambda w, v: w.untyped_storage().copy_(v.untyped_storage()),
    "through DLPack": lambda w, v: torch.from_dlpack(w.data).copy_(v),
    "one bit": lambda w, v: w.numpy().view("u4").__setitem__((1, 1), 12345),
    "values changed places": lambda w, _v: w.numpy().sort(axis=0),
}


@pytest.mark.parametrize("how", CHANGES)
def test_no_change_of_the_values_gives_stale_weights(how: str) -> None:
    rig, weight = Rig(), parameter(5, 5)
    rig.get(weight)  # each get compares with the values of now
    with torch.no_grad():
        CHANGES[how](weight, torch.randn(5, 5))
    rig.get(weight)
    assert rig.made == 2
    assert rig.get(weight) is not None
    assert rig.made == 2


def test_what_version_counters_miss_is_what_this_file_says() -> None:
    """Why weights are read: the list in prepared.py's docstring, for this PyTorch."""
    weight = parameter()
    counted = []
    for how in ("copy_", "load_state_dict", ".data.copy_", ".data = ", "through NumPy",
                "through the storage", ".data.copy_ in inference mode"):  # fmt: skip
        before = weight._version
        with torch.no_grad():
            CHANGES[how](weight, torch.randn(2, 2))
        counted += [how] if weight._version != before else []
    assert counted == ["copy_", "load_state_dict"]
    with torch.inference_mode(), pytest.raises(RuntimeError, match="version counter"):
        _ = torch.zeros(2)._version


def test_an_address_used_again_is_no_hit() -> None:
    rig = Rig()
    for _ in range(50):  # the allocator gives the same block again and again
        rig.get(torch.randn(64, 64))
    assert rig.cache.stats().hits == 0


def test_inference_tensors_are_cached_like_others_and_in_steady_scopes_read_each_time() -> None:
    rig = Rig()
    with torch.inference_mode():
        weight = torch.randn(3, 3)
        first = rig.get(weight)
        assert rig.get(weight) is first
        with prepared.steady():
            assert rig.get(weight) is first
            weight.add_(1)
            assert rig.get(weight) is not first


class Counting(Rig):
    """Counts how often weights were read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.cache = WeightCache(100, fingerprint=self.read)

    def read(self, tensor: Any, threads: int) -> Any:
        self.reads += 1
        return all_bytes(tensor, threads)


def test_a_steady_scope_reads_weights_once_and_no_longer_than_it_lasts() -> None:
    rig, weight = Counting(), parameter()
    rig.get(weight)
    made = rig.reads
    with prepared.steady():
        for _ in range(5):
            rig.get(weight)
        with prepared.steady():
            rig.get(weight)
        rig.get(weight)
        assert rig.reads == made + 1
    rig.get(weight)
    assert rig.reads == made + 2
    seen: dict[int, Any] = {}
    for _ in range(3):
        with prepared.steady(seen):
            rig.get(weight)
    assert rig.reads == made + 3


@pytest.mark.parametrize("how", ["copy_", "load_state_dict", ".data = ", "detach().copy_", "set_"])
def test_a_steady_scope_sees_what_the_version_counter_or_the_address_shows(how: str) -> None:
    rig, weight = Rig(), parameter(5, 5)
    with prepared.steady(), torch.no_grad():
        rig.get(weight)
        values = torch.randn(5, 5)
        CHANGES[how](weight, values)
        rig.get(weight)
    assert rig.made == 2


def test_a_steady_scope_knows_a_tensor_by_itself_not_by_its_address() -> None:
    rig = Rig()
    with prepared.steady():
        for _ in range(50):
            rig.get(torch.randn(64, 64))
    assert rig.cache.stats().hits == 0


def test_a_steady_scope_is_its_thread_s_own() -> None:
    rig, weight = Counting(), parameter()
    with prepared.steady():
        rig.get(weight)
        reads = rig.reads
        thread = threading.Thread(target=rig.get, args=(weight,))
        thread.start()
        thread.join()
        assert rig.reads == reads + 1


def test_weights_that_change_while_they_are_prepared_are_not_kept() -> None:
    cache, weight = WeightCache(100, fingerprint=all_bytes), parameter()

    def make() -> Made:
        made = Made(weight)
        weight.data.add_(1)
        return made

    assert cache.get(weight.detach(), 1, 10, make, owner=weight) is None
    assert cache.stats().entries == 0


def test_what_was_made_goes_when_the_tensor_dies() -> None:
    rig, weight = Rig(), parameter()
    view = weight.view(4)
    made = weakref.ref(rig.get(weight))
    rig.get(weight)
    del weight
    gc.collect()
    assert made() is not None, "a view keeps the storage"
    del view
    gc.collect()
    assert made() is None, "at once, not at the next call"
    assert (rig.cache.stats().entries, rig.cache.stats().bytes) == (0, 0)


def test_what_two_tensors_share_goes_with_the_second() -> None:
    rig, weight = Rig(), parameter()
    other = weight.clone()
    for tensor in (weight, other):
        rig.get(tensor)
        rig.get(tensor)
    del weight, tensor
    gc.collect()
    assert rig.cache.stats().entries == 1
    del other
    gc.collect()
    assert rig.cache.stats().entries == 0


def test_what_was_made_from_a_copy_for_one_call_stays_for_the_next_call_s() -> None:
    rig, weight = Rig(), parameter().double()
    for _ in range(5):
        rig.get(weight.float())
    assert rig.made == 1


def test_a_death_while_the_lock_is_held_waits_for_nothing() -> None:
    rig, weight = Rig(), parameter()
    rig.get(weight)
    rig.get(weight)
    with rig.cache._lock:
        del weight
        gc.collect()  # its callback runs here, on the thread that holds the lock
    assert rig.cache.stats().entries == 0


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


class Stopped(Exception):  # noqa: N818
    """What make() may end with."""


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
