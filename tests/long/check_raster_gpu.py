"""The GPU rasteriser's kernels in Triton's interpreter, on the CPU, against the C core: equal bits.

    python tests/long/check_raster_gpu.py --count 140 [--seed 1] [--first 0] [--workers 2]

Random scenes (raster_gpu_scenes.py) of both rules: with and without a prior, faces drawn by a lane
or by tiles of two sizes. Each address that a kernel reads or writes must lie in a tensor that it
was given. A scene takes some seconds. A line on each that differs; status 1 if any does.

    python tests/long/check_raster_gpu.py --count 140 --device gfx1100

does the same with the kernels compiled for that architecture, in the sizes that are launched there,
and their machine code executed by the emulator (tools/dev/gfx).
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (str(ROOT), str(ROOT / "tests" / "long")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

from children import run_children  # noqa: E402
from triton_device import INTERPRETER, Watch, added, in_words, is_emulated  # noqa: E402


def prepare() -> Watch:
    """The interpreter, watching every address of a launch, without what it does in each call of a
    device function again (three quarters of its time)."""
    import numpy
    import torch
    from triton.runtime import interpreter

    watch = Watch(INTERPRETER)
    addresses = watch.watched
    function, builder = interpreter.InterpretedFunction, interpreter.InterpreterBuilder
    run, called, atomic = function.run, function.__call__, builder.create_atomic_rmw

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        addresses.give(*(value for value in args if isinstance(value, torch.Tensor)))
        with numpy.errstate(all="ignore"):
            return run(self, *args, **kwargs)

    def watched_atomic(
        self: Any, kind: Any, pointers: Any, value: Any, mask: Any, *rest: Any
    ) -> Any:
        addresses.check(pointers, mask, "atomics")
        return atomic(self, kind, pointers, value, mask, *rest)

    def quick(self: Any, *args: Any, **kwargs: Any) -> Any:
        ours = self.fn.__module__.startswith("hy3d_rocm")
        return (self.rewrite() if ours else functools.partial(called, self))(*args, **kwargs)

    function.run, function.__call__ = watched, quick
    builder.create_atomic_rmw = watched_atomic
    return watch


def sizes_of(device: str, index: int) -> Any:
    """Of the blocks of a scene: what is launched there; on the interpreter, which takes its time by
    the operation, small ones of each kind."""
    from hy3d_rocm.conv.triton.configs import wave_size
    from hy3d_rocm.raster.gpu import draw

    if is_emulated(device):
        return draw.sizes_for(wave_size(device))
    return draw.Sizes(
        faces=16, most_pixels=(0, 12, 48)[index % 3], tile=(16, 8)[index // 3 % 2], checked=64
    )


def taken_though_wrong(draw: Any, of: Any, sizes: Any) -> list[str]:
    """Values that must be refused, and were not."""
    size, found, given = of.size, list[str](), {"sizes": sizes}

    def changed(tensor: Any, at: tuple[int, int], value: float) -> Any:
        other = tensor.clone()
        other[at] = value
        return other

    bad = {"NaN": changed(of.clip, (1, 3), float("nan")), "-inf": changed(of.clip, (-1, 0), -1e999)}
    found += [
        n for n, clip in bad.items() if draw.draw(clip, of.faces, *size, compat=True, **given)
    ]
    wrong = {n: changed(of.faces, (-1, 2), n) for n in (-1, len(of.clip), 2**31 - 1, -(2**31))}
    found += [
        f"index {n}"
        for n, f in wrong.items()
        if draw.draw(of.clip, f, *size, compat=False, **given)
    ]
    made = draw.draw(of.clip, of.faces[:0], *size, compat=False, **given)
    if made is None or made[0].any() or not made[2].isinf().all():
        found.append("no faces are no empty picture")
    share = made[1].view(-1, 3)
    for number in (-1, len(of.faces) + 1):
        picture = made[0].view(-1) + number
        if draw.interpolate(of.clip, of.faces, picture, share) is not None:
            found.append(f"face index {number}")
    return found


def run_child(seed: int, first: int, count: int, step: int, device: str) -> dict[str, Any]:
    """Scenes first, first + step, ... below first + count."""
    watch = prepare() if device == INTERPRETER else Watch(device)
    import raster_gpu_scenes as scenes

    from hy3d_rocm.raster.gpu import draw

    failed, covered, start = [], 0, time.perf_counter()
    for index in range(first, first + count, step):
        of = scenes.scene(seed, index)
        sizes = sizes_of(device, index)
        made = draw.draw(
            of.clip, of.faces, *of.size, compat=of.rule == "compat", prior=of.prior, sizes=sizes
        )
        assert made is not None, "a scene was refused"
        wanted = scenes.core(of)
        counts = [scenes.differing(a, b) for a, b in zip(made, wanted, strict=True)]
        values = scenes.attributes(of, seed, index)
        found = draw.interpolate(values, of.faces, made[0].view(-1), made[1].view(-1, 3))
        assert found is not None, "a picture was refused"
        counts.append(scenes.differing(found, scenes.core_interpolate(of, values, wanted)))
        covered += int((wanted[0] > 0).sum())
        if any(counts):
            failed.append(f"scene {index} ({of.kind}, {of.rule}, {of.size}): {counts} differ")
    if first == 0:
        # On the interpreter with the sizes of a card: what is refused needs few programs.
        sizes = sizes_of(device, 0) if is_emulated(device) else None
        failed += taken_though_wrong(draw, scenes.scene(seed, 0), sizes)
    failed += watch.unlisted() if is_emulated(device) else []
    return {
        "scenes": len(range(first, first + count, step)), "covered": covered, "failed": failed,
        "seconds": round(time.perf_counter() - start, 1), **watch.figures(),
    }  # fmt: skip


def spawn(
    seed: int, first: int, count: int, workers: int = 1, device: str = INTERPRETER
) -> dict[str, Any]:
    """run_child in `workers` processes. RuntimeError if one fails."""
    given = ["--seed", str(seed), "--device", device]
    interpret = device == INTERPRETER
    parts = run_children(__file__, given, first, count, workers, interpret=interpret)
    return {
        "failed": [line for part in parts for line in part["failed"]],
        "seconds": max(part["seconds"] for part in parts),
        **{key: sum(p[key] for p in parts) for key in ("scenes", "covered")},
        **added(parts),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=140)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first scene")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--device", default=INTERPRETER, help="or an AMD architecture: gfx1100")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    o = options = parser.parse_args()
    if options.child:
        print(json.dumps(run_child(o.seed, o.first, o.count, o.workers, o.device)))
        return 0
    result = spawn(o.seed, o.first, o.count, o.workers, o.device)
    for line in result["failed"][:10]:
        print(f"FAILED (--seed {options.seed} --first INDEX --count 1)", line)
    print(
        f"{result['scenes']} scenes, {result['covered']} covered pixels: "
        f"{len(result['failed'])} scenes differ from the C core; "
        f"{in_words(options.device, result)}; {result['seconds']} s"
    )
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
