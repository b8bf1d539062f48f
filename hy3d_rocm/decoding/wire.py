"""What goes through the pipes between Workers and their processes: pickled objects, whose tensors
follow as they are in memory.

Both ends are ours and of one version. A message is two numbers, the sizes of its parts, and the
parts: the pickle, then each tensor's bytes.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Sequence
from typing import IO, Any

import torch
from torch import Tensor

from hy3d_rocm.conv.errors import first_line
from hy3d_rocm.decoding.copies import holds_resource

_COUNT = struct.Struct("<Q")
_PLAIN = frozenset((Tensor, torch.nn.Parameter, torch.nn.Buffer))


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
        """See pickle."""
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


def ping(file: IO[bytes]) -> None:
    """A message of nothing."""
    file.write(_COUNT.pack(0))
    file.flush()


def _exactly(file: IO[bytes], size: int) -> bytearray:
    made = bytearray(size)
    view, at = memoryview(made), 0
    while at < size:
        read: int = file.readinto(view[at:])  # type: ignore[attr-defined]
        if not read:
            raise EOFError
        at += read
    return made
