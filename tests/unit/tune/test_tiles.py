"""Tiles from the knowledge, and the candidates that tuning goes through. No GPU, no Triton."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from router_doubles import one_thread
from tier_calls import make_call

from hy3d_rocm.conv.call import ConvCall
from hy3d_rocm.conv.triton import configs, launch
from hy3d_rocm.conv.triton.steps import Target
from hy3d_rocm.conv.verdict_store.records import Machine, Record, make_key
from hy3d_rocm.conv.verdict_store.store import Store
from hy3d_rocm.tune.measure import MORE_TILES, Watch, triton_tiles
from tools.dev.bench.gpu_cells import Cell
from tools.dev.bench.gpu_layers import Layer
from tools.dev.bench.gpu_sweep import sweep, sweep_text

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
    monkeypatch: pytest.MonkeyPatch, arch: str, is_last: bool, cin: int, cout: int, kernel: int
) -> None:
    one = call(cin, cout, kernel, is_last=is_last)
    monkeypatch.setattr(launch, "target_of", lambda device: Target(arch, 96))
    guess, others = launch.candidates(one)
    assert guess
    found = (*guess, *others)
    assert len(set(found)) == len(found)
    assert set(found) <= set(configs.offered(arch, "bf16"))
    narrow = 3 * cout <= 16 and kernel == 3
    outputs = 3 * cout if narrow else cout
    length = cin if narrow or kernel == 1 else 3 * cin
    every = [c for c in configs.offered(arch, "bf16") if kernel > 1 or is_last or c.block_n % 3]
    assert set(found) >= set(configs.fitting(tuple(every), outputs, length))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store.open(":memory:")
    monkeypatch.setattr(launch, "store", lambda: store)
    monkeypatch.setattr(launch, "this_machine", lambda device: MACHINE)
    monkeypatch.setattr(launch, "architecture", lambda device: "gfx1100")
    return store


@pytest.mark.parametrize("config", OFFERED, ids=str)
def test_a_detail_names_its_tile(config: configs.Config, known: Store) -> None:
    spec = call(64, 128, 3).spec
    known.put(make_key(spec, MACHINE), Record("triton", "ok", detail=launch.detail_of(config)))
    assert launch.config_for(spec) is config
    assert configs.Config.parse(str(config)) == config


@pytest.mark.parametrize("detail", ["", "tile ", "tile nonsense", "tile 1x1x1w1s1g1", "slow"])
def test_what_names_no_offered_tile_is_left_alone(detail: str, known: Store) -> None:
    spec = call(64, 128, 3).spec
    known.put(make_key(spec, MACHINE), Record("triton", "ok", detail=detail))
    assert launch.config_for(spec) is None


def test_a_tile_is_read_once_and_anew_when_the_knowledge_changes(
    known: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, spec = known, call(64, 128, 3).spec
    key, reads = make_key(spec, MACHINE), list[int]()
    monkeypatch.setattr(launch, "make_key", lambda *of: reads.append(1) or key)

    def get() -> Any:
        return launch.config_for(spec)

    assert get() is None
    assert get() is None
    assert len(reads) == 1
    store.put(key, Record("triton", "ok", 1e-3, detail=launch.detail_of(OFFERED[2])))
    assert get() is OFFERED[2]
    assert get() is OFFERED[2]
    assert len(reads) == 2
    store.put(key, Record("triton", "wrong", detail=launch.detail_of(OFFERED[2])))
    assert get() is None
    store.forget()
    assert get() is None


@pytest.fixture
def paper_gpu(monkeypatch: pytest.MonkeyPatch) -> list[configs.Config | None]:
    """A Triton tier for gfx1100 on CPU tensors: PyTorch computes, the tiles asked for are noted."""
    asked: list[configs.Config | None] = []

    def run(one: ConvCall, config: configs.Config | None = None) -> torch.Tensor:
        asked.append(config)
        return one.run_current()

    monkeypatch.setattr(launch, "refusal", lambda spec: None)
    monkeypatch.setattr(launch, "target_of", lambda device: Target("gfx1100", 96))
    monkeypatch.setattr(launch, "run", run)
    return asked


def test_a_sweep_times_every_tile_and_names_the_guess(
    paper_gpu: list[configs.Config | None],
) -> None:
    one = call(16, 32, 3)
    cell = Cell(Layer("s", *[(1,)] * 5, 1, 1), "bf16", "NCDHW")
    with one_thread():
        sweep(cell, one, Watch(torch.device("cpu")), 1e-3)
    guess, others = launch.candidates(one)
    every = (*guess, *others)
    assert set(cell.sweep) == {"", *map(str, every)}
    assert set(paper_gpu) == {None, *every}
    assert cell.chosen_tiles == (str(every[0]),)
    assert str(every[0]) in sweep_text(cell)


def test_tuning_tries_the_guess_and_the_next_best(paper_gpu: list[configs.Config | None]) -> None:
    one = call(16, 32, 3)
    tiles = triton_tiles(one)
    guess, others = launch.candidates(one)
    every = (*guess, *others[:MORE_TILES])
    assert [words for words, _ in tiles] == [launch.detail_of(config) for config in every]
    for _, run in tiles:
        run()
    assert tuple(paper_gpu) == every


def test_the_tier_takes_the_tuned_tile_and_an_explicit_one_before_it(
    known: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = call(16, 32, 3)
    known.put(make_key(one.spec, MACHINE), Record("triton", "ok", 1.0, detail=f"tile {OFFERED[1]}"))
    taken: list[Any] = []
    monkeypatch.setattr(launch, "architecture", lambda device: "gfx1100")
    monkeypatch.setattr(launch, "target_of", lambda device: Target("gfx1100", 96))
    monkeypatch.setattr(launch, "_carry_out", lambda made, *tensors: taken.extend(made.tiles))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    launch.run(one)
    launch.run(one, OFFERED[0])
    assert taken == [OFFERED[1], OFFERED[0]]
