"""What a decode will take is known before it runs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from hy3d_rocm.decode import footprint as fp  # noqa: E402
from hy3d_rocm.decode.memory import PeakMeter, give_back  # noqa: E402
from hy3d_rocm.decode.norms import NormPass  # noqa: E402
from hy3d_rocm.decode.vaes import Carry, adapter_for  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def vae() -> Any:
    from diffusers import AutoencoderKLHunyuanVideo

    return AutoencoderKLHunyuanVideo(
        block_out_channels=(8, 8, 16, 16), norm_num_groups=4, layers_per_block=1
    ).eval()


@pytest.mark.parametrize("shape", [(1, 3, 4), (2, 4, 4), (5, 2, 3)])
@pytest.mark.parametrize("depth", [0, 2, 4])
def test_prediction_on_shapes_equals_the_real_runs_live_bytes(
    vae: Any, shape: tuple[int, ...], depth: int
) -> None:
    """The same count over a run with real tensors: shapes alone lose nothing."""
    adapter = adapter_for(vae)
    z = torch.randn(1, 16, *shape)
    predicted = fp.Footprint(adapter, CPU).trunk(tuple(z.shape), depth)
    known = [z, *adapter.decoder.parameters(), *adapter.post_quant_conv.parameters()]
    with torch.no_grad(), fp._NoScores(), fp._Live(known, CPU) as live:
        out = adapter.trunk(z, depth)
    assert out.shape[2:] == adapter.grid(tuple(z.shape), depth)
    assert (live.peak, live.macs) == (predicted.peak_bytes, predicted.macs)


def test_nothing_is_left_alive_after_a_chunk_but_frames_and_carry(vae: Any) -> None:
    adapter = adapter_for(vae)
    grid = torch.randn(1, 16, 5, 4, 4)
    known = [grid, *adapter.decoder.parameters()]
    with torch.no_grad(), fp._Live(known, CPU) as live:
        norms, carry = NormPass(), Carry()
        norms.start(0, 4)
        frames = adapter.head(grid, 1, carry, norms, last=False)
        kept = sum(f.nbytes for f in carry.frames)
        assert live.live == frames.nbytes + kept
        norms.start(0, 4)
        del frames
        frames = adapter.head(grid, 1, carry, norms, last=True)
        assert all(f is None for f in carry.frames)
        assert live.live == frames.nbytes


def test_prediction_does_not_see_the_callers_function_modes(vae: Any) -> None:
    from torch.overrides import TorchFunctionMode

    class Counting(TorchFunctionMode):
        calls = 0

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.nn.functional.conv3d or func is torch.conv3d:
                Counting.calls += 1
            return func(*args, **(kwargs or {}))

    adapter = adapter_for(vae)
    print_of = fp.Footprint(adapter, CPU)
    with torch.inference_mode(), Counting():
        assert print_of.whole((1, 16, 2, 2, 2)).peak_bytes > 0
    assert Counting.calls == 0


def test_dispatch_mode_counts_views_once() -> None:
    with fp._Live([], CPU) as live:
        x = torch.empty(1000)
        views = [x[i:] for i in range(10)]
        assert live.live == x.nbytes
        del x, views
    assert (live.live, live.peak) == (0, 4000)
    assert isinstance(live, TorchDispatchMode)


def test_meter_sees_a_peak_that_is_gone_at_the_end() -> None:
    size = 64 << 20
    with PeakMeter(interval=0.005) as meter:
        block = torch.ones(size, dtype=torch.uint8)
        del block
        give_back()
    if not meter.exact:
        pytest.skip("the kernel does not let this process reset its high-water mark")
    # The kernel adds resident pages up in batches of at least 32 per CPU, and pages that were in
    # use at the start may go: a sixteenth either way, far from the 0 of a meter that saw nothing.
    assert abs(meter.peak_bytes - size) <= size // 16
