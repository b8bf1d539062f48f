"""Keys, records and child processes for the tests of the verdict store."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from hy3d_rocm.conv.verdict_store import store as _store
from hy3d_rocm.conv.verdict_store.records import Key, Record

_PATIENT = "import verdict_store_doubles; verdict_store_doubles.be_patient()"
ROOT = Path(__file__).resolve().parents[2]


def be_patient() -> None:
    """The machine that runs the tests may be slower than a decode should wait for."""
    _store.OPEN_S = _store.TRY_S = 60.0


def key(number: int = 0, **changes: str) -> Key:
    plain = Key(
        "conv3d", f"1x8x5x{number}x16 w8x8x3x3x3 p1x1x1", "bf16", "contiguous", "gfx1100",
        "amdgpu 6.10.5", "2.9.0+rocm6.4", "hip 6.4, miopen 3.4.0", "0.1.0",
    )  # fmt: skip
    return plain._replace(**changes)


def record(tier: str = "triton", verdict: str = "ok", **values: Any) -> Record:
    return Record(tier, verdict, **{"seconds": 0.001, "when": 1e9, **values})


def tables(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What is in the file, read by a connection of its own; the file is checked as well.
    A file whose maker was killed early, or had no room, has no tables yet."""
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        made = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
        return {
            name: connection.execute(f"SELECT * FROM {name}").fetchall() if name in made else []
            for name in ("records", "trying")
        }
    finally:
        connection.close()


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A child that runs `code` with this checkout and these doubles on its path."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
    return subprocess.Popen(
        [sys.executable, "-c", f"{_PATIENT}\n{code}", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(child: subprocess.Popen[str], seconds: float = 60) -> str:
    """Its output, once it has ended well."""
    out, error = child.communicate(timeout=seconds)
    assert child.returncode == 0, error
    return out


def spec(**changes: Any) -> Any:
    """A call's ConvSpec, with fields replaced."""
    import torch

    from hy3d_rocm.conv.call import make_spec

    x, weight = torch.zeros(1, 4, 3, 6, 5), torch.zeros(8, 2, 3, 3, 3)
    made = make_spec((x, weight, torch.zeros(8), (1, 2, 2), (0, 1, 1), 1, 2), 3)
    assert made is not None
    return dataclasses.replace(made, **changes)
