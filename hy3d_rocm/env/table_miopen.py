"""The rules about MIOPEN_* variables.

MIOpen reads each variable once, in its first convolution: so they count only before that.
"""

from __future__ import annotations

import re

from hy3d_rocm.env import miopen_names as names
from hy3d_rocm.env.rule import Case, Check, Rule, Span, Verdict, none_of, one_of

OLD = "https://github.com/ROCm/MIOpen/blob/2d1fd997a6fcf801ac4ca7a63e0656ef1cb9f488/src/"
NEW = "https://github.com/ROCm/rocm-libraries/blob/3566bfc593e0a63b518677fcb2059018d3fd8983/"
FIND_CONTROLS = OLD + "find_controls.cpp"
REFERENCE = "https://rocm.docs.amd.com/projects/MIOpen/en/docs-10.1.0/reference/env_variables.html"

FIND_MODES = {"NORMAL": 1, "FAST": 2, "HYBRID": 3, "DYNAMIC_HYBRID": 5}
LATER_FIND_MODES = {"TRUST_VERIFY": 6, "TRUST_VERIFY_FULL": 7}
FIND_ENFORCE = {"NONE": 1, "DB_UPDATE": 2, "SEARCH": 3, "SEARCH_DB_UPDATE": 4, "DB_CLEAN": 5}
YES = ("1", "ENABLE", "ENABLED", "YES", "ON", "TRUE")
NO = ("0", "DISABLE", "DISABLED", "NO", "OFF", "FALSE")
READ_UP_TO = Span(before=(10, 2))  # the newest MIOpen whose find modes were read is ROCm 10.1's

ON_BY_DEFAULT = tuple(
    f"MIOPEN_DEBUG_{rest}"
    for rest in (
        "3D_CONV_IMPLICIT_GEMM_HIP_FWD_XDLOPS", "3D_CONV_IMPLICIT_GEMM_HIP_BWD_XDLOPS",
        "3D_CONV_IMPLICIT_GEMM_HIP_WRW_XDLOPS", "CONV_DIRECT", "CONV_FFT", "CONV_GEMM",
        "CONV_WINOGRAD", "CONV_IMPLICIT_GEMM", "CONV_IMPLICIT_GEMM_XDLOPS",
        "CONV_DIRECT_NAIVE_CONV_FWD", "CONV_DIRECT_NAIVE_CONV_BWD", "CONV_DIRECT_NAIVE_CONV_WRW",
        "CONV_IMMED_FALLBACK", "ENABLE_AI_IMMED_MODE_FALLBACK", "GCN_ASM_KERNELS",
        "OPENCL_CONVOLUTIONS",
    )
)  # fmt: skip
OFF_BY_DEFAULT = (
    "MIOPEN_DEBUG_DISABLE_FIND_DB", "MIOPEN_DISABLE_CACHE", "MIOPEN_DEBUG_COMPILE_ONLY",
    "MIOPEN_DEBUG_FORCE_IMMED_MODE_FALLBACK", "MIOPEN_ENABLE_LOGGING", "MIOPEN_ENABLE_LOGGING_CMD",
)  # fmt: skip
FILLED = 50  # find results: two resolutions; a video VAE has about 25 different convolutions
MODE_VARIABLES = ("MIOPEN_FIND_MODE", "MIOPEN_FIND_MODE_FUSION")


def listed(choices: dict[str, int]) -> str:
    return ", ".join(f"{name} ({number})" for name, number in choices.items())


def number_of(text: str) -> int | None:
    """As C++'s stoul: None where it throws. What follows the digits is ignored."""
    found = re.match(r"\s*([+-]?\d+)", text)
    return int(found[1]) if found and abs(int(found[1])) < 2**64 else None


def is_no_word_of(*choices: dict[str, int]) -> Check:
    known = {name for choice in choices for name in choice}
    return lambda case: (
        case.value != "" and case.value.upper() not in known and number_of(case.value) is None
    )


def is_number_outside(low: int, high: int) -> Check:
    def check(case: Case) -> bool:
        number = number_of(case.value)
        return number is not None and not low <= number <= high

    return check


def is_no_truth_value(case: Case) -> bool:
    return case.value.upper() not in {*YES, *NO}


def takes_the_last_solver(case: Case) -> bool:
    return case.value.upper() in NO


