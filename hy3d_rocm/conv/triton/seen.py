"""Which kernels were compiled before: in this process, or, by a note in Triton's cache, in another.

Triton tells nobody whether a kernel lies in its cache, and how it names one differs by version. So
an empty file in a folder of ours within the cache's folder is the note that a kernel was compiled;
who deletes the cache deletes the notes. Its name holds all that we know to matter: the kernel's
source and constants, types, what is known of addresses, architecture, Triton's version.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hy3d_rocm.conv.verdict_store.machine import triton_versions

if TYPE_CHECKING:
    from hy3d_rocm.conv.triton.item import Launch

_here: set[str] = set()
_locks: dict[str, threading.Lock] = {}
_guard = threading.Lock()


@functools.cache
def architecture(index: int | None) -> str:
    """ "gfx1100" or "sm_90" of a GPU; "cpu" without one, for the interpreter."""
    if index is None:
        return "cpu"
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip is not None:
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"


@functools.cache
def _source() -> str:
    return hashlib.sha256(Path(__file__).with_name("kernel.py").read_bytes()).hexdigest()


def name_of(item: Launch, dtypes: Sequence[torch.dtype], known: int, index: int | None) -> str:
    """A kernel's name: equal for launches that share a compiled kernel.

    dtypes: of the operands, in order; known: as in jit.launch; index: of the GPU.
    """
    blocks = [block for _, _, block in item.blocks]
    parts = (
        item.kernel, item.constants, item.num_warps, item.num_stages, blocks,
        [str(dtype) for dtype in dtypes], known, architecture(index), triton_versions(), _source(),
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def is_new(name: str) -> bool:
    """Whether the kernel would be compiled now, as far as the notes tell."""
    return name not in _here and not (_folder() / name).exists()


def note(name: str, *, on_disk: bool) -> None:
    """The kernel was compiled. A note that can't be written isn't: it only foretells."""
    _here.add(name)
    if not on_disk:
        return
    try:
        _folder().mkdir(parents=True, exist_ok=True)
        (_folder() / name).touch()
    except OSError:
        pass


def lock_of(name: str) -> threading.Lock:
    """The lock under which this kernel, and no other, is compiled."""
    with _guard:
        return _locks.setdefault(name, threading.Lock())


def _folder() -> Path:
    """Within Triton's cache, where Triton 3.3 to 3.6 look for it."""
    cache = os.environ.get("TRITON_CACHE_DIR")
    if not cache:
        home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
        cache = os.path.join(home, ".triton", "cache")
    return Path(cache) / "hy3d_rocm"
