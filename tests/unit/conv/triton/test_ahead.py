"""Kernels compiled ahead by child processes: what a child compiles is found, and none is waited for
in vain."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from hy3d_rocm.conv.probe import process
from hy3d_rocm.conv.triton import ahead
from hy3d_rocm.conv.triton.ahead import Facts
from hy3d_rocm.conv.triton.plan import KERNELS, PLAIN, Launch

FUSED = importlib.util.find_spec("triton") is not None


def kernel(number: int, is_aligned: bool = True) -> ahead.Wanted:
    """A load_rows of its own."""
    numbers = (64, 8, 5, 6, 5, 6, 0, 0, 0, 9, 0, 1, 8, 8, 8, 1e-6)
    constants = (*PLAIN, True, 8, 16 << number, 16)
    operands = (("x0", 0), ("rows", 0), ("factor", 0), ("summand", 0))
    half = Facts(torch.bfloat16, True, is_aligned)
    rest = Facts(torch.bfloat16, False, True), Facts(torch.float32, True, True)
    item = Launch("load_rows", (1, 1, 1), operands, numbers, constants, 4, 1)
    return ahead.Wanted(item, (half, *rest, rest[1]))


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A machine of eight cores, one GPU and an empty cache; nothing is left running."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv(process.INSIDE, raising=False)
    monkeypatch.setattr(ahead, "architecture", lambda index: "gfx1100")
    monkeypatch.setattr(ahead, "_target", lambda index: ("hip", "gfx1100", 32))
    monkeypatch.setattr(ahead, "_most", lambda: 7)
    monkeypatch.setattr(ahead, "_here", set())
    monkeypatch.setattr(ahead, "_unstartable", set())
    yield tmp_path
    until(lambda: not ahead._children)
    assert not ahead._running
    ahead._queued.clear()


def until(is_so: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def name_of(wanted: ahead.Wanted) -> str:
    return ahead.name_of(wanted.item, wanted.facts, 0)


def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    """Another child: `body` answers each `job`, a dict."""
    lines = (
        "report({'event': 'ready'})", "for line in lines:", "    job = json.loads(line)",
        textwrap.indent(textwrap.dedent(body), "    "),
    )  # fmt: skip
    other(monkeypatch, tmp_path, "\n".join(lines))


def other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    """A process that does this in a child's place."""
    text = (
        f"import json, sys, time\ndef serve(header, lines, report):\n{textwrap.indent(body, ' ')}"
    )
    (tmp_path / "instead.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(ahead, "SERVE", "instead:serve")


DONE = "print('noise', flush=True); report({'event': 'done'})"
BLOCK = "job['constants'][-2]"


@pytest.mark.skipif(not FUSED, reason="no triton in this environment")
def test_what_a_child_compiles_is_what_this_process_asks_for(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real tensors nothing is added to the cache; an operand that is aligned otherwise is
    another kernel. The child has neither torch nor a GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    kernels = [kernel(0), kernel(1, is_aligned=False)]
    assert [ahead.want(each, 0) for each in kernels] == [name_of(each) for each in kernels]
    ahead.want(kernel(2), 0)  # the first is left to this process until more are wanted
    until(lambda: all(not ahead.is_new(name_of(each)) for each in kernels))
    until(lambda: not ahead._children)

    class Driver:
        get_current_device = get_current_stream = staticmethod(lambda *_: 0)
        get_current_target = staticmethod(lambda: GPUTarget("hip", "gfx1100", 32))

    before = driver._active
    driver.set_active(Driver())
    try:
        cached = {path.name for path in world.iterdir()}
        function = importlib.import_module(KERNELS).load_rows
        for wanted, adds in ((kernels[0], 0), (kernels[1], 0), (kernel(0, is_aligned=False), 1)):
            tensors = [
                torch.empty(64, dtype=facts.dtype)[0 if facts.aligned else 1 :]
                for facts in wanted.facts
            ]
            # Beyond 2 GiB without that memory: pages that nobody touches.
            tensors[1] = torch.empty(1 << 31, dtype=torch.bfloat16)
            function.device_caches.clear()
            function.warmup(
                *tensors, *wanted.item.numbers, *wanted.item.constants, grid=(1, 1, 1),
                num_warps=4, num_stages=1,
            )  # fmt: skip
            assert len({path.name for path in world.iterdir()} - cached) == adds
    finally:
        driver._active = before
        function.device_caches.clear()


def test_what_is_known_is_not_compiled_again(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "SERVE", "none:serve")
    ahead.note(name_of(kernel(0)), on_disk=True)
    assert not ahead.want(kernel(0), 0)
    assert not ahead._children


def test_a_kernel_that_no_child_has_begun_is_left_to_the_caller(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no child compiles it then."""
    child(monkeypatch, world, f"open({str(world)!r} + '/' + str({BLOCK}), 'w').close()\n{DONE}")
    monkeypatch.setattr(ahead, "_most", lambda: 0)
    for number in range(3):
        ahead.want(kernel(number), 0)
    ahead.wait_for(name_of(kernel(1)), lambda: pytest.fail("nothing is to be waited for"))
    monkeypatch.setattr(ahead, "_most", lambda: 1)
    ahead.want(kernel(3), 0)
    until(lambda: not ahead._children)
    assert {n for n in range(5) if (world / str(16 << n)).exists()} == {0, 2, 3}
    assert [ahead.is_new(name_of(kernel(n))) for n in range(4)] == [False, True, False, False]


def test_a_kernel_that_a_child_is_at_is_waited_for(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is asked several times a second, and what it raises ends the waiting."""
    go = world / "go"
    child(monkeypatch, world, f"""
        import os
        while not os.path.exists({str(go)!r}): time.sleep(0.01)
        {DONE}""")  # fmt: skip
    monkeypatch.setattr(ahead, "_most", lambda: 1)
    ahead.want(kernel(0), 0)
    ahead.want(kernel(1), 0)
    until(lambda: name_of(kernel(0)) in ahead._running)
    looks = []

    def look() -> None:
        looks.append(time.monotonic())
        if len(looks) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ahead.wait_for(name_of(kernel(0)), look)
    assert looks[2] - looks[0] < 5
    waiting = threading.Thread(target=ahead.wait_for, args=(name_of(kernel(0)), lambda: None))
    waiting.start()
    time.sleep(0.05)
    assert waiting.is_alive()
    go.touch()
    waiting.join(30)
    assert not waiting.is_alive()
    assert not ahead.is_new(name_of(kernel(0)))


@pytest.mark.parametrize(
    ("body", "noted"),
    [("sys.exit(3)", False), ("report({'event': 'failed'})", False), (DONE, True)],
    ids=["it ends", "it can't", "it can"],
)
def test_a_child_that_fails_holds_nobody_up(
    world: Path, monkeypatch: pytest.MonkeyPatch, body: str, noted: bool
) -> None:
    child(monkeypatch, world, body)
    for number in range(4):
        ahead.want(kernel(number), 0)
    for number in range(4):
        ahead.wait_for(name_of(kernel(number)), lambda: None)
    until(lambda: not ahead._children)
    found = {ahead.is_new(name_of(kernel(number))) for number in range(4)}
    assert noted or found == {True}


def test_what_goes_wrong_on_the_way_to_a_child_holds_nobody_up(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(self: process.Child, message: object) -> None:
        raise OSError("no memory for a line")

    child(monkeypatch, world, DONE)
    monkeypatch.setattr(process.Child, "send", send)
    for number in range(3):
        ahead.want(kernel(number), 0)
    until(lambda: not ahead._children)
    assert not ahead._running
    for number in range(3):
        ahead.wait_for(name_of(kernel(number)), lambda: pytest.fail("nothing is at it"))


@pytest.mark.skipif(not FUSED, reason="no triton in this environment")
def test_a_child_that_hangs_is_ended(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the interpreter's lock is held, as LLVM holds it."""
    (world / "hanging.py").write_text("import ctypes\nctypes.PyDLL(None).sleep(1000)\n")
    monkeypatch.syspath_prepend(str(world))
    monkeypatch.setattr(ahead, "_LONGEST_S", 2.0)  # on a busy machine less may pass unseen
    monkeypatch.setattr(ahead, "_most", lambda: 1)
    item = dataclasses.replace(kernel(0).item, module="hanging")
    hanging = kernel(0)._replace(item=item)
    ahead.want(hanging, 0)
    ahead.want(kernel(1), 0)
    until(lambda: name_of(hanging) in ahead._running)
    ahead.wait_for(name_of(hanging), lambda: None)
    until(lambda: not ahead._children)
    assert ahead.is_new(name_of(hanging))


@pytest.mark.parametrize("python", [None, "/nonexistent/python"])
def test_where_no_child_can_be_started_there_is_none(
    monkeypatch: pytest.MonkeyPatch, python: str | None
) -> None:
    monkeypatch.setattr(process, "interpreter", lambda: (python, "no Python"))
    for number in range(3):
        assert ahead.want(kernel(number), 0)
    until(lambda: not ahead._children)
    ahead.wait_for(name_of(kernel(1)), lambda: pytest.fail("nothing is to be waited for"))
    ahead.finish(lambda: None)  # and it is not tried for ever
    assert len(ahead._queued) == 2


@pytest.mark.parametrize("body", ["sys.exit(1)", "report({'event': 'hello'})"])
def test_a_child_that_is_not_what_it_should_be_is_not_started_again(
    world: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    other(monkeypatch, world, body)
    for number in range(3):
        ahead.want(kernel(number), 0)
    ahead.finish(lambda: None)
    assert ahead._unstartable
    assert len(ahead._queued) == 3


def test_all_that_is_wanted_is_compiled_at_the_end(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a single kernel, which is left to the caller otherwise."""
    child(monkeypatch, world, DONE)
    ahead.want(kernel(0), 0)
    assert not ahead._children
    looks: list[int] = []
    ahead.finish(lambda: looks.append(1))
    assert looks
    assert not ahead.is_new(name_of(kernel(0)))


def test_a_child_compiles_for_the_gpu_that_it_was_told(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(monkeypatch, world, f"""
        with open({str(world)!r} + "/told", "a") as file:
            file.write(header["target"][1] + " " + str({BLOCK}) + "\\n")
        {DONE}""")  # fmt: skip
    cards = "gfx1100", "gfx1030"
    monkeypatch.setattr(ahead, "_target", lambda index: ("hip", cards[index], 32))
    for number in range(4):
        ahead.want(kernel(number), number % 2)
    ahead.finish(lambda: None)
    told = (world / "told").read_text().splitlines()
    assert sorted(told) == sorted(f"{cards[n % 2]} {16 << n}" for n in range(4))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_has_no_children(world: Path) -> None:
    ahead._queued["x"] = ("hip", "gfx1100", 32), {}
    pid = os.fork()
    if pid == 0:
        os._exit(len(ahead._queued) + ahead._children)
    assert os.waitpid(pid, 0)[1] == 0
    assert ahead._queued


def test_there_are_no_more_children_than_other_cores_memory_and_kernels(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(world))
    monkeypatch.delenv(process.INSIDE, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for free, most in ((1 << 40, 7), (4000 << 20, 2), (3999 << 20, 1), (1 << 28, 0), (None, 7)):
        monkeypatch.setattr(ahead.memory, "host_free_bytes", lambda free=free: free)
        assert ahead._most() == most
    monkeypatch.setattr(ahead.memory, "host_free_bytes", lambda: 4000 << 20)
    monkeypatch.setattr(ahead, "_children", 2)  # which have taken nothing yet
    assert ahead._most() == 2
    monkeypatch.setattr(ahead, "_children", 0)
    monkeypatch.setattr(ahead.memory, "host_free_bytes", lambda: None)
    monkeypatch.setattr(ahead, "most_processes", 3)
    assert ahead._most() == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert ahead._most() == 0
    monkeypatch.setenv(process.INSIDE, "1")
    assert ahead._most() == 0


def test_a_job_is_all_that_the_kernel_is_compiled_for() -> None:
    job = json.loads(json.dumps(ahead._job(kernel(1))))
    item = kernel(1).item
    assert (job["module"], job["kernel"]) == (KERNELS, "load_rows")
    assert (tuple(job["numbers"]), tuple(job["constants"])) == (item.numbers, item.constants)
    assert job["operands"][:2] == [["torch.bfloat16", True, True], ["torch.bfloat16", False, True]]
