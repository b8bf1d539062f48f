"""The first use of a kernel: shown before it is compiled, foreseen, one compilation at a time.

No GPU: the kernels are doubles that return what Triton returns.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tier_calls import make_call

from hy3d_rocm.conv.call import ConvCall
from hy3d_rocm.conv.tiers import base
from hy3d_rocm.conv.triton import ahead, jit, launch, steps
from hy3d_rocm.conv.triton.ahead import Progress
from hy3d_rocm.conv.triton.work import Target

pytest.importorskip("triton", reason="no triton in this environment")

kernel = importlib.import_module("hy3d_rocm.conv.triton.kernel")
KERNELS = ("conv_rows", "load_rows", "load_rows_and_weight", "add_parts", "conv_points")


class Kernel:
    """Notes its launches; returns a compiled kernel that does nothing."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world

    def __getitem__(self, grid: Any) -> Any:
        return self._launch

    def _launch(self, *args: Any, **options: Any) -> Any:
        with self.world.compiling(self.name):
            return types.SimpleNamespace(
                metadata=(), packed_metadata=(), function=1, run=lambda *_: None
            )


class World:
    """What happened, in order: ("hook", kernel, number) and ("triton", kernel)."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.wait: dict[str, threading.Barrier] = {}
        self.inside = self.most_inside = 0
        self._lock = threading.Lock()

    def compiling(self, name: str) -> Any:
        world = self

        class Compiling:
            def __enter__(self) -> None:
                with world._lock:
                    world.events.append(("triton", name))
                    world.inside += 1
                    world.most_inside = max(world.most_inside, world.inside)
                if name in world.wait:
                    world.wait[name].wait(5)

            def __exit__(self, *_: Any) -> None:
                with world._lock:
                    world.inside -= 1

        return Compiling()

    def hook(self, name: str, number: int) -> None:
        self.events.append(("hook", name, number))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    """A process that has compiled nothing, with an empty cache, on a card that isn't there."""
    found = World()
    for name in KERNELS:
        monkeypatch.setattr(kernel, name, Kernel(name, found))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    new_process(monkeypatch)
    monkeypatch.setattr(jit, "on_compile", found.hook)
    monkeypatch.setattr(launch, "target_of", lambda device: Target("gfx1100", 96))
    monkeypatch.setattr(launch, "architecture", lambda device: "gfx1100")
    monkeypatch.setattr(launch, "refusal", lambda spec: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
    yield found
    steps.make_steps.cache_clear()


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    steps.make_steps.cache_clear()
    monkeypatch.setattr(ahead, "_here", set())
    monkeypatch.setattr(ahead, "_locks", {})
    monkeypatch.setattr(jit, "_direct", jit._Direct())
    monkeypatch.setattr(jit, "_compiled", {})
    monkeypatch.setattr(jit, "_progress", Progress())


def call(
    cin: int = 64, cout: int = 64, kernel: int = 3, size: int = 12, **options: Any
) -> ConvCall:
    half = torch.float16
    x = torch.zeros(1, cin, 5, size, size, dtype=half)
    weight = torch.zeros(cout, cin, *(kernel,) * 3, dtype=half)
    return make_call(x, weight, torch.zeros(cout, dtype=half), **options)


CALLS = {
    "boxes": call,
    "rows": lambda: call(size=16),
    "points": lambda: call(kernel=1),
    "narrow": lambda: call(128, 3),
    "parts": lambda: call(1024, 8, size=4),
    "groups": lambda: call(64, 32, groups=1, stride=2),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_compiled_is_told_and_not_again(
    name: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = CALLS[name]()
    launch.run(one)
    hooks = [event for event in world.events if event[0] == "hook"]
    assert [number for _, _, number in hooks] == list(range(1, len(hooks) + 1))
    launch.run(one)
    new_process(monkeypatch)
    launch.run(CALLS[name]())  # there is a note beside Triton's cache
    assert [event for event in world.events if event[0] == "hook"] == hooks


@pytest.mark.parametrize("x_last", [False, True])
@pytest.mark.parametrize("weight_last", [False, True])
def test_weights_in_channels_last_need_no_packing(
    x_last: bool, weight_last: bool, world: World
) -> None:
    formats = {False: torch.contiguous_format, True: torch.channels_last_3d}
    one = call()
    x = one.x.to(memory_format=formats[x_last])
    one = make_call(x, one.weight.to(memory_format=formats[weight_last]), one.bias)
    launch.run(one)
    hooks = [event for event in world.events if event[0] == "hook"]
    loads = [kernel for _, kernel, _ in hooks if "load" in kernel]
    assert loads == ["load_rows" if x_last else "load_rows_and_weight"][: not weight_last] + (
        ["load_rows"] if weight_last and not x_last else []
    )
    launch.run(one)
    assert [event for event in world.events if event[0] == "hook"] == hooks


def compiled(world: World) -> int:
    """Kernels that a call compiles now."""
    world.events.clear()
    launch.run(call())
    return sum(event[0] == "hook" for event in world.events)


def test_who_deletes_tritons_cache_deletes_the_notes(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert compiled(world)
    new_process(monkeypatch)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "another"))
    assert compiled(world)


def test_another_triton_card_or_source_is_another_kernel(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(world)
    for name, value in (
        ("triton_versions", lambda: ("triton 9.9",)), ("architecture", lambda index: "gfx1201"),
        ("_source", lambda kernels: "other"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(ahead, name, value)
            patch.setattr(jit, "_compiled", {})
            assert compiled(world), name
    assert not compiled(world)


def test_notes_that_cant_be_written_hurt_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    assert compiled(world)
    assert not compiled(world)


def test_what_a_tier_enters_around_a_compilation_is_entered_for_each_kernel(world: World) -> None:
    """And not by another thread."""
    entered: list[str] = []

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        entered.append("in")
        yield
        entered.append("out")

    base.THREAD.around = around
    try:
        thread = threading.Thread(target=lambda: launch.run(call(kernel=1)))
        thread.start()
        thread.join()
        assert not entered
        kernels = compiled(world)
    finally:
        del base.THREAD.around
    assert entered == ["in", "out"] * kernels
    assert compiled(world) == 0


def test_the_hook_comes_before_the_compiler_and_its_cancel_compiles_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupt(BaseException):
        pass

    def cancel(name: str, number: int) -> None:
        raise Interrupt

    monkeypatch.setattr(jit, "on_compile", cancel)
    with pytest.raises(Interrupt):
        launch.run(call())
    assert not world.events
    monkeypatch.setattr(jit, "on_compile", world.hook)
    launch.run(call())
    kinds = [event[:2] for event in world.events]
    assert kinds[:2] == [("hook", "load_rows_and_weight"), ("triton", "load_rows_and_weight")]
    assert all(kinds[i - 1] == ("hook", k) for i, (e, k) in enumerate(kinds) if e == "triton")


def in_threads(*calls: ConvCall) -> None:
    failed: list[BaseException] = []

    def work(one: ConvCall) -> None:
        try:
            launch.run(one)
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=work, args=(one,)) for one in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


def test_two_threads_compile_two_kernels_side_by_side(world: World) -> None:
    world.wait["conv_points"] = threading.Barrier(2)  # breaks after 5 s if one waits for the other
    in_threads(call(64, 64, 1), call(64, 128, 1, size=16))
    assert world.most_inside == 2


def test_one_kernel_is_compiled_by_one_thread(world: World) -> None:
    in_threads(*(call(64, 64, 1) for _ in range(4)))
    assert world.most_inside == 1
    assert [event for event in world.events if event[0] == "hook"] == [("hook", "conv_points", 1)]


def lines_of(caplog: pytest.LogCaptureFixture, steps_: list[tuple[float, float]]) -> list[str]:
    """What is logged of kernels, each (pause before it, seconds it takes)."""
    now = itertools.accumulate(itertools.chain.from_iterable(steps_))
    clock = iter(list(now))
    progress = Progress(lambda: next(clock))
    caplog.clear()
    with caplog.at_level(logging.INFO, "hy3d_rocm"):
        for _, seconds in steps_:
            progress.before()
            progress.after(seconds)
    return caplog.messages


def test_a_series_has_a_first_line_and_counts_every_five_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = lines_of(caplog, [(0, 2.0)] * 6)
    assert len(lines) == 3
    assert lines[0].startswith("compiling GPU kernels for their first use: some seconds")
    assert lines[1:] == [
        "waited for 3 GPU kernels so far, 6 s", "waited for 6 GPU kernels so far, 12 s"
    ]  # fmt: skip
    assert len(lines_of(caplog, [(0, 2.0), (61, 2.0)])) == 2, "a series of its own after a minute"
    assert len(lines_of(caplog, [(0, 2.0), (59, 2.0)])) == 2, "a count"
    assert len(lines_of(caplog, [(0, 0.1)] * 9)) == 1


def test_a_line_comes_before_the_first_kernel(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[int] = []
    monkeypatch.setattr(jit, "on_compile", lambda *_: said.append(len(caplog.messages)))
    with caplog.at_level(logging.INFO, "hy3d_rocm"):
        launch.run(call())
    assert said[0] == 1
