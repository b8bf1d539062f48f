"""The CPU tier for tensors on a GPU: pieces that fit. No GPU needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from router_doubles import fake_conv3d, integers, one_thread
from tier_calls import make_call

from hy3d_rocm import memory
from hy3d_rocm.conv.call import ConvCall
from hy3d_rocm.conv.tiers import CpuTier, Limits, base, cpu


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with one_thread(), torch.inference_mode():
        yield


def test_pieces_by_way_of_the_host_are_the_whole_result() -> None:
    x, weight = integers(2, 3, 7, 8, 9), integers(4, 3, 3, 3, 3, seed=1)
    call = make_call(x, weight, None, 1, 1)
    out = torch.full(call.spec.out_size, float("nan"))
    sizes = []

    def conv3d(x: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        made = fake_conv3d(x, *rest)
        sizes.append(x.numel() + made.numel())
        return made

    steps = (2, 8, 9)
    CpuTier(conv3d=conv3d)._compute_pieces(call.spec, weight, None, x, out, steps)
    assert torch.equal(out, F.conv3d(x, weight, padding=1))
    assert len(sizes) == 8
    assert max(sizes) * 4 == cpu.piece_bytes(call.spec, steps)


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
    whole = cpu.piece_bytes(call.spec, (7, 88, 88))
    least = cpu.piece_bytes(call.spec, (1, 1, 1))
    limits, steps = Limits(memory_threshold=0.5), []
    for free["cpu"] in (2 * whole, 2 * whole - 1, whole // 10, 2 * least):
        assert tier.refusal(call, limits) is None
        steps.append(cpu._steps(call.spec, limits))
        assert 2 * cpu.piece_bytes(call.spec, steps[-1]) <= free["cpu"]
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
    monkeypatch.setattr(cpu, "_LEAST_DEVICE_BYTES", 1 << 18)
    for share in (1, 2, 5):
        free["cuda"] = call.spec.out_bytes + tier.workspace_bytes(call.spec) // share
        limits = Limits(memory_threshold=1.0)
        assert tier.refusal(call, limits) is None
        steps = cpu._steps(call.spec, limits)
        assert (steps == (7, 88, 88)) == (share == 1)
        assert cpu.device_bytes(call.spec, steps) <= free["cuda"] - call.spec.out_bytes
    free["cuda"] = 0  # nobody can tell how much a full device will give: it is tried
    assert tier.refusal(call, limits) is None
