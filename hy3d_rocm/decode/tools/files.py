"""Files with time stamps under test_data/, JSON that any reader takes, and facts of the machine
that name neither it nor its user. Imports no torch at module level."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hy3d_rocm.env.shown import anonymous

ROOT = Path("test_data")
DEBUG, OPTIMIZATION, BENCHMARKS = ROOT / "debug", ROOT / "optimization", ROOT / "benchmarks"


def stamped(folder: Path, stem: str, suffix: str, now: datetime | None = None) -> Path:
    """A path in `folder` (made where it is missing) that is not taken: stem_20260131_235959.json,
    in UTC, with _2, _3 ... where several fall into one second. `suffix` with its dot."""
    folder.mkdir(parents=True, exist_ok=True)
    time = f"{now or datetime.now(UTC):%Y%m%d_%H%M%S}"
    path, number = folder / f"{stem}_{time}{suffix}", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}_{time}_{number}{suffix}"
    return path


def write_json(path: Path, data: Any) -> None:
    """`data` in strict JSON; the file is complete or not there."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(plain(data), indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def plain(value: Any) -> Any:
    """JSON has no infinity and no NaN: as text. Tuples become lists, what JSON lacks its text."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    return str(value)


def machine_facts() -> dict[str, Any]:
    """Versions, CPU, GPUs and memory. JSON-able; no host name, no user, no path."""
    from hy3d_rocm.decode.memory.meter import host_total_bytes
    from hy3d_rocm.env import doctor

    facts = doctor.collect()
    kept = {key: facts[key] for key in ("versions", "torch", "driver", "rules")}
    kept["system"] = {
        "os": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpus": facts["system"]["cpus"],
        "memory_bytes": host_total_bytes(),
    }
    kept["core"] = {key: facts["core"].get(key) for key in ("available", "cpu", "blas")}
    kept["variables"] = facts["variables"]
    found: dict[str, Any] = anonymous(plain(kept))
    return found
