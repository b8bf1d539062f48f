"""What this machine's convolutions have taught: which tier does which shape, how fast, how well.

Names are loaded on first use; nothing here imports torch at the top. The process's own store is
`hy3d_rocm.conv.knowledge.store.store()`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hy3d_rocm.conv.knowledge.keys import Key, make_key
    from hy3d_rocm.conv.knowledge.machine import Machine, this_machine
    from hy3d_rocm.conv.knowledge.records import VERDICTS, Record
    from hy3d_rocm.conv.knowledge.store import Store

_HOME = {
    "VERDICTS": "records",
    "Key": "keys",
    "Machine": "machine",
    "Record": "records",
    "Store": "store",
    "make_key": "keys",
    "this_machine": "machine",
}

__all__ = ["VERDICTS", "Key", "Machine", "Record", "Store", "make_key", "this_machine"]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
