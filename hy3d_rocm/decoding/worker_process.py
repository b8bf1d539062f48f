"""One of the processes that Workers (workers.py) start, and what goes to it: pickled objects, whose
tensors follow as they are in memory. It answers in lines, as a probe does.

Both ends are ours and of one version. A message is a number, the sizes of its parts, and the
parts: the pickle, then each tensor's bytes.
"""

from __future__ import annotations

import io
import os
import pickle
import queue
import secrets
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, cast

import torch
from torch import Tensor

from hy3d_rocm.capture import VARIABLE as CAPTURE
from hy3d_rocm.conv.errors import first_line
from hy3d_rocm.conv.probe import process
from hy3d_rocm.decoding.copies import holds_resource
from hy3d_rocm.decoding.group import VARIABLES

SERVE = "hy3d_rocm.decoding.workers:serve"
#: that a process may take until it can decode: importing torch and the VAE's packages
START_SECONDS = 120.0
_END_SECONDS = 5.0
_LOOK_SECONDS = 0.25
_COUNT = struct.Struct("<Q")
_PLAIN = frozenset((Tensor, torch.nn.Parameter, torch.nn.Buffer))
_VISIBLE = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class WorkerError(RuntimeError):
    """A process can't be used; the text names its device and says why."""


class RefusedError(WorkerError):
    """A process can't take what it was sent, and never will."""


class WorkerProcess:
    """One process. WorkerError where it is gone or does not answer. is_gone: nothing will be heard
    of it any more."""

    def __init__(self, device: torch.device) -> None:
        python, reason = process.interpreter()
        if python is None:
            raise WorkerError(f"{device}: no process can be started: {reason}")
        self.device, self._why, self._nonce = device, "", secrets.token_hex(8)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        variables = {
            **environment(device, os.environ, bool(torch.version.hip)), process.INSIDE: "",
            CAPTURE: "", **VARIABLES,
        }  # fmt: skip
        self.process = process.start(
            python, SERVE, stderr=self._errors.fileno(), variables=variables
        )
        self._to = io.BufferedWriter(cast("io.RawIOBase", self.process.stdin))
        self._writes = threading.Lock()
        self._answers: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self._heard = time.monotonic()
        self.is_gone = False
        threading.Thread(target=self._read, daemon=True, name="hy3d-worker").start()
        self._to.write(process.header(self._nonce, False, {}))  # with the first message

    def ask(self, name: str, arguments: Mapping[str, Any]) -> None:
        """One of the methods of workers.Worker."""
        self.write(packed((name, dict(arguments))), START_SECONDS)

    def write(self, message: tuple[bytes, list[Tensor]], seconds: float) -> None:
        """Within so many seconds: one that does not read is killed."""
        timer = threading.Timer(seconds, self._kill, ["it did not read what it was sent"])
        timer.daemon = True
        timer.start()
        try:
            with self._writes:
                send(self._to, message)
            self._heard = time.monotonic()  # from here on it shall say something
        except (OSError, ValueError) as error:
            raise WorkerError(self.fate() or f"{self.device}: {error}") from error
        finally:
            timer.cancel()

    def ping(self, silent_seconds: float) -> None:
        """It shall say something; killed if it has not for so long."""
        silent = time.monotonic() - self._heard
        if silent > silent_seconds:
            self._kill(f"it is stopped or hangs (nothing was heard of it for {silent:.0f} s)")
        elif not self.is_gone:
            with suppress(OSError, ValueError), self._writes:
                self._to.write(_COUNT.pack(0))  # a message of nothing
                self._to.flush()

    def answer(self, until: float, look: Callable[[], None]) -> Any:
        """To the oldest question that has none. look: called now and then meanwhile."""
        said = None
        while True:
            look()
            try:
                said = self._answers.get(timeout=_LOOK_SECONDS)
                break
            except queue.Empty:
                if time.monotonic() > until:
                    self._kill("it did not answer in time")
                    break
        if said is not None and said[0] == "refused":
            raise RefusedError(f"{self.device}: {said[1]}")
        if said is None or said[0] == "failed":
            self._answers.put(None)
            self._why = self._why or (said[1] if said else "")
            raise WorkerError(self.fate() or f"{self.device}: it is gone")
        return said[1]

    def fate(self) -> str:
        """Why it can't be used, "" where it runs."""
        if not self._why:  # it may end just now; one that is gone has not been waited for yet
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_SECONDS if self.is_gone else 0.5)
        with suppress(queue.Empty):
            while not self._why and (said := self._answers.get_nowait()) is not None:
                if said[0] == "failed":
                    self._why = str(said[1])
        code = self.process.poll()
        if self._why or code is None:
            return self._why and f"{self.device}: {self._why}"
        ending = f"with exit code {code}"
        if code < 0:
            named = code in [-one for one in signal.Signals]
            ending = f"by {signal.Signals(-code).name if named else f'signal {-code}'}"
        return f"{self.device}: its process ended {ending}{self._last_line()}"

    def end(self) -> None:
        """Its memory is free afterwards."""
        with suppress(OSError, ValueError):
            self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_SECONDS)
        with suppress(OSError, ValueError):
            self._to.close()
        self._errors.close()

    def _kill(self, why: str) -> None:
        self._why = self._why or why
        self.process.kill()

    def _read(self) -> None:
        answers = cast("IO[bytes]", self.process.stdout)
        messages = process.Messages(self._nonce, self._hear)
        try:
            while data := os.read(answers.fileno(), 4096):
                messages.feed(data)
        except OSError:
            pass
        finally:
            self.is_gone = True
            self._answers.put(None)
            with suppress(OSError):
                answers.close()

    def _hear(self, message: dict[str, Any]) -> None:
        self._heard = time.monotonic()
        if message["event"] != "here":
            self._answers.put((message["event"], message["value"]))

    def _last_line(self) -> str:
        with suppress(OSError, ValueError):
            self._errors.seek(0)
            lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
            lines = [line for line in lines if not line.startswith("[W")]  # torch's warnings
            return f" ({lines[-1].strip()[:300]})" if lines else ""
        return ""


