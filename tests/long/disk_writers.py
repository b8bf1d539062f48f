"""Everything that the library writes to a disk, as small as it gets: what a fault must leave.

A writer has old files, writes new ones, and says what is there: by name, contents that are each
whole. A fault may leave the old or the new content of each name, never a third.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from verdict_store_doubles import key, record, tables  # noqa: E402

from examples.render import output as render_output  # noqa: E402
from hy3d_rocm.capture import write_capture  # noqa: E402
from hy3d_rocm.conv.verdict_store.store import Store  # noqa: E402
from hy3d_rocm.diagnose.miopen.backup import (  # noqa: E402
    ArchiveError,
    clear,
    read_backup,
    restore,
    write_backup,
)
from hy3d_rocm.diagnose.miopen.places import DATABASES, Place  # noqa: E402
from hy3d_rocm.files import write_json, write_whole  # noqa: E402
from hy3d_rocm.frames.claim import Claim  # noqa: E402
from hy3d_rocm.frames.output import OutputError  # noqa: E402
from hy3d_rocm.frames.sinks import MemmapSink, sink_for  # noqa: E402

Contents = dict[str, Any]
SHAPE = (1, 3, 6, 4, 4)


@dataclass(frozen=True)
class Writer:
    """errors: what act() may raise, as a sentence. look: see above; raises where something under
    its right name is not whole. stays: whether a name of what a failed write leaves is as it should
    be. refuses: what has its name is not replaced: once all is new, act() raises."""

    name: str
    prepare: Callable[[Path], None]
    act: Callable[[Path], None]
    look: Callable[[Path], Contents]
    errors: tuple[type[BaseException], ...]
    stays: Callable[[str], bool] = lambda name: False
    refuses: bool = False


def files_in(folder: Path) -> Contents:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if is_result(p)}


def is_result(path: Path) -> bool:
    unfinished = (".partial", ".part")
    return path.is_file() and not any(p.endswith(unfinished) for p in path.parts)


def nothing(folder: Path) -> None:
    return


def frames() -> torch.Tensor:
    return torch.arange(288, dtype=torch.float32).reshape(SHAPE) / 288


def put_frames(sink: Any) -> None:
    sink.begin(SHAPE, torch.float32, {"strategy": "double"})
    try:
        for first in range(sink.first_wanted(0), SHAPE[2], 2):
            sink.put(0, first, frames()[:, :, first : first + 2])
        sink.finish()
    except BaseException:
        sink.abort()
        raise


def old_array(folder: Path) -> None:
    np.save(folder / "frames.npy", np.zeros((2, 2), np.float32))


def array(folder: Path) -> None:
    path = folder / "frames.npy"
    put_frames(MemmapSink(path, Claim(path, overwrite=True)))


def resumable_array(folder: Path) -> None:
    with Claim(folder / "frames.npy", {"job": 1}, overwrite=True) as parts:
        put_frames(MemmapSink(folder / "frames.npy", parts))


def segments(folder: Path) -> None:
    path = folder / "frames.mp4"
    with Claim(path, {"job": 1}) as parts:
        put_video(sink_for(path, fps=Fraction(8), claim=parts))


def put_video(sink: Any) -> None:
    shape = (1, 3, 4, 16, 16)
    sink.begin(shape, torch.float32, {"strategy": "double"})
    try:
        for first in range(sink.first_wanted(0), shape[2], 2):
            sink.put(0, first, torch.full((1, 3, 2, 16, 16), first / 8))
        sink.finish()
    except BaseException:
        sink.abort()
        raise


def pictures(folder: Path) -> None:
    put_frames(sink_for(folder / "pictures", fps=Fraction(8)))


def old_pictures(folder: Path) -> None:
    (folder / "pictures").mkdir()
    for number in range(3):
        (folder / "pictures" / f"frame_{number:06d}.png").write_bytes(b"old")


def new_pictures(folder: Path) -> None:
    put_frames(sink_for(folder / "pictures", fps=Fraction(8), overwrite=True))


def pictures_in(folder: Path) -> Contents:
    """All of them as one content; those that the next decode puts back count."""
    kept = folder / "pictures.partial" / "old"
    at = folder / "pictures" if (folder / "pictures").exists() else kept
    return {"pictures": {path.name: path.read_bytes() for path in at.iterdir()}}


def old_rows(folder: Path) -> None:
    store = Store.open(folder / "k.db")
    store.put(key(0), record("old"))
    if not store.flush(30):
        raise RuntimeError(store.trouble)
    store.close()


def knowledge(folder: Path) -> None:
    store = Store.open(folder / "k.db")
    for number in range(3):
        store.put(key(number), record("new"))
    store.flush(10)
    found = store.records(key(1))  # of a file that can't be read any more nothing is known
    if list(found) != ["new"] and not (found == {} and store.trouble):
        raise AssertionError(f"the store knows {found} of what it was told, {store.trouble}")
    store.close()


def rows(folder: Path) -> Contents:
    found = tables(folder / "k.db")["records"]
    return {f"{row[0]} {row[1]}": row[2:8] for row in found}


def capture(folder: Path) -> None:
    facts = {"vae": {"family": "Tiny"}, "kind": "decode", "format": 1}
    write_capture(folder, frames(), facts)


def captures(folder: Path) -> Contents:
    from safetensors.torch import load_file

    found = {}
    for number, path in enumerate(sorted(folder.glob("*.json"))):
        facts = json.loads(path.read_text())
        found[str(number)] = load_file(folder / facts["file"])["latents"].numpy().tobytes()
    return found


def old_text(folder: Path) -> None:
    (folder / "report").write_text("the report of yesterday\n" * 9)


def text_with(write: Callable[[Path, str], object]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        write(folder / "report", "the report of today\n" * 999)

    return act


def picture(folder: Path) -> None:
    render_output.write_png(folder / "report", np.arange(768, dtype=np.uint8).reshape(16, 16, 3))


def place_of(folder: Path) -> Place:
    return Place(DATABASES, folder / "miopen", "default")


def old_databases(folder: Path) -> None:
    (folder / "miopen").mkdir()
    for name in ("gfx1100.udb.txt", "gfx1100.ufdb.txt"):
        (folder / "miopen" / name).write_bytes(name.encode() * 99)


def backup(folder: Path) -> None:
    if not (folder / "backup.tar.gz").exists():
        write_backup([place_of(folder)], folder / "backup.tar.gz")


def backups(folder: Path) -> Contents:
    """A backup that has its name is whole; what was deleted is in one."""
    kept = files_in(folder / "miopen")
    saved = [read_backup(path) for path in folder.glob("*.tar.gz")]
    names = {one.name.partition("/")[2] for found in saved for one in found}
    for name in ("gfx1100.udb.txt", "gfx1100.ufdb.txt"):
        if name not in kept and name not in names:
            raise AssertionError(f"{name} is neither there nor in a backup")
    return kept | ({"backup": sorted(names)} if saved else {})


def cleared(folder: Path) -> None:
    number = len(list(folder.glob("*.tar.gz")))
    done = clear([place_of(folder)], lambda: folder / f"backup{number}.tar.gz")
    if done.left:
        raise ArchiveError(f"{done.left[0][0]} was left: {done.left[0][1]}")


def to_restore(folder: Path) -> None:
    old_databases(folder)
    write_backup([place_of(folder)], folder / "saved.tar.gz")
    for path in (folder / "miopen").iterdir():
        path.write_bytes(b"of now " * 77)


def restored(folder: Path) -> None:
    number = len(list(folder.glob("before*")))
    target = folder / f"before{number}.tar.gz"
    restore(folder / "saved.tar.gz", [place_of(folder)], lambda: target)


def in_miopen(folder: Path) -> Contents:
    return files_in(folder / "miopen")


def any_of(*names: str) -> Callable[[str], bool]:
    return lambda name: name.startswith(names)


WRITERS = (
    Writer("array", old_array, array, files_in, (OutputError,)),
    Writer("array that goes on", old_array, resumable_array, files_in, (OutputError,),
           any_of("frames.npy.partial")),
    Writer("video in segments", nothing, segments, files_in, (OutputError,),
           any_of("frames.mp4.partial")),
    Writer("pictures", nothing, pictures, files_in, (OutputError,), refuses=True),
    Writer("knowledge", old_rows, knowledge, rows, (), any_of("k.db")),
    Writer("capture", nothing, capture, captures, (OSError,), any_of("Tiny_decode")),
    Writer("page of the doctor", old_text, text_with(write_whole), files_in, (OSError,)),
    Writer("pictures that are replaced", old_pictures, new_pictures, pictures_in, (OutputError,),
           any_of("pictures.partial")),
    Writer("facts", old_text, text_with(write_json), files_in, (OSError,)),
    Writer("render's report", old_text, text_with(render_output.write_json), files_in,
           (OutputError,)),
    Writer("render's picture", old_text, picture, files_in, (OutputError,)),
    Writer("MIOpen backup", old_databases, backup, backups, (ArchiveError,)),
    Writer("MIOpen clear", old_databases, cleared, backups, (ArchiveError,)),
    Writer("MIOpen restore", to_restore, restored, in_miopen, (ArchiveError,),
           any_of("before")),
)  # fmt: skip
