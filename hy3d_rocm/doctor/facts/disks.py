"""Room on the disks that caches are written to, and what our own database knows."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from hy3d_rocm.conv.verdict_store.place import IN_MEMORY, default_path, own_path
from hy3d_rocm.doctor.miopen.contents import quiet_address, sides_of
from hy3d_rocm.doctor.miopen.places import home_of, places


def collect(environ: Mapping[str, str], *, windows: bool = os.name == "nt") -> dict[str, Any]:
    """{"disks": [{"path", "uses", "free_bytes", "total_bytes"}], "knowledge": {...}}."""
    home = home_of(environ, windows)
    database = own_path(default_path(environ, str(home), windows=windows))
    folders = {f"MIOpen's {place.kind}": place.path for place in places(environ)}
    folders["Triton's kernels"] = Path(
        environ.get("TRITON_CACHE_DIR") or Path(environ.get("TRITON_HOME") or home, ".triton/cache")
    )
    folders["temporary files"] = Path(tempfile.gettempdir())
    if database != IN_MEMORY:
        folders["the database of measured convolutions"] = Path(database).parent
    return {"disks": disks(folders), "knowledge": knowledge(database)}


def disks(folders: Mapping[str, Path]) -> list[dict[str, Any]]:
    """One entry a disk: its first folder here, and all that is kept there."""
    found: dict[int, dict[str, Any]] = {}
    for use, path in folders.items():
        folder = path
        while not folder.is_dir() and folder != folder.parent:
            folder = folder.parent
        try:
            device, usage = folder.stat().st_dev, shutil.disk_usage(folder)
        except OSError:
            continue
        entry = found.setdefault(
            device,
            {"path": str(path), "uses": [], "free_bytes": usage.free, "total_bytes": usage.total},
        )
        entry["uses"].append(use)
    return list(found.values())


def knowledge(database: str) -> dict[str, Any]:
    """{"path", "exists", "verdicts": {verdict: rows} or None, "error", "note"}; makes no files.

    verdicts: None, and note says why, where the database was not closed.
    """
    facts: dict[str, Any] = {
        "path": database, "exists": False, "verdicts": {}, "error": "", "note": ""
    }  # fmt: skip
    if database == IN_MEMORY or not os.path.isfile(database):
        return facts
    facts["exists"] = True
    address = _address(Path(database))
    if address is None:
        facts["verdicts"] = None
        facts["note"] = "not counted: a program has it open, or it was not closed"
        return facts
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=0.5)) as connection:
            rows = connection.execute("SELECT verdict, count(*) FROM records GROUP BY verdict")
            facts["verdicts"] = dict(rows)
    except (OSError, sqlite3.Error) as error:
        facts["error"] = str(error)
    return facts


def _address(path: Path) -> str | None:
    """How to read our database without making a file beside it; None where that can't be.

    A running ComfyUI keeps it open, with -wal and -shm: a reader beside it makes neither.
    """
    sides = set(sides_of(path))
    if not sides:
        return quiet_address(path)
    return f"{path.resolve().as_uri()}?mode=ro" if sides == {"-wal", "-shm"} else None
