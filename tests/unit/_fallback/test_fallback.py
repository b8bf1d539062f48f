"""The pack without its compiled core: twins serve, and one line says what is missing."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import textwrap

import pytest
import warm_start
from places import ROOT, SUPPORT

import hy3d_rocm
from hy3d_rocm import _core, _fallback, _native

# Makes `import hy3d_rocm._core` fail as it does where nothing was compiled.
HIDE = """
    import sys

    class Hidden:
        def find_spec(self, name, path=None, target=None):
            if name == "hy3d_rocm._core":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Hidden())
"""


def without_core(code: str, needs_torch: bool = False) -> tuple[str, str]:
    """Standard output and error of a fresh interpreter in which the core is hidden; with torch of
    one that has imported that, and nothing of the package."""
    program = textwrap.dedent(HIDE) + textwrap.dedent(code)
    if needs_torch:
        result = warm_start.run("-c", program)
    else:
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
        )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout.strip(), result.stderr.strip()


def test_exactly_one_line_says_what_is_missing_and_what_brings_it() -> None:
    out, err = without_core(
        """
        import logging
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        import hy3d_rocm
        assert hy3d_rocm.Hy3dError
        from hy3d_rocm import _native
        import importlib
        importlib.import_module("hy3d_rocm._native")
        assert not _native.available
        print(_native.resolve_device(object(), "cpu"), _native.seed_image(5, 0))
        """
    )
    assert out == "('cpu', 'default') 5"
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert "everything but the CPU convolution, the rasteriser and exact decodes" in lines[0]
    assert "pip install ." in lines[0]


def test_with_the_core_nothing_is_said() -> None:
    result = subprocess.run(
        [sys.executable, "-c", "from hy3d_rocm import _native; assert _native.available"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert result.stderr == ""


def test_the_twins_answer_as_the_core_does() -> None:
    code = """
        from hy3d_rocm import _native as n
        plan = n.schedule_plan(latent=(9, 20, 30), factor=(4, 8, 8), causal=1, overlap=(0, 2, 2),
                               halo=(2, 0, 0), min_tile=(2, 8, 8), bytes_per_voxel=100,
                               budget_bytes=10**8)
        print(sorted(plan.items()))
        print([sorted(n.schedule_tile(plan, i).items()) for i in range(plan["tiles"])])
        print(n.schedule_window(9, 3, 4).tolist())
        print(n.seed_image(7, 3))
        print(n.conv3d_out_size((9, 8, 7), (3, 3, 3), (1, 2, 2), (1, 1, 2), (2, 1, 1), (0, 1, 1)))
        print(sorted(n.cpu_info()), sorted(n.blas_info()))
    """
    with_core = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    out, _ = without_core(code)
    assert out == with_core.stdout.strip()


def test_protect_routes_without_the_core() -> None:
    out, err = without_core(
        """
        import torch, torch.nn.functional as F
        from hy3d_rocm import inject_faults, protect
        from hy3d_rocm.conv.faults import MIOPEN_NO_ALGORITHM, Fault

        x, w = torch.ones(1, 4, 3, 8, 8), torch.ones(4, 4, 3, 3, 3)
        failing = Fault("current", "conv3d", MIOPEN_NO_ALGORITHM)
        for _ in range(2):  # in the second scope it is known what failed
            with inject_faults([failing]), protect() as guard:
                found = F.conv3d(x, w), F.conv3d(x, w)
            right = all(made.eq(108).all() for made in found)
            print(right, guard.stats.recovered, guard.stats.raised)
        """,
        needs_torch=True,
    )
    assert out.splitlines() == ["True 2 0", "True 2 0"], err
    assert "the router failed" not in err


# Runs programs one after the other; each one's lines stand between two marks.
ONE_AFTER_THE_OTHER = """
import json, traceback
sys.path[:0], programs = json.loads(sys.stdin.read())
for name, code in programs.items():
    for stream in (sys.stdout, sys.stderr):
        print(f"=== {name}", file=stream, flush=True)
    try:
        exec(code, {"sys": sys})
    except BaseException:
        traceback.print_exc()
