"""What a decode was given, in two files that can be sent: latents (safetensors) and facts (JSON).

HY3D_ROCM_CAPTURE=DIR, capturing() or `hy3d-rocm capture` turn it on. The files are written before
the decode begins, so that one which hangs or takes the process with it leaves them, too; the facts
say "began" then. Weights are never stored, only a fingerprint of them. No pickles.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hy3d_rocm import files
from hy3d_rocm.decoding.precision import name_of
from hy3d_rocm.decoding.report import DecodeCancelled, DecodeReport
from hy3d_rocm.decoding.stages import stage_of
from hy3d_rocm.diagnose.doctor.basic import machine_facts
from hy3d_rocm.diagnose.env.shown import anonymous
from hy3d_rocm.units import GB, size_text

logger = logging.getLogger("hy3d_rocm")

VARIABLE = "HY3D_ROCM_CAPTURE"
FORMAT = 1
LARGEST_BYTES = GB  # of one tensor that is stored: a capture is to be sent

_inside: ContextVar[tuple[Path, list[Path]] | None] = ContextVar("hy3d_capture", default=None)


class CaptureError(ValueError):
    """A file is no capture; the text says what to do."""


@dataclass(frozen=True)
class Captured:
    """A capture that was read. latents: (B, C, T, H, W), of an encode the pixels. facts: see
    facts_of()."""

    path: Path
    latents: Tensor
    facts: dict[str, Any]


@contextmanager
def capturing(folder: Path | str = files.DEBUG) -> Iterator[list[Path]]:
    """Captures each decode and encode of this thread inside; gives the list of the JSON files."""
    written: list[Path] = []
    token = _inside.set((Path(folder), written))
    try:
        yield written
    finally:
        _inside.reset(token)


@contextmanager
def around(family: Any, source: Any, asked: Any) -> Iterator[list[DecodeReport]]:
    """Around one decode, by the executor, which puts its report into the list. asked: its record of
    what the caller chose.

    A capture that can't be written is a warning and no more: the decode is what counts.
    """
    folder, written = _inside.get() or (os.environ.get(VARIABLE, "").strip(), [])
    reports: list[DecodeReport] = []
    path, facts, outcome = None, {}, "done"
    if folder:
        try:
            facts = facts_of(family, source, asked)
            path = write_capture(Path(folder), source, facts)
        except (OSError, ImportError, RuntimeError, ValueError, TypeError) as error:
            logger.warning("[%s] Not captured: %s", stage_of(asked.encode), error)
    if path is None:
        yield reports
        return
    logger.info("[%s] Captured in %s", stage_of(asked.encode), path)
    written.append(path)
    try:
        yield reports
    except BaseException as error:
        # ComfyUI's exception is one of each kind, by version.
        is_wish = isinstance(error, DecodeCancelled) or not isinstance(error, Exception)
        is_wish = is_wish or "Interrupt" in type(error).__name__
        facts["error"] = {"type": type(error).__name__, "text": anonymous(str(error))}
        outcome = "cancelled" if is_wish else "failed"
        raise
    finally:
        _finish(path, facts | {"outcome": outcome}, reports)


def _finish(path: Path, facts: dict[str, Any], reports: list[DecodeReport]) -> None:
    """The facts once more, and a line each for what was survived and what was not, in
    errors-DAY.jsonl."""
    now = datetime.now(UTC)
    base = {"time": now.isoformat(timespec="seconds"), "capture": path.name}
    lines = [{**base, "survived": True, **event} for made in reports for event in made.events]
    if facts["outcome"] == "failed":
        lines.append({**base, "survived": False, **facts["error"]})
    for made in reports:
        facts["report"] = anonymous(files.plain(made.as_dict()))
    try:
        files.write_json(path, facts)
        if lines:
            text = "".join(json.dumps(anonymous(files.plain(line))) + "\n" for line in lines)
            # One write at the end of the file: other decodes write theirs meanwhile.
            with open(path.parent / f"errors-{now:%Y%m%d}.jsonl", "ab", buffering=0) as file:
                file.write(text.encode())
    except OSError as trouble:
        logger.warning("[VAE Decode] The capture is not complete: %s", trouble)


def facts_of(family: Any, source: Tensor, asked: Any) -> dict[str, Any]:
    """JSON-able: kind, time, source (shape, type, device), vae (class, config, type, device,
    fingerprint), options, machine, outcome ("began" until it ended), error, report. asked: None
    where nothing was."""
    # The caller's choices that can be told: no callables, no tensors.
    options = {name: getattr(asked, name, None) for name in ("budget", "strategy", "precision")}
    if asked is not None:
        options |= asdict(asked.options)
    vae = getattr(family, "vae", family)
    config = getattr(vae, "config", None)
    # What diffusers adds (_name_or_path ...) tells where files lie; its version may be needed.
    kept = {
        key: value
        for key, value in (config.items() if isinstance(config, Mapping) else ())
        if not str(key).startswith("_") or key in ("_class_name", "_diffusers_version")
    }
    return {
        "format": FORMAT,
        "kind": "encode" if getattr(asked, "encode", False) else "decode",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "source": {
            "shape": list(source.shape),
            "dtype": name_of(source.dtype),
            "device": str(source.device),
        },
        "vae": {
            "class": type(vae).__name__,
            "package": type(vae).__module__.partition(".")[0],
            "family": str(getattr(family, "name", "")),
            "config": anonymous(files.plain(kept)),
            "dtype": name_of(getattr(family, "dtype", "")),
            "device": str(getattr(family, "device", "")),
            "fingerprint": fingerprint(vae),
        },
        "options": files.plain(options),
        "machine": machine_facts(),
        "outcome": "began",
        "error": None,
        "report": None,
    }


def fingerprint(module: Any) -> str:
    """SHA-256 over names, types, shapes and values of a module's parameters and buffers, in the
    order of their names; "" where it has none. About a second a gigabyte."""
    if not hasattr(module, "state_dict"):
        return ""
    digest = hashlib.sha256()
    state = {k: v for k, v in module.state_dict().items() if isinstance(v, torch.Tensor)}
    for name in sorted(state):
        tensor = state[name].detach()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.device.type != "meta":
            flat = tensor.to("cpu").contiguous().reshape(-1).view(torch.uint8)
            digest.update(flat.numpy().data)
    return digest.hexdigest() if state else ""


def write_capture(
    folder: Path, source: Tensor, facts: dict[str, Any], frames: Tensor | None = None
) -> Path:
    """Both files in `folder`; the path of the JSON. OSError, or CaptureError for too large ones.

    frames: what a decode made, stored beside the latents and read back by nobody but people.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    stored = {"latents": source, **({} if frames is None else {"frames": frames})}
    for name, tensor in stored.items():
        size = tensor.numel() * tensor.element_size()
        if size > LARGEST_BYTES:
            what = "input takes" if tensor is source else f"{name} take"
            raise CaptureError(
                f"the {what} {size_text(size)}, more than the {size_text(LARGEST_BYTES)} that a "
                "capture may: capture a shorter one that fails, too"
            )
    name = re.sub(r"[^\w.-]+", "-", facts["vae"]["family"]).strip("-") or "vae"
    path = files.stamped(folder, f"{name}_{facts['kind']}", ".json")
    tensors = path.with_suffix(".safetensors")
    facts["file"] = tensors.name
    try:
        with files.replacing(tensors) as partial:
            save_file({k: t.detach().to("cpu").contiguous() for k, t in stored.items()}, partial)
        files.write_json(path, facts)
    except BaseException as error:
        with contextlib.suppress(OSError):
            tensors.unlink(missing_ok=True)  # nobody finds it without its facts
        files.let_go(path)
        if isinstance(error, SafetensorError):
            raise OSError(f"{tensors} can't be written: {error}") from error
        raise
    return path


