"""The files of rules and signs: what they name is there, and their patterns compile."""

from __future__ import annotations

import re

from places import ROOT

from hy3d_rocm.diagnose.log import machine
from hy3d_rocm.diagnose.log.rules import (
    ANY,
    FIGURES,
    FILES,
    FOLDER,
    OF_DECODE,
    by_id,
    families,
    signs,
)

# What Machine.holds can be asked beside the names of signs.
ASKED = {"stranger", "memory unseen", "beside", "gfx1151", "card", "relative", "amd card"}


def test_all_files_are_read_and_every_pattern_compiles() -> None:
    assert sorted(FILES) == sorted(path.stem for path in FOLDER.iterdir())
    assert all(families().values())
    ids = [rule.id for family in families().values() for rule in family]
    assert len(set(ids)) == len(ids)
    for rule in by_id().values():
        has_link = rule.source.startswith("https://")
        assert has_link or (ROOT / rule.source).is_file(), rule.id
        for pattern in (*rule.patterns, *rule.unless):
            assert re.compile(pattern), rule.id


def test_what_a_rule_names_is_there() -> None:
    known = {*signs(), *ASKED}
    for rule in by_id().values():
        assert {*rule.follows, *rule.needs, *rule.excused} <= {*by_id(), ANY}, rule.id
        asked = {*rule.when, *rule.instead}
        assert {name.removeprefix("no ") for name in asked} <= {*known, OF_DECODE}, rule.id
        assert rule.figures in ("", *FIGURES), rule.id
    for command in machine._commands():
        assert {name.removeprefix("no ") for name in command.when} <= known, command


def test_every_sign_is_asked_for_and_its_patterns_compile() -> None:
    code = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "hy3d_rocm/diagnose/log").glob("*.py")
    )
    for name, sign in signs().items():
        assert f'"{name}"' in code, name
        assert sign.words or name == "no error", name
        assert name not in by_id()
        assert all(word == word.lower() for word in sign.words), name
        if sign.patterns:
            assert sign.pattern.pattern
