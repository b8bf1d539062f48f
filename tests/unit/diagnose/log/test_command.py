"""The command: what it prints, its exit codes, and what it says where it can't read."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from diagnose_cases import BLOCKS, FRAMEPACK_START, OFFLOADED, OURS, VAE_LOADED, excerpts

from hy3d_rocm.cli import build_parser
from hy3d_rocm.diagnose.command import run_diagnose_command
from hy3d_rocm.diagnose.env.shown import printed_safely
from hy3d_rocm.diagnose.log.report import WIDTH
from hy3d_rocm.diagnose.log.rules import by_id

FAILED = FRAMEPACK_START + OFFLOADED + VAE_LOADED + OURS + BLOCKS * 9
NOTICE = "MIOpen(HIP): Warning [IsEnoughWorkspace] [EvaluateInvokers] Solver <GemmFwdRest>\n"


def run(*arguments: str) -> int:
    return run_diagnose_command(build_parser().parse_args(["diagnose", *arguments]))


def saved(tmp_path: Path, text: str) -> str:
    path = tmp_path / "comfyui.log"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 4),
        ("\n \n", 4),
        ("got prompt\nloaded completely\n", 3),
        ("got prompt\nPrompt executed in 3 seconds\n", 0),
        (NOTICE, 3),
        (NOTICE + "Prompt executed in 3 seconds\n", 0),
        ("Prompt executed in 3 seconds\nworker killed\n", 3),
        (FAILED, 1),
        (NOTICE + "KeyError: 'images'\n", 3),
        (FAILED + "KeyError: 'images'\n", 1),
    ],
    ids=[
        "empty",
        "blank",
        "not finished",
        "well",
        "notice",
        "notice and well",
        "well and killed",
        "cause",
        "unknown",
        "cause and unknown",
    ],
)
def test_the_exit_code_says_whether_a_cause_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int
) -> None:
    path = saved(tmp_path, text)
    assert run(path) == code
    assert run(path, "--json") == code
    printed = capsys.readouterr().out
    assert json.loads(printed[printed.index("\n{") :])["exit_code"] == code


def test_json_holds_all_that_the_text_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(saved(tmp_path, FAILED + NOTICE), "--json")
    told = json.loads(capsys.readouterr().out)
    cause, notice = told["diagnoses"]
    assert (told["version"], told["lines"]) == (2, 17)
    assert cause["rule"] == "framepack-partial-offload"
    assert cause["evidence"][0] == {"line": 3, "text": OFFLOADED.strip()}
    assert [(other["rule"], other["count"]) for other in cause["follow_ups"]] == [
        ("block-allocator", 9)
    ]
    assert cause["remedy"] == f"{cause['do']} {cause['here']} {cause['otherwise']}"
    assert notice["severity"] == "notice"


def test_standard_input_is_read_where_no_file_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ((), ("-",)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FAILED.encode())))
        assert run(*arguments) == 1
        assert capsys.readouterr().out.startswith("standard input: 16 lines. 1 cause found.")


@pytest.mark.parametrize("name", ["missing.log", "."])
def test_a_log_that_cannot_be_read_gets_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run(str(tmp_path / name)) == 2
    told = capsys.readouterr()
    assert not told.out
    assert "can't be read" in told.err
    assert "Traceback" not in told.err


def test_every_report_fits_100_columns_and_names_line_rule_and_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for found in excerpts():
        run(saved(tmp_path, "\n".join(found["lines"])))
        told = capsys.readouterr().out
        for row in told.splitlines():
            longest_word = max(map(len, row.split()), default=0)
            assert len(row) <= WIDTH or longest_word > WIDTH - 15, row
        for rule in found["expected"]:
            if by_id()[rule].severity == "error":
                assert f"[{rule}]" in told or by_id()[rule].symptom in " ".join(told.split()), rule


def test_an_unknown_log_says_so_and_what_to_send(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(saved(tmp_path, "".join(f"KeyError: {n}\n" for n in range(9)))) == 3
    told = " ".join(capsys.readouterr().out.split())  # lines break where the path lets them
    assert "none that is known" in told
    assert "hy3d-rocm doctor --json" in told
    assert "(4 lines before these)" in told


def test_a_terminal_without_these_characters_still_gets_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr(sys, "stdout", out)
    with printed_safely():  # as the command line has it
        assert run(saved(tmp_path, "KeyError: '错误'\n")) == 3
    out.flush()
    assert rb"KeyError: '\u9519\u8bef'" in out.buffer.getvalue()  # type: ignore[attr-defined]
