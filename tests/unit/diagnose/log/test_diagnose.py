"""`hy3d-rocm diagnose`: the public excerpts, the decision tree, and the table itself."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from diagnose_cases import BLOCKS, FRAMEPACK_START, OFFLOADED, OURS, VAE_LOADED, all_cases
from diagnose_cases import excerpts as read_excerpts
from places import ROOT

from hy3d_rocm.diagnose import diagnose, examine
from hy3d_rocm.diagnose.log.examine import Examination
from hy3d_rocm.diagnose.log.read import lines_of_text
from hy3d_rocm.diagnose.log.rules import ANY, Rule, by_id

CASES = all_cases()
EXCERPTS = read_excerpts()


def ids(text: str) -> tuple[str, ...]:
    return tuple(found.rule for found in examine(lines_of_text(text)).diagnoses)


def examined(text: str) -> Examination:
    return examine(lines_of_text(text))


def test_each_log_gets_its_causes_in_order_and_no_other() -> None:
    found = [(case.source, ids(case.text), case.expected) for case in CASES]
    assert [one for one in found if one[1] != one[2]] == []
    assert len(found) > 800


def test_the_excerpts_are_many_short_linked_and_known_by_the_table() -> None:
    assert len(EXCERPTS) >= 70
    assert sum(not found["expected"] for found in EXCERPTS) >= 12
    assert len({found["link"] for found in EXCERPTS}) == len(EXCERPTS)
    for found in EXCERPTS:
        assert found["link"].startswith("https://github.com/")
        assert 1 <= len(found["lines"]) <= 8
        assert set(found["expected"]) <= set(by_id()), found["link"]


def test_the_set_aside_excerpts_are_those_of_the_smallest_hashes() -> None:
    first = [found for found in EXCERPTS if not found.get("later")]
    order = sorted(first, key=lambda found: hashlib.sha256(found["link"].encode()).hexdigest())
    assert [found["held_out"] for found in order] == [True] * 20 + [False] * (len(first) - 20)


def test_every_rule_has_a_log() -> None:
    assert by_id().keys() == {name for case in CASES for name in case.expected}


def test_each_pattern_is_needed_by_a_line_that_it_alone_matches() -> None:
    rules = [rule for rule in by_id().values() if rule.patterns]
    assert len(rules) > 150
    assert [words for rule in rules for words in needless(rule)] == []


def needless(rule: Rule) -> Iterator[str]:
    """Of its patterns those that are matched by no case of their own."""
    texts = [
        " ".join(part.split())
        for case in CASES
        if rule.id in case.expected
        for part in (*case.text.split("\n"), case.text)
    ]
    for pattern in rule.patterns:
        mine = re.compile(pattern, re.IGNORECASE)
        others = [re.compile(other, re.I) for other in rule.patterns if other != pattern]
        if not any(
            mine.search(text) and not any(other.search(text) for other in others) for text in texts
        ):
            yield f"{rule.id}: {pattern!r}"


def test_the_table_is_complete_and_its_words_are_in_its_patterns_lines() -> None:
    for rule in by_id().values():
        assert all((rule.symptom, rule.cause, rule.do, rule.source)), rule.id
        assert isinstance(rule.patterns, tuple), rule.id
        for text in (rule.symptom, rule.cause, rule.here, rule.otherwise, rule.linux):
            assert text == "" or text.endswith((".", "}")), rule.id
        assert all(word == word.lower() for word in rule.words), rule.id
        assert set(rule.follows) <= {*by_id(), ANY} - {rule.id}, rule.id
        assert set(rule.needs) <= set(by_id()) - {rule.id}, rule.id
        assert bool(rule.words) == bool(rule.patterns), rule.id


def test_a_partial_offload_is_the_cause_and_the_block_allocator_follows() -> None:
    (found,) = diagnose(FRAMEPACK_START + OFFLOADED + VAE_LOADED + OURS + BLOCKS * 9)
    assert found.evidence[0].line == 3
    assert [(other.rule, other.count) for other in found.follow_ups] == [("block-allocator", 9)]
    assert found.where == "in the VAE decode"


def test_a_hang_is_surer_with_our_own_lines_and_names_where_it_stood() -> None:
    (ours,) = diagnose(FRAMEPACK_START + VAE_LOADED + OURS)
    (theirs,) = diagnose(FRAMEPACK_START + VAE_LOADED)
    assert (ours.confidence, theirs.confidence) == ("likely", "possible")
    assert ours.evidence[-1].text.startswith("[VAE Decode] Attempting")


def test_an_encode_that_stops_is_a_hang_too() -> None:
    (ours,) = diagnose(OURS.replace("VAE Decode", "VAE Encode"))
    assert ours.rule == "decode-stopped"


@pytest.mark.parametrize(
    ("before", "where"),
    [
        ("", ""),
        ("got prompt\nRequested to load WAN21\n", "while a model was loaded"),
        (
            "got prompt\nRequested to load WAN21\nloaded completely; full load: True\n",
            "",
        ),
        ("100%|###  | 20/20 [00:30]\n", "after sampling"),
        ("got prompt\nRequested to load WAN21\n 50%|###  | 10/20 [00:30]\n", "while sampling"),
        (FRAMEPACK_START + VAE_LOADED + OURS, "in the VAE decode"),
        (
            FRAMEPACK_START + VAE_LOADED + OURS + "[VAE Decode] GPU SUCCESS\n",
            "after the VAE decode",
        ),
    ],
)
def test_where_it_failed_is_read_from_what_came_before(before: str, where: str) -> None:
    (found,) = diagnose(before + "RuntimeError: HIP out of memory\n")
    assert found.where == where


def test_where_it_failed_is_read_from_the_traceback_below() -> None:
    text = (
        "!!! Exception during processing !!! HIP out of memory. Tried to allocate 2.25 GiB.\n"
        "Traceback (most recent call last):\n"
        '  File "nodes.py", line 295, in decode\n    images = vae.decode(samples["samples"])\n'
    )
    (found,) = diagnose(text)
    assert found.where == "in the VAE decode"


def test_figures_are_read_out_of_the_sentence() -> None:
    text = "HIP out of memory. Tried to allocate {} GiB. GPU 0 has a total capacity of 20.00 GiB"
    text += " of which {} GiB is free. Of the allocated memory 5 GiB is allocated by PyTorch, and"
    text += " {} GiB is reserved by PyTorch but unallocated."
    told = [
        diagnose(text.format(*figures))[0]
        for figures in ((35, 13, 1), (1, 13, 1), (4, 1, 9), (4, 1, 2))
    ]
    assert [found.rule for found in told] == [
        "memory-one-request", "memory-refused", "hip-out-of-memory", "hip-out-of-memory",
    ]  # fmt: skip
    assert told[2].note.startswith("PyTorch holds as much as was asked for")
    assert told[3].note == ""


def test_memory_that_other_programs_hold_is_told_from_a_full_card() -> None:
    text = "HIP out of memory. Tried to allocate 4 GiB. GPU 0 has a total capacity of 16 GiB of"
    text += " which 1 GiB is free. Of the allocated memory {} GiB is allocated by PyTorch"
    assert [diagnose(text.format(own))[0].rule for own in (2, 14)] == [
        "memory-held-elsewhere", "hip-out-of-memory",
    ]  # fmt: skip


def test_an_error_that_no_rule_knows_is_said_to_be_unknown() -> None:
    found = examined("Traceback (most recent call last):\n  x\nKeyError: 'images'\n")
    assert not found.diagnoses
    assert [(row.line, row.text) for row in found.unknown] == [(3, "KeyError: 'images'")]


def test_how_a_process_ends_is_no_error_of_its_own() -> None:
    fault = "Memory access fault by GPU node-1 on address 0x7. Reason: Page not present.\n"
    assert examined(fault + "Aborted (core dumped)\n").unknown_count == 0
    assert examined("Aborted (core dumped)\n").unknown_count == 1


def test_an_error_right_above_a_crash_came_first() -> None:
    error, crash = "KeyError: 'images'\n", "Segmentation fault (core dumped)\n"
    found = examined(error + crash)
    assert [cause.rule for cause in found.causes] == ["error-before-crash"]
    assert found.causes[0].evidence[0].text == error.strip()
    assert [row.rule for row in found.causes[0].follow_ups] == ["native-crash"]
    assert found.unknown_count == 0
    frame = '  File "/c/ComfyUI/custom_nodes/Some-Pack/nodes.py", line 3, in run\n'
    assert "Some-Pack" in examined(frame + error + crash).causes[0].where
    far = examined(error + "step\n" * 12 + crash)
    assert [cause.rule for cause in far.causes] == ["native-crash"]
    assert far.unknown_count == 1


def test_two_rules_that_tell_of_one_crash_have_the_same_error_above_them() -> None:
    crash = "Segmentation fault (core dumped)\nWindows fatal exception: access violation\n"
    found = examined("KeyError: 'images'\n" + crash)
    (cause,) = found.causes
    assert cause.rule == "error-before-crash"
    assert {row.rule for row in cause.follow_ups} == {"native-crash", "windows-access-violation"}
    assert found.unknown_count == 0


def test_a_symbol_that_is_missing_right_above_a_crash_is_the_cause() -> None:
    crash = "Segmentation fault (core dumped)\n"
    (found,) = diagnose("ImportError: /v/foo.so: undefined symbol: foo_open\n" + crash)
    assert (found.rule, found.follow_ups[0].rule) == ("library-mismatch", "native-crash")


@pytest.mark.parametrize("above", ["KeyError: 3\n", "The system cannot find it: fatal error\n"])
def test_a_program_that_said_an_error_did_not_end_without_a_word(above: str) -> None:
    over = "Press any key to continue . . .\n"
    assert ids("loading\n" + over) == ("ended-silently",)
    found = examined(above + over)
    assert not found.causes
    assert found.unknown_count == 1


STARTED = "Starting server\nTo see the GUI go to: http://127.0.0.1:8188\n"
RUN = "got prompt\n{}Prompt executed in 3.0 seconds\n"
NO_TRITON = "ModuleNotFoundError: No module named 'triton'\n"


@pytest.mark.parametrize(
    ("after", "harmless"),
    [
        ("", False),
        (STARTED, True),
        (RUN.format(""), True),
        (RUN.format("KeyError: 3\n"), False),
        (RUN.format("RuntimeError: HIP out of memory\n"), False),
        ("   0.0 seconds (IMPORT FAILED): /c/custom_nodes/a\n" + STARTED, False),
    ],
)
def test_what_a_program_does_without_is_no_fault_once_it_goes_on(
    after: str, harmless: bool
) -> None:
    found = examined(NO_TRITON + after)
    assert ("triton-missing" in {notice.rule for notice in found.notices}) == harmless
    assert ("triton-missing" in {cause.rule for cause in found.causes}) != harmless


BNB = "site-packages/bitsandbytes/x.so\n"
HARMLESS_TRACEBACK = (
    "Traceback (most recent call last):\n"
    + '  File "/v/a.py", line 3, in x\n' * 7
    + "RuntimeError: Configured ROCm binary not found at /v/lib/python3.12/"
    + BNB
)


@pytest.mark.parametrize(
    "shown",
    [
        "Unsloth: Will patch your computer to enable 2x faster free finetuning.\n",
        "***** Running training *****\n",
        " 10%|#    | 2/20 [00:04<00:36,  2.03s/it]\n",
    ],
)
def test_a_traceback_that_ends_in_what_a_program_does_without_is_no_error(shown: str) -> None:
    found = examined(HARMLESS_TRACEBACK + shown)
    assert ([row.rule for row in found.notices], found.causes) == (["bitsandbytes"], ())
    assert found.unknown_count == 0
    assert examined(HARMLESS_TRACEBACK).causes
    other = examined(HARMLESS_TRACEBACK + shown + HARMLESS_TRACEBACK.split("Runtime")[0])
    assert other.unknown_count == 8


def test_steps_of_a_run_that_failed_do_not_make_its_error_harmless() -> None:
    step = " 10%|#    | 2/20 [00:04<00:36,  2.03s/it]\n"
    failed = examined("got prompt\n" + NO_TRITON + step)
    assert [row.rule for row in failed.causes] == ["triton-missing"]
    assert not examined("got prompt\n" + NO_TRITON + "got prompt\n" + step).causes


def test_a_retry_and_prose_about_an_error_are_no_errors() -> None:
    done = "got prompt\nPrompt executed in 3.0 seconds\n"
    for line in (
        "Failed to create model quickly; will retry using slow method.",
        "in a Ubuntu 22.04 docker image leads to the following error",
        "This error may also occur when the device is lost",
    ):
        assert examined(done + line).unknown_count == 0, line
    assert examined(done + "Failed to create model").unknown_count == 1
    assert examined(done + "the following error: no room").unknown_count == 1
    assert examined("The following packages have unmet dependencies:\n").unknown_count == 1


def test_the_bar_of_a_download_is_no_sampling() -> None:
    bar = "100%|###| 3.97G/3.97G [03:07<00:00, 22.7MB/s]\n"
    shards = "Loading checkpoint shards: 100%|###| 4/4 [00:03<00:00,  1.31it/s]\n"
    for text in (bar, shards):
        (found,) = diagnose(text + "RuntimeError: HIP out of memory\n")
        assert found.where == ""


def test_a_program_that_was_stopped_did_not_end_without_a_word() -> None:
    assert ids("loading\nStopped server\nPress any key to continue . . .\n") == ()


def test_what_a_program_needs_stays_a_fault_when_it_goes_on() -> None:
    found = examined("RuntimeError: No HIP GPUs are available\n" + STARTED + RUN.format(""))
    assert [cause.rule for cause in found.causes] == ["no-gpu-found"]


def test_a_library_without_kernels_is_no_fault_where_another_took_the_product() -> None:
    missing = 'rocblaslt error: Could not load "TensileLibrary_lazy_gfx1101.dat"\n'
    instead = "rocBLAS warning: hipBlasLT failed, falling back to tensile.\n"
    assert ids(missing + instead) == ("rocblas-fallback-warning",)
    failed = "RuntimeError: CUDA error: HIPBLAS_STATUS_INVALID_VALUE when calling `x`\n"
    assert ids(missing + failed) == ("hipblaslt-architecture",)


def test_a_sentence_is_joined_over_the_marks_that_python_draws_under_a_line() -> None:
    text = (
        '  File "/c/a.py", line 3, in <module>\n    n = int(torch.version.cuda)\n'
        "        ~~~^^^^^^^^^^^^^\nTypeError: int() argument must be a string, not 'NoneType'\n"
    )
    assert ids(text) == ("cuda-version-none",)
    assert ids(text.replace("torch.version.cuda", "self.size")) == ()


def test_the_package_reads_logs_without_torch_or_numpy() -> None:
    code = "import sys, hy3d_rocm.diagnose; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
        cwd=ROOT,
    )  # fmt: skip
    assert done.stdout.strip() == "set()"


WRONG = "RuntimeError: HIP error: invalid device function\n"


@pytest.mark.parametrize(
    ("shown", "said", "left_out"),
    [
        ("AMD arch: gfx1100\n", "torch[device-gfx1100]", "HSA_OVERRIDE"),
        ("Device: cuda:0 AMD Radeon RX 6700 XT : native\n", "torch[device-gfx1031]", "=11.0.0"),
        ("/home/me/x: Device: AMD Radeon RX 6700 XT\n", "HSA_OVERRIDE_GFX_VERSION=10.3.0", "="),
        ("C:\\ComfyUI\\x: AMD Radeon RX 6700 XT\n", "torch[device-gfx1031]", "HSA_OVERRIDE"),
        ("/home/me/x: gfx803\n", "torch[device-gfx803]", "HSA_OVERRIDE"),
        ("gfx1034\nGPU arch: gfx1033\n", "torch[device-all]", "device-gfx103"),
        ("HSA_OVERRIDE_GFX_VERSION=10.3.0 main.py\nAMD arch: gfx1030\n", "device-all", "gfx1030]"),
    ],
)
def test_what_to_do_fits_the_card_and_system_that_the_log_shows(
    shown: str, said: str, left_out: str
) -> None:
    (found,) = diagnose(shown + WRONG)
    told = f"{found.do} {found.otherwise}"
    assert said in told
    if left_out != "=":
        assert left_out not in told


def test_an_nvidia_card_gets_no_wheels_for_amd() -> None:
    wrong = "RuntimeError: operator torchvision::nms does not exist\n"
    (found,) = diagnose("Device: cuda:0 NVIDIA GeForce RTX 4090 : native\n" + wrong)
    assert "rocm" not in found.do
    (found,) = diagnose("Device: cuda:0 AMD Radeon RX 9070 XT : native\n" + wrong)
    assert "torch[device-gfx1201]" in found.do


def test_the_override_of_the_card_is_never_named_where_the_log_shows_windows() -> None:
    for case in CASES:
        windows = "Windows fatal exception: C:\\x\n" + case.text
        for found in examined(windows).causes:
            assert "HSA_OVERRIDE_GFX_VERSION=" not in found.remedy, found.rule


def test_a_variable_is_set_as_the_system_in_the_log_sets_it() -> None:
    failed = "MIOpen(HIP): Selected: ConvDirectNaiveConvFwd\n"
    assert diagnose("File C:\\ComfyUI\\main.py\n" + failed)[0].do.startswith("set ")
    assert diagnose("File /home/me/main.py\n" + failed)[0].do.startswith("export ")


def test_the_worst_is_told_first_and_what_the_program_survived_last() -> None:
    text = (
        "   0.0 seconds (IMPORT FAILED): /c/custom_nodes/a\n"
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16\n"
        + "\n" * 500
        + "HW Exception by GPU node-1 (Agent handle: 0x3) reason :GPU Hang\n"
    )
    assert [(found.rule, found.rank) for found in diagnose(text)] == [
        ("gpu-hang", 0), ("dtype-mismatch", 1), ("node-import-failed", 2),
    ]  # fmt: skip


def test_an_unknown_traceback_is_said_to_end_in_the_node_pack_that_raised_it() -> None:
    text = (
        "- **Node Type:** MyNode\nTraceback (most recent call last):\n"
        '  File "/home/me/ComfyUI/custom_nodes/Some-Pack/nodes.py", line 3, in run\n'
        '  File "/home/me/v/site-packages/torch/nn/linear.py", line 9, in forward\n'
        "ValueError: something new\n"
    )
    found = examined(text)
    assert not found.diagnoses
    assert found.origin == "in the custom node pack Some-Pack (nodes.py), node MyNode"
    plain = text.replace("custom_nodes/Some-Pack/", "").replace("- **Node Type:** MyNode\n", "")
    assert examined(plain).origin == "in PyTorch (linear.py)"


@pytest.mark.parametrize(
    "line",
    [
        "Error: x", "worker failed", "exited with code 3", "returned 0xC0000142", "!!! x",
        "the task hung", "Connection timed out", "child killed", "HRESULT 0x80004005",
        '  File "/a/b.py", line 3, in x', "core dumped",
    ],
)  # fmt: skip
def test_a_finished_run_with_a_word_of_an_error_is_no_all_clear(line: str) -> None:
    found = examined(f"got prompt\nPrompt executed in 3.0 seconds\n{line}\n")
    assert found.finished
    assert not found.causes
    assert found.unknown_count == 1


@pytest.mark.parametrize("line", ["0 errors", "exited with code 0", "errors='ignore'", "default"])
def test_words_that_only_look_like_errors_are_none(line: str) -> None:
    assert examined(f"Prompt executed in 3.0 seconds\n{line}\n").unknown_count == 0


def test_only_a_run_that_is_shown_to_its_end_has_finished() -> None:
    done = "got prompt\nPrompt executed in 3.0 seconds\n"
    logs = ("", "got prompt\n", done, done + "got prompt\n")
    assert [examined(text).finished for text in logs] == [False, False, True, False]


def test_no_rule_says_what_is_not_true_of_this_package() -> None:
    told = " ".join(f"{rule.here} {rule.otherwise}" for rule in by_id().values())
    assert "no rasteriser" not in told
    assert "hy3d_rocm.raster.install()" in by_id()["custom-rasterizer"].here


def test_names_are_found_at_the_packages_door() -> None:
    import hy3d_rocm.diagnose as package
    from hy3d_rocm.diagnose.log import examine as module

    assert package.diagnose is module.diagnose
    with pytest.raises(AttributeError):
        package.nonsense  # noqa: B018