"""


@pytest.fixture(scope="module")
def told() -> dict[str, tuple[str, str]]:
    """What each of the programs below prints: in one process, since to import torch and diffusers
    takes longer than what they do."""
    pytest.importorskip("diffusers")
    programs = {n: globals()[n] for n in ("OWN_CODE", "REFUSALS", "OTHERWISE", "TUNE")}
    done = warm_start.run(
        "-c", textwrap.dedent(HIDE) + ONE_AFTER_THE_OTHER, timeout=110,
        text=json.dumps([[str(SUPPORT), str(ROOT)], programs]),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]

    def parts(text: str) -> dict[str, str]:
        return {one.split("\n")[0]: one.partition("\n")[2] for one in text.split("=== ")[1:]}

    out, err = parts(done.stdout), parts(done.stderr)
    return {name: (out[name].strip(), err[name].strip()) for name in programs}


OWN_CODE = """
import torch
from decode_doubles import tiny_latents, tiny_vae
from hy3d_rocm import protect
from hy3d_rocm.decoding.executor import decode_with_report

vae = tiny_vae("wan")
latents = tiny_latents(vae, 2, 6, 6)
with torch.no_grad():
    own = vae.decode(latents).sample
with protect() as guard:
    frames, report = decode_with_report(vae, latents, "1GB")
print(report.strategy, torch.equal(frames, own), guard.stats.calls > 0)
print(report.reason)
"""


def test_a_vae_is_decoded_by_its_own_code_without_the_core(
    told: dict[str, tuple[str, str]],
) -> None:
    out, _ = told["OWN_CODE"]
    lines = out.splitlines()
    assert lines[0] == "whole True True"
    assert "Its own code runs, since the C core, which plans its layers, is missing" in lines[1]


def test_the_convolution_says_that_it_needs_the_core() -> None:
    out, _ = without_core(
        """
        import numpy as np
        import hy3d_rocm
        try:
            hy3d_rocm.conv3d(np.zeros((1, 1, 3, 3, 3), "f4"), np.zeros((1, 1, 1, 1, 1), "f4"))
        except hy3d_rocm.Hy3dError as error:
            print(error)
        """
    )
    assert out.startswith("The CPU convolution needs the C core, which is not there: run `pip")


def test_the_twins_error_and_flag_are_used_like_the_core_s() -> None:
    error = _fallback.Hy3dError("text", 7)
    assert (str(error), error.status, error.name) == ("text", 7, "HY3D_ERR_BUDGET_TOO_SMALL")
    for flag in (_core.CancelFlag(), _fallback.CancelFlag()):
        assert not flag.requested
        flag.request()
        assert flag.requested
        flag.reset()
        assert not flag.requested


def test_both_doors_have_every_name() -> None:
    for name in _native.__all__:
        assert hasattr(_native, name), name
    for name in ("CancelFlag", "Hy3dError", "blas_info", "conv3d", "conv3d_out_size", "cpu_info"):
        assert hasattr(_fallback, name), name


@pytest.mark.parametrize("fields", [{"latent": (0, 1, 1)}, {"level": -2}, {"overlap": (1, 2)}])
def test_both_refuse_the_same_plans(fields: dict[str, object]) -> None:
    from hy3d_rocm._fallback import schedule

    good = {"latent": (4, 8, 8), "factor": (4, 8, 8)}
    for plan in (_core.schedule_plan, schedule.schedule_plan):
        plan(**good)  # type: ignore[operator]
        with pytest.raises((ValueError, TypeError)):
            plan(**(good | fields))  # type: ignore[operator]


def test_decode_and_encode_are_functions_before_and_after_their_package_is_loaded() -> None:
    functions = hy3d_rocm.decode, hy3d_rocm.encode
    executor = importlib.import_module("hy3d_rocm.decoding.executor")
    assert functions == (executor.decode, executor.encode) == (hy3d_rocm.decode, hy3d_rocm.encode)


REFUSALS = """
from pathlib import Path
import torch
from decode_doubles import tiny_latents, tiny_pixels, tiny_vae
from decode_originals import latent_diffusion_original, wan_original
from examples.demo import run as demo
from hy3d_rocm import decode, encode
from hy3d_rocm.cli import main
from hy3d_rocm.decoding.families import family_for
from hy3d_rocm.decoding.families.base import Host

def said(what, work):
    try:
        work()
    except Exception as error:
        print(what, type(error).__name__, error)

