"""Where slices are and what fails changes nothing of the result; and what is held is bounded."""

from __future__ import annotations

import random
import weakref
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import tiny_latents, tiny_vae  # noqa: E402
from layerwise_doubles import (  # noqa: E402
    CPU,
    Counter,
    FailingGrains,
    FailingOperators,
    LateMover,
    WatchedKeeper,
    joined,
    make_engine,
    watched_engine,
)
from live_storages import LiveStorages  # noqa: E402

from hy3d_rocm.decode.engines.layerwise import LayerEngine  # noqa: E402
from hy3d_rocm.decode.engines.sliced import ConvPlan  # noqa: E402
from hy3d_rocm.decode.engines.spill import MAX_LEAVING  # noqa: E402
from hy3d_rocm.decode.families import family_for  # noqa: E402
from hy3d_rocm.decode.layers import Conv, Norm, Pieces  # noqa: E402
from hy3d_rocm.decode.report import DecodeCancelled  # noqa: E402
from hy3d_rocm.decode.torch_backend import TorchBackend  # noqa: E402
from hy3d_rocm.decode.transfers import FileMover, ShapeMover, mover_for  # noqa: E402
from hy3d_rocm.decode.weights import ModuleWeights  # noqa: E402

SLICE = 3000

pytestmark = pytest.mark.usefixtures("one_thread", "no_gradients")


class Job:
    """A decode of two latents; frames and grains of the run without faults and limits."""

    def __init__(self, kind: str) -> None:
        vae = tiny_vae(kind)
        self.family = family_for(vae)
        self.z = tiny_latents(vae, 2, 2, 2)
        counter = Counter()
        self.frames = self.run(make_engine(SLICE, counter=counter))
        self.grains = len(counter.steps)
        engine = make_engine(SLICE)
        self.frames = self.run(engine)
        self.peak = engine.keeper.peak_resident

    def run(self, engine: LayerEngine) -> Any:
        return joined(engine, self.family.decode(engine, engine.enter(self.z)))


@pytest.fixture(scope="module", params=["hunyuan", "wan"])
def job(request: pytest.FixtureRequest) -> Job:
    with torch.no_grad():
        return Job(request.param)


@pytest.mark.parametrize("seed", range(15))
def test_late_copies_and_limits_change_no_bit_and_hold_no_more(job: Job, seed: int) -> None:
    """The double's copies happen as late as they may, and what is read before is NaN. What is held
    is the limit, or what one grain reads and makes. Replay: the seed is the test's number."""
    rng = random.Random(seed)
    limit = rng.choice([0, 1, rng.randrange(job.peak), rng.randrange(job.peak)])
    mover = LateMover(seed)
    engine = watched_engine(SLICE, limit, mover)
    assert torch.equal(job.run(engine), job.frames)
    keeper = engine.keeper
    assert isinstance(keeper, WatchedKeeper)
    assert keeper.peak_resident <= max(limit, keeper.largest_grain)
    assert keeper.largest_grain < job.peak
    assert mover.most_under_way <= MAX_LEAVING
    assert not mover.parked
    assert (keeper.resident, keeper.parked) == (0, 0)
    if limit < job.peak // 2:
        assert keeper.sent > 0
        assert keeper.peak_parked > 0


def test_a_slice_that_comes_back_is_not_sent_twice(job: Job) -> None:
    """Kept slices are never written, so the host's copy still holds."""
    mover = LateMover(1)
    sent: list[int] = []
    send = mover.send
    mover.send = lambda tensor: (sent.append(id(tensor)), send(tensor))[1]  # type: ignore[method-assign]
    engine = watched_engine(SLICE, 0, mover)
    x = engine.local(engine.enter(torch.randn(1, 8, 6, 8, 8)), copied())
    layer = same_conv(8)
    first = engine.conv(x, layer, keep=True)
    engine.conv(x, layer, add=first)
    assert engine.keeper.sent <= 3 * 6 * 8 * 8 * 8 * 4
    assert engine.keeper.brought >= engine.keeper.sent


def copied() -> Any:
    from hy3d_rocm.decode.layers import Local

    return Local(lambda frames, first: frames.clone(), lambda n: n)


def same_conv(channels: int, norm: bool = False) -> Conv:
    """A causal convolution that keeps the shape."""
    module = torch.nn.Conv3d(channels, channels, 3)
    group = Norm("group", torch.nn.GroupNorm(2, channels), 1e-6, 2, bias="bias")
    return Conv(
        module,
        before=(2, 1, 1),
        after=(0, 1, 1),
        modes=("replicate",) * 3,
        norm=group if norm else None,
        act="silu" if norm else None,
    )


def test_the_next_grains_slices_come_while_this_one_computes() -> None:
    """Twelve slices of one frame, eight of which may stay: three are read, one is made, one comes,
    two go. Nothing is read that was not asked for a grain before."""
    mover = LateMover(2)
    engine = watched_engine(1, 8 * 2048, mover)
    x = engine.local(engine.enter(torch.randn(1, 8, 12, 8, 8)), copied())
    assert sum(s.tensor is None for s in x.slices) >= 4
    late: list[int] = []
    hold = engine.keeper.hold

    def holding(pieces: Any, making: int) -> Any:
        late.extend(1 for p in pieces if p.tensor is None)
        return hold(pieces, making)

    engine.keeper.hold = holding  # type: ignore[method-assign]
    engine.gather = False
    engine.conv(x, same_conv(8))
    assert engine.keeper.brought >= 4 * 2048
    assert not late


