"""`hy3d-rocm capture`, `optimize` and `validate`: arguments, progress on stderr, text on stdout."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from hy3d_rocm import files
from hy3d_rocm.arguments import PRECISIONS, STRATEGIES, check_names, say
from hy3d_rocm.capture import VARIABLE, capturing
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.decoding.executor import decode_with_report
from hy3d_rocm.decoding.report import DecodeOptions
from hy3d_rocm.diagnose.doctor import basic
from hy3d_rocm.meter import steady_malloc
from hy3d_rocm.tools import loading, optimize, runs, validate


def run_tool_command(arguments: argparse.Namespace) -> int:
    """Exit code: 0; 1 for what is said in a sentence or does not hold; 130 after Ctrl-C."""
    run = {"capture": _capture, "optimize": _optimize, "validate": _validate}[arguments.command]
    try:
        return run(arguments)
    except KeyboardInterrupt:
        say(arguments.command, "interrupted before anything was measured")
        return 130
    except (OSError, ValueError, TypeError, RuntimeError, MemoryError) as error:
        say(arguments.command, str(error))
        return 1


def _capture(arguments: argparse.Namespace) -> int:
    folder = arguments.out or files.DEBUG
    if arguments.run:
        environ = {**os.environ, VARIABLE: str(Path(folder).resolve())}
        before = set(folder.glob("*.json"))
        code = _ended(arguments.run, environ)
        count = len(set(folder.glob("*.json")) - before)
        many = f"{count} capture{'s' * (count != 1)} of {arguments.run[0]}"
        sys.stdout.write(f"{many} {'is' if count == 1 else 'are'} in {folder}\n")
        return code
    if arguments.latent is None or arguments.vae is None:
        raise ValueError("give LATENT and --vae, or --run PROGRAM")
    return _capture_file(arguments, folder)


def _ended(program: list[str], environ: dict[str, str]) -> int:
    """Runs a program; its exit code. The first Ctrl-C is the program's as well, which ends in its
    own time: how ComfyUI is ended. The second one ends it."""
    came = list[int]()

    def handle(number: int, _frame: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    hears = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, handle) if hears else None
    try:
        child = subprocess.Popen(program, env=environ)
        try:
            return child.wait()
        finally:
            child.kill()
            child.wait()
    except OSError as error:
        raise ValueError(f"{program[0]} can't be started: {error.strerror}") from error
    finally:
        if hears:
            signal.signal(signal.SIGINT, before)


def _capture_file(arguments: argparse.Namespace, folder: Path) -> int:
    vae, _, _ = loading.make_vae(arguments.vae, loading.pick_device(arguments.device))
    latents = loading.load_latents(arguments.latent, arguments.tensor)
    latents = loading.as_video(latents, loading.latent_channels(vae))
    code = 0
    with capturing(folder) as written, protect():
        try:
            _, report = decode_with_report(
                vae, latents, arguments.budget, arguments.strategy, arguments.precision
            )
        except (RuntimeError, MemoryError, ValueError) as error:
            say(arguments.command, str(error))
            code = 1
        else:
            sys.stdout.write("".join(f"{line}\n" for line in report.recommendations))
    for path in written:
        sys.stdout.write(f"{path}\n{path.with_suffix('.safetensors')}\n")
    return code


def _subject(arguments: argparse.Namespace) -> runs.Subject:
    check_names("--strategies", arguments.strategies, STRATEGIES)
    steady_malloc()
    device = loading.pick_device(arguments.device)
    if arguments.latent is not None:
        return runs.subject_from_capture(arguments.latent, arguments.vae, device)
    width, height = arguments.size
    return runs.subject_from_size(
        arguments.vae or "demo", device, arguments.frames, height, width, arguments.scale
    )


def _optimize(arguments: argparse.Namespace) -> int:
    if arguments.precisions is not None:
        check_names("--precisions", arguments.precisions, PRECISIONS)
    subject = _subject(arguments)
    path = files.stamped(arguments.out or files.OPTIMIZATION, "decode_sweep", ".json")
    facts = basic.machine_facts()

    choices = optimize.Choices(
        arguments.strategies, arguments.precisions, arguments.chunks, arguments.budget
    )
    try:
        sweep = optimize.optimize(
            subject, choices, limit=arguments.limit, repeats=arguments.repeats,
            listener=runs.ProgressLine(subject.device, arguments.command),
            keep=lambda s: files.write_json(path, {**optimize.sweep_dict(s), "machine": facts}),
        )  # fmt: skip
    finally:
        files.let_go(path)
    sys.stdout.write(f"{optimize.sweep_text(sweep)}{path}\n")
    if sweep.interrupted:
        return 130
    return 0 if any(row.ended for row in sweep.rows) else 1


def _validate(arguments: argparse.Namespace) -> int:
    options = DecodeOptions()
    if arguments.passes is not None:
        options = DecodeOptions(statistic_passes=arguments.passes)
    subject = _subject(arguments)
    path = files.stamped(arguments.out or files.BENCHMARKS, "decode_quality", ".json")
    try:
        found = validate.validate(
            subject, arguments.strategies, share=arguments.share, budget=arguments.budget,
            options=options, listener=runs.ProgressLine(subject.device, arguments.command),
        )  # fmt: skip
        facts = {**validate.validation_dict(found), "machine": basic.machine_facts()}
        files.write_json(path, facts)
    finally:
        files.let_go(path)
    picture = path.with_suffix(".png")
    drawn = validate.draw(found, picture)
    sys.stdout.write(f"{validate.validation_text(found)}{path}\n")
    sys.stdout.write(f"{picture}\n" if drawn else "")
    if found.interrupted:
        return 130
    return 0 if found.holds else 1
