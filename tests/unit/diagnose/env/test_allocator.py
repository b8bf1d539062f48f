"""The re-told parser of PyTorch's allocator settings, against PyTorch's own."""

from __future__ import annotations

import how_much
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hy3d_rocm.diagnose.env import checks as allocator
from hy3d_rocm.diagnose.env import rules
from hy3d_rocm.diagnose.env.machine import Machine, parse_version
from hy3d_rocm.diagnose.env.rules import Finding

OWN_PARSER = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
needs_own_parser = pytest.mark.skipif(
    OWN_PARSER is None or parse_version(torch.__version__)[:2] != (2, 13),
    reason="the parser that is re-told is torch 2.13's, and this torch is another",
)
# What torch checks in a CPU build: keys of the GPU's own parser are passed over there.
COMMON = [
    "max_split_size_mb", "garbage_collection_threshold", "roundup_power2_divisions",
    "expandable_segments", "pinned_use_background_threads",
]  # fmt: skip
WORDS = [
    "True", "False", "true", "1", "19", "20", "21", "512", "512MB", "+64", "-1", "0", "0.8", "1.5",
    "nan", "1e-3", ".5", "abc", ">", "3", "256", "99999999999999999999999",
]  # fmt: skip
PIECES = [*COMMON, *WORDS, "other_key", ",", ":", "[", "]", " ", "\t"]
SETTING = st.tuples(st.sampled_from(COMMON), st.sampled_from(WORDS)).map(":".join)
TEXTS = st.one_of(
    st.lists(SETTING, max_size=3).map(",".join),
    st.lists(st.sampled_from(PIECES), max_size=9).map("".join),
)


def torch_refuses(text: str) -> bool:
    assert OWN_PARSER is not None
    try:
        OWN_PARSER(text)
    except (ValueError, RuntimeError, IndexError):
        return True
    finally:
        OWN_PARSER("")
    return False


@needs_own_parser
@settings(max_examples=how_much.of(150, 600), deadline=None, print_blob=True)
@given(TEXTS)
@example("no_such_key:[256:1]")
@example("no_such_key:[256:1")
def test_torch_refuses_what_the_retold_parser_refuses(text: str) -> None:
    assert bool(allocator.problem(text, strict=False, any_key=True)) == torch_refuses(text), text


@needs_own_parser
@settings(max_examples=how_much.of(100, 300), deadline=None, print_blob=True)
@given(TEXTS)
def test_what_is_kept_is_taken_by_torch(text: str) -> None:
    kept = allocator.without_refused(
        text, lambda part: allocator.problem(part, strict=False, any_key=True)
    )
    assert kept is None or not torch_refuses(kept)


@needs_own_parser
@settings(max_examples=how_much.of(80, 200), deadline=None, print_blob=True)
@given(st.lists(SETTING, max_size=4))
def test_each_setting_that_torch_takes_alone_is_kept(parts: list[str]) -> None:
    kept = allocator.without_refused(
        ",".join(parts), lambda part: allocator.problem(part, strict=False, any_key=True)
    )
    assert (kept or "") == ",".join(part for part in parts if not torch_refuses(part))


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("max_split_size_mb:512", "", ""),
        ("max_split_size_mb:20", "must be > 20", ""),
        ("max_split_size_mb:19", "must be > 20", "must be >= 20"),
        ("max_split_size_mb=512", "Unrecognized CachingAllocator option", "Unrecognized key"),
        ("expandable_segments", "expected :", "Index out of bounds"),
        ("expandable_segments:1", "expects True or False", "expects True or False"),
        ("garbage_collection_threshold:80", "set it in (0.0, 1.0)", "set it in (0.0, 1.0)"),
        ("no_such_key:1", "Unrecognized CachingAllocator option", "Unrecognized key 'no_such_key'"),
        ("backend:malloc", "Unknown allocator backend", "Unknown allocator backend"),
        ("backend:hipMallocAsync", "", ""),
        ("max_split_size_mb 512", "Unrecognized", "Unrecognized"),
        ("max_split_size_mb;512", "Unrecognized", "Unrecognized"),
        ("max_split_size_mb,512", "expected :", ""),
        ("roundup_power2_divisions:[256:1,512:2,>:8]", "", ""),
        ("roundup_power2_divisions:[256:1", "Index out of bounds", "Index out of bounds"),
        ("", "", ""),
    ],
)
def test_both_parsers_say_what_is_wrong(text: str, old: str, new: str) -> None:
    for strict, words in ((True, old), (False, new)):
        said = allocator.problem(text, strict=strict)
        if words:
            assert words in said
        else:
            assert said == ""


def judged(value: str, torch_version: tuple[int, ...]) -> Finding | None:
    machine = Machine(("gfx1100",), True, torch_version, True, (7, 1))
    found = rules.judge({"PYTORCH_HIP_ALLOC_CONF": value}, machine)
    return next((f for f in found if f.rule.name == "allocator-refused"), None)


@pytest.mark.parametrize(
    ("value", "version", "kept"),
    [
        ("max_split_size_mb:20", (2, 8), None),
        ("max_split_size_mb:20,garbage_collection_threshold:0.8", (2, 8),
         "garbage_collection_threshold:0.8"),
        ("expandable_segments:True,max_split_size_mb:128", (2, 0, 1), "max_split_size_mb:128"),
        ("expandable_segments:true;max_split_size_mb:128", (2, 9), None),
        ("nonsense:1,max_split_size_mb:128", (2, 13), "max_split_size_mb:128"),
        ("roundup_power2_divisions:[256:1,512:3],max_split_size_mb:128", (2, 13),
         "max_split_size_mb:128"),
    ],
)  # fmt: skip
def test_the_good_settings_stay(value: str, version: tuple[int, ...], kept: str | None) -> None:
    finding = judged(value, version)
    assert finding is not None
    assert finding.kept == kept


def test_versions_that_were_not_read_are_left_alone() -> None:
    assert judged("max_split_size_mb:20", (2, 9)) is None
    assert judged("key_of_tomorrow:1", (2, 14)) is None
    assert judged("key_of_tomorrow:1", ()) is None
    assert judged("max_split_size_mb:20", ()) is None, "only the old parser refuses this"
    assert judged("max_split_size_mb:19", ()) is not None


def test_a_name_that_torch_does_not_read_cannot_throw() -> None:
    bad = "max_split_size_mb:1"
    for environ, version in (
        ({"PYTORCH_HIP_ALLOC_CONF": bad, "PYTORCH_CUDA_ALLOC_CONF": ""}, (2, 9)),
        ({"PYTORCH_ALLOC_CONF": bad}, (2, 8)),
        ({"PYTORCH_ALLOC_CONF": bad, "PYTORCH_HIP_ALLOC_CONF": ""}, (2, 13)),
    ):
        machine = Machine(("gfx1100",), True, version, True, (7, 1))
        verdicts = {str(f.rule.verdict) for f in rules.judge(environ, machine)}
        assert "throws" not in verdicts
