"""hy3d-rocm compare: what is worse is said and exits 1; chance and bad files are told apart."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from bench_results import (
    RESULTS,
    ROW,
)

from hy3d_rocm import cli


def scaled(value: Any, name: str, factor: float, key: str = "") -> Any:
    """`value` with all numbers under a key that begins with `name` times `factor`."""
    if isinstance(value, dict):
        return {k: scaled(v, name, factor, key if key.startswith(name) else k)
                for k, v in value.items()}  # fmt: skip
    if isinstance(value, list):
        return [scaled(one, name, factor, key) for one in value]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value * factor if is_number and key.startswith(name) else value


def run(folder: Path, before: Any, after: Any, capsys: pytest.CaptureFixture[str]) -> Any:
    """(exit code, stdout, stderr)."""
    paths = folder / "a.json", folder / "b.json"
    for path, data in zip(paths, (before, after), strict=True):
        path.write_text(data if isinstance(data, str) else json.dumps(data))
    code = cli.main(["compare", *map(str, paths)])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("kind", RESULTS)
def test_equal_files_of_every_command_show_no_regression(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(tmp_path, RESULTS[kind], RESULTS[kind], capsys)
    assert code == 0
    assert out.startswith(f"{kind}: A is ")
    assert out.endswith("No regression.\n")


@pytest.mark.parametrize("kind", RESULTS)
def test_what_a_later_version_adds_is_passed_over(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = {**copy.deepcopy(RESULTS[kind]), "format": 2, "later": {"rows": 1}}
    for rows in later.values():
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            rows[0]["later"] = None
    code, out, _ = run(tmp_path, RESULTS[kind], later, capsys)
    assert (code, out.endswith("No regression.\n")) == (0, True)


@pytest.mark.parametrize("kind", RESULTS)
def test_twice_the_time_is_a_regression_and_half_is_none(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = scaled(RESULTS[kind], "seconds", 2.0)
    code, out, _ = run(tmp_path, RESULTS[kind], slow, capsys)
    assert code == 1
    assert out.splitlines()[-1].startswith("1 regression: ")
    assert out.splitlines()[-1].endswith("(time)")
    code, out, _ = run(tmp_path, slow, RESULTS[kind], capsys)
    assert code == 0
    assert "better" in out


@pytest.mark.parametrize(
    ("kind", "name", "factor", "figure"),
    [
        ("optimize", "peak_bytes", 1.1, "peak memory"), ("optimize", "psnr", 0.98, "PSNR"),
        ("validate", "ssim", 0.99, "SSIM"), ("validate", "largest", 2.0, "largest error"),
        ("bench decode", "psnr", 0.9, "PSNR"), ("bench conv", "errors", 2.0, "largest error"),
        ("bench conv", "extra_bytes", 1.1, "peak memory"),
        ("bench decode --device cpu", "peaks", 1.1, "peak memory"),
    ],
)  # fmt: skip
def test_memory_and_quality_are_judged_each(
    kind: str, name: str, factor: float, figure: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    worse = scaled(RESULTS[kind], name, factor)
    code, out, _ = run(tmp_path, RESULTS[kind], worse, capsys)
    assert code == 1
    assert out.splitlines()[-1].endswith(f"({figure})")


def test_what_the_files_own_range_explains_is_no_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet, noisy = copy.deepcopy(RESULTS["optimize"]), copy.deepcopy(RESULTS["optimize"])
    quiet["rows"][0]["seconds"] = [1.0, 1.0, 1.0]
    noisy["rows"][0]["seconds"] = [1.0, 1.1, 1.2]  # its range is 18 % of its median
    assert run(tmp_path, quiet, noisy, capsys)[0] == 0
    noisy["rows"][0]["seconds"] = [1.1, 1.1, 1.1]
    assert run(tmp_path, quiet, noisy, capsys)[0] == 1
    noisy["rows"][0]["seconds"] = [1.02, 1.02, 1.02]
    assert run(tmp_path, quiet, noisy, capsys)[0] == 0
    noisy["rows"][0]["seconds"] = [1.2]  # once: nothing is known of its range
    assert run(tmp_path, quiet, noisy, capsys)[0] == 0


def test_failures_and_broken_promises_are_regressions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = copy.deepcopy(RESULTS["optimize"])
    failed["rows"][0]["error"] = "out of memory"
    code, out, _ = run(tmp_path, RESULTS["optimize"], failed, capsys)
    assert (code, "out of memory" in out) == (1, True)
    assert run(tmp_path, failed, RESULTS["optimize"], capsys)[0] == 0
    broken = copy.deepcopy(RESULTS["validate"])
    broken["verdicts"][0] = {"holds": False, "text": "tiled: 44.1 dB, 45 dB are promised"}
    code, out, _ = run(tmp_path, RESULTS["validate"], broken, capsys)
    assert (code, out.splitlines()[-1].endswith("(promise)")) == (1, True)
    for text, then, now in (
        ("x: seams {} against whole's, within 5%", "+1.20%", "-6.00%"),
        ("x: largest error {} of the range, at most 0.0001", "0.0e+00", "1.0e-02"),
    ):
        held = {**RESULTS["validate"], "verdicts": [{"holds": True, "text": text.format(then)}]}
        broken = {**RESULTS["validate"], "verdicts": [{"holds": False, "text": text.format(now)}]}
        assert run(tmp_path, held, broken, capsys)[0] == 1


def test_exact_frames_that_are_only_near_now_are_the_same_beyond_16_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    near = {**RESULTS["bench decode --device cpu"], "psnr": 120.0}
    assert run(tmp_path, RESULTS["bench decode --device cpu"], near, capsys)[0] == 0
    far = {**RESULTS["bench decode --device cpu"], "psnr": 90.0}
    assert run(tmp_path, RESULTS["bench decode --device cpu"], far, capsys)[0] == 1


def test_other_machines_and_commands_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {**RESULTS["bench conv"], "machine": {"model": "another"}, "settings": {"threads": 2}}
    code, out, _ = run(tmp_path, RESULTS["bench conv"], other, capsys)
    assert code == 0
    assert 'different machines, machine, model: "m" then, "another" now' in out
    assert "different commands, settings: " in out
    more = copy.deepcopy(RESULTS["optimize"])
    more["rows"].append({**ROW, "name": "whole"})
    assert "only in" in run(tmp_path, RESULTS["optimize"], more, capsys)[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no JSON file"),
        ("[" * 100_000, "is no JSON file"),
        ("[]", "is no result of hy3d-rocm"),
        ('{"tool": "else"}', "is no result of hy3d-rocm"),
        ('{"tool": "optimize"}', "is damaged, or of another version"),
        ('{"tool": "optimize", "rows": [5]}', "is damaged"),
        (
            '{"tool": "optimize", "rows": [{"name": "a", "seconds": "x", "peak_bytes": 1}]}',
            "damaged",
        ),
        ('{"tool": "optimize", "rows": []}', "holds no figures"),
        (json.dumps(RESULTS["validate"]), "give two of one kind"),
        (json.dumps({**RESULTS["optimize"], "rows": [{**ROW, "name": "x"}]}), "nothing that is in"),
    ],
)
def test_files_that_cannot_be_compared_are_a_sentence_and_exit_2(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = run(tmp_path, RESULTS["optimize"], text, capsys)
    assert (code, out) == (2, "")
    assert words in error
    assert cli.main(["compare", str(tmp_path / "no\x1b.json"), str(tmp_path)]) == 2
    assert r"no\x1b.json can't be read: No such file" in capsys.readouterr().err
