"""oneDNN in place of im2col on the CPU: where nobody would miss the call to F.conv3d, and only
there; the plan knows it."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import warm_start  # noqa: E402

import hy3d_rocm  # noqa: E402
from hy3d_rocm.conv.faults import HIP_OOM, Fault, inject_faults  # noqa: E402
from hy3d_rocm.decoding.backends import torch_ops as torch_backend  # noqa: E402
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend  # noqa: E402
from hy3d_rocm.decoding.layers import (  # noqa: E402
    Conv,
    ModuleWeights,
    Pieces,
)
from hy3d_rocm.decoding.memory import workspace as onednn  # noqa: E402
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace, conv_backend  # noqa: E402

CPU = torch.device("cpu")
C, T, H, W = 32, 3, 24, 60

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available()
    or conv_backend(
        (1, C, T, H + 2, W + 2), (C, C, 3, 3, 3), torch.float32, "cpu", (1, 1, 1), (0, 0, 0),
        (1, 1, 1), 1, torch.get_num_threads(),
    ) != "Slow3d",
    reason="this torch does not take im2col for small convolutions",
)  # fmt: skip


def layer(seed: int = 0) -> Conv:
    """Small whole numbers: sums of products are exact in float32, in any order."""
    torch.manual_seed(seed)
    module = torch.nn.Conv3d(C, C, 3)
    with torch.no_grad():
        module.weight.copy_(torch.randint(-3, 4, module.weight.shape))
        assert module.bias is not None
        module.bias.copy_(torch.randint(-3, 4, module.bias.shape))
    return Conv(module, before=(2, 1, 1), after=(0, 1, 1))


def source() -> Pieces:
    x = torch.randint(-3, 4, (1, C, T, H, W), generator=torch.Generator().manual_seed(1)).float()
    return Pieces((x,), 0, T)


def convolve(monkeypatch: pytest.MonkeyPatch, dtype: Any = torch.float32) -> tuple[Any, int]:
    """The result, and how often oneDNN was called directly."""
    calls = []
    real = torch.mkldnn_convolution

    def counted(*args: Any) -> Any:
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(torch_backend.torch, "mkldnn_convolution", counted)
    one = Pieces(tuple(t.to(dtype) for t in source().tensors), 0, T)
    with torch.no_grad():
        made, _ = TorchBackend(ModuleWeights(dtype, CPU)).convolve(layer(), one, (0, T))
    return made, len(calls)


def test_unwatched_it_is_taken_and_whole_numbers_come_out_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, calls = convolve(monkeypatch)
    assert calls == 1
    padded = torch.nn.functional.pad(source().tensors[0], (1, 1, 1, 1, 2, 0))
    module = layer().module
    with torch.no_grad():
        assert torch.equal(made, torch.nn.functional.conv3d(padded, module.weight, module.bias))
    assert made.is_contiguous()


def test_under_a_router_the_call_is_the_routers(monkeypatch: pytest.MonkeyPatch) -> None:
    with hy3d_rocm.protect() as guard:
        made, calls = convolve(monkeypatch)
    assert calls == 0
    assert guard.stats.calls > 0
    fault = inject_faults([Fault("current", "*", HIP_OOM)])
    with fault, hy3d_rocm.protect(accuracy="exact") as guard:
        again, calls = convolve(monkeypatch)
    assert calls == 0
    assert guard.stats.failures > 0, "an injected failure was not seen"
    assert torch.equal(made, again)


def test_not_for_what_torch_does_itself_without_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert convolve(monkeypatch, torch.bfloat16)[1] == 0
    with torch.backends.mkldnn.flags(enabled=False):
        assert convolve(monkeypatch)[1] == 0
    with torch.autocast("cpu", torch.bfloat16):
        assert convolve(monkeypatch)[1] == 0
    monkeypatch.setattr(onednn, "_COLUMNS_BYTES", 1 << 40)
    assert convolve(monkeypatch)[1] == 0


def test_the_plan_counts_columns_for_the_vaes_own_code_and_under_a_router() -> None:
    x, weight, out = (
        torch.empty(s, device="meta")
        for s in ((1, C, T + 2, H + 2, W + 2), (C, C, 3, 3, 3), (1, C, T, H, W))
    )
    args = (x, weight, None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1)
    columns = 27 * C * T * H * W * 4
    rules = OperatorWorkspace(CPU)
    assert rules.convolution(args, out) == columns
    assert rules.convolution(args, out, by_layer=True) < columns // 4
    with hy3d_rocm.protect():
        watched = OperatorWorkspace(CPU)
    assert watched.convolution(args, out, by_layer=True) == columns
    assert watched.key != rules.key


MEASURE = """
import json, torch
from hy3d_rocm.decoding.backends.torch_ops import _multiply
from hy3d_rocm.meter import PeakMeter, steady_malloc
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace
torch.set_num_threads(1)
steady_malloc()
with torch.no_grad():
    w = torch.randn(64, 64, 3, 3, 3)
    _multiply(torch.randn(64, 3, 60, 60), w, None, (1, 1, 1))   # code pages
    x = torch.randn(64, 3, 100, 200)
    with PeakMeter(interval=0) as meter:
        out = _multiply(x, w, None, (1, 1, 1))
args = (x[None], w, None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1)
inside = OperatorWorkspace(torch.device("cpu")).convolution(args, out, by_layer=True)
print(json.dumps([meter.peak_bytes, inside + out.nbytes, 27 * 64 * out[0, 0].numel() * 4]))
"""


def test_measured_memory_is_within_the_plan_and_far_from_columns() -> None:
    """A layer of 64 channels, one frame of 100 x 200 out, in a process forked from one that has
    only imported."""
    done = warm_start.run("-c", MEASURE, timeout=110)
    assert done.returncode == 0, done.stderr
    peak, predicted, columns = json.loads(done.stdout)
    assert peak <= predicted * 1.05 + 32 * 2**20
    assert peak < columns // 2
