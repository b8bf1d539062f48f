"""The mutation check counts what it says: its table, its list, its mutants, its figures."""

from __future__ import annotations

import ast
import re

import mutation_tokens
import pytest
from mutation_groups import BY_NAME, GROUPS
from mutation_kinds import COUNTED, SAME_CODE, WORDS, mutants_of
from mutation_score import EQUIVALENT, Tally, interval, read_equivalent, wrong_entries
from mutation_workplace import without_property_decorators
from places import ROOT


def test_every_file_and_test_of_the_table_is_there() -> None:
    assert list(BY_NAME) == ["device", "seed", "schedule", "router", "decode"]
    for group in GROUPS:
        for path in (*group.python, *group.c):
            assert (ROOT / path).is_file(), path
        for name in group.tests:
            assert (ROOT / "tests/unit" / name).is_file(), name
        for suites in group.c.values():
            for suite in suites:
                assert (ROOT / f"tests/c/test_{suite}.c").is_file(), suite
        for name in group.left_out:
            path, _, function = name.partition("::")
            assert f"def {function}(" in (ROOT / "tests/unit" / path).read_text(), name


def test_every_equivalent_mutant_is_of_a_function_and_line_that_are_there() -> None:
    for key in read_equivalent(EQUIVALENT.read_text()):
        path, function, change = key.split(" | ", 2)
        source = (ROOT / path).read_text()
        text = " ".join(source.split())
        assert change.partition(" => ")[0] in text, f"no such line: {key}"
        assert re.search(rf"\b{function.rpartition('.')[2]}\b", source), f"no such function: {key}"


@pytest.mark.parametrize(
    "text",
    ["  a reason alone\n", "a.py | f | x => y\n", "a.py | f | x\n  why\n",
     "a.py | f | x => y\n  why\na.py | f | x => y\n  why\n"],
)  # fmt: skip
def test_a_list_that_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_equivalent(text)


def test_a_claim_of_equivalence_is_held_to_what_happened() -> None:
    one, two = "a.py | f | x => y", "b.py | g | x => y"
    entries = read_equivalent(f"# words\n\n{one}\n{two}\n  why\n")
    assert entries == {one: "why", two: "why"}
    assert wrong_entries(entries, {one}, set(), {"a.py"}) == []
    assert wrong_entries(entries, {one}, {one}, {"a.py"}) == [f"killed, so not equivalent: {one}"]
    assert wrong_entries(entries, {one}, set(), {"b.py"}) == [f"no such mutant: {two}"]


WRITTEN = """
{gap}def x_f__mutmut_orig(a, b=1):
    logger.info("two words", a)
    c = cast("T", a)
    return (a < b, "one", "two words", c)

def x_f__mutmut_1(a, b=1):
    logger.info("two words", a)
    c = cast("T", a)
    return (a <= b, "one", "two words", c)

def x_f__mutmut_2(a, b=1):
    logger.info("two words", None)
    c = cast("T", a)
    return (a < b, "one", "two words", c)

def x_f__mutmut_3(a, b=1):
    logger.info("two words", a)
    c = cast(None, a)
    return (a < b, "one", "two words", c)

def x_f__mutmut_4(a, b=1):
    logger.info("two words", a)
    c = cast("T", a)
    return (a < b, "one", "XXtwo wordsXX", c)

def x_f__mutmut_5(a, b=1):
    logger.info("two words", a)
    c = cast("T", a)
    return (a < b, "ONE", "two words", c)

def x_f__mutmut_6(a, b=2):
    logger.info("two words", a)
    c = cast("T", a)
    return (a < b, "one", "two words", c)

class Y:
    def xǁYǁg__mutmut_orig(self):
        return 1

    def xǁYǁg__mutmut_1(self):
        return 1.0
"""


