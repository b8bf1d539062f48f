"""What a chunked run does when memory runs out, when it is stopped, and how much it holds."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import pytest
import torch
from chunk_doubles import RMS, C, SimpleBackend, chain, decoders, layer, module, resnet
from test_chunkwise import chunked, latent, whole
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hy3d_rocm.decode.counter import Counter
from hy3d_rocm.decode.engines.chunkwise import ChunkEngine
from hy3d_rocm.decode.layers import Attention, Conv, Norm
from hy3d_rocm.decode.report import DecodeCancelled, Step

pytestmark = pytest.mark.usefixtures("one_thread")
DECODERS = decoders()
SHORT = {"hunyuan": (3, 2), "wan": (3, 1), "ltx": (3, 2), "video attention": (3, 2)}


class OutOfMemoryAt(TorchDispatchMode):
    """Every operator that allocates is a place to run out of memory; these do, once each.
    dims: only those whose result has so many, as activations have."""

    def __init__(self, places: set[int], dims: int = 0) -> None:
        super().__init__()
        self.places, self.seen, self.dims = places, 0, dims

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        large = not self.dims or (_is(out) and out.dim() >= self.dims)
        if large and not func._schema.is_mutable and not func.is_view:
            self.seen += 1
            if self.seen - 1 in self.places:
                raise torch.OutOfMemoryError(f"injected at operator {self.seen - 1}")
        return out


class Live(TorchDispatchMode):
    """Bytes of storages that operators made and that are alive; the peak of them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if _is(t)}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if _is(leaf) and leaf.untyped_storage()._cdata not in known:
                self._born(leaf.untyped_storage())
        return out

    def _born(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.seen:
            return
        self.seen[key] = weakref.finalize(storage, self._gone, key, size)
        self.now += size
        self.peak = max(self.peak, self.now)

    def _gone(self, key: int, size: int) -> None:
        self.seen.pop(key, None)
        self.now -= size


def _is(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


@pytest.mark.parametrize("kind", SHORT)
def test_out_of_memory_in_any_grain_changes_no_bit(kind: str) -> None:
    frames, chunk = SHORT[kind]
    z, backend = latent(frames, 2, 2), SimpleBackend()
    wanted = chunked(DECODERS[kind], z, chunk, ChunkEngine(backend))
    for at in range(backend.calls):
        for places in ({at}, {at, at + 1}):
            failing, pressed = SimpleBackend(), []
            failing.fails_at = places
            engine = ChunkEngine(failing, on_pressure=lambda p=pressed: p.append(1))
            assert torch.equal(chunked(DECODERS[kind], z, chunk, engine), wanted), places
            assert len(pressed) == len([p for p in places if p < failing.calls])


def test_out_of_memory_in_any_pair_of_grains_changes_no_bit() -> None:
    z, backend = latent(2, 2, 2), SimpleBackend()
    wanted = chunked(DECODERS["ltx causal"], z, 1, ChunkEngine(backend))
    for pair in itertools.combinations(range(backend.calls + 1), 2):
        failing = SimpleBackend()
        failing.fails_at = set(pair)
        got = chunked(DECODERS["ltx causal"], z, 1, ChunkEngine(failing))
        assert torch.equal(got, wanted), pair


@pytest.mark.parametrize("kind", SHORT)
def test_out_of_memory_in_any_operator_changes_no_bit(kind: str) -> None:
    """Also in the copies of kept frames, beside and in the middle of a layer."""
    z = latent(2, 2, 2)
    with OutOfMemoryAt(set()) as counting:
        wanted = _decoded(kind, z)
    assert counting.seen > 100
    for at in range(len(kind) % 7, counting.seen, 7):
        with OutOfMemoryAt({at}):
            got = _decoded(kind, z)
        assert torch.equal(torch.cat(got, 2), torch.cat(wanted, 2)), at


def _decoded(kind: str, z: torch.Tensor) -> list[torch.Tensor]:
    return [f for _, f in ChunkEngine(SimpleBackend()).run(DECODERS[kind], z, 1)]


def test_a_third_failure_of_a_grain_is_raised() -> None:
    backend = SimpleBackend()
    backend.fails_at = {4, 5, 6}
    with pytest.raises(torch.OutOfMemoryError):
        chunked(DECODERS["wan"], latent(3), 1, ChunkEngine(backend))


def test_another_error_is_raised_at_once() -> None:
    class Broken(SimpleBackend):
        def convolve(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            raise RuntimeError("broken")

    backend = Broken()
    with pytest.raises(RuntimeError, match="broken"):
        chunked(DECODERS["wan"], latent(3), 1, ChunkEngine(backend))
    assert backend.calls == 1


@pytest.mark.parametrize("kind", ["wan", "ltx", "ltx causal", "encoder", "encoder ahead"])
@pytest.mark.parametrize("slices", [None, 3000])
def test_memory_does_not_grow_with_the_video(kind: str, slices: int | None) -> None:
    peaks = []
    for frames in (12, 40):
        z = latent(frames)
        with Live() as live:
            engine = ChunkEngine(SimpleBackend(), slice_bytes=slices)
            for _, made in engine.run(DECODERS[kind], z, 2):
                del made
        assert live.now == 0, "something outlives the run"
        peaks.append(live.peak)
    assert peaks[0] == peaks[1]


def test_slices_take_less_memory_than_the_chunk() -> None:
    peaks = []
    for slices in (None, 1):
        with Live() as live:
            engine = ChunkEngine(SimpleBackend(), slice_bytes=slices)
            for _, made in engine.run(DECODERS["wan"], latent(12, 8, 8), 4):
                del made
        peaks.append(live.peak)
    assert peaks[1] < 0.5 * peaks[0]


def test_a_stop_is_seen_before_the_next_layer() -> None:
    backend = SimpleBackend()
    counter = Counter(None, lambda: backend.calls >= 7)
    with pytest.raises(DecodeCancelled):
        chunked(DECODERS["wan"], latent(5), 1, ChunkEngine(backend, counter))
    assert backend.calls == 7


def test_progress_counts_chunks_to_the_end() -> None:
    seen: list[tuple[int, int, Step]] = []
    counter = Counter(lambda *step: seen.append(step), None)
    chunked(DECODERS["ltx"], latent(7), 2, ChunkEngine(SimpleBackend(), counter))
    assert [(done, total) for done, total, _ in seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_norms_over_the_video_need_statistics() -> None:
    norm = Norm("group", None, 1e-6, groups=2)
    function = resnet(C, C, 1, True, norm=norm)
    z = latent(4)
    with pytest.raises(RuntimeError, match="GroupNorm"):
        chunked(function, z, 1)

    affine = (torch.full((C,), 1.5), torch.full((C,), 0.25))
    asked: list[int] = []

    def given(which: Norm, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        assert which is norm
        asked.append(index)
        return affine

    got = chunked(function, z, 2, ChunkEngine(SimpleBackend(), norms=given))
    assert asked == [0, 1, 0, 1]
    assert got.shape == z.shape


def test_an_out_of_order_family_is_refused() -> None:
    a, b = layer(Conv(module(C, C, 1, 1, 1))), layer(Conv(module(C, C, 1, 1, 1)))
    calls = iter([a, b])
    with pytest.raises(RuntimeError, match="another order"):
        chunked(lambda e, x: next(calls)(e, x), latent(2), 1)


def test_a_consumed_handle_is_refused() -> None:
    conv = Conv(module(C, C, 1, 1, 1))

    def twice(e: Any, x: Any) -> Any:
        e.conv(x, conv)
        return e.conv(x, conv)

    with pytest.raises(RuntimeError, match="keep=True"):
        chunked(twice, latent(2), 1)


@pytest.mark.parametrize("span", ["frame", "causal", "video"])
def test_attention_in_query_blocks_equals_attention_at_once(
    span: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [module(C, C, seed=i) for i in range(4)]
    found = Attention(RMS, *parts, span, heads=2, scale=0.7)
    z = latent(4)
    wanted = whole(lambda e, x: e.attention(x, found), z)
    monkeypatch.setattr("hy3d_rocm.decode.engines.chunk_attention.SCORE_BYTES", 300)
    got = chunked(chain(lambda e, x: e.attention(x, found)), z, 2)
    assert (got - wanted).abs().max() <= 1e-5 * (wanted.max() - wanted.min())
