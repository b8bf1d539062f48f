"""Workers: further devices of this machine, each with a process of its own, that decode and encode
with us.

    workers = Workers(torch.device("cuda:0"), [torch.device("cuda:1")])
    frames = workers.share(family, z, {}, lambda group: decode(family, z, group=group))

This process is rank 0 of the group, whose process groups are made by hand: torch.distributed's
default group is left to others. The processes (serve() below) start with the first decode and keep
the weights of the last VAE; they end with close(), after `idle_seconds` without a decode, and with
this process, however that ends. Whatever is wrong with one of them this process decodes alone.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed
from torch import Tensor

from hy3d_rocm import meter
from hy3d_rocm.conv.errors import described, first_line
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.decoding import together, worker_process
from hy3d_rocm.decoding.copies import tensors_of
from hy3d_rocm.decoding.executor import decode_with_report, encode_with_report
from hy3d_rocm.decoding.families import unproven_family
from hy3d_rocm.decoding.families.base import Host, StructuredFamily
from hy3d_rocm.decoding.families.changes import examined
from hy3d_rocm.decoding.group import TIMEOUT_SECONDS, VARIABLES, Group
from hy3d_rocm.decoding.plan import BudgetTooSmallError
from hy3d_rocm.decoding.planning.jobs import Job, torch_backend
from hy3d_rocm.decoding.report import DecodeCancelled
from hy3d_rocm.decoding.stages import asked_to_stop, stage_of, warn_alone
from hy3d_rocm.decoding.worker_process import WorkerError, WorkerProcess

logger = logging.getLogger("hy3d_rocm")

_dist: Any = torch.distributed  # whose C++ classes have no types

Result = TypeVar("Result")

#: decodes in a row that a process was lost in, after which none is shared any more
MOST_FAILURES = 3
_PING_SECONDS = 1.0
# Until all processes have ended a decode that this one has ended, and where it failed in it.
_SETTLE_SECONDS, _FAILED_SECONDS = 30.0, 5.0
_LOCALHOST = "127.0.0.1"
_MOST_TEXT = 500  # of an error in a line of the log


class Workers:
    """device: of this process. others: one process each. prepare: called in each before anything of
    the program that the VAEs are from is imported: a function that can be pickled.

    share() is for one decode at a time: a second one that begins meanwhile is done alone.
    """

    timeout = TIMEOUT_SECONDS  # as Group's
    start_seconds = worker_process.START_SECONDS
    #: after which processes that nobody needs end
    idle_seconds = 600.0
    #: without a word from a process, which says one each second unless it is stopped or hangs
    silent_seconds = 60.0

    def __init__(
        self, device: torch.device, others: Sequence[torch.device],
        prepare: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        for other in others:
            if other.type != device.type or other.type not in ("cpu", "cuda"):
                raise ValueError(
                    f"{other} can't decode with {device}: give devices of one kind, GPUs or CPUs"
                )
        self.device, self.others, self.prepare = device, tuple(others), prepare
        self.failures = 0
        self._lock = threading.Lock()
        self._workers: list[WorkerProcess] = []
        self._group: Group | None = None
        self._held: tuple[Any, Any] | None = None  # a VAE (weakly) and what it was
        self._refused: tuple[Any, Any] | None = None
        self._timer: threading.Timer | None = None
        self._cancel: Any = None
        self._encodes = False

    def share(
        self, family: Any, source: Tensor, wishes: Mapping[str, Any],
        work: Callable[[Group | None], Result], cancel: Any = None, encode: bool = False,
    ) -> Result:  # fmt: skip
        """work(group), in which this process decodes (or encodes) `source` by the family as rank 0
        of the group, while the others do the same; work(None) where that can't be, or failed: a
        line in the log says why.

        wishes: budget, strategy and precision of the others' decode(): a budget in bytes counts on
        each device, others of what is free there. What `work` raises alone is raised. cancel: as
        decode()'s, asked while processes start: DecodeCancelled.
        """
        if self.failures >= MOST_FAILURES or not self._lock.acquire(blocking=False):
            return work(None)
        try:
            if self._timer is not None:
                self._timer.cancel()
            self._encodes = encode
            return self._shared(family, source, wishes, work, cancel)
        finally:
            if self._workers:
                self._timer = threading.Timer(self.idle_seconds, self.close)
                self._timer.daemon = True
                self._timer.start()
            self._lock.release()

    def drop(self) -> None:
        """The processes give the VAE's memory back, and stay. Nothing while they decode."""
        if self._workers and self._lock.acquire(blocking=False):
            try:
                self._held = None
                for worker in self._workers:
                    worker.ask("drop", {})
                self._hear(_FAILED_SECONDS)
            except WorkerError:
                self._end()
            finally:
                self._lock.release()

    def close(self) -> None:
        """The processes end, and all their memory is free; a later decode starts others. Nothing
        while they decode."""
        if self._lock.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._lock.release()

    # One decode

    def _shared(
        self, family: Any, source: Tensor, wishes: Mapping[str, Any],
        work: Callable[[Group | None], Result], cancel: Any,
    ) -> Result:  # fmt: skip
        why = why_alone(family, source, self._encodes, str(wishes.get("strategy", "auto")))
        if why:
            verb = "Encoding" if self._encodes else "Decoding"
            self._log(logging.INFO, "%s on %s alone: %s", verb, self.device, why)
            return work(None)
        try:
            self._cancel = cancel
            group = self._ready(family, source, wishes)
        except worker_process.UnsendableError as error:
            self._refuse(family, f"this VAE can't be sent to another process: {error}")
            return work(None)
        except BaseException as error:
            self._end()  # some may have been told, and others not
            if isinstance(error, DecodeCancelled) or not isinstance(error, Exception):
                raise
            if isinstance(error, worker_process.RefusedError):
                self._refuse(family, str(error))
                return work(None)
            logger.debug("hy3d_rocm: the processes of a decode", exc_info=True)
            self._log_alone(first_line(error, _MOST_TEXT))
            self._failed()
            return work(None)
        finally:
            self._cancel = None
        if group is None:
            return work(None)
        try:
            result = self._watched(group, work)
        except BaseException as error:
            orderly = self._settle(group, _FAILED_SECONDS)
            may_be_theirs = isinstance(error, (ValueError, RuntimeError, MemoryError))
            if isinstance(error, DecodeCancelled) or not may_be_theirs:
                raise
            others = " and ".join(map(str, self.others))
            self._log_alone(f"Not with {others} ({first_line(error, _MOST_TEXT)})")
            result = work(None)
            if not orderly:
                self._failed()
            return result
        if self._settle(group, _SETTLE_SECONDS):
            self.failures = 0
        else:
            self._failed()
        return result

    def _ready(self, family: Any, source: Tensor, wishes: Mapping[str, Any]) -> Group | None:
        """The group, whose others have begun their part; None for a VAE that they have refused."""
        now = _state_of(family)
        if _is(self._refused, family.vae, now):
            return None
        wanted = {
            "shape": tuple(source.shape), "dtype": source.dtype, "wishes": dict(wishes),
            "timestep": family.timestep, "encode": self._encodes,
        }  # fmt: skip
        part = worker_process.packed(("carry_out", wanted))
        if any(worker.is_gone for worker in self._workers):
            self._end()
        if not _is(self._held, family.vae, now):
            self._held = None
            vae = worker_process.packed(("hold", {"vae": family.vae, "host": _host_of(family)}))
            if not self._workers:
                self._start()
            for worker in self._workers:
                worker.write(vae, self.start_seconds)
            self._hear(self.start_seconds)
            self._held = (weakref.ref(family.vae), now)
        for worker in self._workers:
            worker.write(part, self.start_seconds)
        return self._group

    def _watched(self, group: Group, work: Callable[[Group | None], Result]) -> Result:
        """work(group). A process that says nothing for too long is killed, which ends all waits."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(_PING_SECONDS):
                for worker in self._workers:
                    worker.ping(self.silent_seconds)
                if any(worker.is_gone for worker in self._workers):
                    group.abort()  # this GPU waits for it
                    return

        watcher = threading.Thread(target=watch, daemon=True, name="hy3d-workers")
        watcher.start()
        try:
            return work(group)
        finally:
            stop.set()
            watcher.join()

    def _settle(self, group: Group, seconds: float) -> bool:
        """After a decode: whether all processes have ended theirs and can do another. Else they are
        ended."""
        try:
            group.check()
            self._hear(seconds)
        except (WorkerError, ConnectionError):
            self._end()
            return False
        return True

    def _failed(self) -> None:
        self.failures += 1
        if self.failures >= MOST_FAILURES:
            self._log(
                logging.WARNING, "That was so %d times in a row: from now on %s decodes and "
                "encodes alone, until a restart", self.failures, self.device,
            )  # fmt: skip

    def _refuse(self, family: Any, why: str) -> None:
        """Remembered, so that a VAE costs one line and one attempt."""
        self._refused = (weakref.ref(family.vae), _state_of(family))
        self._log_alone(why)

    def _log_alone(self, why: str) -> None:
        warn_alone(why, self._encodes, self.device)

    def _log(self, level: int, text: str, *values: object) -> None:
        logger.log(level, f"[%s] {text}", stage_of(self._encodes), *values)

    # Processes

    def _start(self) -> None:
        """All of them, at the same time."""
        began, size = time.perf_counter(), 1 + len(self.others)
        atexit.register(self.close)
        begin = {
            "device": self.device.type, "threads": max(torch.get_num_threads() // size, 1),
            "prepare": self.prepare,
        }  # fmt: skip
        for other in self.others:
            self._workers.append(WorkerProcess(other))
            self._workers[-1].ask("begin", begin)
        names = self._hear(self.start_seconds)
        self._group = self._joined(size)
        told = [f"{other} ({name})" for other, name in zip(self.others, names, strict=True)]
        verb = "encodes" if self._encodes else "decodes"
        self._log(
            logging.INFO, "%s %s with %s, started in %.1f s",
            self.device, verb, " and ".join(told), time.perf_counter() - began,
        )  # fmt: skip

    def _joined(self, size: int) -> Group:
        store = _store(0, True)
        for rank, worker in enumerate(self._workers, 1):
            join = {"port": store.port, "rank": rank, "size": size, "timeout": self.timeout}
            worker.ask("join", join)
        control, data = _process_groups(store, 0, size, self.timeout, self.device)
        group = _SharedGroup(control, data, self.timeout)
        group.workers = self._workers
        group.meet("the beginning of a group")
        self._hear(self.start_seconds)
        return group

    def _hear(self, seconds: float) -> list[Any]:
        until = time.monotonic() + seconds
        return [worker.answer(until, self._look) for worker in self._workers]

    def _look(self) -> None:
        if asked_to_stop(self._cancel):
            raise DecodeCancelled("cancelled while the processes of other devices got ready")

    def _end(self) -> None:
        atexit.unregister(self.close)
        if self._group is not None:  # before the others are gone, and before it is deleted
            self._group.abort()
        for worker in self._workers:
            worker.end()
        self._workers, self._group, self._held = [], None, None


class _SharedGroup(Group):
    """A group of Workers, which knows more about a rank that is lost."""

    workers: Sequence[WorkerProcess] = ()

    def lose(self, why: str) -> NoReturn:
        told = [said for worker in self.workers if (said := worker.fate())]
        first = [said for said in told if "GroupLostError" not in said]  # the others lost that one
        super().lose("; ".join(first or told) or why)


def why_alone(
    family: Any, source: Tensor, encode: bool = False, strategy: str = "auto"
) -> str:  # fmt: skip
    """Why several devices can't decode or encode this together, or need not; or nothing, ""."""
    if not _dist.is_available() or not _dist.is_gloo_available():
        return "this PyTorch was built without torch.distributed's gloo"
    if not isinstance(family, StructuredFamily) or family.is_opaque:
        return "of this VAE nothing but its own code is known"
    job = Job(
        family, tuple(source.shape), family.device, family.dtype, family.dtype, torch_backend,
        encode=encode,
    )  # fmt: skip
    if source.shape[0] > 1:  # the samples may be shared
        return ""
    return together.why_not_by(strategy) or together.why_not_rows(job)


