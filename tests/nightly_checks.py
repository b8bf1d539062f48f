"""What tests/nightly.py runs. `python` is the interpreter that runs it."""

from __future__ import annotations

from typing import NamedTuple


class Check(NamedTuple):
    name: str
    claim: str  # what holds if it passes
    full: str
    quick: str


def script(name: str, full: str, quick: str) -> tuple[str, str]:
    """Both commands of a script in tests/long."""
    command = f"python tests/long/{name}.py "
    return (command + full).strip(), (command + quick).strip()


EXECUTED = ("gfx1100", "gfx1201", "gfx942")


def executed(name: str, arch: str) -> Check:
    """One of the checks of Triton kernels, on the emulator of an architecture."""
    claims = {
        "triton_numerics": "random convolutions agree with float64",
        "fused": "random layers of the fused decode agree with float64",
        "raster_gpu": "random scenes are the C core's, bit for bit",
    }
    return Check(
        f"executed-{name.replace('_', '-')}-{arch}",
        f"as machine code of {arch}, {claims[name]}",
        *script(f"check_{name}", f"--device {arch} --count 100", f"--device {arch} --count 2"),
    )


CHECKS = (
    Check(
        "tests",
        "the tests with all that the gate has no time for: whole products and large counts",
        "make test-long",
        "make test-long LONG_TESTS=tests/unit/pipeline/test_seed_modes.py",
    ),
    Check(
        "exact",
        "integer convolutions have an oracle's bits, by every strategy and CPU level",
        'make cbits-exact CBITS_ARGS="--count 1000000"',
        "make cbits-quick",
    ),
    Check(
        "stable",
        "one result for any threads, workspace limit and alignment",
        'make cbits-stable CBITS_ARGS="--count 1000"',
        'make cbits-stable CBITS_ARGS="--count 6"',
    ),
    Check(
        "others",
        "the same of blending, moments and the rasteriser",
        'make cbits-others CBITS_ARGS="--count 6000"',
        'make cbits-others CBITS_ARGS="--count 12"',
    ),
    Check(
        "real",
        "real values stay within the proven bound; the share used, ours and torch's",
        *script("real_conv3d", "--count 20000", "--count 96"),
    ),
    Check(
        "differential",
        "integer convolutions have torch's bits",
        *script("differential_conv3d", "--count 20000 --real 2000", "--count 500 --real 100"),
    ),
    Check(
        "arguments",
        "no tuple of arguments crashes, leaks or grows a callable of the C core",
        *script("fuzz_arguments", "--count 1000000", "--count 2000"),
    ),
    Check(
        "fuzz",
        "any bytes as a convolution, a plan or a mesh: statuses, sizes and values as promised",
        "make cfuzz-run FUZZ_SECONDS=1800",
        "make cfuzz-run FUZZ_SECONDS=20 FUZZ_JOBS=1",
    ),
    Check(
        "guards",
        "every kernel stays between inaccessible pages, with the reference's bits",
        "make cguards",
        'make cguards CGUARDS_ARGS="--parts 129 --only 3"',
    ),
    Check(
        "sites",
        "every call of the core for memory, threads and libraries fails and is survived",
        "make csites HY3D_TESTS=full",
        "make csites",
    ),
    Check(
        "binding-faults",
        "every call of the binding for memory fails and is survived",
        *script("check_binding_faults", "--count 6", "--count 2"),
    ),
    Check(
        "decode-oom",
        "memory that runs out anywhere in a decode leaves the result or a sentence",
        *script("check_decode_oom", "", "--count 100"),
    ),
    Check(
        "ranks",
        "ranks that are killed, stopped or slow leave rank 0 the frames, and nobody hangs",
        *script("check_ranks", "--count 200", "--count 12"),
    ),
    Check(
        "disk",
        "faults of the disk leave the old content or the new",
        *script("check_disk_faults", "--count 1000", "--count 40"),
    ),
    Check(
        "host",
        "cancels, forks, threads, interpreters, ends, signals and long use in a host process",
        *script("check_host", "", "--scale 0.01"),
    ),
    Check(
        "seeds",
        "seeds keep to their definition and leave the global random states alone",
        *script("check_seeds", "--count 10000", "--count 200"),
    ),
    Check(
        "plans",
        "random decode plans keep every promise",
        *script("check_plans", "--count 1000000", "--count 20000"),
    ),
    Check(
        "schedule",
        "a replayer finds nothing to object to in the programs of random graphs under any budget",
        'make schedule-million SCHEDULE_ARGS="--count 1000000"',
        'make schedule-million SCHEDULE_ARGS="--count 3000"',
    ),
    Check(
        "router",
        "a fault at every tier and call loses no convolution",
        *script("check_router", "", "--quick 300"),
    ),
    Check(
        "tiers",
        "every tier agrees with float64, in pieces of any size",
        *script("differential_tiers", "--count 2000", "--count 100"),
    ),
    Check(
        "probe",
        "probes that hang, crash or lie get the right verdict and leave nothing",
        *script("check_probe", "--count 1000", "--count 60"),
    ),
    Check(
        "knowledge",
        "the file of what was learnt survives kills, full disks and two writers",
        *script("check_knowledge", "--kills 200", "--kills 20"),
    ),
    Check(
        "resume",
        "a decode killed at any moment ends with the bytes of an undisturbed one",
        *script("check_resume", "--count 200 --decoder double", "--count 10 --decoder double"),
    ),
    Check(
        "planned-peak",
        "no decode takes more memory than was planned",
        *script("check_planned_peak", "--count 500", "--count 20"),
    ),
    Check(
        "families",
        "every known VAE, by its layers, decodes as its own code does",
        *script("check_families", "", "--frames 9"),
    ),
    Check(
        "raster",
        "no pixel of random scenes is wrong, by float64 and whole numbers",
        *script("raster_random", "--count 10000", "--count 300"),
    ),
    Check(
        "triton-numerics",
        "the Triton kernels, interpreted, agree with float64",
        *script("check_triton_numerics", "--count 500", "--count 20"),
    ),
    Check(
        "triton-isa",
        "every Triton convolution compiles for AMD without a spill",
        *script("check_gfx", "", "--quick --arch gfx1100 --dtype f16"),
    ),
    Check(
        "fused-isa",
        "the fused decode's kernels compile for AMD without a spill",
        *script("check_fused_gfx", "", "--quick --arch gfx1100 --dtype f16"),
    ),
    Check(
        "raster-isa",
        "the GPU rasteriser's kernels compile for AMD",
        *script("check_raster_gfx", "", "--arch gfx1100"),
    ),
    Check(
        "executed",
        "every Triton kernel, executed as AMD machine code, agrees with float64",
        *script("check_gfx_run", "", "--arch gfx1100 --dtype f16 --select values --most 6"),
    ),
    Check(
        "executed-decode",
        "a decode whose convolutions are AMD machine code has the VAE's own frames",
        *script(
            "check_gfx_decode", "--arch gfx1100 gfx1201 gfx942 --dtype f16 bf16 f32", "--size 1x2"
        ),
    ),
    *(executed(name, arch) for arch in EXECUTED for name in ("triton_numerics", "fused")),
    *(executed("raster_gpu", arch) for arch in EXECUTED),
    Check(
        "asan",
        "the C suites give no report of the address and undefined-behaviour sanitizers",
        "make asan",
        "make asan CHECK_ARGS=base",
    ),
    Check(
        "tsan",
        "the suites that start threads give no report of ThreadSanitizer, with eight threads",
        "make ctsan",
        "make ctsan QUICK=1",
    ),
    Check(
        "msan",
        "the C suites give no report of MemorySanitizer",
        "make cmsan",
        "make cmsan QUICK=1",
    ),
    Check(
        "valgrind",
        "the C suites give no report of memcheck",
        "make cvalgrind",
        "make cvalgrind QUICK=1",
    ),
    Check(
        "helgrind",
        "the pool's suites give no report of helgrind and drd",
        "make chelgrind",
        "make chelgrind",
    ),
    Check(
        "integer",
        "the C suites give no report of clang's checks of conversions and shifts",
        "make cinteger",
        "make cinteger QUICK=1",
    ),
    Check(
        "analyze",
        "gcc's and clang's analyzers find nothing in csrc",
        "make canalyze",
        "make canalyze",
    ),
    Check(
        "coverage-c",
        "every line of C is reached or explained, 95 % of the branches taken",
        "make ccov",
        "make ccov",
    ),
    Check(
        "mutation",
        "tests notice 85 % of small faults in the logic that decides",
        "python tests/mutation/mutation.py",
        "python tests/mutation/mutation.py --group device --side python --sample 30",
    ),
    Check(
        "windows",
        "the C suites pass under wine at every CPU level",
        "make cwintest",
        "make cwintest CWIN_LEVELS=avx2 CHECK_ARGS=parallel",
    ),
    Check(
        "windows-wheel",
        "the wheel for Windows is what it must be; the core, files and commands work under wine",
        "make wheel-windows wheel-windows-test",
        "make wheel-windows wheel-windows-test CWIN_LEVELS=avx2",
    ),
    Check(
        "reproducible",
        "the same commit gives the same sdist and wheel",
        "python tools/check_reproducible.py",
        "python tools/check_reproducible.py --sdist-only",
    ),
    Check(
        "sdist-offline",
        "the sdist builds without a network",
        *script("check_sdist", "", ""),
    ),
    Check(
        "threads-no-gil",
        "eight threads at once on the same objects, with or without the GIL",
        *script("check_free_threaded", "--rounds 8000", "--rounds 200"),
    ),
)
