"""The order of events in Transfers and Placing, on streams that only write down what is asked."""

from __future__ import annotations

import queue
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from program_doubles import CPU, by_layers, carried_out, compiled, graph_of  # noqa: E402
from small_decoders import decoders, latent  # noqa: E402

from hy3d_rocm import _native, meter  # noqa: E402
from hy3d_rocm.decoding.placing import (  # noqa: E402
    ON_THEIR_WAY_BYTES,
    Placing,
    Transfers,
    on_their_way,
)
from hy3d_rocm.decoding.precision import NonFiniteError  # noqa: E402
from hy3d_rocm.decoding.run import OPS  # noqa: E402


class World:
    """Stands in for torch.cuda; `log` has every request in order."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.count = 0
        self.is_idle = False  # whether all that was asked for is over
        self.computing = self.Stream(CPU)

    def Stream(self, device: Any) -> Any:
        self.count += 1
        return _Stream(self, f"stream {self.count}")

    def current_stream(self, device: Any = None) -> Any:
        return self.computing

    @contextmanager
    def stream(self, stream: Any) -> Any:
        self.log.append(("enter", stream.name))
        yield
        self.log.append(("leave", stream.name))


class _Stream:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name

    def wait_stream(self, other: Any) -> None:
        self.world.log.append(("wait for", self.name, other.name))

    def wait_event(self, event: Any) -> None:
        self.world.log.append(("wait for event", self.name, event.name))

    def synchronize(self) -> None:
        self.world.log.append(("end", self.name))

    def record_event(self) -> Any:
        self.world.log.append(("record", self.name))
        return _Event(self.world, self.name)


class _Event:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, f"copy on {name}"

    def synchronize(self) -> None:
        self.world.log.append(("block", self.name))

    def query(self) -> bool:
        return self.world.is_idle


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    for name in ("Stream", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(made, name))
    return made


def test_copies_wait_for_the_computing_stream_and_it_for_them(world: World) -> None:
    transfers = Transfers(CPU, 1000)
    x = torch.randn(1, 2, 3, 4, 5).to(memory_format=torch.channels_last_3d)
    held, out = transfers.store(x, 512)
    sent = [("wait for", "stream 2", "stream 1"), ("enter", "stream 2"), ("record", "stream 2")]
    assert world.log == [*sent, ("leave", "stream 2")]
    out.wait()
    assert world.log[-1] == ("block", "copy on stream 2")
    world.log.clear()
    back, ticket = transfers.load(held)
    ticket.join()
    came = [("wait for", "stream 3", "stream 1"), ("enter", "stream 3"), ("record", "stream 3")]
    joined_by = ("wait for event", "stream 1", "copy on stream 3")
    assert world.log == [*came, ("leave", "stream 3"), joined_by]
    assert torch.equal(back, x)
    assert back.stride() == x.stride()
    world.log.clear()
    transfers.close()
    assert world.log == [("end", "stream 2"), ("end", "stream 3")]


def test_copies_lie_in_pieces_of_their_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "PIECE_BYTES", 4096)
    wide = torch.randn(2, 3, 5, 500)  # with gaps: half of its columns
    values = torch.randn(11, 300), torch.randn(1, 2, 3, 4, 5), wide[..., ::2], torch.randn(1)
    values = *values, torch.randn(4096).to(torch.float16), torch.empty(0, 3)
    places, end = [], 0
    for x in values:
        places.append(end)
        end += -(-x.nbytes // 256) * 256
    assert end > 5 * 4096
    transfers = Transfers(CPU, end)
    made = [transfers.store(x, at)[0] for x, at in zip(values, places, strict=True)]
    for x, held in reversed(list(zip(values, made, strict=True))):
        assert torch.equal(transfers.load(held)[0], x)
    transfers.close()


@pytest.mark.skipif(not _native.available, reason="programs need the C core")
def test_no_slice_is_read_before_the_computing_stream_waits_for_its_copy(
    world: World, no_gradients: None, one_thread: None
) -> None:
    """A whole run: before a step computes, the computing stream waits for each copy back of what
    the step reads; a slice leaves the device when its copy out is over."""
    x = latent(5)
    graph = by_layers(graph_of(decoders()["wan"], x))
    request = {"slice_bytes": 300, "is_host": 0, "may_spill": 1}
    wanted = carried_out(graph, x, compiled(graph, x, **request).program)
    least = compiled(graph, x, device_budget=1, **request).smallest_budget
    program = compiled(graph, x, device_budget=least, **request).program
    came: set[int] = set()  # slices that nobody has read since they came back
    told: list[tuple[int, int]] = []  # of each step: such slices that it reads, and waits till then

    class Watching:
        def check(self) -> None: ...

        def tick(self, step: Any) -> None:
            op, _, number, *_, sources, others, _, _, _ = program.steps(0)[len(told)]
            if OPS[op] == "load":
                came.add(number)
            fresh = came & {*sources, *others}
            came.difference_update(fresh)
            joins = sum(e[:2] == ("wait for event", "stream 1") for e in world.log)
            told.append((len(fresh), joins))

    transfers = Transfers(CPU, program.copies_bytes)
    got = carried_out(graph, x, program, transfers=transfers, counter=Watching())
    assert torch.equal(got, wanted)
    waits = [(n, joins - before) for (n, joins), (_, before) in zip(told[1:], told, strict=False)]
    assert all(n == joined for n, joined in waits), "a step read what had not come"
    loads, stores = (sum(OPS[s[0]] == n for s in program.steps(0)) for n in ("load", "store"))
    assert told[-1][1] == loads > 0
    assert sum(e == ("block", "copy on stream 2") for e in world.log) == stores > 0


def test_frames_on_their_way_are_placed_when_their_copy_is_over(world: World) -> None:
    x = torch.randn(1, 3, 5, 4, 6)
    placing = Placing(tuple(x.shape), torch.float64, None, None)
    whole = placing.whole().fill_(7)
    placing._leave(x[:, :, :2], whole[:, :, :2], 0)
    assert world.log == [("record", "stream 1")], "the thread waited for frames"
    assert bool((whole == 7).all())
    placing._leave(x[:, :, 2:], whole[:, :, 2:], 2)
    assert world.log[1:] == [("record", "stream 1")], "the thread waited for frames"
    placing.arrive(3)
    assert world.log[2:] == [("block", "copy on stream 1")]
    assert torch.equal(whole[:, :, :2], x[:, :, :2].double())
    assert bool((whole[:, :, 2:] == 7).all())
    placing.arrive()
    placing.arrive()  # nothing is on its way
    assert world.log[3:] == [("block", "copy on stream 1")]
    assert torch.equal(whole, x.double())


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")


def hold_frames(monkeypatch: pytest.MonkeyPatch, x: torch.Tensor, most: int, at_once: int) -> int:
    """So many frames of x may be on their way, and are copied at a time."""
    frame = x[:, :, 0].nbytes
    monkeypatch.setattr("hy3d_rocm.decoding.placing.ON_THEIR_WAY_BYTES", most * frame)
    monkeypatch.setattr("hy3d_rocm.decoding.placing.PART_BYTES", at_once * frame)
    assert on_their_way(tuple(x.shape), x.dtype)[0] == most
    return most


@pytest.mark.parametrize("at_once", [2, 30])
@pytest.mark.parametrize("sizes", [(2, 9, 3, 9), (1,) * 23, (23,)])
def test_no_more_frames_are_on_their_way_than_memory_is_planned_for(
    world: World, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], at_once: int
) -> None:
    x = torch.randn(1, 3, 23, 4, 6)
    most = hold_frames(monkeypatch, x, 9, at_once)
    placing, at, held = Placing(tuple(x.shape), x.dtype, None, None), 0, list[int]()
    leave = placing._leave

    def watched(*given: Any) -> None:
        leave(*given)
        held.append(sum(part.frames.shape[2] for part in placing._on_their_way))

    monkeypatch.setattr(placing, "_leave", watched)
    for size in sizes:
        placing.put(0, at, x[:, :, at : at + size].as_subclass(OnGpu))
        at += size
    assert most - 2 < max(held) <= most
    blocked = sum(event == ("block", "copy on stream 1") for event in world.log)
    assert blocked == len(held) - len(placing._on_their_way)
    placing.arrive()
    assert torch.equal(placing.finish(), x)


def test_frames_that_fit_beside_those_on_their_way_wait_for_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(1, 3, 12, 4, 6)
    hold_frames(monkeypatch, x, 9, 2)
    placing = Placing(tuple(x.shape), x.dtype, None, None)
    whole = placing.whole().fill_(7)
    placing.put(0, 0, x[:, :, :4].as_subclass(OnGpu))
    placing.put(0, 4, x[:, :, 4:9].as_subclass(OnGpu))
    assert all(event[0] == "record" for event in world.log), "the thread waited for frames"
    assert bool((whole == 7).all())
    world.log.clear()
    placing.put(0, 9, x[:, :, 9:].as_subclass(OnGpu))
    blocks = [event for event in world.log if event[0] == "block"]
    assert len(blocks) == 2, "three frames take the room of the first two parts of two"
    assert torch.equal(whole[:, :, :4], x[:, :, :4])
    assert bool((whole[:, :, 4:] == 7).all()), "the thread waited for frames of its own put"


def test_a_put_takes_what_has_come_without_a_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(1, 3, 5, 4, 6)
    x[0, 1, 4, 2, 3] = float("nan")
    hold_frames(monkeypatch, x, 5, 2)
    placing = Placing(tuple(x.shape), x.dtype, None, None)
    whole = placing.whole().fill_(7)
    placing.put(0, 0, x[:, :, :2].as_subclass(OnGpu))
    assert bool((whole == 7).all())
    world.is_idle = True
    placing.put(0, 2, x[:, :, 2:4].as_subclass(OnGpu))
    assert torch.equal(whole[:, :, :4], x[:, :, :4])
    assert not placing._on_their_way
    with pytest.raises(NonFiniteError, match="frames 4 to 4 hold NaN or infinite values"):
        placing.put(0, 4, x[:, :, 4:].as_subclass(OnGpu))
    assert bool((whole[:, :, 4:] == 7).all())


def test_a_new_result_gets_its_memory_while_the_gpu_computes_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = queue.SimpleQueue[tuple[int, int]]()
    monkeypatch.setattr("hy3d_rocm.meter.populate", lambda *given: asked.put(given))
    shape = (1, 3, 5, 4, 6)
    given = Placing(shape, torch.float32, torch.zeros(shape), None)
    given.populate()
    made = Placing(shape, torch.float32, None, None)
    made.populate()
    made.populate()  # the decode starts again
    assert asked.get(timeout=60) == (made.whole().data_ptr(), made.whole().nbytes)
    assert asked.empty()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_bad_value_on_its_way_reaches_the_result(world: World, value: float) -> None:
    x = torch.randn(1, 3, 5, 4, 6)
    x[0, 1, 4, 2, 3] = value
    placing = Placing(tuple(x.shape), x.dtype, None, None)
    whole = placing.whole().fill_(7)
    placing._leave(x[:, :, 3:], whole[:, :, 3:], 3)
    with pytest.raises(NonFiniteError, match="frames 3 to 4 hold NaN or infinite values"):
        placing.arrive()
    assert bool((whole == 7).all())
    placing._leave(x[:, :, 3:], whole[:, :, 3:], 3)
    placing.begin({})  # the decode starts again
    placing.arrive()
    assert bool((whole == 7).all())


def test_so_many_frames_are_on_their_way_as_their_memory_holds() -> None:
    frame = 3 * 720 * 1280 * 2
    count = ON_THEIR_WAY_BYTES // frame
    assert count > 1
    assert on_their_way((2, 3, 129, 720, 1280), torch.bfloat16) == (count, count * frame)
    assert on_their_way((1, 3, 2, 720, 1280), torch.bfloat16) == (2, 2 * frame)
    huge = (1, 3, 9, 8192, 8192)
    assert on_their_way(huge, torch.float32) == (1, 3 * 8192 * 8192 * 4)