def read_capture(path: Path | str) -> Captured:
    """A capture by its JSON, its safetensors file, or a folder (then its newest). CaptureError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    if path.is_dir():
        found = sorted(path.glob("*_*.json"), key=lambda p: p.stat().st_mtime)
        if not found:
            raise CaptureError(f"{path} holds no capture (NAME_decode_TIME.json)")
        path = found[-1]
    given, path = path, path.with_suffix(".json")
    if given.exists() and not path.exists():
        raise CaptureError(
            f"{given} is no capture: {path.name} is not beside it (hy3d-rocm capture makes both of "
            "a latent)"
        )
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CaptureError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise CaptureError(f"{path} is no JSON: name the capture's own file") from error
    if not isinstance(facts, dict) or "format" not in facts or "file" not in facts:
        raise CaptureError(f"{path} is no capture")
    if facts["format"] != FORMAT:
        raise CaptureError(
            f"{path} is no capture of this version of hy3d_rocm"
            f" {files.formats_text(facts['format'], FORMAT)}: read it with the one that made it"
        )
    tensors = path.with_name(Path(str(facts["file"])).name)
    if not tensors.is_file():
        raise CaptureError(f"{tensors.name} is missing beside {path}: a capture is both files")
    try:
        return Captured(path, load_file(tensors)["latents"], facts)
    except (OSError, SafetensorError, KeyError) as error:
        raise CaptureError(f"{tensors} can't be read, it is damaged: {error}") from error