def environment(
    device: torch.device, environ: Mapping[str, str], is_hip: bool
) -> dict[str, str]:  # fmt: skip
    """The variables by which a process sees this device alone, as this process numbers it; no GPU
    for the CPU."""
    if device.type == "cpu":
        return dict.fromkeys(_VISIBLE, "-1")
    names = _VISIBLE if is_hip else _VISIBLE[1:]
    seen = next((environ[name] for name in names if environ.get(name, "").strip()), "")
    every = [one.strip() for one in seen.split(",")] if seen else []
    index = device.index or 0
    return dict.fromkeys(names, every[index] if index < len(every) else str(index))


# Messages


class UnsendableError(TypeError):
    """An object can't be sent to another process; the text is a part of a sentence."""


class _Pickler(pickle.Pickler):
    """Puts tensors aside. An attribute of a module that holds a resource of this process
    (copies.py) is left out."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self._known: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> Any:
        """Of a tensor its number, and what it is."""
        if not isinstance(obj, Tensor):
            return None
        if type(obj) not in _PLAIN or obj.is_meta or obj.layout is not torch.strided:
            raise UnsendableError(f"it holds a {type(obj).__name__} on {obj.device}")
        number = self._known.setdefault(id(obj), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(obj)
        return number, isinstance(obj, torch.nn.Parameter), obj.dtype, tuple(obj.shape)

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, torch.nn.Module):
            return NotImplemented
        made: Any = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        how, arguments, state, *rest = made
        if isinstance(state, dict):
            state = {name: value for name, value in state.items() if not holds_resource(value)}
        return how, arguments, state, *rest


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], parts: Sequence[bytearray]) -> None:
        super().__init__(file)
        self._parts = parts
        self._made: dict[int, Tensor] = {}

    def persistent_load(self, pid: Any) -> Tensor:
        number, is_parameter, dtype, shape = pid
        if number not in self._made:
            made = torch.empty(shape, dtype=dtype, device="cpu")
            if self._parts[number]:
                made = torch.frombuffer(self._parts[number], dtype=dtype).view(shape)
            self._made[number] = (
                torch.nn.Parameter(made, requires_grad=False) if is_parameter else made
            )
        return self._made[number]


def packed(message: Any) -> tuple[bytes, list[Tensor]]:
    """An object as send() takes it. UnsendableError where it can't be pickled."""
    pickler = _Pickler(file := io.BytesIO())
    try:
        pickler.dump(message)
    except UnsendableError:
        raise
    except Exception as error:  # whatever an object's own code raises
        raise UnsendableError(f"it can't be pickled: {first_line(error, 500)}") from error
    return file.getvalue(), pickler.tensors


def unpacked(frames: Sequence[bytearray]) -> Any:
    """The object of a message; its tensors are on the CPU."""
    return _Unpickler(io.BytesIO(frames[0]), frames[1:]).load()


def send(file: IO[bytes], message: tuple[bytes, Sequence[Tensor]]) -> None:
    """Writes what packed() made. OSError where nobody reads."""
    text, tensors = message
    sizes = [len(text), *(tensor.nbytes for tensor in tensors)]
    file.write(_COUNT.pack(len(sizes)) + b"".join(map(_COUNT.pack, sizes)) + text)
    for tensor in tensors:
        if tensor.nbytes:
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)
    file.flush()


def receive(file: IO[bytes]) -> list[bytearray] | None:
    """The parts of the next message, none of a ping (an empty one), None at the end of the pipe."""
    try:
        count = _COUNT.unpack(_exactly(file, _COUNT.size))[0]
        sizes = [_COUNT.unpack(_exactly(file, _COUNT.size))[0] for _ in range(count)]
        return [_exactly(file, size) for size in sizes]
    except (EOFError, OSError, ValueError):
        return None


def _exactly(file: IO[bytes], size: int) -> bytearray:
    made = bytearray(size)
    if file.readinto(made) != size:  # type: ignore[attr-defined]
        raise EOFError
    return made
