"""A process of Workers (workers.py): a rank with a device of its own (conv/probe/child.py).

It reads messages (worker_process.py) and answers in lines. Where the input ends the process ends,
whatever it is doing: so it outlives nobody. What it logs goes to standard error, which the host
keeps in a file.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from hy3d_rocm import meter
from hy3d_rocm.conv.errors import described
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.decoding import worker_process as wire
from hy3d_rocm.decoding.executor import decode_with_report, encode_with_report
from hy3d_rocm.decoding.families import unproven_family
from hy3d_rocm.decoding.families.base import Host
from hy3d_rocm.decoding.plan import BudgetTooSmallError
from hy3d_rocm.decoding.report import DecodeCancelled
from hy3d_rocm.decoding.workers import made_group


def serve(header: dict[str, Any], commands: Any, report: Callable[[dict[str, Any]], None]) -> None:
    """Does what the messages in `commands` say."""
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
                name, arguments = wire.unpacked(frames)
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
        while (frames := wire.receive(commands)) is not None:
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
        self.group = made_group(port, rank, size, timeout, self.device)
        self.group.meet("the beginning of a group")

    def hold(self, vae: Any, host: tuple[Any, ...] | None) -> None:
        """A VAE, which takes the place of the one before. host: (type, what makes weights, whether
        they have patches in them) where a program manages it."""
        self.drop()
        self._vae, self._host = vae.to(self.device), host

    def drop(self) -> None:
        self._vae = None
        meter.give_back(self.device)

    def carry_out(
        self, shape: tuple[int, ...], dtype: Any, wishes: dict[str, Any], timestep: float | None,
        encode: bool,
    ) -> str:  # fmt: skip
        """A decode or encode, with all ranks; the host sends its part of what has this shape."""
        host = self._host
        family = unproven_family(self._vae, encode, casts=host is not None and host[2])
        family.timestep = timestep
        if family.seen is not None:
            family.seen.proven = True  # the host has asked it
        if host is not None:
            family.host = Host(self.device, host[0], host[1], casts=host[2])
        try:
            with protect():
                work = encode_with_report if encode else decode_with_report
                source = torch.empty(shape, dtype=dtype, device="meta")
                work(family, source, group=self.group, **wishes)
        finally:
            meter.give_back(self.device)
        return ""
