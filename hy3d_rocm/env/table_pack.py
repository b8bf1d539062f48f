"""The rules about ComfyUI's and this pack's own variables."""

from __future__ import annotations

from hy3d_rocm.env.rule import Case, Rule, Verdict, none_of, one_of

CPU_LEVELS = ("ref", "avx2", "avx512")
OWN = "docs/comfyui.md"
TUNING = "docs/tuning.md"


def is_no_size(case: Case) -> bool:
    try:
        return not float(case.value) > 0.0
    except ValueError:
        return True


def is_no_share(case: Case) -> bool:
    try:
        return not 0.0 < float(case.value) <= 1.0
    except ValueError:
        return True


def is_megabytes(case: Case) -> bool:
    """As hy3d_rocm/conv/prepared.py reads it, which imports more than may be imported here."""
    try:
        return 0.0 <= float(case.value) < 2.0**40
    except ValueError:
        return False


RULES: tuple[Rule, ...] = (
    Rule(
        name="comfyui-miopen",
        variables=("COMFYUI_ENABLE_MIOPEN",),
        values="1",
        verdict=Verdict.FINE,
        effect="ComfyUI leaves MIOpen switched on for RDNA3 and newer",
        source="https://github.com/Comfy-Org/ComfyUI/pull/11366",
        check=lambda case: case.value == "1",
    ),
    Rule(
        name="comfyui-miopen-other",
        variables=("COMFYUI_ENABLE_MIOPEN",),
        values="anything but 1",
        verdict=Verdict.NOTHING,
        effect="only 1 has an effect: ComfyUI switches MIOpen off on RDNA3 and newer",
        source="https://github.com/Comfy-Org/ComfyUI/pull/11366",
        check=lambda case: case.value != "1",
    ),
    Rule(
        name="cpu-level",
        variables=("HY3D_CPU",),
        values=", ".join(CPU_LEVELS),
        verdict=Verdict.FINE,
        effect="limits our CPU kernels; it can only lower the level. OpenBLAS has its own: "
        "OPENBLAS_CORETYPE",
        source=TUNING,
        check=lambda case: case.value in CPU_LEVELS,
    ),
    Rule(
        name="cpu-level-unknown",
        variables=("HY3D_CPU",),
        values="anything else",
        verdict=Verdict.THROWS,
        effect="no such level: the C core refuses to start",
        remedy=f"use one of {', '.join(CPU_LEVELS)}",
        source=TUNING,
        check=lambda case: case.value not in CPU_LEVELS,
    ),
    Rule(
        name="faults",
        variables=("HY3D_FAULTS",),
        values="any",
        verdict=Verdict.HARMFUL,
        effect="convolutions are made to fail on purpose",
        remedy="unset it outside of tests",
        source="docs/router.md",
        check=none_of(""),
    ),
    Rule(
        name="raster",
        variables=("HY3D_RASTER",),
        values="off, on",
        verdict=Verdict.FINE,
        effect="whether custom_rasterizer is served where it cannot be imported; on is the default",
        source=OWN,
        check=one_of("off", "on"),
    ),
    Rule(
        name="pack-off",
        variables=("HY3D_ROCM",),
        values="off, on",
        verdict=Verdict.FINE,
        effect="off: this pack does nothing, no nodes, no patches, no variables; on is the default",
        source=OWN,
        check=one_of("off", "on"),
    ),
    Rule(
        name="environment-off",
        variables=("HY3D_ROCM_ENV",),
        values="off, on",
        verdict=Verdict.FINE,
        effect="off: this pack leaves all variables as they are; on is the default",
        source=OWN,
        check=one_of("off", "on"),
    ),
    Rule(
        name="only-off-counts",
        variables=("HY3D_ROCM", "HY3D_ROCM_ENV", "HY3D_RASTER"),
        values="anything else",
        verdict=Verdict.NOTHING,
        effect="it is passed over, with one line in the log: off and on are known",
        source=OWN,
        rest=True,
    ),
    Rule(
        name="vram-cap-unreadable",
        variables=("HY3D_ROCM_MAX_VRAM_GB",),
        values="no number above 0",
        verdict=Verdict.NOTHING,
        effect="this is no size in GB, so no memory cap is set",
        remedy="write 20 or 7.5",
        source=OWN,
        check=is_no_size,
    ),
    Rule(
        name="vram-share-unreadable",
        variables=("HY3D_ROCM_MAX_VRAM_SHARE",),
        values="no number from 0 to 1",
        verdict=Verdict.NOTHING,
        effect="this is no share of the memory, so no memory cap is set",
        remedy="write 0.9 for nine tenths",
        source=OWN,
        check=is_no_share,
    ),
    Rule(
        name="weight-cache",
        variables=("HY3D_WEIGHT_CACHE_MB",),
        values="a number of megabytes, 0 included",
        verdict=Verdict.FINE,
        effect="what the CPU convolution may keep of weights it has transformed; 0 keeps nothing",
        source=TUNING,
        check=is_megabytes,
    ),
    Rule(
        name="weight-cache-unreadable",
        variables=("HY3D_WEIGHT_CACHE_MB",),
        values="anything else",
        verdict=Verdict.NOTHING,
        effect="this is no number of megabytes, so 3 GB or a tenth of the memory are used",
        remedy="write 2000, or 0 to keep nothing",
        source=TUNING,
        check=lambda case: not is_megabytes(case),
    ),
    Rule(
        name="pack-own",
        variables=("HY3D_*",),
        values="other settings of this pack",
        verdict=Verdict.FINE,
        effect="this pack's own",
        source=OWN,
        rest=True,
    ),
)
