"""Fast convolutions from Python: layouts, prepared weights, the cache behind conv3d, threads."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hy3d_rocm
from hy3d_rocm import _core, _native
from hy3d_rocm.conv import memory, prepared, running
from hy3d_rocm.conv.prepared import WeightCache

ONE = (1, 1, 1)
C = 32
SIZE = (2, 24, 24)
X = torch.randn(1, C, *SIZE, generator=torch.Generator().manual_seed(1))


def layout(dtype: str = "f32", accuracy: str = "fast", **options: Any) -> tuple[int, str, int]:
    return _core.conv3d_format(SIZE, C, C, (3, 3, 3), ONE, ONE, ONE, ONE, "zeros", 1, dtype,
                               accuracy, **options)  # fmt: skip


NUMBER, NAME, NBYTES = layout()
# At HY3D_CPU=ref, say, a fast convolution may well be a direct one.
needs_layout = pytest.mark.skipif(
    NUMBER == 0, reason=f"at CPU level {_core.cpu_info()['level']} no weights have a layout"
)


def parameter(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    made = torch.randn(C, C, 3, 3, 3, generator=torch.Generator().manual_seed(seed))
    return nn.Parameter(made.to(dtype), requires_grad=False)


def once(weight: Any, ready: Any = None, x: Any = X, **options: Any) -> torch.Tensor:
    out = torch.full(x.shape, float("nan"), dtype=x.dtype)
    words = {"accuracy": "fast", **options}
    _core.conv3d(
        x, weight, None, out, ONE, ONE, ONE, ONE, "zeros", 1, 2, 0, prepared=ready, **words
    )
    return out


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[WeightCache]:
    """An empty one in the process-wide one's place."""
    made = WeightCache(1 << 30)
    monkeypatch.setattr(prepared, "_made", made)
    yield made
    made.clear()


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
    with pytest.raises(ValueError, match="No such convolution"):
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
    number, text, nbytes = layout(name)
    ready = _core.conv3d_prepare(weight, number, 2)
    assert (ready.format, ready.name, ready.nbytes) == (number, text, nbytes)
    assert ready.shape == tuple(weight.shape)
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
    live = _core.live_allocations()
    flag.reset()
    assert _core.conv3d_prepare(weight, NUMBER, 1, flag).nbytes > weight.nbytes
    gc.collect()
    assert _core.live_allocations() == live


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
    live, start = _core.live_allocations(), _core.allocation_count()
    _core.conv3d_prepare(weight, NUMBER)
    for k in range(1, _core.allocation_count() - start + 1):
        _core.fail_allocation(k)
        try:
            with pytest.raises(
                MemoryError, match=f"No memory for prepared weights .{NBYTES} bytes"
            ):
                _core.conv3d_prepare(weight, NUMBER)
        finally:
            _core.fail_allocation(0)
        assert _core.live_allocations() == live, f"allocation {k} leaked"


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
    live = _core.live_allocations()

    def work() -> None:
        out = torch.empty_like(x)
        _core.conv3d(x, weight, None, out, ONE, ONE, ONE, ONE, "zeros", 1, 1, accuracy="fast",
                     **options)  # fmt: skip
        results.append(out)

    thread = threading.Thread(target=work)
    thread.start()
    while _core.live_allocations() <= live and thread.is_alive():
        time.sleep(0.0005)  # until it has its workspace, and so its arguments
    options.clear()
    thread.join()
    gc.collect()
    assert torch.equal(results[0], wanted)
    assert _core.live_allocations() < live


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
    cache._shelf.limit = 2 * NBYTES  # some find theirs, some never do
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
    live, start = _core.live_allocations(), _core.allocation_count()
    call()
    allocations = _core.allocation_count() - start
    survived = 0
    for k in range(1, allocations + 1):
        cache.clear()
        _core.fail_allocation(k, forever)
        try:
            assert torch.equal(call(), wanted)
            survived += 1
        except MemoryError as error:
            assert "No memory" in str(error)  # noqa: PT017
        finally:
            _core.fail_allocation(0)
        cache.clear()
        gc.collect()
        assert _core.live_allocations() == live, f"allocation {k} of {allocations} leaked"
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

    running._format_of.cache_clear()
    monkeypatch.setattr(running, "_format_of", lambda *_a: (3, "double", 100))
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
    assert memory.release(torch.device("cpu")) == NBYTES
    assert memory.release(torch.device("cpu")) == 0
    assert cache.stats().bytes == 0


def test_numpy_keeps_out_of_the_cache(cache: WeightCache) -> None:
    x, weight = np.ones((1, C, 2, 9, 9), np.float32), np.ones((C, C, 3, 3, 3), np.float32)
    hy3d_rocm.conv3d(x, weight, padding=1, accuracy="fast")
    assert cache.stats().misses == 0
