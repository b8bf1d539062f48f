"""Which things stay in a cache that is too small; nothing of this needs a tensor."""

from __future__ import annotations

import random
from typing import Any

import pytest
from places import ROOT

from hy3d_rocm import _core
from hy3d_rocm.conv import prepared

NUMBERS: dict[str, int] = {}


def key_of(name: str) -> tuple[tuple[int, int], int]:
    return (NUMBERS.setdefault(name, len(NUMBERS)), 7), 3


class Cache:
    """The core's admission by names, with the figures that tests look at."""

    def __init__(self, limit: int) -> None:
        self.core = _core.Admission(limit)

    used = property(lambda self: self.core.info()[2])
    limit = property(lambda self: self.core.info()[1])
    evicted = property(lambda self: self.core.info()[4])

    def __len__(self) -> int:
        return self.core.info()[3]

    def ask(self, name: str) -> bool:
        return self.core.request(key_of(name))

    def reserve(self, name: str, nbytes: int) -> bool:
        return self.core.reserve(key_of(name), nbytes)

    def put(self, name: str) -> bool:
        return self.core.put(key_of(name))

    def cancel(self, name: str) -> None:
        self.core.cancel(key_of(name))


def request(cache: Cache, key: str, nbytes: int) -> bool:
    """One call's request: whether it was a hit; a miss is made and kept where there is room."""
    if cache.ask(key):
        return True
    if cache.reserve(key, nbytes):
        cache.put(key)
    assert cache.used <= cache.limit
    return False


def scan(cache: Cache, sizes: dict[str, int], times: int = 1) -> float:
    """Share of hits of each thing asked for `times` in a row, in turn."""
    hits = sum(request(cache, key, n) for key, n in sizes.items() for _ in range(times))
    return hits / (len(sizes) * times)


def layers(count: int, nbytes: int = 10, name: str = "a") -> dict[str, int]:
    return {f"{name}{i}": nbytes for i in range(count)}


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_what_fits_is_found_from_the_second_pass_on(share: float) -> None:
    cache = Cache(400)
    model = layers(round(40 * share))
    assert scan(cache, model) == 0
    assert [scan(cache, model) for _ in range(3)] == [1, 1, 1]
    assert cache.evicted == 0


@pytest.mark.parametrize(("count", "fit"), [(44, 40), (80, 40), (400, 40)])
def test_a_scan_that_does_not_fit_keeps_the_share_that_does(count: int, fit: int) -> None:
    cache = Cache(10 * fit)
    model = layers(count)
    scan(cache, model)
    assert [scan(cache, model) for _ in range(5)] == [fit / count] * 5
    assert cache.evicted == 0


@pytest.mark.parametrize("count", [3, 11, 16])
def test_a_scan_shorter_than_a_visit_loses_one_place_at_most(count: int) -> None:
    cache = Cache(10 * (count - 1))
    model = layers(count)
    for _ in range(3):
        scan(cache, model)
    assert scan(cache, model) >= (count - 2) / count
    evicted = cache.evicted
    for _ in range(20):
        assert scan(cache, model) >= (count - 2) / count
    assert cache.evicted - evicted <= 1


def test_sizes_may_differ_and_what_is_left_over_is_filled() -> None:
    cache = Cache(1000)
    model = {f"big{i}": 300 for i in range(20)} | {f"small{i}": 10 for i in range(10)}
    scan(cache, model)
    assert scan(cache, model) == 13 / 30  # 3 big ones, 10 small ones


def test_things_asked_for_many_times_in_a_row_share_a_guest_s_place() -> None:
    cache = Cache(400)
    model = layers(80)
    scan(cache, model, times=30)
    shares = [scan(cache, model, times=30) for _ in range(3)]
    # 39 keep their places; the 41 others are asked for 30 times, of which some ten go by until the
    # guest before has left.
    assert min(shares) >= (39 + 41 * (30 - 10) / 30) / 80
    assert scan(cache, model) >= 39 / 80


@pytest.mark.parametrize("times", [2, 3])
def test_things_asked_for_a_few_times_in_a_row_drive_nothing_out(times: int) -> None:
    cache = Cache(400)
    model = layers(80)
    assert scan(cache, model, times) == 40 * (times - 1) / (80 * times)
    assert [scan(cache, model, times) for _ in range(3)] == [0.5] * 3
    assert cache.evicted == 0


