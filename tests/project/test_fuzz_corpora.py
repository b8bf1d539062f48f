"""The kept inputs of the C fuzzers: whole files, one a target, small."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import TESTS

FUZZ = TESTS / "fuzz"

import corpora  # noqa: E402
import run  # noqa: E402


@pytest.mark.parametrize("name", run.TARGETS)
def test_each_target_has_inputs_that_fit_it(name: str) -> None:
    path = FUZZ / "corpus" / f"{name}.bin"
    inputs = corpora.read(path)
    assert len(inputs) > 100
    assert len(set(inputs)) == len(inputs)
    assert max(map(len, inputs)) <= run.MOST_BYTES
    assert path.stat().st_size <= corpora.LIMIT


def test_what_is_packed_comes_out_again(tmp_path: Path) -> None:
    inputs = {bytes(range(n)) for n in range(40)}
    assert corpora.write(tmp_path / "some.bin", inputs) == 40
    assert set(corpora.read(tmp_path / "some.bin")) == inputs
    corpora.unpack(tmp_path / "some.bin", tmp_path / "folder")
    corpora.pack(tmp_path / "folder", tmp_path / "again.bin")
    assert (tmp_path / "again.bin").read_bytes() == (tmp_path / "some.bin").read_bytes()


def test_a_packed_file_stays_below_its_limit(tmp_path: Path) -> None:
    kept = corpora.write(tmp_path / "some.bin", [bytes([n]) * 100 for n in range(50)], limit=1000)
    assert 0 < kept < 50
    assert (tmp_path / "some.bin").stat().st_size <= 1000


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    corpora.write(tmp_path / "some.bin", [b"one", b"three"])
    (tmp_path / "cut.bin").write_bytes((tmp_path / "some.bin").read_bytes()[:-1])
    with pytest.raises(ValueError, match="ends within an input"):
        corpora.read(tmp_path / "cut.bin")