def test_out_of_memory_at_any_grain_and_in_pairs_changes_no_bit(job: Job) -> None:
    """Every grain (of Wan's every fifth) once; then pairs (the same twice among them) with limits
    and late copies."""
    every = 1 if job.grains < 100 else 5  # of Wan's many, which are all of the same few kinds
    for number in range(0, job.grains, every):
        engine = make_engine(SLICE, counter=FailingGrains([number]))
        assert torch.equal(job.run(engine), job.frames), number
        assert engine.grains.repeated == 1
    rng = random.Random(7)
    for trial in range(10):
        pair = [rng.randrange(job.grains), rng.randrange(job.grains)]
        if trial % 5 == 0:
            pair[1] = pair[0]
        # Three failures of one grain would be raised: a copy fails only beside a single one.
        mover = LateMover(trial, copies_that_fail=0 if pair[0] == pair[1] else 1)
        engine = watched_engine(SLICE, rng.randrange(job.peak), mover, counter=FailingGrains(pair))
        assert torch.equal(job.run(engine), job.frames), (trial, pair)
        assert engine.grains.repeated >= 2
        assert not mover.parked


def test_out_of_memory_in_place_of_any_operator_changes_no_bit(job: Job) -> None:
    """Any allocation may be the one that fails: random operators, one or two a run. Replay: the
    number is in the message."""
    counting = FailingOperators(set())
    engine = make_engine(SLICE)
    with counting:
        out = job.family.decode(engine, engine.enter(job.z))
    expected = joined(engine, out)
    assert torch.equal(expected, job.frames)
    rng = random.Random(8)
    repeated = 0
    for _ in range(15):
        number = rng.randrange(counting.count)
        engine = make_engine(SLICE)
        with FailingOperators({number, number + rng.choice([0, 1, 5])}):
            out = job.family.decode(engine, engine.enter(job.z))
        assert torch.equal(joined(engine, out), job.frames), number
        repeated += engine.grains.repeated
    assert repeated >= 15


def test_three_failures_of_one_grain_are_raised_and_other_errors_at_once(job: Job) -> None:
    pressed: list[int] = []
    engine = make_engine(
        SLICE, counter=FailingGrains([5, 5, 5]), on_pressure=lambda: pressed.append(1)
    )
    with pytest.raises(torch.OutOfMemoryError):
        job.run(engine)
    assert len(pressed) == 2
    for error in (RuntimeError, KeyboardInterrupt):
        pressed.clear()
        engine = make_engine(
            SLICE, counter=Counter(5, error), on_pressure=lambda: pressed.append(1)
        )
        with pytest.raises(error):
            job.run(engine)
        assert not pressed


def test_a_failed_grain_has_let_go_of_its_tensors_when_memory_is_asked_for(job: Job) -> None:
    """At the time of on_pressure nothing is alive but the slices."""
    alive: list[tuple[int, int]] = []
    backend = TorchBackend(ModuleWeights(torch.float32, CPU))
    job.run(LayerEngine(backend, CPU, SLICE))  # all weights are converted now
    known = [job.z, *(t for _, t in backend.weights._known.values() if t is not None)]  # type: ignore[attr-defined]
    with LiveStorages(known, CPU) as live:
        engine = LayerEngine(
            backend,
            CPU,
            SLICE,
            moments=False,
            on_pressure=lambda: alive.append((live.live, engine.keeper.resident)),
        )
        real = backend.convolve
        fail = True

        def convolve(*args: Any, **kwargs: Any) -> Any:
            nonlocal fail
            result = real(*args, **kwargs)
            fail = not fail
            if fail and result[0].shape[1] == 3:
                raise torch.OutOfMemoryError("after the result was made")
            return result

        backend.convolve = convolve  # type: ignore[method-assign]
        joined(engine, job.family.decode(engine, engine.enter(job.z)))
    assert alive
    small = 16 * 8 * 8  # the last norm's factor and summand, and moments of single slices
    for live_bytes, resident in alive:
        assert resident <= live_bytes <= resident + small + 32 * 1024


