"""Tiles from the knowledge, and the candidates that tuning goes through. No GPU, no Triton."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hy3d_rocm.conv.call import ConvCall
from hy3d_rocm.conv.knowledge import Record, Store, make_key
from hy3d_rocm.conv.knowledge.machine import Machine
from hy3d_rocm.conv.tiers import make_call
from hy3d_rocm.conv.triton import configs, tuned
from hy3d_rocm.conv.triton.steps import Target

MACHINE = Machine("gfx1100", "driver", "torch", "hip", "ours")
OFFERED = configs.offered("gfx1100", "bf16")


def call(cin: int, cout: int, kernel: int, *, is_last: bool = False) -> ConvCall:
    x = torch.zeros(1, cin, 4, 10, 12, dtype=torch.bfloat16)
    if is_last:
        x = x.to(memory_format=torch.channels_last_3d)
    return make_call(x, torch.zeros(cout, cin, *(kernel,) * 3, dtype=torch.bfloat16))


@pytest.mark.parametrize("arch", ["sm_90", "gfx1100", "gfx942"])
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(("cin", "cout", "kernel"), [(64, 128, 3), (64, 128, 1), (32, 3, 3)])
def test_candidates_begin_with_the_guess_and_miss_none(
    arch: str, is_last: bool, cin: int, cout: int, kernel: int
) -> None:
    one, target = call(cin, cout, kernel, is_last=is_last), Target(arch, 96)
    found = tuned.candidates(one, target, "bf16")
    guess = tuned.chosen(one, target, "bf16")
    assert found[: len(guess)] == guess
    assert len(set(found)) == len(found)
    assert set(found) <= set(configs.offered(arch, "bf16"))
    narrow = 3 * cout <= 16 and kernel == 3
    outputs = 3 * cout if narrow else cout
    length = cin if narrow or kernel == 1 else 3 * cin
    assert set(found) >= set(configs.fitting(configs.offered(arch, "bf16"), outputs, length))


@pytest.mark.parametrize("config", OFFERED, ids=str)
def test_a_detail_names_its_tile(config: configs.Config) -> None:
    assert tuned.config_of(tuned.detail_of(config), OFFERED) is config


@pytest.mark.parametrize("detail", ["", "tile ", "tile nonsense", "tile 1x1x1w1s1g1", "slow"])
def test_what_names_no_offered_tile_is_left_alone(detail: str) -> None:
    assert tuned.config_of(detail, OFFERED) is None


def test_a_tile_is_read_once_and_anew_when_the_knowledge_changes() -> None:
    store, spec = Store.open(":memory:"), call(64, 128, 3).spec
    key, found, reads = make_key(spec, MACHINE), tuned.Tuned(), []

    def get() -> Any:
        return found.get(spec, store, lambda: reads.append(1) or key, OFFERED)

    assert get() is None
    assert get() is None
    assert len(reads) == 1
    store.put(key, Record("triton", "ok", 1e-3, detail=tuned.detail_of(OFFERED[2])))
    assert get() is OFFERED[2]
    assert get() is OFFERED[2]
    assert len(reads) == 2
    store.put(key, Record("triton", "wrong", detail=tuned.detail_of(OFFERED[2])))
    assert get() is None
    store.forget()
    assert get() is None
