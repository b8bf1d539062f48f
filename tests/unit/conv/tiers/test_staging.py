"""The CPU tier for tensors on a GPU: copies that overlap, and pieces that fit. No GPU needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from router_doubles import fake_conv3d, integers, one_thread

from hy3d_rocm import memory
from hy3d_rocm.conv.call import ConvCall
from hy3d_rocm.conv.tiers import CpuTier, Limits, base, cpu, make_call, staging


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with one_thread(), torch.inference_mode():
        yield


class LateLanes:
    """Copies happen as late as they may: when somebody waits for them, or when all are joined."""

    def __init__(self) -> None:
        self.pending: list[Callable[[], None]] = []
        self.log: list[str] = []
        self.elems = 0

    def buffer(self, elems: int, dtype: torch.dtype) -> torch.Tensor:
        self.elems += elems
        return torch.full((elems,), float("nan"), dtype=dtype)

    def _later(self, kind: str, copy: Callable[[], Any]) -> Callable[[], None]:
        def act() -> None:
            if act in self.pending:
                self.pending.remove(act)
                self.log.append(f"{kind} ends")
                copy()

        self.pending.append(act)
        self.log.append(f"{kind} starts")
        return act

    def fetch(self, make: Callable[[], torch.Tensor], into: torch.Tensor) -> Callable[[], None]:
        return self._later("fetch", lambda: into.copy_(make()))

    def store(self, values: torch.Tensor, place: torch.Tensor) -> Callable[[], None]:
        return self._later("store", lambda: place.copy_(values))

    def join(self) -> None:
        for act in list(self.pending):
            act()


def test_copies_overlap_the_computing_and_may_be_as_late_as_they_like() -> None:
    x, weight = integers(2, 3, 7, 8, 9), integers(4, 3, 3, 3, 3, seed=1)
    call = make_call(x, weight, None, 1, 1)
    out = torch.full(call.spec.out_size, float("nan"))
    lanes = LateLanes()

    def compute(window: torch.Tensor, result: torch.Tensor) -> None:
        lanes.log.append("compute")
        fake_conv3d(window, weight, None, 1, 0, 1, 1, out=result)

    steps = (2, 8, 9)
    staging.run(call.spec, x, out, steps, lanes, compute)
    assert torch.equal(out, F.conv3d(x, weight, padding=1))
    assert lanes.elems * 4 == staging.buffer_bytes(call.spec, steps)
    assert lanes.log.count("compute") == 8
    for index, step in enumerate(lanes.log):
        if step == "compute" and "compute" in lanes.log[index + 1 :]:
            before = lanes.log[:index]
            assert before.count("fetch starts") == before.count("compute") + 2


def test_copies_are_joined_where_the_computing_fails() -> None:
    x, weight = integers(1, 3, 7, 8, 9), integers(4, 3, 3, 3, 3, seed=1)
    call = make_call(x, weight)
    lanes = LateLanes()

    def compute(window: torch.Tensor, result: torch.Tensor) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        staging.run(call.spec, x, torch.empty(call.spec.out_size), (1, 6, 7), lanes, compute)
    assert not lanes.pending


def on_gpu(monkeypatch: pytest.MonkeyPatch, free: dict[str, int]) -> ConvCall:
    """A call as if on a GPU, with so many bytes free on each device."""
    call = make_call(torch.empty(1, 8, 9, 90, 90), torch.empty(8, 8, 3, 3, 3))
    monkeypatch.setattr(base, "SMALL_BYTES", 0)
    monkeypatch.setattr(memory, "free_bytes", lambda device: free[device.type])
    return dataclasses.replace(
        call, spec=dataclasses.replace(call.spec, device=torch.device("cuda"))
    )


def test_the_cpu_tier_takes_smaller_pieces_and_then_refuses_where_the_host_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier, free = CpuTier(conv3d=fake_conv3d), {"cpu": 1 << 40, "cuda": 1 << 40}
    call = on_gpu(monkeypatch, free)
    whole = staging.buffer_bytes(call.spec, (7, 88, 88))
    least = staging.buffer_bytes(call.spec, (1, 1, 1))
    limits, steps = Limits(memory_threshold=0.5), []
    for free["cpu"] in (2 * whole, 2 * whole - 1, whole // 10, 2 * least):
        assert tier.refusal(call, limits) is None
        steps.append(cpu._steps(call.spec, limits))
        assert 2 * staging.buffer_bytes(call.spec, steps[-1]) <= free["cpu"]
    assert steps[0] == (7, 88, 88)
    assert steps[1] == (6, 88, 88)
    assert steps[3] == (1, 1, 1)
    free["cpu"] = 2 * least - 1
    assert "staging buffers on the host need" in str(tier.refusal(call, limits))


def test_the_cpu_tier_takes_smaller_pieces_where_the_device_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier, free = CpuTier(conv3d=fake_conv3d), {"cpu": 1 << 40, "cuda": 0}
    call = on_gpu(monkeypatch, free)
    monkeypatch.setattr(cpu, "_LEAST_DEVICE_BYTES", 1 << 20)
    for share in (1, 2, 5):
        free["cuda"] = call.spec.out_bytes + tier.workspace_bytes(call.spec) // share
        limits = Limits(memory_threshold=1.0)
        assert tier.refusal(call, limits) is None
        steps = cpu._steps(call.spec, limits)
        assert (steps == (7, 88, 88)) == (share == 1)
        assert staging.device_bytes(call.spec, steps) <= free["cuda"] - call.spec.out_bytes
    free["cuda"] = 0  # nobody can tell how much a full device will give: it is tried
    assert tier.refusal(call, limits) is None