@pytest.mark.parametrize("where", [0.0, 0.3, 0.7, 0.99])
def test_a_cancelled_decode_stops_at_the_next_grain_with_no_copy_under_way(
    job: Job, where: float
) -> None:
    mover = LateMover(4)
    counter = Counter(int(where * job.grains), DecodeCancelled)
    engine = watched_engine(SLICE, job.peak // 3, mover, counter=counter)
    with pytest.raises(DecodeCancelled):
        job.run(engine)
    assert len(counter.steps) == counter.stop_at
    assert not mover.under_way


def test_slices_in_a_file_change_no_bit(job: Job, tmp_path: Any) -> None:
    engine = make_engine(SLICE, resident_bytes=job.peak // 4, folder=tmp_path)
    assert torch.equal(job.run(engine), job.frames)
    assert engine.keeper.sent > 0
    assert list(tmp_path.iterdir()) == []  # it has no name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_file_gives_back_bits_and_layout(tmp_path: Any, dtype: Any) -> None:
    mover = FileMover(tmp_path)
    base = torch.randn(1, 6, 4, 5, 3).to(dtype)
    for x in (base, base.to(memory_format=torch.channels_last_3d), base[:, :, 1:3]):
        parked, ticket = mover.send(x)
        back, other = mover.bring(parked)
        assert ticket.done()
        assert other.done()
        assert torch.equal(back, x)
        assert back.stride() == torch.empty_like(x).stride()
        mover.free(parked)
    first, _ = mover.send(base)
    assert first.offset == 0  # room that was let go is used again


def test_a_limit_on_the_cpu_needs_a_folder(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="name a folder"):
        make_engine(SLICE, resident_bytes=1)
    with pytest.raises(ValueError, match="does not exist"):
        make_engine(SLICE, resident_bytes=1, folder=tmp_path / "none")
    assert isinstance(mover_for(torch.device("meta")), ShapeMover)


@pytest.mark.parametrize("step", [1, 2, 3, 12])
def test_the_last_block_holds_what_is_unread_plus_what_is_made(step: int) -> None:
    """A residual block on T frames: live storages at any time are at most what is not yet read, the
    results so far and one grain's workspace. With slices of one frame that is 2 T + 3 frames and
    the workspace; x, h and the result side by side would be 3 T.

    The formula is worked out from the grains, so an engine that holds a slice too long fails.
    """
    frames, size, channels = 12, 24, 8
    conv1, conv2 = same_conv(channels, norm=True), same_conv(channels, norm=True)
    slice_bytes = step * channels * (size + 2) ** 2 * 4
    engine = make_engine(slice_bytes)
    backend = engine.backend
    known = [
        backend.weights.of(m, n)
        for c in (conv1, conv2)
        for m in (c.module, c.norm.module)
        for n in ("weight", "bias")
    ]  # type: ignore[union-attr]
    x = engine.local(engine.enter(torch.randn(1, channels, frames, size, size)), copied())
    frame = x.frame_bytes
    there = [t for t in (*known, *(s.tensor for s in x.slices)) if t is not None]
    with LiveStorages(there, CPU) as live:
        del there  # what holds a slice would keep it alive
        live.live = frames * frame  # x itself, which the convolutions let go
        for piece in x.slices:
            weakref.finalize(piece.tensor, live._freed, id(piece), piece.nbytes)
        h = engine.conv(x, conv1, keep=True)
        between = live.live
        out = engine.conv(h, conv2, add=x)
        assert live.live <= between - frames * frame + 64 * 1024, "slices of x or h are still there"
    assert out.shape == x.shape
    plan = ConvPlan(conv1, x.shape, x.dtype, conv1.module.weight, slice_bytes)
    most = 0
    for i, grain in enumerate(plan.grains):
        source = Pieces((torch.empty(1, channels, frames, size, size),), 0, frames)
        workspace = backend.workspace_bytes(conv1, source, grain.own)
        made = grain.result[1] * frame
        unread = frames - (i * step - 2) // step * step if i * step >= 2 else frames
        most = max(
            most,
            frames * frame + made + workspace,  # conv1: x is kept
            unread * frame + (frames - grain.result[0]) * frame + made + workspace,  # conv2
        )
    small = 64 * 1024  # moments and factors of C numbers
    assert live.peak <= most + small
    if step == 1:
        assert most <= (2 * frames + 3) * frame + workspace


def test_two_readers_of_one_video_let_it_go_together() -> None:
    """The last block's first layers: x has twice the channels of h and of the shortcut, so what is
    made takes the room of what was read; with slices of one frame T + 4 frames of x and one grain's
    workspace are enough, not 2 T."""
    frames, size, channels = 12, 12, 8
    conv1 = replace(same_conv(2 * channels, norm=True), module=torch.nn.Conv3d(16, channels, 3))
    shortcut = Conv(torch.nn.Conv3d(2 * channels, channels, 1))
    engine = make_engine(1)
    x = engine.local(engine.enter(torch.randn(1, 16, frames, size, size)), copied())
    frame = x.frame_bytes
    whole = Pieces((torch.empty(1, 16, frames, size, size),), 0, frames)
    workspace = engine.backend.workspace_bytes(conv1, whole, (5, 6))
    known = [t for c in (conv1, shortcut) for t in c.module.parameters()]
    with LiveStorages([*known, *(s.tensor for s in x.slices if s.tensor is not None)], CPU) as live:
        live.live = frames * frame
        freed = [weakref.finalize(s.tensor, live._freed, id(s), frame) for s in x.slices]
        h, rest = engine.convs(x, (conv1, shortcut))
        assert not any(f.alive for f in freed), "slices of x are still there"
        assert (h.shape, rest.shape) == ((channels, frames, size, size),) * 2
    assert live.peak <= (frames + 4) * frame + workspace + 64 * 1024
