"""Which things stay on a shelf that is too small: nothing of this needs a tensor or the core."""

from __future__ import annotations

import random

import pytest

from hy3d_rocm.conv.admission import Shelf


def request(shelf: Shelf[str, str], key: str, nbytes: int) -> bool:
    """One call's request: whether it was a hit; a miss is made and kept where there is room."""
    if shelf.ask(key) is not None:
        return True
    if shelf.reserve(key, nbytes):
        shelf.put(key, key)
    assert shelf.used <= shelf.limit
    return False


def scan(shelf: Shelf[str, str], sizes: dict[str, int], times: int = 1) -> float:
    """Share of hits of each thing asked for `times` in a row, in turn."""
    hits = sum(request(shelf, key, n) for key, n in sizes.items() for _ in range(times))
    return hits / (len(sizes) * times)


def layers(count: int, nbytes: int = 10, name: str = "a") -> dict[str, int]:
    return {f"{name}{i}": nbytes for i in range(count)}


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_what_fits_is_found_from_the_second_pass_on(share: float) -> None:
    shelf: Shelf[str, str] = Shelf(400)
    model = layers(round(40 * share))
    assert scan(shelf, model) == 0
    assert [scan(shelf, model) for _ in range(3)] == [1, 1, 1]
    assert shelf.evicted == 0


@pytest.mark.parametrize(("count", "fit"), [(44, 40), (80, 40), (400, 40)])
def test_a_scan_that_does_not_fit_keeps_the_share_that_does(count: int, fit: int) -> None:
    shelf: Shelf[str, str] = Shelf(10 * fit)
    model = layers(count)
    scan(shelf, model)
    assert [scan(shelf, model) for _ in range(5)] == [fit / count] * 5
    assert shelf.evicted == 0


@pytest.mark.parametrize("count", [3, 11, 16])
def test_a_scan_shorter_than_a_visit_loses_one_place_at_most(count: int) -> None:
    shelf: Shelf[str, str] = Shelf(10 * (count - 1))
    model = layers(count)
    for _ in range(3):
        scan(shelf, model)
    assert scan(shelf, model) >= (count - 2) / count
    evicted = shelf.evicted
    for _ in range(20):
        assert scan(shelf, model) >= (count - 2) / count
    assert shelf.evicted - evicted <= 1


def test_sizes_may_differ_and_what_is_left_over_is_filled() -> None:
    shelf: Shelf[str, str] = Shelf(1000)
    model = {f"big{i}": 300 for i in range(20)} | {f"small{i}": 10 for i in range(10)}
    scan(shelf, model)
    assert scan(shelf, model) == 13 / 30  # 3 big ones, 10 small ones


def test_things_asked_for_many_times_in_a_row_share_a_guest_s_place() -> None:
    shelf: Shelf[str, str] = Shelf(400)
    model = layers(80)
    scan(shelf, model, times=30)
    shares = [scan(shelf, model, times=30) for _ in range(3)]
    # 39 keep their places; the 41 others are asked for 30 times, of which some ten go by until the
    # guest before has left.
    assert min(shares) >= (39 + 41 * (30 - 10) / 30) / 80
    assert scan(shelf, model) >= 39 / 80


@pytest.mark.parametrize("times", [2, 3])
def test_things_asked_for_a_few_times_in_a_row_drive_nothing_out(times: int) -> None:
    shelf: Shelf[str, str] = Shelf(400)
    model = layers(80)
    assert scan(shelf, model, times) == 40 * (times - 1) / (80 * times)
    assert [scan(shelf, model, times) for _ in range(3)] == [0.5] * 3
    assert shelf.evicted == 0


def test_a_burst_of_two_layers_that_take_turns_does_not_make_each_of_them_again_and_again() -> None:
    shelf: Shelf[str, str] = Shelf(400)
    scan(shelf, layers(40))
    made = 0
    for _ in range(50):
        for key in ("x", "y"):
            if shelf.ask(key) is None and shelf.reserve(key, 10):
                shelf.put(key, key)
                made += 1
    assert made <= 2


def test_another_model_takes_over_at_its_second_pass() -> None:
    shelf: Shelf[str, str] = Shelf(400)
    for _ in range(5):
        scan(shelf, layers(40))
    new = layers(40, name="b")
    assert scan(shelf, new) == 0
    assert scan(shelf, new) == 0  # made now
    assert scan(shelf, new) == 1
    assert shelf.evicted == 40


def test_two_models_that_take_turns_keep_what_they_have() -> None:
    shelf: Shelf[str, str] = Shelf(400)
    both = layers(40) | layers(40, name="b")
    for _ in range(5):
        scan(shelf, both)
    assert scan(shelf, both) == 0.5
    assert shelf.evicted == 0


def test_a_model_used_now_and_then_does_not_drive_out_the_one_in_use() -> None:
    shelf: Shelf[str, str] = Shelf(400)
    used, rare = layers(40), layers(40, name="b")
    scan(shelf, used)
    for _ in range(4):
        for _ in range(3):
            assert scan(shelf, used) == 1
        assert scan(shelf, rare) == 0


def test_the_largest_thing_is_the_limit_and_no_thing_is_kept_without_one() -> None:
    shelf: Shelf[str, str] = Shelf(100)
    assert not request(shelf, "a", 101)
    assert not request(shelf, "a", 101)
    assert len(shelf) == 0
    assert not request(shelf, "b", 100)
    assert request(shelf, "b", 100)
    none: Shelf[str, str] = Shelf(0)
    for _ in range(3):
        assert not request(none, "a", 1)
    assert len(none) == 0


def test_what_is_being_made_counts_and_a_failure_gives_it_back() -> None:
    shelf: Shelf[str, str] = Shelf(100)
    shelf.ask("a")
    assert shelf.reserve("a", 60)
    assert not shelf.reserve("a", 60)
    shelf.ask("b")
    assert not shelf.reserve("b", 60)
    shelf.cancel("a")
    assert shelf.used == 0
    assert shelf.reserve("b", 60)
    assert shelf.clear() == 0
    assert not shelf.put("b", "b"), "everything was dropped meanwhile"
    assert (shelf.used, len(shelf)) == (0, 0)


def test_random_requests_never_pass_the_limit_and_add_up() -> None:
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    shelf: Shelf[int, int] = Shelf(1000)
    sizes = {key: rng.choice([1, 10, 90, 250, 600, 1001]) for key in range(60)}
    held: dict[int, int] = {}
    for _ in range(5000):
        key = rng.randrange(60) if rng.random() < 0.5 else rng.randrange(5)
        if shelf.ask(key) is None and shelf.reserve(key, sizes[key]):
            if rng.random() < 0.9:
                assert shelf.put(key, key)
            else:
                shelf.cancel(key)
        if rng.random() < 0.01:
            shelf.drop(rng.randrange(60))
        held = {k: n for k, n in sizes.items() if k in shelf}
        assert shelf.used == sum(held.values()) <= 1000, f"seed {seed}"
    assert held