vae = tiny_vae("hunyuan15")
said("cpu", lambda: decode(vae, tiny_latents(vae, 1, 4, 4), strategy="cpu"))
said("frames", lambda: encode(vae, tiny_pixels(4, 32, 32)))
said("size", lambda: encode(vae, tiny_pixels(1, 30, 32)))
said("mean", lambda: encode(wan_original(tiny_vae("wan")), tiny_pixels(1, 32, 32)))

hosted = family_for(latent_diffusion_original(tiny_vae("image")))
hosted.host = Host(torch.device("cpu"), torch.float64, None)
z = torch.randn(1, hosted.latent_channels, 3, 2)
said("hosted", lambda: decode(hosted, z, precision="fp32"))

demo.check_packages = lambda: None
said("demo", lambda: demo.run_demo(Path("nowhere"), 5))
print("plan", main(["plan", "--vae", "image", "--size", "64x64"]))
"""


def test_what_cannot_be_done_without_the_core_is_a_sentence_that_says_what_brings_it(
    told: dict[str, tuple[str, str]],
) -> None:
    out, err = told["REFUSALS"]
    said = dict(line.split(" ", 1) for line in out.splitlines())
    brings = "(No module named 'hy3d_rocm._core'): run `pip install .` in the pack's folder"
    assert "ValueError the strategy 'cpu' can't be taken" in said["cpu"]
    assert said["frames"].startswith("ValueError 4 frames are given, but this HunyuanVideo 1.5")
    assert said["size"].startswith("ValueError frames are 32x30, but this HunyuanVideo 1.5")
    assert "gives the latent's mean only: call that, since the C core" in said["mean"]
    assert "computes in the type that its host casts weights to" in said["hosted"]
    assert said["demo"].startswith("DemoError the demo needs the C core, which is not there")
    assert said["plan"] == "1"
    assert "decode() runs the VAE's own code, whole or in tiles" in err
    for text in (said["cpu"], said["mean"], said["demo"], err):
        assert brings in text


OTHERWISE = """
import torch
from decode_doubles import tiny_latents, tiny_pixels, tiny_vae
from hy3d_rocm import decode, encode
from hy3d_rocm.decoding.families import family_for
from hy3d_rocm.decoding.families.proof import proven

usual = family_for(tiny_vae("image"))
print(proven(usual), proven(usual, encode=True))
vae = tiny_vae("image")

class Twice(type(vae)):
    def decode(self, z, *args, **more):
        made = super().decode(z, *args, **more)
        made.sample = made.sample * 2
        return made

    def encode(self, x, *args, **more):
        return super().encode(x / 2, *args, **more)

vae.__class__ = Twice
z, x = tiny_latents(vae, 1, 4, 4)[:, :, 0], tiny_pixels(1, 16, 16)[:, :, 0]
with torch.no_grad():
    print(torch.equal(decode(vae, z), vae.decode(z).sample))
    print(torch.equal(encode(vae, x), vae.encode(x).latent_dist.mean))
"""


def test_a_vae_that_does_otherwise_than_its_parts_is_not_run_by_them_without_the_core(
    told: dict[str, tuple[str, str]],
) -> None:
    out, err = told["OTHERWISE"]
    assert out.split() == ["True"] * 4, err


TUNE = """
import torch
from decode_doubles import tiny_vae
from hy3d_rocm.decoding.families import unproven_family
from hy3d_rocm.decoding.planning.jobs import Job, torch_backend
from hy3d_rocm.tune.shapes import collect, collect_decode

vae, gpu, f32 = tiny_vae("image").to("meta"), torch.device("cuda"), torch.float32
family = unproven_family(vae)
job = Job(family, (1, family.latent_channels, 1, 4, 4), gpu, f32, f32, torch_backend)
shapes, whose = collect_decode(job, None)
wanted = collect(vae, (1, family.latent_channels, 4, 4), f32, "cuda")
print(len(shapes) > 5, sorted(map(str, shapes)) == sorted(map(str, wanted)))
"""


def test_the_convolutions_of_a_decode_are_found_for_tune_without_the_core(
    told: dict[str, tuple[str, str]],
) -> None:
    out, err = told["TUNE"]
    assert out == "True True", err
