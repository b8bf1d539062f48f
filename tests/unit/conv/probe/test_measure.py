"""The probe's child with torch and the tiers of hy3d_rocm: CPU, and GPU if there is one."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import warm_start
from probe_doubles import bounded

from hy3d_rocm.conv.call import ConvSpec, make_spec
from hy3d_rocm.conv.probe import child, process
from hy3d_rocm.conv.probe.parent import Case, probe


def spec(device: str = "cpu", padding: Any = 1, **changes: Any) -> ConvSpec:
    x, weight = torch.zeros(1, 4, 5, 6, 7), torch.zeros(8, 4, 3, 3, 3)
    made = make_spec((x, weight, torch.zeros(8), 1, padding, 1, 1), 3)
    assert made is not None
    return dataclasses.replace(made, device=torch.device(device), **changes)


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children need not import torch."""
    if warm_start.IS_THERE:
        monkeypatch.setattr(process, "start", warm_start.start)


@pytest.mark.usefixtures("warm")
@pytest.mark.timeout(180)
def test_tiers_are_tried_with_tensors_of_the_childs_own() -> None:
    listed = [
        Case("native", spec()),
        Case("current", spec(channels_last=True)),
        Case("current", spec(dtype=torch.bfloat16)),
        Case("vendor", spec()),
        Case("no such tier", spec()),
        # 4 PB of input: the child's own lack of memory.
        Case("native", spec(x_size=(1, 4, 10**5, 10**5, 10**5))),
        Case("native", spec()),
    ]
    with bounded(120.0):
        found = probe(listed, limit_s=120.0)
    details = [outcome.detail for outcome in found]
    verdicts = [outcome.verdict for outcome in found]
    wanted = ["ok", "ok", "ok", "not-run", "not-run", "oom", "ok"]
    assert verdicts == wanted, details
    assert found[0].first_seconds is not None
    assert found[0].seconds is not None
    assert found[0].seconds > 0
    assert found[0].peak_bytes is None
    assert "could not be tried" in details[3]
    assert "no such tier" in details[4]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.usefixtures("warm")
@pytest.mark.timeout(180)
def test_a_device_that_is_not_there_is_no_verdict_on_the_shape() -> None:
    (found,) = probe([Case("vendor", spec("cuda:0"))], limit_s=60.0)
    assert found.verdict == "not-run"
    assert "did not get ready" in found.detail


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or HIP device")
@pytest.mark.timeout(300)
def test_on_a_gpu_the_vendor_library_is_tried_and_memory_measured() -> None:
    before = torch.cuda.memory_allocated()
    listed = [Case(name, spec("cuda:0")) for name in ("vendor", "native", "vendor")]
    found = probe(listed, limit_s=200.0, slow_s=60.0)
    assert [outcome.verdict for outcome in found] == ["ok"] * 3, found
    assert all(outcome.peak_bytes is not None for outcome in found)
    # The native tier's im2col buffer: 27 times the input.
    assert (found[1].peak_bytes or 0) >= spec().column_elems() * 4
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"pad_before": (2, 1, 0), "pad_after": (0, 1, 2), "out_size": (1, 8, 5, 6, 7)},
        {"batched": False}, {"has_bias": False}, {"channels_last": True},
    ],
)  # fmt: skip
def test_the_childs_call_is_the_one_described(changes: dict[str, Any]) -> None:
    wanted = spec(**changes)
    call = child.make_call(wanted)
    assert tuple(call.run_current().shape) == wanted.result_size
    assert (call.bias is not None) == wanted.has_bias
    if wanted.channels_last:
        assert call.x.is_contiguous(memory_format=torch.channels_last_3d)


def test_causal_padding_is_that_of_f_pad() -> None:
    wanted = spec(pad_before=(2, 1, 1), pad_after=(0, 1, 1))
    call = child.make_call(wanted)
    padded = F.pad(call.x, [0, 0, 0, 0, 2, 0])
    assert torch.equal(
        call.run_current(), F.conv3d(padded, call.weight, call.bias, padding=(0, 1, 1))
    )


def test_the_hosts_switches_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not before
    try:
        flags = process.flags()
        assert flags["cudnn_benchmark"] is not before
        torch.backends.cudnn.benchmark = before
        child.Bench([], flags)
        assert torch.backends.cudnn.benchmark is not before
    finally:
        torch.backends.cudnn.benchmark = before
    monkeypatch.delitem(sys.modules, "torch")
    assert process.flags() == {}