# In a process: a rank with a device of its own, started by conv/probe/child.py


def serve(header: dict[str, Any], commands: Any, report: Callable[[dict[str, Any]], None]) -> None:
    Worker(header["flags"], commands, report).run()


class Worker:
    """What the host's messages, (name, arguments), do: a method each."""

    def __init__(
        self, flags: dict[str, bool], commands: Any, report: Callable[[dict[str, Any]], None]
    ) -> None:
        self._flags, self._report = flags, report
        self._waiting: queue.SimpleQueue[list[bytearray]] = queue.SimpleQueue()
        self._vae: Any = None
        threading.Thread(target=self._read, args=(commands,), daemon=True).start()

    def run(self) -> NoReturn:
        """Carries out one message after the other. The process ends with the first that fails,
        once it has said how: what other ranks wait for from it will not come."""
        while True:
            frames = self._waiting.get()
            try:
                name, arguments = worker_process.unpacked(frames)
            except Exception as error:  # noqa: BLE001 - whatever the code of an object raises
                self._say("refused", described(error, 500))
                continue
            try:
                answer = getattr(self, name)(**arguments)
            except (DecodeCancelled, BudgetTooSmallError) as error:  # all ranks have raised it
                answer = str(error)[:500]
            except BaseException as error:  # noqa: BLE001
                self._say("failed", described(error, 500))
                sys.stderr.flush()
                os._exit(1)
            del frames, arguments  # a VAE is large, and the next message may be far
            self._say("done", answer)

    def _read(self, commands: Any) -> None:
        while (frames := worker_process.receive(commands)) is not None:
            if frames:
                self._waiting.put(frames)
            else:
                self._say("here", None)
        os._exit(0)

    def _say(self, what: str, value: Any) -> None:
        try:
            self._report({"event": what, "value": value})
        except OSError:  # nobody is there any more
            os._exit(0)

    # What is asked

    def begin(self, device: str, threads: int, prepare: Callable[[], None] | None) -> str:
        """Its device's name. device: the kind; of GPUs this process sees one."""
        if prepare is not None:
            prepare()
        self.device = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
        for name, value in self._flags.items():
            getattr(torch._C, f"_set_{name}")(value)
        if self.device.type == "cpu":
            torch.set_num_threads(threads)
            return "CPU"
        torch.cuda.set_device(self.device)
        torch.zeros(1, device=self.device)
        return torch.cuda.get_device_name(self.device)

    def join(self, port: int, rank: int, size: int, timeout: float) -> None:
        """The group's store listens at the port."""
        groups = _process_groups(_store(port, False), rank, size, timeout, self.device)
        self.group = Group(*groups, timeout)
        self.group.meet("the beginning of a group")

    def hold(self, vae: Any, host: Host | None) -> None:
        """A VAE, which takes the place of the one before. host: where a program manages it."""
        self.drop()
        self._vae = vae.to(self.device)
        self._host = None if host is None else replace(host, device=self.device)

    def drop(self) -> None:
        self._vae = None
        meter.give_back(self.device)

    def carry_out(
        self, shape: tuple[int, ...], dtype: Any, wishes: dict[str, Any], timestep: float | None,
        encode: bool,
    ) -> str:  # fmt: skip
        """A decode or encode, with all ranks; the host sends its part of what has this shape."""
        host = self._host
        family = unproven_family(self._vae, encode, casts=host is not None and host.casts)
        family.timestep = timestep
        if family.seen is not None:
            family.seen.proven = True  # the host has asked it
        family.host = host
        try:
            with protect():
                work = encode_with_report if encode else decode_with_report
                source = torch.empty(shape, dtype=dtype, device="meta")
                work(family, source, group=self.group, **wishes)
        finally:
            meter.give_back(self.device)
        return ""


