"""`hy3d-rocm decode`: a latent file to a video, progress on stderr, the report on stdout. Under
`torchrun -m hy3d_rocm decode` one of several processes that decode together (docs/scale.md).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor

from hy3d_rocm import __version__
from hy3d_rocm.arguments import StatusLine, say
from hy3d_rocm.cli.stopping import interruptible
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.decoding.executor import decode_into, decode_with_report
from hy3d_rocm.decoding.group import TIMEOUT_SECONDS, Group, GroupLostError, group_of, set_variables
from hy3d_rocm.decoding.report import DecodeCancelled, DecodeOptions, DecodeReport, Step
from hy3d_rocm.diagnose.env.shown import printable
from hy3d_rocm.files import patiently
from hy3d_rocm.frames.claim import (
    Claim,
    FileFingerprints,
    check_name,
    folder_is_left,
    tensor_fingerprint,
)
from hy3d_rocm.frames.output import OutputError, Shape, Sink, output_errors
from hy3d_rocm.frames.sinks import sink_for
from hy3d_rocm.meter import held_bytes
from hy3d_rocm.tools import loading
from hy3d_rocm.units import brief, size_text

logger = logging.getLogger("hy3d_rocm")

_MAKING = ("scaled", "sample", "budget", "strategy", "precision", "crf")
_LINE_SECONDS = 10.0  # between lines in a log file


def run_decode_command(arguments: argparse.Namespace) -> int:
    """Exit code: see the epilog."""
    # Whether torchrun has started more than this process. Others set WORLD_SIZE and RANK, too.
    are_several = os.environ.get("WORLD_SIZE", "1") != "1" and "TORCHELASTIC_RUN_ID" in os.environ
    if not are_several:
        return _run_rank(arguments, None)
    with joined(arguments) as group:
        code = _run_rank(arguments, group)
    # torchrun ends all when one fails; rank 0 fails, too, or is decoding alone.
    return 0 if group.rank else code


def _run_rank(arguments: argparse.Namespace, group: Group | None) -> int:
    try:
        with interruptible(_say) as cancel, Beginning(group) as beginning:
            result = _decode(arguments, cancel, beginning)
            if result is None:
                return 0
            if arguments.json is not None:
                with output_errors(arguments.json):
                    arguments.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    except DecodeCancelled as error:
        _say(f"{error}{_what_is_left(arguments)}")
        return 130
    except KeyboardInterrupt:
        _say(f"interrupted{_what_is_left(arguments)}")
        return 130
    except (OSError, TypeError, ValueError, MemoryError, RuntimeError, ArithmeticError) as error:
        logger.debug("hy3d-rocm decode", exc_info=True)
        _say(f"rank {group.rank}: {error}" if group is not None and group.rank else str(error))
        return 1
    sys.stdout.write("".join(f"{printable(line)}\n" for line in _lines(result)))
    return 0


def _decode(
    arguments: argparse.Namespace, cancel: threading.Event, beginning: Beginning
) -> dict[str, Any] | None:
    """Everything in order; the report as it is written to --json. None on a rank without frames."""
    device, group = loading.pick_device(arguments.device), beginning.group
    _check_report(arguments.json)
    files = loading.find_vae(arguments.vae)
    latents = loading.load_latents(arguments.latent, arguments.tensor)
    if group is not None and group.rank:
        vae = loading.load_vae(files).to(device)
        latents = _prepared(arguments, latents, vae)
        if beginning.ready() != COMPLETE:
            with protect():
                decode_with_report(
                    vae, latents, arguments.budget, arguments.strategy, arguments.precision,
                    cancel=cancel, options=DecodeOptions(chunk_size=arguments.chunk_size),
                    group=group,
                )  # fmt: skip
        return None
    goes_on = arguments.resume or arguments.restart
    job = partial(_job, arguments, files, latents, device) if goes_on else None
    claim = Claim(arguments.out, job, restart=arguments.restart, overwrite=arguments.overwrite)
    sink = sink_for(
        arguments.out, fps=arguments.fps, crf=arguments.crf, pixel_format=arguments.pixel_format,
        claim=claim,
    )  # fmt: skip
    with claim:
        if claim.is_complete:
            beginning.ready(COMPLETE)
            shape, dtype = claim.manifest["shape"], getattr(torch, claim.manifest["dtype"])
            sink.begin(tuple(shape), dtype, claim.manifest["plan"])
            return {"out": str(sink.finish()), "out_shape": shape, "resumed_frames": shape[2]}
        vae = loading.load_vae(files).to(device)
        if (changed := claim.files.changed()) is not None:
            raise loading.LoadingError(f"{changed} was written while it was read: start again")
        latents = _prepared(arguments, latents, vae)
        beginning.ready()
        with protect(), WatchedSink(sink, device, sys.stderr) as watched:
            arguments.group = group
            plan, progress = claim.manifest.get("plan"), watched.progress
            path, report = deliver(vae, latents, watched, arguments, plan, progress, cancel)
        return {
            "out": str(path),
            "out_bytes": path.stat().st_size if path.is_file() else None,
            "resumed_frames": watched.there_before,
            **report.as_dict(),
        }


def _check_report(path: Path | None) -> None:
    """OutputError where --json could not be written: better now than after the decode."""
    if path is None:
        return
    check_name(path)
    with output_errors(path):
        if path.is_dir():
            raise OutputError(f"{path} is a folder; name a file for --json")
        if not path.exists():
            with open(path, "x"):  # all that can be wrong with a name or a folder is so here
                pass
            patiently(path.unlink)
        elif not os.access(path, os.W_OK):
            raise OutputError(f"{path} does not let this user write; name another --json")


def deliver(
    vae: Any, latents: Tensor, sink: Any, arguments: argparse.Namespace,
    plan: Mapping[str, Any] | None, progress: Any, cancel: Any,
) -> tuple[Any, DecodeReport]:  # fmt: skip
    """decode_into() as it was asked for. plan: how the frames that are there were made."""
    return decode_into(
        sink, vae, latents, arguments.budget, arguments.strategy, arguments.precision, progress,
        cancel, options=DecodeOptions(chunk_size=arguments.chunk_size), resume_key=plan,
        group=getattr(arguments, "group", None),
    )  # fmt: skip


def _prepared(arguments: argparse.Namespace, latents: Tensor, vae: Any) -> Tensor:
    """(B, C, T, H, W) as the VAE takes them."""
    latents = loading.as_video(latents, loading.latent_channels(vae))
    if arguments.scaled:
        latents = loading.unscaled(latents, vae)
    if arguments.sample is not None:
        if not 0 <= arguments.sample < latents.shape[0]:
            raise loading.LoadingError(
                f"--sample {brief(arguments.sample)}: the latent has samples 0 to "
                f"{latents.shape[0] - 1}"
            )
        latents = latents[arguments.sample : arguments.sample + 1]
    return latents


def _job(
    arguments: argparse.Namespace, files: loading.VaeFiles, latents: Tensor, device: torch.device,
    prints: FileFingerprints,
) -> dict[str, Any]:  # fmt: skip
    """What makes the frames and the file: a decode only goes on where all of it is the same."""
    av = None
    with suppress(PackageNotFoundError):
        av = version("av")
    return {
        **{name: getattr(arguments, name) for name in _MAKING},
        "latents": tensor_fingerprint(latents),
        "VAE": prints.of(files.all),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        **({} if arguments.chunk_size is None else {"chunk size": arguments.chunk_size}),
        "fps": str(arguments.fps),
        "pixel format": arguments.pixel_format,
        "hy3d-rocm": __version__,
        "torch": torch.__version__,
        "PyAV": av,
    }


def _what_is_left(arguments: argparse.Namespace) -> str:
    if folder_is_left(arguments.out):
        return f"; the same command goes on from what is in {arguments.out}.partial"
    return "; nothing is left (--resume would keep what is done)"


def _lines(result: dict[str, Any]) -> list[str]:
    """The report in a few lines."""
    _, _, frames, height, width = result["out_shape"]
    was_there = f"{result['resumed_frames']} of them were there"
    lines = [f"{result['out']}: {frames} frames {width}x{height}, {was_there}"]
    if "strategy" not in result:
        return lines
    lines.append(
        f"{result['vae']} on {result['device']} in {result['dtype']}: {result['strategy']}, "
        f"{result['seconds']:.1f} s, since {result['reason']}"
    )
    sizes = [
        f"{text} {size_text(result[key], 2)}"
        for text, key in (
            ("budget", "budget_bytes"), ("whole decode", "whole_bytes"),
            ("predicted peak", "predicted_peak_bytes"), ("measured peak", "measured_peak_bytes"),
        )
        if key in result
    ]  # fmt: skip
    lines.append(", ".join(sizes))
    return [*lines, *result["ignored"], *(str(event) for event in result["events"])]


def _say(text: str) -> None:
    say("decode", printable(text))


class WatchedSink:
    """A sink that counts what goes through it, and writes a line about it to `stream`: over and
    over the same one on a terminal, a new one now and then elsewhere."""

    def __init__(self, sink: Sink, device: torch.device, stream: IO[str]) -> None:
        self.sink = sink
        self.device = device
        self.there_before = 0
        self._shape: Shape | None = None
        self._strategy = ""
        self._began = time.monotonic()
        self._line = StatusLine(stream, _LINE_SECONDS)

    def __enter__(self) -> WatchedSink:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sink, name)

    def begin(
        self, shape: Shape, dtype: torch.dtype, plan: Mapping[str, Any] | None = None
    ) -> None:
        self.sink.begin(shape, dtype, plan)
        first, self._shape = self._shape is None, shape
        if first:
            self.there_before = self._done()
        self._strategy = str((plan or {}).get("strategy", ""))

    def put(self, *part: Any) -> None:
        self.sink.put(*part)
        self._show([])

    def progress(self, done: int, total: int, step: Step) -> None:
        """As decode() calls it after each step."""
        parts = [f"{step.kind} {done}/{total}"]
        if 0 < done <= total:
            seconds = (time.monotonic() - self._began) * (total - done) / done
            parts.append(
                f"{seconds:.0f} s left" if seconds < 100 else f"{seconds / 60:.0f} min left"
            )
        self._show(parts)

    def _done(self) -> int:
        assert self._shape is not None
        return sum(self.sink.first_wanted(b) for b in range(self._shape[0]))

    def _show(self, parts: list[str]) -> None:
        if not self._line.is_due():
            return
        if self._shape is not None:
            parts.insert(0, f"frames {self._done()}/{self._shape[0] * self._shape[2]}")
        where = "on the GPU" if self.device.type == "cuda" else "resident"
        parts.append(f"{size_text(held_bytes(self.device), 2)} {where}")
        self._line.show(", ".join(filter(None, [*parts, self._strategy])))


COMPLETE = "complete"  # there is nothing to decode


@contextmanager
def joined(arguments: argparse.Namespace) -> Iterator[Group]:
    """The group of all processes. arguments.device becomes this one's: the GPU of its number on
    this machine where no other was asked for."""
    if arguments.device in (None, "auto", "cuda") and torch.cuda.is_available():
        arguments.device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    device = loading.pick_device(arguments.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    set_variables()
    backend = None if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_SECONDS))
    group = group_of(dist.group.WORLD, device)
    assert group is not None, "there are several ranks"
    yield group
    if not group.lost:  # one that is lost waits for who is gone
        dist.destroy_process_group()


class Beginning:
    """Around all that comes before a decode: where one rank fails in it, all raise. group: None
    where there is one rank."""

    def __init__(self, group: Group | None) -> None:
        self.group = group
        self._is_over = group is None

    def ready(self, told: str = "") -> str:
        """This rank has what it needs; gives what rank 0 tells."""
        if self.group is None:
            return told
        self._is_over = True
        try:
            first: str = self.group.meet("what is decoded", values=told)[0]
        except GroupLostError:
            if self.group.rank:
                raise
            return told  # the decode says it, and is done alone
        return first

    def __enter__(self) -> Beginning:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.group is not None and isinstance(error, Exception) and not self._is_over:
            self.group.meet("what is decoded", error)
