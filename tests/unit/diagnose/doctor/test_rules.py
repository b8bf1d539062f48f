"""The files of the doctor's rules: each is read, and each rule says all that it has to."""

from __future__ import annotations

import pytest

from hy3d_rocm.diagnose.doctor import checks
from hy3d_rocm.diagnose.doctor.examination import FILES, FOLDER, table
from hy3d_rocm.diagnose.doctor.finding import Facts, Severity


def test_every_file_is_read_and_every_check_has_one_rule() -> None:
    assert sorted(FILES) == sorted(path.stem for path in FOLDER.iterdir())
    ids = [rule.id for rule in table()]
    assert len(set(ids)) == len(ids)
    known = [
        name for name, check in vars(checks).items()
        if getattr(check, "__module__", "") == checks.__name__ and not name.startswith("_")
    ]  # fmt: skip
    assert sorted(n for rule in table() if (n := rule.check.__name__) in known) == sorted(known)


def test_every_rule_has_a_title_and_evidence_in_each_case() -> None:
    for rule in table():
        for told in rule.variants.values() if not rule.title else (rule,):
            assert told.title or not told.id, rule.id
        assert rule.id, rule.title
        assert rule.evidence, rule.id
        told = [rule.severity, *(case.severity for case in rule.variants.values() if case.severity)]
        assert set(told) <= set(Severity), rule.id


FACTS = Facts({
    "a": {"b": "Some Text", "size": 3 << 30, "whole": 4 << 30, "no": False, "none": None},
    "version": [7, 1, 1], "release": "6.16.8-arch1", "rows": [{"size": 1}, {"size": 2 << 30}, 7],
    "machine": {"system": "linux"},
})  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("a.b", True), ("no a.b", False), ("a.none", False), ("no a.c.d", True),
        ("machine.system is linux", True), ("a.none or a.b", True), ("rows.1", True),
        ("rows.3", False),
        ("a.b is some text", True), ("a.no is false", True), ("a.none is false", False),
        ("a.b is {a.b}", True), ("a.b has Text", True), ("no a.b has text", True),
        ("a.size below 4 GB", True), ("a.size below 3 GB", False), ("a.size above 2 GB", True),
        ("a.size below 80 % of a.whole", True), ("a.size below 75 % of a.whole", False),
        ("a.none below 4 GB", False), ("no a.none below 4 GB", True),
        ("version in 7.1.1-7.1.2", True), ("version in 6-7.1 7.1.2-8", False),
        ("release in 0-6.16.9", True), ("a.b in 0-9", False), ("a.none in 0-9", False),
    ],
)  # fmt: skip
def test_a_condition_holds_where_it_is_so(condition: str, holds: bool) -> None:
    assert FACTS.holds(condition) is holds


def test_texts_are_filled_with_facts_words_and_rows() -> None:
    seen = FACTS.beside({"b": ["x", "y"]})
    assert seen.filled("{a.b}: {b}, {a.size:size}, {version}, {a.c}.") == (
        "Some Text: x, y, 3.0 GB, 7, 1, 1, ."
    )
    assert [row.filled("{size:size}") for row in FACTS.each("rows")] == ["1 B", "2.0 GB"]