# Which VAE a process has


def _is(known: tuple[Any, Any] | None, vae: Any, now: Any) -> bool:
    return known is not None and known[0]() is vae and known[1] == now


def _host_of(family: Any) -> Host | None:
    """The same wherever its weights are now."""
    nowhere = torch.device("meta")
    host: Host | None = family.host
    return None if host is None else replace(host, device=nowhere, runs_own_code=True)


def _state_of(family: Any) -> list[Any]:
    """How its weights are read, what its modules are set to, and sums over the weights, wherever
    these are now."""
    host = _host_of(family)
    casts = host is not None and host.casts
    states = [examined(family.vae, encode, casts).state for encode in (False, True)]
    tensors = [(t.dtype, t.shape, together.sums_of(t)) for t in tensors_of(family)]
    return [host, states, tensors]


# Process groups


def _store(port: int, is_first: bool) -> Any:
    more = {"use_libuv": False} if sys.platform == "win32" else {}
    limit = timedelta(seconds=worker_process.START_SECONDS)
    return _dist.TCPStore(
        _LOCALHOST, port, is_master=is_first, wait_for_workers=False, timeout=limit, **more
    )


def _process_groups(
    store: Any, rank: int, size: int, timeout: float, device: torch.device
) -> tuple[Any, Any]:
    limit = timedelta(seconds=timeout)
    options = _dist.ProcessGroupGloo._Options()
    options._devices = [_dist.ProcessGroupGloo.create_device(hostname=_LOCALHOST)]
    options._timeout = limit
    control = _dist.ProcessGroupGloo(_dist.PrefixStore("control", store), rank, size, options)
    if device.type != "cuda" or sys.platform == "win32" or not _dist.is_nccl_available():
        return control, None
    chosen = _dist.ProcessGroupNCCL.Options()
    chosen._timeout = limit
    with _variables():
        data = _dist.ProcessGroupNCCL(_dist.PrefixStore("data", store), rank, size, chosen)
    return control, data


@contextmanager
def _variables() -> Iterator[None]:
    """group.VARIABLES, and after it what was there: other groups of this process are others'."""
    before = {name: os.environ.get(name) for name in VARIABLES}
    os.environ.update(VARIABLES)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
