"""Files that are damaged when the library comes to read them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from disk_writers import (
    SHAPE,
    capture,
    frames,
    old_rows,
    restored,
    resumable_array,
    to_restore,
)

from hy3d_rocm.capture import CaptureError, read_capture
from hy3d_rocm.comfy import settings
from hy3d_rocm.conv.verdict_store.store import Store
from hy3d_rocm.diagnose.miopen.backup import ArchiveError
from hy3d_rocm.frames.claim import Claim
from hy3d_rocm.frames.output import OutputError
from hy3d_rocm.frames.sinks import MemmapSink


@dataclass(frozen=True)
class Reader:
    """act: raises one of `errors`, a sentence, or works with what is right. has_sums: what zeros in
    its data do would be seen; frames and latents are not summed."""

    name: str
    prepare: Callable[[Path], None]
    victim: str
    act: Callable[[Path], None]
    errors: tuple[type[BaseException], ...]
    has_sums: bool = True

    def damage(self, folder: Path, rng: random.Random) -> str:
        return hurt(rng.choice(sorted(folder.glob(self.victim))), rng, self.has_sums)


def hurt(path: Path, rng: random.Random, zeros: bool) -> str:
    """What a lost block, a full disk, or a hand does to a file."""
    data = path.read_bytes()
    how = rng.choice(("cut", "empty", "folder", "gone", *(("end of zeros", "zeros") * zeros)))
    at = rng.randrange(len(data))
    if how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": data[:at], "end of zeros": data[:at] + bytes(len(data) - at),
                          "empty": b"", "zeros": bytes(len(data))}[how])  # fmt: skip
    return f"{path.name}: {how} at {at} of {len(data)}"


def begun(folder: Path) -> None:
    """A decode of which four of six frames are there."""
    with Claim(folder / "frames.npy", {"job": 1}) as parts:
        sink = MemmapSink(folder / "frames.npy", parts)
        sink.begin(SHAPE, frames().dtype, {"strategy": "double"})
        sink.put(0, 0, frames()[:, :, :4])
        sink.abort()


def went_on(folder: Path) -> None:
    import numpy as np

    resumable_array(folder)
    if not np.array_equal(np.load(folder / "frames.npy"), frames().numpy()):
        raise AssertionError("frames that go on behind damaged ones are wrong")


def opened(folder: Path) -> None:
    from verdict_store_doubles import key, record

    store = Store.open(folder / "k.db", patience_s=30)
    known = store.records(key(0))
    if known not in ({}, {"old": record("old")}):
        raise AssertionError(f"the store knows {known}")
    store.put(key(1), record("new"))
    store.flush(10)
    store.close()
    if store.trouble is None:
        again = Store.open(folder / "k.db", patience_s=30)
        if list(again.records(key(1))) != ["new"]:
            raise AssertionError("what was put is not there")
        again.close()


def captured(folder: Path) -> None:
    import torch

    found = read_capture(folder)
    if not torch.equal(found.latents, frames()):
        raise AssertionError("the latents of a damaged capture are wrong")


def cleared_archive(folder: Path) -> None:
    restored(folder)
    for path in (folder / "miopen").iterdir():
        if path.read_bytes() != path.name.encode() * 99:
            raise AssertionError(f"{path.name} was not restored as it was")


def written_settings(folder: Path) -> None:
    values = {"hy3d_rocm.vae": "full", "hy3d_rocm.seed_mode": "legacy"}
    (folder / "comfy.settings.json").write_text(json.dumps(values, indent=1))


def read_settings(folder: Path) -> None:
    path = folder / "comfy.settings.json"
    settings._settings_file = lambda: path  # type: ignore[assignment]
    settings._read = None
    found = settings.current({})
    if found.vae not in ("full", "protect") or found.seed_mode not in ("legacy", "stream"):
        raise AssertionError(f"{found}")


READERS = (
    Reader("manifest of a decode", begun, "frames.npy.partial/manifest.json", went_on,
           (OutputError,)),
    Reader("frames of a decode", begun, "frames.npy.partial/frames.npy", went_on,
           (OutputError,), has_sums=False),
    Reader("knowledge", old_rows, "k.db", opened, ()),
    Reader("capture", capture, "*.safetensors", captured, (CaptureError,), has_sums=False),
    Reader("facts of a capture", capture, "*.json", captured, (CaptureError,)),
    Reader("MIOpen backup", to_restore, "saved.tar.gz", cleared_archive, (ArchiveError,)),
    Reader("settings", written_settings, "comfy.settings.json", read_settings, ()),
)  # fmt: skip
