"""The GPU rasteriser's kernels compiled for AMD architectures, and their ISA checked. No GPU.

    python tests/long/check_raster_gfx.py [--arch gfx1100 ...] [--workers 2]

Of each kernel, rule, prior, and tensors below and beyond 2 GiB: no spilled register, no scratch
memory, LDS within 64 KB; no fused multiply-add but the five that LLVM divides float64 with; 64-bit
atomics where a picture is drawn, none elsewhere. A line on each kernel; status 1 if any is refused.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from hy3d_rocm.conv.triton import configs  # noqa: E402
from tools.dev import compile as compiling  # noqa: E402
from tools.dev import isa  # noqa: E402

MODULE = "hy3d_rocm.raster.gpu.kernels"
ARCHES = ("gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1200", "gfx1201")
DRAWING = ("draw_faces", "draw_tiles", "settle_tiles")
POINTERS = {
    "clip": "*fp32", "triangles": "*i32", "prior": "*fp32", "keys": "*i64", "tiles": "*i32",
    "status": "*i64", "ends": "*i64", "doubts": "*i32", "face_index": "*i32", "values": "*i32",
    "barycentric": "*fp32", "depth": "*fp32", "attributes": "*fp32", "out": "*fp32",
}  # fmt: skip
# LLVM's expansion of a float64 division has so many, and ends in this.
FMA_A_DIVISION, DIVISION = 5, re.compile(r"^\s+v_div_fixup_f64", re.M)
FMA = re.compile(r"^\s+v_(?:dual_|pk_)?(?:fma|fmac|fmaak|fmamk|mad|mac)\w*_f(?:32|64)", re.M)
ATOMIC = re.compile(r"^\s+(?:global|buffer|flat)_atomic_\w+(?:_x2|_b64|_i64)\b", re.M)


def job(arch: str, function: str, constants: dict[str, Any], warps: int, **more: Any) -> Any:
    """A kernel with its constants; more: letters ("DS"), and whether to fuse."""
    kernel = getattr(importlib.import_module(MODULE), function)
    signature = {
        p.name: "constexpr" if p.is_constexpr else POINTERS.get(p.name, "i32")
        for p in kernel.params
    }
    letters = {name: more.get("letters", "DS") for name in signature if name in POINTERS}
    return compiling.Job(
        arch, MODULE, function, signature, constants, letters, num_warps=warps, num_stages=1,
        options={"enable_fp_fusion": more.get("fuse", False)},
    )  # fmt: skip


def jobs_of(arch: str, rules: tuple[bool, ...], letters: tuple[str, ...]) -> Iterator[Any]:
    """Every kernel as draw.py launches it; rules: whether compat."""
    from hy3d_rocm.raster.gpu.draw import sizes_for

    s = sizes_for(configs.wave_size(arch))
    for form in letters:
        for compat in rules:
            rule = {"COMPAT": compat}
            for prior in (True, False):
                drawn = {**rule, "HAS_PRIOR": prior, "TILE": s.tile}
                lanes = {"MOST": s.most_pixels, "BLOCK": s.faces}
                yield job(arch, "draw_faces", drawn | lanes, s.face_warps, letters=form)
                yield job(arch, "draw_tiles", drawn, s.tile_warps, letters=form)
                yield job(arch, "settle_tiles", drawn, s.settle_warps, letters=form)
            yield job(arch, "read_keys", rule | {"BLOCK": s.pixels}, s.pixel_warps, letters=form)
        for channels in (1, 4, 32):
            blocks = {"BLOCK": 1024 // max(channels, 4), "CHANNELS": channels}
            yield job(arch, "interpolate_pixels", blocks, 4, letters=form)
        for name in ("check_vertices", "check_indices"):
            yield job(arch, name, {"BLOCK": s.checked}, 4, letters=form)


def problems(done: compiling.Compiled) -> list[str]:
    """Why a compiled kernel should not be offered, in words."""
    if done.error is not None:
        return [done.error]
    found = isa.problems(done.isa(), None)
    fused, divisions = len(FMA.findall(done.asm)), len(DIVISION.findall(done.asm))
    if fused != FMA_A_DIVISION * divisions:
        found.append(f"{fused} fused multiply-adds, of which divisions have {5 * divisions}")
    atomics = bool(ATOMIC.search(done.asm))
    if atomics != (done.job.function in (*DRAWING, "check_vertices", "check_indices")):
        found.append(f"{'64-bit' if atomics else 'no 64-bit'} atomics")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", nargs="*", default=ARCHES)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    wrong = 0
    jobs = [j for arch in options.arch for j in jobs_of(arch, (False, True), ("DS", "D"))]
    for done in compiling.compile_all(jobs, workers=options.workers):
        refused, constants = problems(done), done.job.constexprs
        wrong += bool(refused)
        flags = " ".join(f"{k}={v}" for k, v in constants.items() if k in ("COMPAT", "HAS_PRIOR"))
        form = "" if "S" in next(iter(done.job.attributes.values())) else "beyond 2 GiB"
        text = "; ".join(refused)
        if done.error is None:
            found = done.isa()
            text = text or f"{found.vgprs} VGPR, {found.waves} waves a SIMD"
        print(f"{done.job.arch:8} {done.job.function:18} {flags} {form}: {text}", flush=True)
    print(f"{len(jobs)} kernels, {wrong} refused")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
