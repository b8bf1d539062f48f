"""A process of Workers (workers.py): a rank with a device of its own. Started as a script, -I.

It reads messages (worker_process.py) from its standard input and answers on its standard output;
the host's sys.path comes before them, as a line of JSON. Where the input ends the process ends,
whatever it is doing: so it outlives nobody. What it logs goes to standard error, which the host
keeps in a file.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

_PACKAGE = Path(__file__).resolve().parents[1]


def main() -> NoReturn:
    # The pipes on 0 and 1 go out of the reach of what runs here.
    control, out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    commands, answers = os.fdopen(control, "rb"), os.fdopen(out, "wb")
    line = commands.readline()
    if not line:
        os._exit(0)
    sys.path[:] = json.loads(line)
    # The host may have loaded the package from a folder that is on no path.
    spec = importlib.util.spec_from_file_location(
        "hy3d_rocm", _PACKAGE / "__init__.py", submodule_search_locations=[str(_PACKAGE)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["hy3d_rocm"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    Worker(commands, answers).run()


class Worker:
    """What the host's messages, (name, arguments), do: a method each."""

    def __init__(self, commands: Any, answers: Any) -> None:
        from hy3d_rocm.decoding import worker_process as wire

        self._wire, self._answers = wire, answers
        self._said = threading.Lock()
        self._waiting: queue.SimpleQueue[list[bytearray]] = queue.SimpleQueue()
        self._vae: Any = None
        threading.Thread(target=self._read, args=(commands,), daemon=True).start()

    def run(self) -> NoReturn:
        """Carries out one message after the other. The process ends with the first that fails,
        once it has said how: what other ranks wait for from it will not come."""
        from hy3d_rocm.conv.errors import described
        from hy3d_rocm.decoding.plan import BudgetTooSmallError
        from hy3d_rocm.decoding.report import DecodeCancelled

        while True:
            frames = self._waiting.get()
            try:
                name, arguments = self._wire.unpacked(frames)
            except Exception as error:  # noqa: BLE001 - whatever the code of an object raises
                self._say("refused", described(error, 500))
                continue
            try:
                answer = getattr(self, name)(**arguments)
            except (DecodeCancelled, BudgetTooSmallError) as error:  # all ranks have raised it
                answer = str(error)
            except BaseException as error:  # noqa: BLE001
                self._say("failed", described(error, 500))
                sys.stderr.flush()
                os._exit(1)
            del frames, arguments  # a VAE is large, and the next message may be far
            self._say("done", answer)

    def _read(self, commands: Any) -> None:
        while (frames := self._wire.receive(commands)) is not None:
            if frames:
                self._waiting.put(frames)
            else:
                self._say("here", None)
        os._exit(0)

    def _say(self, what: str, value: Any) -> None:
        with self._said:
            try:
                self._wire.send(self._answers, self._wire.packed((what, value)))
            except OSError:  # nobody is there any more
                os._exit(0)

    # What is asked

    def begin(
        self, device: str, threads: int, flags: dict[str, bool], prepare: Callable[[], None] | None
    ) -> str:
        """Its device's name. device: the kind; of GPUs this process sees one."""
        import torch

        if prepare is not None:
            prepare()
        self.device = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
        for name, value in flags.items():
            getattr(torch._C, f"_set_{name}")(value)
        if self.device.type == "cpu":
            torch.set_num_threads(threads)
            return "CPU"
        torch.cuda.set_device(self.device)
        torch.zeros(1, device=self.device)
        return torch.cuda.get_device_name(self.device)

    def join(self, port: int, rank: int, size: int, timeout: float) -> None:
        """The group's store listens at the port."""
        from hy3d_rocm.decoding.workers import made_group

        self.group = made_group(port, rank, size, timeout, self.device)
        self.group.meet("the beginning of a group")

    def hold(self, vae: Any, host: tuple[Any, ...] | None) -> None:
        """A VAE, which takes the place of the one before. host: (type, what makes weights, whether
        they have patches in them) where a program manages it."""
        self.drop()
        self._vae, self._host = vae.to(self.device), host

    def drop(self) -> None:
        from hy3d_rocm import meter

        self._vae = None
        meter.give_back(self.device)

    def carry_out(
        self, shape: tuple[int, ...], dtype: Any, wishes: dict[str, Any], timestep: float | None,
        encode: bool,
    ) -> str:  # fmt: skip
        """A decode or encode, with all ranks; the host sends its part of what has this shape."""
        import torch

        from hy3d_rocm import meter
        from hy3d_rocm.conv.protection import protect
        from hy3d_rocm.decoding.executor import decode_with_report, encode_with_report
        from hy3d_rocm.decoding.families import unproven_family
        from hy3d_rocm.decoding.families.base import Host

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


if __name__ == "__main__":
    main()