def has_filled_database(case: Case) -> str:
    filled = case.machine.find_results >= FILLED and one_of("FAST", "2")(case)
    return str(case.machine.find_results) if filled else ""


def _is_unknown(case: Case) -> bool:
    return case.name not in names.ALL


RULES: tuple[Rule, ...] = (
    Rule(
        name="find-mode-unknown",
        variables=MODE_VARIABLES,
        values="a word that is no mode (guides: DYNAMIC)",
        verdict=Verdict.THROWS,
        effect="MIOpen knows no such mode and throws at the first convolution (torch shows "
        "miopenStatusUnknownError)",
        remedy=f"use one of {listed(FIND_MODES)}",
        source=FIND_CONTROLS,
        check=is_no_word_of(FIND_MODES, LATER_FIND_MODES),
        rocm=READ_UP_TO,
        leave_out=True,
    ),
    Rule(
        name="find-mode-dynamic",
        variables=MODE_VARIABLES,
        values="DYNAMIC",
        verdict=Verdict.THROWS,
        effect="no MIOpen that was read has this mode; it throws at the first convolution",
        remedy="the default is called DYNAMIC_HYBRID (5)",
        source=NEW + "projects/miopen/src/find_controls.cpp",
        check=one_of("DYNAMIC"),
        rocm=Span(since=(10, 2)),
        leave_out=True,
        confirmed=False,
    ),
    Rule(
        name="find-mode-too-new",
        variables=MODE_VARIABLES,
        values="TRUST_VERIFY, TRUST_VERIFY_FULL",
        verdict=Verdict.THROWS,
        effect="MIOpen 3.3 (ROCm 6.3) has no such mode yet and throws at the first convolution",
        remedy="use FAST, or a newer ROCm (which one brought it was not read)",
        source=FIND_CONTROLS,
        check=one_of(*LATER_FIND_MODES),
        rocm=Span(since=(1,), before=(6, 4)),
        leave_out=True,
    ),
    Rule(
        name="find-mode-number",
        variables=MODE_VARIABLES,
        values="a number below 1 or above 7",
        verdict=Verdict.NOTHING,
        effect="no mode has this number: MIOpen logs an error and uses its default",
        remedy=f"use one of {listed(FIND_MODES)}",
        source=FIND_CONTROLS,
        check=is_number_outside(1, 7),
    ),
    Rule(
        name="find-mode-reserved",
        variables=MODE_VARIABLES,
        values="4",
        verdict=Verdict.HARMFUL,
        effect="4 is accepted, but reserved: MIOpen's reference says not to use it",
        remedy=f"use one of {listed(FIND_MODES)}",
        source=REFERENCE,
        check=one_of("4"),
    ),
    Rule(
        name="find-mode-normal",
        variables=("MIOPEN_FIND_MODE",),
        values="NORMAL, 1",
        verdict=Verdict.HARMFUL,
        effect="every solver is timed at each new shape, the naive one included: minutes at the "
        "first video VAE decode of a resolution, and driver resets",
        remedy="use FAST (2) unless you tune on purpose",
        source=REFERENCE,
        check=one_of("NORMAL", "1"),
    ),
    Rule(
        name="find-mode-fast",
        variables=("MIOPEN_FIND_MODE",),
        values="not set (then FAST is set), FAST, 2",
        verdict=Verdict.HELPFUL,
        effect="MIOpen takes a solver from its database or by its heuristics and times none at a "
        "new shape (measured elsewhere: a first VAE decode of 84 s became 7 s)",
        source="https://github.com/multimodal-art-projection/YuE/pull/169",
        check=one_of("FAST", "2"),
        proposes="FAST",
    ),
    Rule(
        name="find-mode-filled",
        variables=("MIOPEN_FIND_MODE",),
        values=f"FAST, 2, with {FILLED} find results and more in MIOpen's database",
        verdict=Verdict.IMPROVABLE,
        effect="MIOpen's database holds {found} find results; FAST takes them too, and guesses for "
        "every new shape",
        remedy="run hy3d-rocm tune for the shapes that you use, then try "
        "MIOPEN_FIND_MODE=DYNAMIC_HYBRID: only new shapes take longer, once",
        source="https://github.com/ROCm/MIOpen/pull/417",
        check=has_filled_database,
    ),
    Rule(
        name="find-mode-other",
        variables=MODE_VARIABLES,
        values="any other mode",
        verdict=Verdict.FINE,
        effect="a mode of MIOpen's; the hybrid ones time solvers where the database has no entry",
        source=REFERENCE,
        rest=True,
    ),
    Rule(
        name="find-enforce-unknown",
        variables=("MIOPEN_FIND_ENFORCE",),
        values="a word that is no choice (guides: DB_ONLY)",
        verdict=Verdict.THROWS,
        effect="MIOpen knows no such choice and throws at the first convolution (torch shows "
        "miopenStatusUnknownError)",
        remedy=f"leave it unset; the choices are {listed(FIND_ENFORCE)}",
        source=FIND_CONTROLS,
        check=is_no_word_of(FIND_ENFORCE),
        rocm=READ_UP_TO,
        leave_out=True,
    ),
    Rule(
        name="find-enforce-db-only",
        variables=("MIOPEN_FIND_ENFORCE",),
        values="DB_ONLY",
        verdict=Verdict.THROWS,
        effect="no MIOpen that was read has this choice; it throws at the first convolution",
        remedy="leave it unset",
        source=NEW + "projects/miopen/src/find_controls.cpp",
        check=one_of("DB_ONLY"),
        rocm=Span(since=(10, 2)),
        leave_out=True,
        confirmed=False,
    ),
    Rule(
        name="find-enforce-number",
        variables=("MIOPEN_FIND_ENFORCE",),
        values="a number below 1 or above 5",
        verdict=Verdict.NOTHING,
        effect="no choice has this number: MIOpen logs an error and uses NONE",
        source=FIND_CONTROLS,
        check=is_number_outside(1, 5),
    ),
    Rule(
        name="find-enforce-search",
        variables=("MIOPEN_FIND_ENFORCE",),
        values="DB_UPDATE, SEARCH, SEARCH_DB_UPDATE, 2, 3, 4",
        verdict=Verdict.HARMFUL,
        effect="forces the find mode NORMAL whatever MIOPEN_FIND_MODE says, and tunes at each new "
        "shape (reported: very slow VAE decodes that end in a crash)",
        remedy="leave it unset unless you tune on purpose",
        source="https://github.com/ROCm/TheRock/issues/2591",
        check=one_of("DB_UPDATE", "SEARCH", "SEARCH_DB_UPDATE", "2", "3", "4"),
    ),
    Rule(
        name="find-enforce-clean",
        variables=("MIOPEN_FIND_ENFORCE",),
        values="DB_CLEAN, 5",
        verdict=Verdict.HARMFUL,
        effect="removes your tuned values from the database, and forces the find mode NORMAL",
        remedy="leave it unset",
        source=REFERENCE,
        check=one_of("DB_CLEAN", "5"),
    ),
    Rule(
        name="find-enforce-none",
        variables=("MIOPEN_FIND_ENFORCE",),
        values="NONE, 1",
        verdict=Verdict.FINE,
        effect="this is the default",
        source=FIND_CONTROLS,
        rest=True,
    ),
    Rule(
        name="find-time-limit",
        variables=("MIOPEN_FIND_TIME_LIMIT",),
        values="any",
        verdict=Verdict.NOTHING,
        effect="MIOpen has no such variable, and no variable bounds a find step",
        remedy="MIOPEN_FIND_MODE=FAST avoids the find step",
        source=OLD + "find_controls.cpp",
    ),
    Rule(
        name="no-precompiled-binaries",
        variables=("MIOPEN_DEBUG_AMD_ROCM_PRECOMPILED_BINARIES",),
        values="any",
        verdict=Verdict.NOTHING,
        effect="neither MIOpen of 2024-10 nor its reference of 2026 has such a variable",
        source=REFERENCE,
    ),
    Rule(
        name="no-truth-value",
        variables=tuple(sorted(names.SWITCHES)),
        values="neither 0, no, off, false, disable(d) nor 1, yes, on, true, enable(d); the empty "
        "value too",
        verdict=Verdict.THROWS,
        effect="this is a switch: MIOpen throws (miopenStatusInvalidValue) at this value",
        remedy="use 0 or 1, or leave it unset",
        source=OLD + "include/miopen/env.hpp",
        check=is_no_truth_value,
        rocm=READ_UP_TO,
        leave_out=True,
    ),
    Rule(
        name="on-anyway",
        variables=ON_BY_DEFAULT,
        values="1",
        verdict=Verdict.NOTHING,
        effect="this is on unless it is set to 0; as for *_XDLOPS, those kernels are for CDNA "
        "cards (gfx908, gfx90a, gfx94x) whatever is set",
        source=OLD + "solver/conv/conv_hip_implicit_gemm_3d_grouped_fwd_xdlops.cpp",
        check=one_of(*YES),
    ),
    Rule(
        name="off-anyway",
        variables=OFF_BY_DEFAULT,
        values="0",
        verdict=Verdict.NOTHING,
        effect="this is off unless it is set to 1",
        source=OLD + "include/miopen/find_db.hpp",
        check=one_of(*NO),
    ),
    Rule(
        name="no-naive-solver",
        variables=tuple(name for name in ON_BY_DEFAULT if "_NAIVE_CONV_" in name),
        values="0",
        verdict=Verdict.HARMFUL,
        effect="takes away the solver of last resort: a convolution that no other solver does "
        "ends in 'No suitable algorithm was found' (MIOpen's reference: naive solvers serve when "
        "no other succeeds)",
        remedy="with MIOPEN_FIND_MODE=FAST it isn't timed anyway",
        source=REFERENCE,
        check=takes_the_last_solver,
    ),
    Rule(
        name="force-immediate-fallback",
        variables=("MIOPEN_DEBUG_FORCE_IMMED_MODE_FALLBACK",),
        values="1",
        verdict=Verdict.IMPROVABLE,
        effect="MIOpen guesses a solver by its heuristics even where its database holds one that "
        "was timed",
        remedy="MIOPEN_FIND_MODE=FAST guesses only where the database holds none",
        source=REFERENCE,
        check=one_of(*YES),
        confirmed=False,
    ),
    Rule(
        name="no-find-database",
        variables=("MIOPEN_DEBUG_DISABLE_FIND_DB",),
        values="1",
        verdict=Verdict.HARMFUL,
        effect="find results are neither kept nor used: each start of ComfyUI finds anew",
        remedy="leave it unset",
        source=OLD + "include/miopen/find_db.hpp",
        check=one_of(*YES),
    ),
    Rule(
        name="no-kernel-cache",
        variables=("MIOPEN_DISABLE_CACHE",),
        values="1",
        verdict=Verdict.HARMFUL,
        effect="compiled kernels are not kept: each start of ComfyUI compiles them anew",
        remedy="leave it unset",
        source=OLD + "binary_cache.cpp",
        check=one_of(*YES),
    ),
    Rule(
        name="compile-only",
        variables=("MIOPEN_DEBUG_COMPILE_ONLY",),
        values="1",
        verdict=Verdict.HARMFUL,
        effect="MIOpen's debug mode that compiles kernels; not for a run that needs results",
        remedy="leave it unset",
        source=REFERENCE,
        check=one_of(*YES),
    ),
    Rule(
        name="check-numerics",
        variables=("MIOPEN_CHECK_NUMERICS",),
        values="not 0",
        verdict=Verdict.HARMFUL,
        effect="every input and output is scanned for NaN and infinity, which is slow; bit 4 makes "
        "a find throw an error and bit 8 ends the process",
        remedy="only for hunting a black image",
        source=REFERENCE,
        check=none_of("0", "0x0", ""),
    ),
    Rule(
        name="only-one-solver",
        variables=("MIOPEN_DEBUG_FIND_ONLY_SOLVER",),
        values="any",
        verdict=Verdict.HARMFUL,
        effect="only this solver is found; where it is not applicable, or is none, find fails",
        remedy="leave it unset unless you debug one solver",
        source=REFERENCE,
        check=none_of(""),
    ),
    Rule(
        name="miopen-own",
        variables=tuple(sorted(names.ALL)),
        values="any other value of MIOpen's own variables",
        verdict=Verdict.FINE,
        effect="MIOpen's own; nothing is known against this value",
        source=REFERENCE,
        rest=True,
    ),
    Rule(
        name="no-such-miopen-variable",
        variables=("MIOPEN_*",),
        values="any, of a variable that isn't in MIOpen's lists",
        verdict=Verdict.NOTHING,
        effect="neither MIOpen's source of 2024-10 nor its reference of 2026 has such a variable",
        source=REFERENCE,
        check=_is_unknown,
        rest=True,
        confirmed=False,
    ),
)
