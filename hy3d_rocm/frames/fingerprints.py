"""Fingerprints of latents and files, of every byte: a decode that goes on is known by them."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hy3d_rocm import _native

_PIECE_BYTES = 64 << 20  # of a file, read at a time
# A file that was written so shortly before may be written once more within one tick of its time.
_SETTLED_NS = 2_000_000_000


def tensor_fingerprint(tensor: Tensor) -> str:
    """sha256 of a CPU tensor's type, shape and bytes."""
    data = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{data.dtype} {tuple(data.shape)} ".encode())
    digest.update(data.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def file_fingerprint(file: Path) -> str:
    """Of all bytes of a file: sha256 over the C core's fingerprints of its pieces, whose chance to
    be equal for other bytes is below 2^-63 each (without the core: sha256 of the bytes)."""
    digest = hashlib.sha256(str(file.stat().st_size).encode())
    piece = np.empty(_PIECE_BYTES, np.uint8)
    with open(file, "rb") as opened:
        while count := opened.readinto(piece.data):
            if _native.available:
                piece[count : count + 4] = 0  # whole words; the size tells their end
                words = piece[: -(-count // 4) * 4].view(np.float32)
                digest.update(repr(_native.fingerprint(words)).encode())
            else:
                digest.update(piece[:count].data)
    return ("core " if _native.available else "sha256 ") + digest.hexdigest()


class FileFingerprints:
    """Fingerprints of files. known: what as_dict() gave in an earlier process; a file whose size,
    times and place on the disk are those of then is not read again, but for Windows, where all
    times can be set back."""

    def __init__(self) -> None:
        self.known: Mapping[str, Any] = {}
        self._found: dict[str, dict[str, Any]] = {}

    def of(self, files: list[Path]) -> str:
        """One fingerprint of several files, by name and content."""
        digest = hashlib.sha256()
        for file in sorted(files, key=lambda f: f.name):
            digest.update(f"{file.name} {self._one(file)}\n".encode())
        return digest.hexdigest()

    def _one(self, file: Path) -> str:
        key = os.path.abspath(file)
        state = _state(file)
        then = self.known.get(key)
        if not isinstance(then, dict) or then.get("state") != state or not _is_settled(then):
            began = time.time_ns()
            then = {"state": state, "read": began, "fingerprint": file_fingerprint(file)}
        self._found[key] = then
        return str(then["fingerprint"])

    def changed(self) -> Path | None:
        """A file that is another one now than when its fingerprint was taken."""
        for name, then in self._found.items():
            if _state(Path(name)) != then["state"]:
                return Path(name)
        return None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return dict(self._found)


def _state(file: Path) -> list[int]:
    """Also what nobody can set back: the time of the last change of anything of the file."""
    found = file.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]


def _is_settled(then: Mapping[str, Any]) -> bool:
    if sys.platform == "win32":
        return False
    changed = max(then["state"][1:3])
    return isinstance(then.get("read"), int) and then["read"] - changed > _SETTLED_NS
