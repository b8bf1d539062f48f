"""Processes that decode with this one, on the CPU: its frames, and its frames whatever happens to
one of them."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
dist = pytest.importorskip("torch.distributed")

import how_much  # noqa: E402
import warm_start  # noqa: E402
from decode_doubles import EVERY_KIND, relative_error, tiny_vae  # noqa: E402
from program_doubles import family_of, source_of  # noqa: E402
from router_doubles import one_thread  # noqa: E402
from unknown_vaes import ConvNet  # noqa: E402
from warm_start import Server  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.conv.probe import process  # noqa: E402
from hy3d_rocm.decoding import together  # noqa: E402
from hy3d_rocm.decoding import worker_process as wire  # noqa: E402
from hy3d_rocm.decoding.executor import decode, encode  # noqa: E402
from hy3d_rocm.decoding.families.base import Host  # noqa: E402
from hy3d_rocm.decoding.families.unknown import UnknownFamily  # noqa: E402
from hy3d_rocm.decoding.layers import ModuleWeights  # noqa: E402
from hy3d_rocm.decoding.report import DecodeCancelled  # noqa: E402
from hy3d_rocm.decoding.worker_process import SERVE, environment  # noqa: E402
from hy3d_rocm.decoding.workers import MOST_FAILURES, Workers  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not _native.available, reason="programs need the C core"),
    pytest.mark.skipif(not dist.is_available(), reason="torch has no torch.distributed"),
]
CPU = torch.device("cpu")
# See test_shared_run.py.
BOUND = 64 * torch.finfo(torch.float32).eps
# Whose norms see a frame at a time: this process decodes alone.
ALONE = ("seedvr2",)
SECONDS = 120.0


def made(others: int, **more: Any) -> Workers:
    which = Workers(CPU, [CPU] * others)
    vars(which).update(timeout=SECONDS, **more)
    return which


def pids_of(workers: Workers) -> list[int]:
    return [worker.process.pid for worker in workers._workers]


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[Server | None]:
    """The processes do not import torch, diffusers and the package anew, but that of a killed
    parent. All have one thread, this one, too."""
    if not warm_start.IS_THERE:
        with one_thread():
            yield None
        return
    server = Server("hy3d_rocm.decoding.workers", "program_doubles")
    with one_thread(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(process, "start", server.start)
        yield server
    server.close()


@pytest.fixture(scope="module")
def several() -> Iterator[dict[int, Workers]]:
    """By the number of ranks."""
    found = {ranks: made(ranks - 1) for ranks in (2, 3)}
    yield found
    for one in found.values():
        one.close()


@pytest.fixture
def pair(several: dict[int, Workers]) -> Workers:
    two = several[2]
    two.failures = 0
    return two


@pytest.fixture(scope="module")
def wan() -> tuple[Any, Any, Any]:
    """A family, latents and their frames."""
    family = family_of("wan", tiny_vae("wan"))
    latents = source_of(family, False, 3, 8, 5)
    return family, latents, decode(family, latents, strategy="streamed")


def shared(which: Workers, family: Any, latents: Any, **more: Any) -> tuple[Any, list[Any]]:
    """The frames, and the group of each attempt."""
    groups = []

    def work(group: Any) -> Any:
        groups.append(group)
        return decode(family, latents, strategy="streamed", group=group, **more)

    return which.share(family, latents, {"strategy": "streamed"}, work), groups


def near(frames: Any, wanted: Any) -> bool:
    return relative_error(frames, wanted) < BOUND


def lines(caplog: Any, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


# In the gate a third of the kinds; ranks that are threads have the others (test_shared_run.py,
# test_sent_source.py).
@pytest.mark.parametrize(("number", "kind"), how_much.dealt(enumerate(EVERY_KIND), 0, 3))
def test_the_frames_are_those_of_one_device(
    several: dict[int, Workers], number: int, kind: str
) -> None:
    which = several[2 + number % 2]
    family = family_of(kind, tiny_vae(kind))
    latents = source_of(family, False, 1 if family.is_image else 2, 8, 5)
    wanted = decode(family, latents, strategy="streamed")
    frames, groups = shared(which, family, latents)
    assert [group is None for group in groups] == [kind in ALONE]
    assert near(frames, wanted)
    assert not dist.is_initialized()  # the default group is others'


def test_processes_stay_and_a_vae_is_sent_once_until_it_changes(
    pair: Workers, monkeypatch: Any
) -> None:
    sent = []

    def packed(message: Any, real: Any = wire.packed) -> Any:
        sent.append(message[0])
        return real(message)

    monkeypatch.setattr(wire, "packed", packed)
    vaes = [family_of(kind, tiny_vae(kind)) for kind in ("wan", "hunyuan")]
    first = vaes[0].vae
    latents = [source_of(family, False, 3, 8, 5) for family in vaes]
    pids = []
    for number in (0, 0, 1, 0):
        frames, _ = shared(pair, vaes[number], latents[number])
        assert near(frames, decode(vaes[number], latents[number], strategy="streamed"))
        pids.append(pids_of(pair))
    assert pids == [pids[-1]] * 4
    assert [name for name in sent if name in ("hold", "carry_out")] == [
        "carry_out", "hold", "carry_out", "carry_out", "hold", "carry_out", "hold"
    ]  # fmt: skip
    sent.clear()
    with torch.no_grad():  # a LoRA
        first.decoder.conv_out.weight[0, 0, 0, 0, 0] += 0.5
    frames, _ = shared(pair, vaes[0], latents[0])
    assert sent == ["carry_out", "hold"]
    assert near(frames, decode(vaes[0], latents[0], strategy="streamed"))
    sent.clear()
    for parameter in first.parameters():  # moved away and back
        parameter.data = parameter.data.clone()
    shared(pair, vaes[0], latents[0])
    assert sent == ["carry_out"]
    sent.clear()
    pair.drop()
    assert pids_of(pair) == pids[-1]
    shared(pair, vaes[0], latents[0])
    assert sent == ["drop", "carry_out", "hold"]
    sent.clear()
    vaes[0].host = Host(CPU, torch.float32, ModuleWeights)  # somebody else reads the weights
    shared(pair, vaes[0], latents[0])
    assert sent == ["carry_out", "hold"]


@pytest.mark.parametrize("kind", ["wan", "hunyuan", "image"])
def test_an_encode_is_shared_with_the_vae_of_the_decodes(
    pair: Workers, kind: str, monkeypatch: Any
) -> None:
    """No pixels are in what each process is told: rank 0 sends it the rows that it reads."""
    sent = []

    def packed(message: Any, real: Any = wire.packed) -> Any:
        text, tensors = real(message)
        sent.append((message[0], len(tensors)))
        return text, tensors

    def work(group: Any) -> Any:
        groups.append(group)
        nonlocal before
        before = group.sent_bytes
        return encode(family, pixels, strategy="streamed", group=group)

    family, groups, before = family_of(kind, tiny_vae(kind)), list[Any](), 0
    latents = source_of(family, False, 1 if family.is_image else 3, 8, 5)
    pixels = source_of(family, True, 1 if family.is_image else 3, 8, 5)
    shared(pair, family, latents)
    monkeypatch.setattr(wire, "packed", packed)
    found = pair.share(family, pixels, {"strategy": "streamed"}, work, encode=True)
    assert sent == [("carry_out", 0)]
    assert [group is None for group in groups] == [False]
    rows = pixels[:, :, :, pixels.shape[3] // 2 :].nbytes
    assert rows < groups[0].sent_bytes - before < 2 * pixels.nbytes
    assert near(found, encode(family, pixels, strategy="streamed"))


def test_a_process_that_was_killed_between_decodes_is_replaced(
    pair: Workers, wan: Any, caplog: Any
) -> None:
    shared(pair, *wan[:2])
    before = pids_of(pair)
    os.kill(before[0], signal.SIGKILL)
    time.sleep(0.5)
    frames, groups = shared(pair, *wan[:2])
    assert near(frames, wan[2])
    assert groups[0] is not None
    assert pids_of(pair) != before
    assert not lines(caplog)


def test_a_process_that_is_killed_in_a_decode_costs_one_line(
    pair: Workers, wan: Any, caplog: Any
) -> None:
    shared(pair, *wan[:2])
    living = pids_of(pair)

    def kill(done: int, *_: Any) -> None:
        if done == 3 and living:  # the decode begins again
            os.kill(living.pop(), signal.SIGKILL)

    frames, _ = shared(pair, *wan[:2], progress=kill)
    assert near(frames, wan[2])
    assert len(lines(caplog)) == 1
    assert "cpu: its process ended by SIGKILL: decoding alone" in lines(caplog)[0]
    assert pair.failures == 1
    frames, groups = shared(pair, *wan[:2])  # once more with a new one
    assert groups[0] is not None
    assert near(frames, wan[2])
    assert pair.failures == 0


def test_a_process_that_is_stopped_holds_nobody_up(wan: Any, caplog: Any) -> None:
    which = made(1, silent_seconds=2.0)
    try:
        shared(which, *wan[:2])
        at = pids_of(which)[0]
        time.sleep(2.5)  # nothing is heard of one that has nothing to do

        def slowly(group: Any) -> Any:
            time.sleep(1.5)  # it is asked meanwhile
            return decode(*wan[:2], strategy="streamed", group=group)

        assert near(which.share(*wan[:2], {"strategy": "streamed"}, slowly), wan[2])
        assert pids_of(which) == [at]
        os.kill(at, signal.SIGSTOP)
        began = time.monotonic()
        frames, _ = shared(which, *wan[:2])
        assert time.monotonic() - began < SECONDS / 2
        assert near(frames, wan[2])
        assert len(lines(caplog)) == 1
        assert "cpu: it is stopped or hangs" in lines(caplog)[0]
        assert not pids_of(which)
        with pytest.raises(ProcessLookupError):
            os.kill(at, 0)
    finally:
        which.close()


def test_processes_that_can_not_start_are_tried_three_times(
    wan: Any, caplog: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(process, "interpreter", lambda: (None, "there is no Python"))
    which = made(1)
    for _ in range(MOST_FAILURES + 1):
        frames, groups = shared(which, *wan[:2])
        assert groups == [None]
        assert torch.equal(frames, wan[2])
    told = lines(caplog)
    assert len(told) == MOST_FAILURES + 1
    assert "cpu: no process can be started: there is no Python: decoding on cpu alone" in told[0]
    assert "3 times in a row: from now on cpu decodes and encodes alone" in told[-1]


def test_a_process_that_says_why_it_can_not_start_is_quoted(
    wan: Any, caplog: Any, monkeypatch: Any, tmp_path: Any
) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import sys\nprint('no card here', file=sys.stderr)\nsys.exit(3)\n")
    monkeypatch.setattr(process, "CHILD", script)
    frames, _ = shared(made(1), *wan[:2])
    assert torch.equal(frames, wan[2])
    assert len(lines(caplog)) == 1
    assert "its process ended with exit code 3 (no card here)" in lines(caplog)[0]


def test_a_vae_that_a_process_can_not_import_is_refused_once(
    pair: Workers, wan: Any, caplog: Any, monkeypatch: Any
) -> None:
    home = types.ModuleType("only_here")
    vae = tiny_vae("wan")
    home.Own = type("Own", (type(vae),), {"__module__": "only_here"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "only_here", home)
    vae.__class__ = home.Own
    family = family_of("wan", vae)
    for _ in range(2):
        frames, groups = shared(pair, family, wan[1])
        assert groups == [None]
        assert near(frames, wan[2])
    assert len(lines(caplog)) == 1
    assert "cpu: ModuleNotFoundError: No module named 'only_here'" in lines(caplog)[0]
    assert pair.failures == 0


def test_a_vae_that_can_not_be_pickled_is_decoded_alone(
    pair: Workers, wan: Any, caplog: Any
) -> None:
    family = family_of("wan", vae := tiny_vae("wan"))
    vae.decoder._note = lambda: None
    for _ in range(2):
        frames, groups = shared(pair, family, wan[1])
        assert groups == [None]
        assert near(frames, wan[2])
    assert len(lines(caplog)) == 1
    assert "can't be sent to another process: it can't be pickled" in lines(caplog)[0]


def test_of_a_vae_that_only_its_own_code_knows_nothing_is_shared(
    pair: Workers, caplog: Any
) -> None:
    latents = torch.zeros(1, 4, 2, 4, 4)
    family = UnknownFamily(ConvNet(), latents, "nobody knows it")
    caplog.set_level(logging.INFO)
    assert pair.share(family, latents, {}, lambda group: group) is None
    assert "on cpu alone: of this VAE nothing but its own code" in caplog.text


@pytest.mark.parametrize("strategy", ["whole", "tiled"])
def test_what_has_no_rows_to_share_starts_no_process(
    wan: Any, caplog: Any, strategy: str
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    which = Workers(CPU, [CPU])
    assert which.share(*wan[:2], {"strategy": strategy}, lambda group: group) is None
    assert pids_of(which) == []
    assert f'on cpu alone: the strategy "{strategy}" is not shared' in caplog.text


@pytest.mark.parametrize("strategy", ["whole", "tiled"])
def test_of_what_has_no_rows_to_share_samples_are_shared(
    pair: Workers, strategy: str, caplog: Any
) -> None:
    """Also where one device gets more of them than the other."""
    family = family_of("image", tiny_vae("image"))
    latents = torch.cat([source_of(family, False, 1, 8, 5), torch.randn(2, 4, 1, 8, 5)])

    def work(group: Any) -> Any:
        groups.append(group)
        return decode(family, latents, strategy=strategy, group=group)

    groups = list[Any]()
    wanted = decode(family, latents, strategy=strategy)
    found = pair.share(family, latents, {"strategy": strategy}, work)
    assert near(found, wanted)
    assert [group is None for group in groups] == [False]
    assert lines(caplog) == []
    assert pair.failures == 0


def test_a_cancel_ends_all_ranks_and_the_processes_stay(pair: Workers, wan: Any) -> None:
    shared(pair, *wan[:2])
    before, steps = pids_of(pair), []
    with pytest.raises(DecodeCancelled):
        shared(pair, *wan[:2], progress=lambda *_: steps.append(1), cancel=lambda: len(steps) > 2)
    assert pids_of(pair) == before
    frames, groups = shared(pair, *wan[:2])
    assert pids_of(pair) == before
    assert near(frames, wan[2])
    assert groups[0] is not None


def test_a_cancel_is_seen_while_a_process_starts(wan: Any, caplog: Any) -> None:
    which, began = made(1), time.monotonic()
    with pytest.raises(DecodeCancelled, match="while the processes of other devices got ready"):
        which.share(*wan[:2], {}, lambda group: group, cancel=lambda: bool(pids_of(which)))
    assert time.monotonic() - began < 5
    assert not pids_of(which)
    assert not lines(caplog)


def test_what_ends_this_rank_alone_is_raised_and_the_next_decode_is_shared(
    pair: Workers, wan: Any, monkeypatch: Any
) -> None:
    def interrupted(group: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pair.share(*wan[:2], {"strategy": "streamed"}, interrupted)
    with monkeypatch.context() as patched:
        patched.setattr(pair, "_hear", interrupted)  # while the process starts
        with pytest.raises(KeyboardInterrupt):
            shared(pair, *wan[:2])
    assert not pids_of(pair)
    frames, groups = shared(pair, *wan[:2])
    assert near(frames, wan[2])
    assert groups[0] is not None
    assert pair.failures == 0


def test_what_only_fails_together_is_done_alone_with_one_line(
    pair: Workers, wan: Any, caplog: Any
) -> None:
    def work(group: Any) -> Any:
        return decode(*wan[:2], strategy="streamed" if group is None else "whole", group=group)

    frames = pair.share(*wan[:2], {"strategy": "streamed", "precision": "fp16"}, work)
    assert torch.equal(frames, wan[2])
    assert len(lines(caplog)) == 1
    assert "Not with cpu (the ranks of the group were not given the same" in lines(caplog)[0]
    assert shared(pair, *wan[:2])[1][0] is not None


def test_a_second_decode_at_the_same_time_is_done_alone(pair: Workers, wan: Any) -> None:
    inner: list[Any] = []

    def work(group: Any) -> Any:
        thread = threading.Thread(target=lambda: inner.append(shared(pair, *wan[:2])))
        thread.start()
        thread.join()
        pair.drop()  # not now
        return decode(*wan[:2], strategy="streamed", group=group)

    assert near(pair.share(*wan[:2], {"strategy": "streamed"}, work), wan[2])
    frames, groups = inner[0]
    assert groups == [None]
    assert torch.equal(frames, wan[2])


def test_processes_end_when_nobody_needs_them(wan: Any) -> None:
    which = made(1, idle_seconds=0.5)
    shared(which, *wan[:2])
    until = time.monotonic() + 20
    while pids_of(which) and time.monotonic() < until:
        time.sleep(0.1)
    assert not pids_of(which)


def test_a_process_answers_a_ping_and_ends_where_nobody_listens(tmp_path: Path) -> None:
    begin = {"device": "cpu", "threads": 1, "prepare": None}
    with (tmp_path / "errors").open("wb") as errors:
        started: Any = process.start(sys.executable, SERVE, stderr=errors.fileno(), variables={})
    with io.BufferedWriter(started.stdin) as to:
        to.write(process.header("mark", False, {}))
        to.write(bytes(8))  # a ping
        to.flush()
        with io.BufferedReader(started.stdout) as answers:
            assert answers.readline() == b"\n"
            line = answers.readline()
        assert line == b'mark {"event": "here", "value": null}\n'
        wire.send(to, wire.packed(("begin", begin)))
        to.flush()
        assert started.wait(SECONDS) == 0


PARENT = """
import os, signal
import torch
from decode_doubles import tiny_vae
from program_doubles import family_of, source_of
from hy3d_rocm.decoding.executor import decode
from hy3d_rocm.decoding.workers import Workers
family = family_of("wan", tiny_vae("wan"))
latents = source_of(family, False, 3, 8, 5)
cpu = torch.device("cpu")
which = Workers(cpu, [cpu])
which.share(family, latents, {}, lambda group: decode(family, latents, group=group))
print(*(worker.process.pid for worker in which._workers), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="it looks for processes as POSIX does")
def test_a_killed_parent_leaves_no_process(warm: Server, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with tempfile.TemporaryFile() as errors:
        parent = warm.run(script, stderr=errors.fileno(), environ=os.environ)
        told = parent.stdout.read()
        code = parent.wait(SECONDS)
        parent.stdin.close()
        parent.stdout.close()
        errors.seek(0)
        said = errors.read().decode()
    assert code == -signal.SIGKILL, said
    assert "VAE Decode" not in said  # nothing of a process reaches the console
    pid, until = int(told), time.monotonic() + 10
    while time.monotonic() < until and runs(pid):
        time.sleep(0.1)
    assert not runs(pid)


def runs(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie (of whoever adopts orphans)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("device", "environ", "is_hip", "wanted"),
    [
        ("cuda:1", {}, False, {"CUDA_VISIBLE_DEVICES": "1"}),
        ("cuda:1", {"CUDA_VISIBLE_DEVICES": "2, 5"}, False, {"CUDA_VISIBLE_DEVICES": "5"}),
        (
            "cuda:0", {"CUDA_VISIBLE_DEVICES": "GPU-ab,GPU-cd"}, False,
            {"CUDA_VISIBLE_DEVICES": "GPU-ab"},
        ),
        (
            "cuda:1", {"HIP_VISIBLE_DEVICES": "3,1", "CUDA_VISIBLE_DEVICES": "0,1"}, True,
            {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"},
        ),
        (
            "cuda:1", {"CUDA_VISIBLE_DEVICES": "0,2"}, True,
            {"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "2"},
        ),
        ("cpu", {}, False, {"HIP_VISIBLE_DEVICES": "-1", "CUDA_VISIBLE_DEVICES": "-1"}),
    ],
)  # fmt: skip
def test_a_process_sees_its_device_alone(
    device: str, environ: dict[str, str], is_hip: bool, wanted: dict[str, str]
) -> None:
    assert environment(torch.device(device), environ, is_hip) == wanted


def test_devices_of_two_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="cuda:1 can't decode with cpu: give devices of one kind"):
        Workers(CPU, [torch.device("cuda:1")])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float64"])
def test_sums_tell_tensors_apart(dtype: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (1, 7, 4096, 8 * 4096, 70_001):
        tensor = torch.randn(size, generator=generator).mul(20).to(getattr(torch, dtype))
        known = together.sums_of(tensor)
        assert together.sums_of(tensor.clone()) == known
        changed = tensor.clone()
        changed[size // 2] += 1
        assert together.sums_of(changed) != known
        if size > 1:
            assert together.sums_of(tensor.roll(1)) != known
            assert together.sums_of(torch.cat([tensor, tensor])[1 : 1 + size]) != known
