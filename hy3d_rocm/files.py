"""Files with time stamps under test_data/, JSON that any reader takes, and facts of the machine
that name neither it nor its user. Imports no torch at module level."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import ntpath
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeVar

from hy3d_rocm import __version__
from hy3d_rocm.diagnose.env.shown import anonymous, printable

T = TypeVar("T")

ROOT = Path("test_data")
DEBUG, OPTIMIZATION, BENCHMARKS = ROOT / "debug", ROOT / "optimization", ROOT / "benchmarks"

# Windows' own numbers: a sharing violation, a lock violation, access denied.
SHARING = (32, 33)
_HELD = (*SHARING, 5)
_PATIENCE_SECONDS = 3.0
# A path has 260 characters there, a folder's 248; what we put beside a file or below it is longer.
_LONG = 200
# With any ending: NUL.mp4 is the device, too.
_DEVICE = re.compile(
    r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[1-9\xb9\xb2\xb3])\s*(?:[.].*)?", re.IGNORECASE
)


def is_held(error: BaseException | None) -> bool:
    """Whether Windows says that a file can't be had because a program has it open, or that nobody
    may have it, which it does not tell apart. Never so elsewhere."""
    return getattr(error, "winerror", None) in _HELD


def patiently(act: Callable[..., T], *arguments: Any) -> T:
    """act(*arguments), retried for some seconds while is_held(): a scanner of viruses, a search
    index or a folder that is copied to a server opens each new file for a moment."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return act(*arguments)
        except OSError as error:
            if not is_held(error) or time.monotonic() >= end:
                raise
        time.sleep(0.05)


def is_windows_name(name: str) -> bool:
    """Whether Windows can give a file that name, and no other in its place: it drops dots and
    blanks at the end, has devices of some names, and a colon begins a second stream of a file."""
    return not (
        name != name.rstrip(" .")
        or any(c in '\\/:*?"<>|' or ord(c) < 32 for c in name)
        or _DEVICE.fullmatch(name)
    )


def reachable(path: Path) -> Path:
    r"""On Windows a path that comes near its limit as \\?\C:\..., which has none."""
    if sys.platform == "win32":
        full = ntpath.abspath(path)
        if len(full) > _LONG and not full.startswith((r"\\?", r"\\.")):
            return Path(r"\\?\UNC" + full[1:] if full.startswith(r"\\") else r"\\?" + "\\" + full)
    return path


def formats_text(found: object, known: int) -> str:
    """For a file of another version of hy3d_rocm: its format number, whatever it is, and ours."""
    return f"(format {printable(str(found), 20)}; this one, {__version__}, reads {known})"


def partial_of(path: Path) -> Path:
    """Where `path` is written until it is complete."""
    return path.with_name(path.name + ".partial")


def stamped(folder: Path, stem: str, suffix: str, now: datetime | None = None) -> Path:
    """A path in `folder` (made where it is missing) that nobody else is given: stem_20260131_235959
    .json, in UTC, with _2, _3 ... where several fall into one second. `suffix` with its dot.

    The name, with any suffix, is the caller's: an empty NAME.partial keeps it until write_json()
    has written `path`, which is there from then on.
    """
    folder = reachable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    moment = f"{now or datetime.now(UTC):%Y%m%d_%H%M%S}"
    for number in itertools.count(1):
        path = folder / f"{stem}_{moment}{f'_{number}' if number > 1 else ''}{suffix}"
        try:
            partial_of(path).touch(exist_ok=False)
        except FileExistsError:
            continue
        # Looked at now: whoever had the name before has written it, or has let it go.
        if not path.exists():
            return path
        partial_of(path).unlink(missing_ok=True)
    raise AssertionError("numbers end")


def let_go(path: Path) -> None:
    """The name that stamped() gave is not used."""
    with contextlib.suppress(OSError):
        partial_of(path).unlink()


def write_json(path: Path, data: Any) -> None:
    """`data` in strict JSON; the file is complete or not there."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(plain(data), indent=1) + "\n", encoding="utf-8")


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """All of it or nothing. mode: of the file. OSError where that fails."""
    with beside(path, f".{path.name}") as (file, name):
        file.write(text.encode())
        os.chmod(name, mode)


@contextlib.contextmanager
def beside(path: Path, prefix: str) -> Iterator[tuple[IO[bytes], Path]]:
    """A file in the folder of `path` under a name that nobody else has, open to write and read. It
    becomes `path`, or goes where that fails."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=".part")
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file, Path(name)
        patiently(os.replace, name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to inside, which becomes `path`, or goes where that fails."""
    partial = partial_of(path)
    try:
        yield partial
        patiently(os.replace, partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def settle(file: Any) -> None:
    """What was written to the open `file` is on the disk afterwards."""
    file.flush()
    os.fsync(file.fileno())


def settle_folder(folder: Path) -> None:
    """The folder's entries are on the disk afterwards, where the system can say that."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
    from hy3d_rocm.diagnose.doctor import basic
    from hy3d_rocm.memory import host_total_bytes

    facts = basic.collect()
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
