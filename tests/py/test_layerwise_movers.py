"""StreamMover's order of events, on streams that only write down what they are asked."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from layerwise_doubles import CPU, joined, make_engine  # noqa: E402

from hy3d_rocm.decode.engines.spill import Keeper  # noqa: E402
from hy3d_rocm.decode.layers import Local  # noqa: E402
from hy3d_rocm.decode.transfers import StreamMover  # noqa: E402


class World:
    """Stands in for torch.cuda; `log` has every request in order."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.recorded: list[str] = []
        self.count = 0
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

    def record_event(self) -> Any:
        self.world.log.append(("record", self.name))
        return _Event(self.world, self.name)


class _Event:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.over = world, f"copy on {name}", False

    def query(self) -> bool:
        return self.over

    def synchronize(self) -> None:
        self.world.log.append(("block", self.name))
        self.over = True


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    for name in ("Stream", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(made, name))
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda _, stream: made.recorded.append(stream.name)
    )
    return made


def test_copies_wait_for_the_computing_stream_and_it_for_them(world: World) -> None:
    mover = StreamMover(CPU)
    x = torch.randn(1, 2, 3, 4, 5).to(memory_format=torch.channels_last_3d)
    parked, out = mover.send(x)
    sent = [("wait for", "stream 2", "stream 1"), ("enter", "stream 2"), ("record", "stream 2")]
    assert world.log == [*sent, ("leave", "stream 2")]
    assert not out.done()
    out.wait()
    assert out.done()
    world.log.clear()
    back, ticket = mover.bring(parked)
    ticket.join()
    came = [("wait for", "stream 3", "stream 1"), ("enter", "stream 3"), ("record", "stream 3")]
    joined_by = ("wait for event", "stream 1", "copy on stream 3")
    assert world.log == [*came, ("leave", "stream 3"), joined_by]
    assert torch.equal(back, x)
    assert back.stride() == x.stride()


def test_a_source_that_is_let_go_early_is_kept_from_others_by_the_allocator(world: World) -> None:
    """abandon() before the copy is done: record_stream, once; after it: nothing."""
    mover = StreamMover(CPU)
    _, ticket = mover.send(torch.zeros(3))
    ticket.abandon()
    ticket.abandon()
    assert world.recorded == ["stream 2"]
    _, ticket = mover.send(torch.zeros(3))
    ticket.wait()
    ticket.abandon()
    assert world.recorded == ["stream 2"]


@pytest.mark.parametrize("size", [1, 3, 1000, 1 << 20, (1 << 20) + 1])
def test_pinned_memory_is_counted_as_torch_takes_it(world: World, size: int) -> None:
    taken = StreamMover(CPU).host_bytes(size)
    assert size <= taken < 2 * size
    assert taken & (taken - 1) == 0


def test_no_slice_is_read_before_the_computing_stream_waits_for_its_copy(world: World) -> None:
    """A whole run: each copy back is joined by the computing stream before the next is computed."""
    engine = make_engine(1)
    engine.keeper = Keeper(StreamMover(CPU), 2048)
    x = torch.randn(1, 2, 9, 8, 8)
    handle = engine.enter(x)
    for _ in range(3):
        handle = engine.local(handle, Local(lambda frames, first: frames + 1, lambda n: n))
    assert torch.equal(joined(engine, handle), x + 1 + 1 + 1)
    came = sum(1 for e in world.log if e == ("record", "stream 3"))
    waited = sum(1 for e in world.log if e[:2] == ("wait for event", "stream 1"))
    assert came == waited > 0
    assert engine.keeper.resident == 0
