"""The acceptance of the ComfyUI side, in the real ComfyUI with upstream's real pack.

    python tests/comfyui/run.py --comfyui DIR [--comfyui DIR2] --wrapper DIR [--python PYTHON]
                                [--device cuda]

DIR is a checkout of ComfyUI, --wrapper one of ComfyUI-Hunyuan3DWrapper, PYTHON the interpreter
that has ComfyUI's packages (README.md beside this file). One line a check, counts at the end, exit
code 1 if a check failed. Models are tiny, of random weights, made here; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from comfy_harness.context import VIDEO_PACKS, Context  # noqa: E402
from comfy_harness.report import Report  # noqa: E402
from comfy_harness.scenarios import GPU_SCENARIOS, NEEDS, SCENARIOS  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comfyui", type=Path, action="append", required=True, metavar="DIR")
    parser.add_argument("--wrapper", type=Path, required=True, metavar="DIR")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--pack", type=Path, default=HERE.parents[1], help="our pack (this one)")
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="cuda: what needs a GPU is run"
    )
    site = "a folder of packages that PYTHON lacks; may be repeated"
    parser.add_argument("--site", type=Path, action="append", default=[], help=site)
    known = {**SCENARIOS, **GPU_SCENARIOS}
    names = f"one of {', '.join(known)}; may be repeated"
    parser.add_argument("--only", action="append", choices=list(known), help=names)
    wheels = "a folder with this commit's wheel (pip wheel . -w DIR), for --only manager"
    parser.add_argument("--wheels", type=Path, metavar="DIR", help=wheels)
    for option, folder_name in VIDEO_PACKS.items():
        parser.add_argument(f"--{option}", type=Path, metavar="DIR", help=f"{folder_name}")
    kept = "leave all logs, and the folders of broken runs, in DIR, which must be new"
    parser.add_argument("--keep", type=Path, metavar="DIR", help=kept)
    given = parser.parse_args()
    for folder, file in [(given.wrapper, "nodes.py"), *((c, "main.py") for c in given.comfyui)]:
        if not (folder / file).is_file():
            parser.error(f"{folder} has no {file}; give a checkout")
    for name in given.only or ():
        for option in lacking(name, given):
            what = f"a checkout of {VIDEO_PACKS[option]}" if option in VIDEO_PACKS else wheels
            parser.error(f"--only {name} needs --{option} DIR, {what}")
    return given


def lacking(name: str, given: argparse.Namespace) -> list[str]:
    """The options that scenario `name` needs and that were not given."""
    return [option for option in NEEDS.get(name, ()) if getattr(given, option) is None]


def make_models(given: argparse.Namespace, work: Path) -> Path:
    """The tiny models, made by the interpreter that has torch and diffusers."""
    models = work / "models"
    command = [given.python, str(HERE / "tiny_models.py"), str(models), str(given.wrapper)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(str(at.resolve()) for at in given.site)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environ
    )
    if done.returncode:
        raise SystemExit(f"the tiny models were not made:\n{done.stderr[-3000:]}")
    return models


def video_packs(given: argparse.Namespace) -> dict[str, Path]:
    found = {option: getattr(given, option) for option in VIDEO_PACKS}
    return {option: at.resolve() for option, at in found.items() if at is not None}


def run_core(
    core: Path, given: argparse.Namespace, work: Path, models: Path, report: Report
) -> None:
    context = Context(
        core.resolve(), given.wrapper.resolve(), given.pack.resolve(), given.python, work, models,
        report, given.device, tuple(at.resolve() for at in given.site),
        given.wheels and given.wheels.resolve(), video_packs(given),
    )  # fmt: skip
    known = {**SCENARIOS, **GPU_SCENARIOS}
    for name in given.only or (SCENARIOS if given.device == "cpu" else GPU_SCENARIOS):
        report.stage = f"{core.name} {name}"
        if missing := lacking(name, given):
            report.note(f"NOT RUN: it needs --{' and --'.join(missing)}")
            continue
        started = time.monotonic()
        try:
            known[name](context)
        except Exception as error:  # noqa: BLE001  (the other scenarios still run)
            report.failed("the scenario ends", error)
            traceback.print_exc()
        report.note(f"{time.monotonic() - started:.0f} s")


def main() -> int:
    given = arguments()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="hy3d-comfyui-") as temporary:
        work = given.keep or Path(temporary)
        work.mkdir(parents=True, exist_ok=given.keep is None)
        models = make_models(given, work)
        for core in given.comfyui:
            run_core(core, given, work, models, report)
    for failure in report.failures:
        print(f"failed: {failure}")
    print(report.summary())
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
