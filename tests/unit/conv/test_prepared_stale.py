"""The cache of prepared weights is never stale. Without the core."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from prepared_support import Made, Rig, all_bytes, parameter
from torch import nn

from hy3d_rocm.conv import prepared
from hy3d_rocm.conv.prepared import WeightCache


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
