"""The rules about environment variables: each holds where it should, and only there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hy3d_rocm.diagnose.env import checks, rules
from hy3d_rocm.diagnose.env.machine import Machine
from hy3d_rocm.diagnose.env.rules import Span
from hy3d_rocm.diagnose.tables import TableError

STRIX = Machine(("gfx1151",), True, (2, 9, 1), True, (7, 1))
OLD = Machine(("gfx1100",), True, (2, 5, 1), True, (6, 2))
NEW = Machine(("gfx1201",), True, (2, 13), True, (7, 2))
NEWEST = Machine(("gfx1201",), True, (2, 15), True, (10, 2))
NAVI22 = Machine(("gfx1031",), True, (2, 9, 1), True, (7, 1))
INSTINCT = Machine(("gfx942",), True, (2, 9, 1), True, (7, 1))
TWO_CARDS = Machine(("gfx1030", "gfx1100"), True, (2, 9, 1), True, (7, 1))
MIXED_ROCM = Machine(("gfx1100",), True, (2, 11), True, (6, 4))
FILLED_STRIX = dataclasses.replace(STRIX, find_results=checks.FILLED)
HIP, CUDA, PLAIN = "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
EXPANDABLE = "expandable_segments:True"

# rule -> (variable, value of which it holds, one of which it doesn't, machine, other variables)
Row = tuple[str, str, str | None, Machine, dict[str, str]]
ROWS: dict[str, Row] = {
    "find-mode-unknown": ("MIOPEN_FIND_MODE", "DYNAMIC", "dynamic_hybrid", STRIX, {}),
    "find-mode-dynamic": ("MIOPEN_FIND_MODE", "dynamic", "LATER_STILL", NEWEST, {}),
    "find-mode-too-new": ("MIOPEN_FIND_MODE", "TRUST_VERIFY", "FAST", OLD, {}),
    "find-mode-number": ("MIOPEN_FIND_MODE", "8", "7", STRIX, {}),
    "find-mode-reserved": ("MIOPEN_FIND_MODE", "4", "5", STRIX, {}),
    "find-mode-normal": ("MIOPEN_FIND_MODE", "normal", "HYBRID", STRIX, {}),
    "find-mode-fast": ("MIOPEN_FIND_MODE", "2", "3", STRIX, {}),
    "find-mode-filled": ("MIOPEN_FIND_MODE", "FAST", "HYBRID", FILLED_STRIX, {}),
    "find-mode-other": ("MIOPEN_FIND_MODE", "HYBRID", "FAST", STRIX, {}),
    "find-enforce-unknown": ("MIOPEN_FIND_ENFORCE", "DB_ONLY", "none", STRIX, {}),
    "find-enforce-db-only": ("MIOPEN_FIND_ENFORCE", "DB_ONLY", "DB_NEW", NEWEST, {}),
    "find-enforce-number": ("MIOPEN_FIND_ENFORCE", "0", "1", STRIX, {}),
    "find-enforce-search": ("MIOPEN_FIND_ENFORCE", "SEARCH", "NONE", STRIX, {}),
    "find-enforce-clean": ("MIOPEN_FIND_ENFORCE", "5", "4", STRIX, {}),
    "find-enforce-none": ("MIOPEN_FIND_ENFORCE", "NONE", "3", STRIX, {}),
    "find-time-limit": ("MIOPEN_FIND_TIME_LIMIT", "60", None, STRIX, {}),
    "no-precompiled-binaries": (
        "MIOPEN_DEBUG_AMD_ROCM_PRECOMPILED_BINARIES", "0", None, STRIX, {},
    ),
    "no-truth-value": ("MIOPEN_DEBUG_CONV_GEMM", "2", "Disabled", STRIX, {}),
    "on-anyway": ("MIOPEN_DEBUG_3D_CONV_IMPLICIT_GEMM_HIP_FWD_XDLOPS", "1", "0", STRIX, {}),
    "off-anyway": ("MIOPEN_DEBUG_DISABLE_FIND_DB", "0", "1", STRIX, {}),
    "no-naive-solver": ("MIOPEN_DEBUG_CONV_DIRECT_NAIVE_CONV_FWD", "0", "1", STRIX, {}),
    "force-immediate-fallback": (
        "MIOPEN_DEBUG_FORCE_IMMED_MODE_FALLBACK", "1", "0", STRIX, {},
    ),
    "no-find-database": ("MIOPEN_DEBUG_DISABLE_FIND_DB", "1", "0", STRIX, {}),
    "no-kernel-cache": ("MIOPEN_DISABLE_CACHE", "true", "no", STRIX, {}),
    "compile-only": ("MIOPEN_DEBUG_COMPILE_ONLY", "1", "0", STRIX, {}),
    "check-numerics": ("MIOPEN_CHECK_NUMERICS", "0x04", "0", STRIX, {}),
    "only-one-solver": ("MIOPEN_DEBUG_FIND_ONLY_SOLVER", "ConvAsm3x3U", "", STRIX, {}),
    "miopen-own": ("MIOPEN_LOG_LEVEL", "3", None, STRIX, {}),
    "no-such-miopen-variable": ("MIOPEN_MAKE_IT_FAST", "1", None, STRIX, {}),
    "allocator-refused": (HIP, "expandable_segments:true", "max_split_size_mb:512", STRIX, {}),
    "allocator-read-second": (HIP, "max_split_size_mb:64", None, STRIX, {CUDA: ""}),
    "allocator-read-last": (PLAIN, "max_split_size_mb:64", None, NEW, {HIP: ""}),
    "allocator-name-too-new": (PLAIN, "max_split_size_mb:64", None, OLD, {}),
    "allocator-name-half-read": (PLAIN, EXPANDABLE, "max_split_size_mb:64", STRIX, {}),
    "allocator-old-name": (CUDA, "max_split_size_mb:64", None, STRIX, {}),
    "expandable-segments-unsupported": (HIP, EXPANDABLE, "expandable_segments:False", STRIX, {}),
    "expandable-segments-old-rocm": (HIP, EXPANDABLE, "backend:native", MIXED_ROCM, {}),
    "expandable-segments-hang": (HIP, EXPANDABLE, "expandable_segments:False", NEW, {}),
    "expandable-segments-zeros": (
        HIP, "expandable_segments:True,max_split_size_mb:512", EXPANDABLE, NEWEST, {},
    ),
    "garbage-collection-threshold": (
        HIP, "garbage_collection_threshold:0.8",
        "garbage_collection_threshold:0.8,per_process_memory_fraction:0.9", NEW, {},
    ),
    "allocator-fine": (HIP, "max_split_size_mb:512", EXPANDABLE, NEW, {}),
    "no-memory-caching": ("PYTORCH_NO_CUDA_MEMORY_CACHING", "0", None, STRIX, {}),
    "tunableop": ("PYTORCH_TUNABLEOP_ENABLED", "1", "0", STRIX, {}),
    "tunableop-part": ("PYTORCH_TUNABLEOP_TUNING", "0", None, STRIX, {}),
    "aotriton": ("TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL", "1", None, STRIX, {}),
    "hipblaslt": ("TORCH_BLAS_PREFER_HIPBLASLT", "1", None, STRIX, {}),
    "no-hipblas-switch": ("TORCH_BLAS_PREFER_HIPBLAS", "1", None, STRIX, {}),
    "addmm-lt": ("DISABLE_ADDMM_CUDA_LT", "1", None, STRIX, {}),
    "attention-ck": ("TORCH_ROCM_FA_PREFER_CK", "1", None, STRIX, {}),
    "channels-last": ("PYTORCH_MIOPEN_SUGGEST_NHWC", "1", "0", STRIX, {}),
    "channels-last-default": ("PYTORCH_MIOPEN_SUGGEST_NHWC", "0", "1", STRIX, {}),
    "channels-last-off": ("PYTORCH_MIOPEN_SUGGEST_NHWC", "0", "1", NEW, {}),
    "flash-attention-not-true": ("FLASH_ATTENTION_TRITON_AMD_ENABLE", "1", "TRUE", STRIX, {}),
    "flash-attention": ("FLASH_ATTENTION_TRITON_AMD_ENABLE", "TRUE", "true", STRIX, {}),
    "no-attention-switch": ("SAGE_ATTENTION_TRITON_AMD_ENABLE", "TRUE", None, STRIX, {}),
    "build-time-only": ("TORCH_USE_HIP_DSA", "1", None, STRIX, {}),
    "extension-architectures": ("PYTORCH_ROCM_ARCH", "gfx1151", None, STRIX, {}),
    "override-refused": ("HSA_OVERRIDE_GFX_VERSION", "gfx1100", "11.0.0", STRIX, {}),
    "override-mixed": ("HSA_OVERRIDE_GFX_VERSION", "10.3.0", None, TWO_CARDS, {}),
    "override-own": ("HSA_OVERRIDE_GFX_VERSION", "11.5.1", "11.5.0", STRIX, {}),
    "override-other-generation": ("HSA_OVERRIDE_GFX_VERSION", "11.0.0", "11.5.0", STRIX, {}),
    "override-sibling": ("HSA_OVERRIDE_GFX_VERSION", "10.3.0", "11.0.0", NAVI22, {}),
    "xnack-on-rdna": ("HSA_XNACK", "1", "0", STRIX, {}),
    "hsa-switch": ("HSA_ENABLE_SDMA", "off", "0", STRIX, {}),
    "xnack": ("HSA_XNACK", "1", "yes", INSTINCT, {}),
    "no-sdma": ("HSA_ENABLE_SDMA", "0", "false", STRIX, {}),
    "no-interrupts": ("HSA_ENABLE_INTERRUPT", "0", "1", STRIX, {}),
    "tools-library": ("HSA_TOOLS_LIB", "1", "librocprofiler.so", STRIX, {}),
    "hsa-other": ("HSA_NO_SCRATCH_RECLAIM", "1", None, STRIX, {}),
    "heap-size": ("GPU_MAX_HEAP_SIZE", "100", "90", STRIX, {}),
    "no-such-gpu-variable": ("GPU_MAX_ALLOC_PERCENT", "100", None, STRIX, {}),
    "serialized": ("AMD_SERIALIZE_KERNEL", "3", "0", STRIX, {}),
    "amd-log": ("AMD_LOG_LEVEL", "4", "0", STRIX, {}),
    "device-kernel-arguments": ("HIP_FORCE_DEV_KERNARG", "1", None, STRIX, {}),
    "hip-more-than-rocr": (
        "HIP_VISIBLE_DEVICES", "0,1", "0", STRIX, {"ROCR_VISIBLE_DEVICES": "1"},
    ),
    "visible-devices": ("CUDA_VISIBLE_DEVICES", "0", None, STRIX, {}),
    "hip-runtime": ("GPU_MAX_HW_QUEUES", "2", None, STRIX, {}),
    "rocblas-hipblaslt": ("ROCBLAS_USE_HIPBLASLT", "1", None, STRIX, {}),
    "blas-log": ("ROCBLAS_LAYER", "1", "0", STRIX, {}),
    "comfyui-miopen": ("COMFYUI_ENABLE_MIOPEN", "1", "true", STRIX, {}),
    "comfyui-miopen-other": ("COMFYUI_ENABLE_MIOPEN", "0", "1", STRIX, {}),
    "cpu-level": ("HY3D_CPU", "avx2", "sse", STRIX, {}),
    "cpu-level-unknown": ("HY3D_CPU", "sse", "ref", STRIX, {}),
    "faults": ("HY3D_FAULTS", "current:*:*:oom", "", STRIX, {}),
    "raster": ("HY3D_RASTER", "off", "yes", STRIX, {}),
    "pack-off": ("HY3D_ROCM", "off", "no", STRIX, {}),
    "environment-off": ("HY3D_ROCM_ENV", "OFF", "0", STRIX, {}),
    "only-off-counts": ("HY3D_ROCM_ENV", "0", "off", STRIX, {}),
    "vram-cap-unreadable": ("HY3D_ROCM_MAX_VRAM_GB", "much", "20GB", STRIX, {}),
    "vram-share-unreadable": ("HY3D_ROCM_MAX_VRAM_SHARE", "90", "85%", STRIX, {}),
    "weight-cache": ("HY3D_WEIGHT_CACHE_MB", "0", "much", STRIX, {}),
    "weight-cache-unreadable": ("HY3D_WEIGHT_CACHE_MB", "2GB", "2000", STRIX, {}),
    "pack-own": ("HY3D_BLAS", "system", None, STRIX, {}),
}  # fmt: skip
# Rules that hold, or don't, by the machine: one for which the same value is nothing.
ELSEWHERE: dict[str, Machine] = {
    "find-mode-unknown": NEWEST,
    "find-mode-dynamic": STRIX,
    "find-mode-too-new": STRIX,
    "find-enforce-unknown": NEWEST,
    "find-enforce-db-only": STRIX,
    "no-truth-value": NEWEST,
    "allocator-read-last": STRIX,
    "allocator-name-too-new": STRIX,
    "allocator-name-half-read": NEW,
    "allocator-old-name": NEW,
    "expandable-segments-unsupported": NEW,
    "expandable-segments-old-rocm": NEW,
    "expandable-segments-hang": STRIX,
    "expandable-segments-zeros": NEW,
    "find-mode-filled": STRIX,
    "channels-last": INSTINCT,
    "channels-last-default": NEW,
    "channels-last-off": STRIX,
    "override-mixed": STRIX,
    "override-own": INSTINCT,
    "override-other-generation": dataclasses.replace(STRIX, architectures=("gfx1100",)),
    "xnack-on-rdna": INSTINCT,
}


def said_of(name: str, value: str, machine: Machine, others: dict[str, str]) -> list[str]:
    environ = {**others, name: value}
    return [f.rule.name for f in rules.judge(environ, machine) if f.name == name]


def test_every_rule_has_a_row() -> None:
    names = [rule.name for rule in rules.table()]
    assert len(set(names)) == len(names), "two rules of one name"
    assert set(ROWS) == set(names)
    ranged = {
        rule.name
        for rule in rules.table()
        if rule.architectures or str(rule.rocm) or str(rule.torch)
    }
    assert ranged <= set(ELSEWHERE), "a rule for some machines needs one that it isn't for"


@pytest.mark.parametrize("name", ROWS)
def test_a_rule_holds_of_its_value_and_not_of_another(name: str) -> None:
    variable, value, other, machine, others = ROWS[name]
    assert name in said_of(variable, value, machine, others)
    if other is not None:
        assert name not in said_of(variable, other, machine, others)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_rule_for_some_machines_holds_on_no_other(name: str) -> None:
    variable, value, _, _, others = ROWS[name]
    assert name not in said_of(variable, value, ELSEWHERE[name], others)


def test_a_rule_says_its_source_and_its_words_can_be_filled() -> None:
    for rule in rules.table():
        assert rule.source.startswith(("https://", "docs/")), rule.name
        assert rule.effect.format(found="", value=""), rule.name
        assert rule.values, rule.name
        assert "|" not in rule.source, rule.name


def test_only_what_throws_is_repaired_and_only_what_helps_is_proposed() -> None:
    for rule in rules.table():
        assert not rule.repair or rule.verdict == "throws", rule.name
        assert not rule.proposes or rule.verdict == "helpful", rule.name
    proposed = {rule.variables[0]: rule.proposes for rule in rules.table() if rule.proposes}
    assert proposed == {"MIOPEN_FIND_MODE": "FAST", "PYTORCH_MIOPEN_SUGGEST_NHWC": "0"}


def test_a_proposed_value_is_never_one_that_is_named() -> None:
    for machine in (STRIX, OLD, NEW, NEWEST, INSTINCT, TWO_CARDS, Machine()):
        findings = rules.judge({"MIOPEN_FIND_MODE": "FAST"}, machine)
        assert [f.rule.verdict for f in findings] == ["helpful"]


@pytest.mark.parametrize(
    ("span", "version", "holds"),
    [
        (Span(), (), True), (Span(), (2, 9), True),
        (Span(since=(2, 9)), (2, 9), True), (Span(since=(2, 9)), (2, 10, 1), True),
        (Span(since=(2, 9)), (2, 8, 9), False), (Span(since=(2, 9)), (), False),
        (Span(before=(2, 9)), (2, 8, 9), True), (Span(before=(2, 9)), (2, 9), False),
        (Span(before=(2, 9)), (), True),
    ],
)  # fmt: skip
def test_versions_are_compared_as_numbers(
    span: Span, version: tuple[int, ...], holds: bool
) -> None:
    assert span.holds(version) is holds


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        ("FAST", "helpful"), ("fast", "helpful"), ("2", "helpful"), (" 3", "fine"),
        ("2abc", "fine"), ("-1", "does nothing"), ("0", "does nothing"), ("", "fine"),
        ("DYNAMIC", "throws"), ("FASTER", "throws"), ("x2", "throws"), ("\udcff", "throws"),
        ("99999999999999999999999", "throws"), ("TRUST_VERIFY", "fine"),
    ],
)  # fmt: skip
def test_find_modes_are_read_as_stoul_reads_them(value: str, verdict: str) -> None:
    (finding,) = rules.judge({"MIOPEN_FIND_MODE": value}, STRIX)
    assert finding.rule.verdict == verdict


@pytest.mark.parametrize(
    ("value", "architecture"),
    [
        ("10.3.0", "gfx1030"), ("9.0.10", "gfx90a"), ("11.5.1", "gfx1151"), (" 11.0.0", "gfx1100"),
        ("11.0", ""), ("gfx1100", ""), ("11.0.0 ", ""), ("11.0.0.0", ""), ("64.0.0", ""),
        ("-1.0.0", ""), ("", ""), ("11,0,0", ""),
    ],
)  # fmt: skip
def test_overrides_are_read_as_the_runtime_reads_them(value: str, architecture: str) -> None:
    from hy3d_rocm.diagnose.env.checks import override_architecture

    assert override_architecture(value) == architecture


def test_a_node_of_several_cards_is_not_guessed() -> None:
    assert said_of("HSA_OVERRIDE_GFX_VERSION_1", "10.3.0", TWO_CARDS, {}) == ["override-sibling"]
    assert said_of("HSA_OVERRIDE_GFX_VERSION_1", "11.0.0", STRIX, {}) == [
        "override-other-generation"
    ]


def test_a_memory_cap_makes_the_threshold_count() -> None:
    value = "garbage_collection_threshold:0.8"
    assert said_of(HIP, value, NEW, {}) == ["garbage-collection-threshold"]
    assert said_of(HIP, value, NEW, {"HY3D_ROCM_MAX_VRAM_GB": "20"}) == ["allocator-fine"]


def test_what_nobody_has_a_rule_for_is_not_known() -> None:
    assert rules.rules_about("MIOPEN_ANYTHING")
    assert not rules.rules_about("PATH")
    assert rules.judge({"PATH": "/bin", "MIOPENX": "1"}, STRIX) == []


RULE = """
[[rule]]
name = "some"
variables = ["SOME"]
values = "1"
verdict = "fine"
effect = "it is {found}"
source = "docs/x.md"
check = ["one_of", "1"]
rocm = { since = "6.4" }
"""


def test_every_file_of_rules_is_read() -> None:
    assert sorted(rules.FILES) == sorted(path.stem for path in rules.FOLDER.iterdir())
    names = [rule.name for rule in rules.table()]
    assert len(set(names)) == len(names)


def test_a_file_is_read_for_the_variables_that_it_speaks_of_and_for_what_it_proposes() -> None:
    for (name, beginnings), (_, family) in zip(rules.FILES.items(), rules.families(), strict=True):
        for rule in family:
            assert all(variable.startswith(beginnings) for variable in rule.variables), rule.name
            assert not rule.proposes or name in rules.PROPOSING
    assert rules.proposing() == [rule for rule in rules.table() if rule.proposes]


def test_the_number_of_find_results_is_the_same_in_words() -> None:
    (rule,) = (rule for rule in rules.table() if rule.name == "find-mode-filled")
    assert f"with {checks.FILLED} find results and more" in rule.values


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            '["one_of", "1"]',
            '"rains"',
            "module 'hy3d_rocm.diagnose.env.checks' has no attribute 'rains'",
        ),
        ("since", "after", "Span.__init__() got an unexpected keyword argument 'after'"),
        ('{ since = "6.4" }', '"6.4"', "'str' object has no attribute 'items'"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_file_and_rule(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    (tmp_path / "good.toml").write_text(RULE)
    assert rules.rules_of("good", tmp_path)[1][0].rocm == Span(since=(6, 4))
    assert old in RULE
    (tmp_path / "some.toml").write_text(RULE.replace(old, new, 1))
    with pytest.raises(TableError) as caught:
        rules.rules_of("some", tmp_path)
    assert str(caught.value).startswith(f"some.toml, rule some: {told}")
