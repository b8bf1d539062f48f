"""One whole decode with every convolution executed as an AMD card's machine code: diffusers'
HunyuanVideo VAE, narrow and with random weights, five frames, by the fused kernels. No GPU.

    python tests/long/check_gfx_decode.py [--arch gfx1100] [--dtype f16 bf16 f32] [--size 4x5]

decode() plans and carries out the decode as on a card, but that its GPU is the emulator
(tools/dev/gfx): tiles that are offered there, real launches, real packing. The frames are held
against the VAE's own decode in float64. Bound: four times the error that torch's operators make in
the same decode and type (they round as often, elsewhere). Attention over its head of 24 elements is
torch's on a card, too.
Status 1 unless that holds, no layer was delegated to torch, and each convolution was
launched on the emulator. With --device cpu, in a process that has TRITON_INTERPRET=1, the same
kernels are interpreted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (str(ROOT), str(ROOT / "tests" / "long"), str(ROOT / "tests" / "support")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

from gfx_problems import DTYPES  # noqa: E402
from triton_device import INTERPRETER, Watch, in_words  # noqa: E402

from hy3d_rocm.conv.triton.work import Target  # noqa: E402
from hy3d_rocm.decoding import executor  # noqa: E402
from hy3d_rocm.decoding.backends.triton.backend import TritonBackend  # noqa: E402
from hy3d_rocm.decoding.planning.jobs import MakeBackend  # noqa: E402
from hy3d_rocm.decoding.report import DecodeOptions  # noqa: E402

TIMES = 4  # of torch's own error
UNITS = 4


@dataclass(frozen=True)
class Emulated(MakeBackend):
    """The fused backend of an architecture, wherever the tensors are. calls: of its convolve()."""

    arch: str = "gfx1100"
    calls: Counter[str] | None = field(default=None, compare=False)

    @property
    def computes_natively(self) -> bool:
        return False

    def __call__(self, weights: Any, device: Any) -> TritonBackend:
        calls = self.calls

        class Counted(TritonBackend):
            depth = 0

            def convolve(self, *args: Any, **kwargs: Any) -> Any:
                if self.depth == 0 and self.device.type != "meta" and calls is not None:
                    calls["convolutions"] += 1
                self.depth += 1
                try:
                    return super().convolve(*args, **kwargs)
                finally:
                    self.depth -= 1

        return Counted(weights, device, Target(self.arch, UNITS))


def tiny_vae() -> Any:
    """HunyuanVideo's VAE, narrow."""
    import diffusers
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        made = diffusers.AutoencoderKLHunyuanVideo(
            block_out_channels=(8, 16, 16, 24), layers_per_block=1, norm_num_groups=4,
            latent_channels=4,
        )  # fmt: skip
    return made.eval().requires_grad_(False)


def decoded(vae: Any, latents: Any, make: MakeBackend | None) -> tuple[Any, Any]:
    """Frames and report of decode(), by this backend or torch's operators."""
    plain = executor.best_backend
    if make is not None:
        executor.best_backend = lambda *_: make
    try:
        options = DecodeOptions(backend="torch" if make is None else "auto")
        return executor.decode_with_report(vae, latents, strategy="streamed", options=options)
    finally:
        executor.best_backend = plain


def error(frames: Any, exact: Any) -> float:
    """The largest, as a share of the largest value."""
    away = (frames.double() - exact).abs() / exact.abs().max()
    return float(away.nan_to_num(nan=float("inf")).max())


def check(arch: str, dtype: str, size: tuple[int, int], watch: Watch) -> bool:
    """One decode; says how it went."""
    import torch

    start = time.perf_counter()
    vae = tiny_vae().to(getattr(torch, DTYPES[dtype]))
    generator = torch.Generator().manual_seed(4)
    latents = torch.randn(1, 4, 2, *size, generator=generator).to(vae.dtype)
    calls: Counter[str] = Counter()
    before, first = watch.figures(), len(_launches(watch))
    frames, report = decoded(vae, latents, Emulated(arch=arch, calls=calls))
    after = watch.figures()
    torchs, _ = decoded(vae, latents, None)
    with torch.no_grad():
        exact = vae.double().decode(latents.double()).sample
    ours, theirs = error(frames, exact), error(torchs, exact)
    run = {key: after[key] - before[key] for key in after}
    launched = Counter(one.kernel.name for one in _launches(watch)[first:])["conv_rows"]
    emulated = watch.device == INTERPRETER or launched >= calls["convolutions"] > 0
    good = emulated and not report.delegated and ours <= TIMES * theirs
    print(
        f"{arch} {dtype}: {tuple(frames.shape)} frames by {calls['convolutions']} convolutions,"
        f" {report.delegated or 'none'} of them delegated; {in_words(watch.device, run)}; error"
        f" {ours:.2e} of the largest value, torch's operators {theirs:.2e} (bound {TIMES} times);"
        f" {time.perf_counter() - start:.0f} s: {'pass' if good else 'FAIL'}"
    )
    return good


def _launches(watch: Watch) -> list[Any]:
    return [] if watch.device == INTERPRETER else watch.watched.launches


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", nargs="+", default=["gfx1100"])
    parser.add_argument("--dtype", nargs="+", default=["f16"], choices=list(DTYPES))
    parser.add_argument("--size", default="4x5", metavar="HxW", help="of the latents")
    parser.add_argument("--device", default="", help="cpu: Triton's interpreter")
    options = parser.parse_args()
    high, wide = (int(n) for n in options.size.split("x"))
    good = True
    for arch in options.arch:
        watch = Watch(options.device or arch)
        for dtype in options.dtype:
            good &= check(arch, dtype, (high, wide), watch)
        if not options.device:
            watch.watched.remove()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