def test_a_mutant_counts_unless_it_is_the_same_code_or_words_alone() -> None:
    found = mutants_of("a.py", WRITTEN.format(gap=""))
    assert [m.kind for m in found] == [
        COUNTED, WORDS, SAME_CODE, WORDS, COUNTED, COUNTED, COUNTED,
    ]  # fmt: skip
    assert found[0].key == (
        'a.py | f | return (a < b, "one", "two words", c) => return (a <= b, "one", "two words", c)'
    )
    assert found[-1].key == "a.py | Y.g | return 1 => return 1.0"


def test_a_mutants_name_survives_a_move_of_lines() -> None:
    moved = mutants_of("a.py", WRITTEN.format(gap="x = 1\n\n\n"))
    assert [m.key for m in moved] == [m.key for m in mutants_of("a.py", WRITTEN.format(gap=""))]


def test_a_property_without_its_decorator_is_the_same_property() -> None:
    source = (
        "class A:\n    @property\n    def b(self):\n        return self.c + 1\n\n"
        "    @property\n    def c(self):\n        return 2\n\n    @staticmethod\n    def d():\n"
        "        return 3\n"
    )
    changed = without_property_decorators(source)
    assert changed.count("@property") == 0
    assert changed.count("@staticmethod") == 1
    names: dict[str, type] = {}
    exec(compile(ast.parse(changed), "a", "exec"), names)
    made = names["A"]()
    assert (made.b, made.c, made.d()) == (3, 2, 3)


C_SOURCE = """/* a + b */
#define LIMIT 10
static int f(int a, int b)
{
    const char *text = "a < b";
    if (a < b && *text == 'x') {
        b = a - 1;
    }
    return b > 0 ? b : -LIMIT;
}
"""


def test_c_is_mutated_token_by_token() -> None:
    mutants = mutation_tokens.mutants_of("a.c", C_SOURCE)
    changes = {m.key.split(" | ", 1)[1] for m in mutants}
    header = "f | if (a < b && *text == 'x') {"
    for wanted in (
        "file | #define LIMIT 10 => #define LIMIT (10 + 1)",
        f"{header} => if (a <= b && *text == 'x') {{",
        f"{header} => if (a < b || *text == 'x') {{",
        f"{header} => if (a < b && *text != 'x') {{",
        f"{header} => if (!(a < b && *text == 'x')) {{",
        "f | b = a - 1; => b = a + 1;",
        "f | b = a - 1; => b = a - (1 - 1);",
        "f | b = a - 1; => ;",
        "f | return b > 0 ? b : -LIMIT; => return b > 0 && 0 ? b : -LIMIT;",
    ):
        assert wanted in changes, wanted
    assert not any('"a <= b"' in key or "a - b" in key for key in changes)
    assert not any("+LIMIT" in key for key in changes)
    assert len({m.applied(C_SOURCE) for m in mutants}) == len(mutants)


def test_the_figures_of_a_line_add_up() -> None:
    tally = Tally(same_code=2, words=3, possible=10)
    tally.add("k", killed=True)
    tally.add("t", killed=False, timed_out=True)
    tally.add("s", killed=False)
    tally.add("e", killed=False)
    tally.take_out({"e": "why"})
    assert (tally.tried, round(tally.percent, 1), tally.lived) == (3, 66.7, ["s"])
    assert tally.line("x") == (
        "x: 3 mutants, 2 killed (66.7 %; 1 by time-out), 1 survived, 3 equivalent (2 by code, 1"
        " listed), 3 of words alone; a sample of 10: 20.8 to 93.9 % at 95 % confidence"
    )
    total = Tally()
    total += tally
    total += tally
    assert (total.tried, total.listed, total.possible) == (6, 2, 20)


def test_an_interval_is_wilsons() -> None:
    assert interval(0, 0) == (0.0, 100.0)
    low, high = interval(10, 10)
    assert round(low, 2) == 72.25  # 1 / (1 + z^2 / 10)
    assert round(high, 9) == 100.0
    assert [round(bound, 2) for bound in interval(50, 100)] == [40.38, 59.62]
