"""The files of the doctor's rules: well formed, and what is wrong in one is said with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from hy3d_rocm.doctor.rules import CHECKS, FILES, FOLDER, rules_of_file, table
from hy3d_rocm.env.tables import TableError

RULE = """
[[rule]]
id = "some"
severity = "error"
check = "apu_share"
title = "It is {free}"
evidence = "b"
[rule.variants.much]
severity = "warning"
remedy = "c"
"""


def test_every_file_is_read_and_every_check_has_one_rule() -> None:
    assert sorted(FILES) == sorted(path.stem for path in FOLDER.iterdir())
    ids = [rule.id for rule in table()]
    assert len(set(ids)) == len(ids)
    assert sorted(name for rule in table() if (name := rule.check.__name__) in CHECKS) == sorted(
        CHECKS
    )


def test_every_rule_has_a_title_and_evidence_in_each_case() -> None:
    for rule in table():
        for told in rule.variants.values() if not rule.title else (rule,):
            assert told.title or not told.id, rule.id
        assert rule.evidence, rule.id


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"apu_share"', '"rains"', "check: there is no 'rains'"),
        ('"error"', '"bad"', "severity: 'bad' is not a valid Severity"),
        ('remedy = "c"', 'remedies = "c"', "'remedies' is none of id, severity, title, evidence"),
        ('"warning"', '"bad"', "severity: 'bad' is not a valid Severity"),
        ("[rule.variants.much]\n", 'variants = "much"\n', "variants: 'much' is not a table"),
        ("It is", "{IT} is", "{IT} is not in the file's [shared]"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_file_and_rule(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    path = tmp_path / "some.toml"
    path.write_text(RULE)
    (rule,) = rules_of_file(path)
    assert rule.variants["much"].remedy == "c"
    assert old in RULE
    text = RULE.replace(old, new)
    path.write_text(text.split('severity = "warning"')[0] if "variants = " in new else text)
    with pytest.raises(TableError) as caught:
        rules_of_file(path)
    assert str(caught.value).startswith(f"some.toml, rule some: {told}")
