"""The files of rules: each is well formed, and what is wrong in one is said with file and rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import ROOT

from hy3d_rocm.diagnose.log.machine import signs
from hy3d_rocm.diagnose.log.rules import FILES, FOLDER, rules_of
from hy3d_rocm.diagnose.tables import TableError

RULE = """
heading = "Some"
[shared]
AGAIN = "Again."
[[rule]]
id = "some"
symptom = '''It
  fails. {AGAIN}'''
cause = "A."
do = "b"
source = "https://example.com"
words = ["fail"]
patterns = ['''fa
    il(?:ed)?''']
"""


def test_all_files_are_read_and_every_pattern_compiles() -> None:
    assert sorted(FILES) == sorted(path.stem for path in FOLDER.iterdir())
    families = rules_of((FOLDER / f"{name}.toml" for name in FILES), compiled=True)
    assert len(families) == len(FILES)
    assert all(families.values())
    for family in families.values():
        for rule in family:
            has_link = rule.source.startswith("https://")
            assert has_link or (ROOT / rule.source).is_file(), rule.id


def test_line_breaks_are_blanks_in_a_text_and_nothing_in_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text(RULE)
    (rule,) = rules_of([path], compiled=True)["Some"]
    assert (rule.symptom, rule.patterns) == ("It fails. Again.", ("fail(?:ed)?",))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('do = "b"', 'doo = "b"', "some.toml, rule some: 'doo' is none of id, symptom, "),
        ('source = "https://example.com"', "", "some.toml, rule some: source is missing"),
        ('source = "https://example.com"', 'source = ""', "rule some: source is missing"),
        ('id = "some"', "", "some.toml, rule 1: id is missing"),
        ("(?:ed)?", "(?:ed?", "rule some: the pattern fail(?:ed? does not compile: missing )"),
        ('do = "b"', 'do = "b"\nfigures = "much"', "rule some: figures: there is no 'much'"),
        ('do = "b"', 'do = "b"\nwhen = ["no rain"]', "there is nothing that shows 'no rain'"),
        ('do = "b"', 'do = "b"\ninstead."sun" = "c"', "there is nothing that shows 'sun'"),
        ('do = "b"', 'do = "b"\nfollows = ["other"]', "rule some: there is no rule 'other'"),
        ('do = "b"', 'do = "b"\nrank = 3', "rule some: rank: 3 is none of 0, 1, 2"),
        ('do = "b"', 'do = "b"\nalone = 1', "rule some: alone: 1 is not true or false"),
        ('do = "b"', 'do = "b"\nwithin = "x"', "rule some: within: 'x' is not a whole number"),
        ('["fail"]', '"fail"', "rule some: words: 'fail' is not a list"),
        ('"A."', "1", "rule some: cause: 1 is not a text"),
        ("AGAIN =", "ONCE =", "rule some: {AGAIN} is not in the file's [shared]"),
        ("[[rule]]", "[[rules]]", "some.toml: 'rules' is none of heading, shared, rule"),
        ("[[rule]]", "[rule]", "some.toml, outside its rows: rule: {"),
        ('do = "b"', "do = b", "some.toml is no TOML: Invalid value"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_rule(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    path = tmp_path / "some.toml"
    assert old in RULE
    path.write_text(RULE.replace(old, new))
    with pytest.raises(TableError) as caught:
        rules_of([path], compiled=True)
    assert told in str(caught.value)
    assert str(caught.value).startswith("some.toml")


def test_two_rules_of_one_id_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "one.toml", tmp_path / "two.toml"]
    for path in paths:
        path.write_text(RULE)
    with pytest.raises(TableError, match=r"two.toml: one.toml has a rule some as well"):
        rules_of(paths)


def test_every_sign_is_asked_for_and_its_patterns_compile() -> None:
    code = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "hy3d_rocm/diagnose/log").glob("*.py")
    )
    for name, sign in signs().items():
        assert f'"{name}"' in code, name
        assert sign.words or sign.patterns, name
        assert all(word == word.lower() for word in sign.words), name
        if sign.patterns:
            assert sign.pattern.pattern