def test_a_burst_of_two_layers_that_take_turns_does_not_make_each_of_them_again_and_again() -> None:
    cache = Cache(400)
    scan(cache, layers(40))
    made = 0
    for _ in range(50):
        for key in ("x", "y"):
            if not cache.ask(key) and cache.reserve(key, 10):
                cache.put(key)
                made += 1
    assert made <= 2


def test_another_model_takes_over_at_its_second_pass() -> None:
    cache = Cache(400)
    for _ in range(5):
        scan(cache, layers(40))
    new = layers(40, name="b")
    assert scan(cache, new) == 0
    assert scan(cache, new) == 0  # made now
    assert scan(cache, new) == 1
    assert cache.evicted == 40


def test_two_models_that_take_turns_keep_what_they_have() -> None:
    cache = Cache(400)
    both = layers(40) | layers(40, name="b")
    for _ in range(5):
        scan(cache, both)
    assert scan(cache, both) == 0.5
    assert cache.evicted == 0


def test_a_model_used_now_and_then_does_not_drive_out_the_one_in_use() -> None:
    cache = Cache(400)
    used, rare = layers(40), layers(40, name="b")
    scan(cache, used)
    for _ in range(4):
        for _ in range(3):
            assert scan(cache, used) == 1
        assert scan(cache, rare) == 0


def test_the_largest_thing_is_the_limit_and_no_thing_is_kept_without_one() -> None:
    cache = Cache(100)
    assert not request(cache, "a", 101)
    assert not request(cache, "a", 101)
    assert len(cache) == 0
    assert not request(cache, "b", 100)
    assert request(cache, "b", 100)
    none = Cache(0)
    for _ in range(3):
        assert not request(none, "a", 1)
    assert len(none) == 0


def test_what_is_being_made_counts_and_a_failure_gives_it_back() -> None:
    cache = Cache(100)
    cache.ask("a")
    assert cache.reserve("a", 60)
    assert not cache.reserve("a", 60)
    cache.ask("b")
    assert not cache.reserve("b", 60)
    cache.cancel("a")
    assert cache.used == 0
    assert cache.reserve("b", 60)
    assert cache.core.clear() == 0
    assert not cache.put("b"), "everything was dropped meanwhile"
    assert (cache.used, len(cache)) == (0, 0)


def test_random_requests_never_pass_the_limit_and_add_up() -> None:
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    cache = Cache(1000)
    sizes = {f"r{n}": rng.choice([1, 10, 90, 250, 600, 1001]) for n in range(60)}
    held: dict[str, int] = {}
    for _ in range(5000):
        key = f"r{rng.randrange(60 if rng.random() < 0.5 else 5)}"
        if not cache.ask(key) and cache.reserve(key, sizes[key]):
            if rng.random() < 0.9:
                assert cache.put(key)
            else:
                cache.cancel(key)
        if rng.random() < 0.01:
            cache.core.drop(key_of(f"r{rng.randrange(60)}"))
        held = {name: n for name, n in sizes.items() if cache.core.has(key_of(name))}
        assert cache.used == sum(held.values()) <= 1000, f"seed {seed}"
        assert len(cache) == len(held)
    assert held


def test_a_use_is_as_long_for_owners_as_for_the_cores_requests() -> None:
    header = (ROOT / "include" / "hy3d" / "cache.h").read_text(encoding="utf-8")
    assert f"#define HY3D_CACHE_REUSE_WINDOW {prepared._REUSE_WINDOW}\n" in header


@pytest.mark.parametrize("limit", [-1, 2**61, 2**64])
def test_a_limit_is_a_number_of_bytes(limit: int) -> None:
    with pytest.raises(ValueError, match="limit_bytes"):
        _core.Admission(limit)


@pytest.mark.parametrize("key", [1, (1, 2), ((1, 2, 3), 4), ((1, "2"), 3), ((1, 2), -1), None])
def test_a_key_is_a_fingerprint_and_a_layout(key: Any) -> None:
    cache = _core.Admission(100)
    for call in (cache.request, cache.put, cache.drop, cache.has, cache.cancel):
        with pytest.raises((TypeError, ValueError)):
            call(key)
    with pytest.raises((TypeError, ValueError)):
        cache.reserve(key, 1)


def test_a_negative_size_is_refused() -> None:
    cache = _core.Admission(100)
    cache.request(key_of("a"))
    with pytest.raises(ValueError, match="nbytes is -1"):
        cache.reserve(key_of("a"), -1)
