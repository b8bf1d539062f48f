"""What tests/nightly.py runs. `python` is the interpreter that runs it."""

from __future__ import annotations

from typing import NamedTuple


class Check(NamedTuple):
    name: str
    claim: str  # what holds if it passes
    full: str
    quick: str


def bench(script: str, full: str, quick: str) -> tuple[str, str]:
    """Both commands of a script in tests/bench."""
    command = f"python tests/bench/{script}.py "
    return (command + full).strip(), (command + quick).strip()


CHECKS = (
    Check(
        "differential",
        "integer convolutions have torch's bits, real ones stay within the proven bound",
        *bench("differential_conv3d", "--count 20000 --real 2000", "--count 500 --real 100"),
    ),
    Check(
        "argument-fuzz",
        "no tuple of arguments crashes a function of the C core",
        *bench("fuzz_arguments", "--count 1000000", "--count 10000"),
    ),
    Check(
        "plans",
        "random decode plans keep every promise",
        *bench("check_plans", "--count 1000000", "--count 20000"),
    ),
    Check(
        "router",
        "a fault at every tier and call loses no convolution",
        *bench("check_router", "", "--quick 300"),
    ),
    Check(
        "tiers",
        "every tier agrees with float64, in pieces of any size",
        *bench("differential_tiers", "--count 2000", "--count 100"),
    ),
    Check(
        "probe",
        "probes that hang, crash or lie get the right verdict and leave nothing",
        *bench("check_probe", "--count 1000", "--count 60"),
    ),
    Check(
        "knowledge",
        "the file of what was learnt survives kills, full disks and two writers",
        *bench("check_knowledge", "--kills 200", "--kills 20"),
    ),
    Check(
        "resume",
        "a decode killed at any moment ends with the bytes of an undisturbed one",
        *bench("check_resume", "--count 200 --decoder double", "--count 10 --decoder double"),
    ),
    Check(
        "planned-peak",
        "no decode takes more memory than was planned",
        *bench("check_planned_peak", "--count 500", "--count 20"),
    ),
    Check(
        "families",
        "every known VAE, by its layers, decodes as its own code does",
        *bench("check_families", "", "--frames 9"),
    ),
    Check(
        "raster",
        "no pixel of random scenes is wrong, by float64 and whole numbers",
        *bench("raster_random", "--count 10000", "--count 300"),
    ),
    Check(
        "triton-numerics",
        "the Triton kernels, interpreted, agree with float64",
        *bench("check_triton_numerics", "--count 500", "--count 20"),
    ),
    Check(
        "triton-isa",
        "every Triton convolution compiles for AMD without a spill",
        *bench("check_gfx", "", "--quick --arch gfx1100 --dtype f16"),
    ),
    Check(
        "fused-isa",
        "the fused decode's kernels compile for AMD without a spill",
        *bench("check_fused_gfx", "", "--quick --arch gfx1100 --dtype f16"),
    ),
    Check(
        "raster-isa",
        "the GPU rasteriser's kernels compile for AMD",
        *bench("check_raster_gfx", "", "--arch gfx1100"),
    ),
    Check(
        "asan",
        "the C suites give no report of the address and undefined-behaviour sanitizers",
        "make asan",
        "make asan CHECK_ARGS=base",
    ),
)
