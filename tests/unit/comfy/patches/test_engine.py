"""PatchSet: taken back exactly, inert where it cannot be taken back, in any order."""

from __future__ import annotations

import functools
import inspect
import random
from types import ModuleType
from typing import Any

import pytest
from patch_doubles import marking
from patch_targets import (
    NAMES,
    all_changes,
    assert_same,
    change,
    make_target,
    marks,
    snapshot,
    values,
)

from hy3d_rocm.comfy.patches.engine import MISSING, Change, PatchError, PatchSet


def test_every_kind_of_attribute_is_replaced_and_put_back() -> None:
    target = make_target()
    before, old = snapshot(target), values(target)
    patches = PatchSet("all")
    assert not patches.active
    assert patches.apply(all_changes(target))
    assert patches.active
    assert values(target) == [("patched", value) for value in old]
    assert patches.revert() == ()
    assert not patches.active
    assert values(target) == old
    assert_same(target, before)


def test_an_inherited_attribute_is_deleted_again_and_the_base_is_untouched() -> None:
    target = make_target()
    base = target.__mro__[1]
    before = snapshot(base)
    patches = PatchSet()
    patches.apply([change(target, "inherited"), change(target, "inherited_klass")])
    assert "inherited" in vars(target)
    assert base().inherited(1) == ("inherited", 1)
    patches.revert()
    assert "inherited" not in vars(target)
    assert "inherited_klass" not in vars(target)
    assert_same(base, before)


def test_signature_name_and_doc_are_the_original_s() -> None:
    target = make_target()
    originals = {name: inspect.getattr_static(target, name) for name in NAMES}
    signatures = {n: inspect.signature(getattr(target, n)) for n in ("plain", "klass", "static")}
    PatchSet().apply(all_changes(target))
    for name, signature in signatures.items():
        assert inspect.signature(getattr(target, name)) == signature
        assert getattr(target, name).__name__ == name
    assert target.plain.__doc__ == "Doc of plain."
    assert target.plain.__wrapped__ is originals["plain"]
    assert target.klass.__wrapped__ is originals["klass"].__func__
    assert inspect.iscoroutinefunction(target.coro)
    assert not inspect.iscoroutinefunction(target.plain)


def test_modules_and_objects_can_be_owners() -> None:
    module = ModuleType("m")
    module.__dict__["f"] = lambda: "f"
    thing = make_target()()
    before_module, before_thing = snapshot(module), snapshot(thing)
    patches = PatchSet()
    patches.apply([change(module, "f"), change(thing, "plain")])
    assert module.f() == ("patched", "f")
    assert thing.plain(1) == ("patched", ("plain", 1, 3))
    assert type(thing)().plain(1) == ("plain", 1, 3)
    patches.revert()
    assert_same(module, before_module)
    assert_same(thing, before_thing)


def test_an_absent_attribute_is_added_only_when_that_is_said_and_deleted_again() -> None:
    target = make_target()
    before = snapshot(target)
    patches = PatchSet()
    with pytest.raises(PatchError, match="IS_CHANGED does not exist"):
        patches.apply([Change(target, "IS_CHANGED", lambda _: classmethod(lambda cls: 1))])
    seen = []

    def make(original: Any) -> Any:
        seen.append(original)
        return classmethod(lambda cls: cls.__name__)

    patches.apply([Change(target, "IS_CHANGED", make, added=True)])
    assert seen == [MISSING]
    assert target.IS_CHANGED() == "Target"
    patches.revert()
    assert_same(target, before)


def test_apply_and_revert_twice_are_harmless() -> None:
    target = make_target()
    before, old = snapshot(target), values(target)
    patches = PatchSet()
    assert patches.revert() == ()
    assert patches.apply(all_changes(target))
    assert not patches.apply(all_changes(target))
    assert values(target) == [("patched", value) for value in old]
    patches.revert()
    assert patches.revert() == ()
    assert_same(target, before)


def wrapped_by_others(target: Any, name: str) -> None:
    """Another pack's wrapper: it keeps what it found, and functools.wraps copies our mark."""
    inner = getattr(target, name)

    @functools.wraps(inner)
    def theirs(*args: Any, **kwargs: Any) -> Any:
        return ("theirs", inner(*args, **kwargs))

    setattr(target, name, theirs)


def test_what_somebody_has_wrapped_since_is_left_and_ours_in_it_is_inert() -> None:
    target = make_target()
    patches = PatchSet()
    patches.apply([change(target, "plain"), change(target, "inherited")])
    wrapped_by_others(target, "plain")
    theirs = vars(target)["plain"]
    assert target().plain(1) == ("theirs", ("patched", ("plain", 1, 3)))
    assert patches.revert() == ("make_target.<locals>.Target.plain",)
    assert vars(target)["plain"] is theirs
    assert target().plain(1) == ("theirs", ("plain", 1, 3))
    assert "inherited" not in vars(target)
    patches.apply([change(target, "plain")])  # ours outside, the old one stays inert
    assert target().plain(1) == ("patched", ("theirs", ("plain", 1, 3)))
    patches.revert()
    assert vars(target)["plain"] is theirs


def test_a_guard_that_somebody_has_kept_is_inert_after_the_revert() -> None:
    target = make_target()
    patches = PatchSet()
    patches.apply(all_changes(target))
    kept = target().plain
    assert kept(1) == ("patched", ("plain", 1, 3))
    patches.revert()
    assert kept(1) == ("plain", 1, 3)
    patches.apply(all_changes(target))
    assert kept(1) == ("plain", 1, 3)  # a new apply does not wake the guard of the old one
    assert target().plain(1) == ("patched", ("plain", 1, 3))


def test_a_change_that_two_sets_share_is_made_once_and_ends_with_the_last() -> None:
    target = make_target()
    before = snapshot(target)
    shared = change(target, "plain")
    first, second = PatchSet(), PatchSet()
    first.apply([shared])
    wrapped_by_others(target, "klass")  # unrelated
    second.apply([Change(shared.owner, shared.name, shared.make), change(target, "static")])
    assert target().plain(1) == ("patched", ("plain", 1, 3))
    first.revert()
    assert target().plain(1) == ("patched", ("plain", 1, 3))
    second.revert()
    assert vars(target)["plain"] is before["plain"]
    assert vars(target)["static"] is before["static"]


def test_a_shared_change_under_another_s_wrapper_is_not_made_again() -> None:
    target = make_target()
    shared = change(target, "plain")
    first, second = PatchSet(), PatchSet()
    first.apply([shared])
    wrapped_by_others(target, "plain")
    second.apply([shared])
    expected = ("theirs", ("patched", ("plain", 1, 3)))
    assert target().plain(1) == expected
    first.revert()
    assert target().plain(1) == expected


@pytest.mark.parametrize("seed", range(60))
def test_any_order_of_applies_reverts_and_foreign_wraps_has_each_active_set_once(seed: int) -> None:
    """Replay: the number in the test's name seeds the moves."""
    moves = random.Random(seed)
    target = make_target()
    before = snapshot(target)
    sets = {word: PatchSet(word) for word in "abc"}
    foreign = {"plain": 0, "inherited": 0}
    wraps = seed % 2 == 1
    for _ in range(25):
        word = moves.choice("abc")
        move = moves.choice(["apply", "revert", "wrap"] if wraps else ["apply", "revert"])
        if move == "apply":
            sets[word].apply([Change(target, name, marking(word)) for name in foreign])
        elif move == "revert":
            sets[word].revert()
        else:
            name = moves.choice(list(foreign))
            wrapped_by_others(target, name)
            foreign[name] += 1
        active = [word for word, patches in sets.items() if patches.active]
        for name, count in foreign.items():
            assert marks(getattr(target(), name)(1)) == sorted(active + ["theirs"] * count)
    for patches in sets.values():
        patches.revert()
    if not wraps:
        assert_same(target, before)


def test_a_shared_change_under_another_set_s_change_is_not_made_again() -> None:
    target = make_target()
    before = snapshot(target)
    shared = change(target, "plain")
    first, over, second = PatchSet(), PatchSet(), PatchSet()
    first.apply([shared])
    over.apply([Change(target, "plain", marking("over"))])
    second.apply([shared])
    assert marks(target().plain(1)) == ["over", "patched"]
    for patches in (first, over):
        patches.revert()
        assert marks(target().plain(1)).count("patched") == 1
    second.revert()
    assert_same(target, before)


def test_a_change_that_was_reverted_under_another_s_wrapper_is_made_anew_outside_it() -> None:
    target = make_target()
    again, patches = change(target, "plain"), PatchSet()
    patches.apply([again])
    wrapped_by_others(target, "plain")
    patches.revert()
    patches.apply([again])
    assert target().plain(1) == ("patched", ("theirs", ("plain", 1, 3)))


def test_a_callable_that_a_class_does_not_bind_gets_no_argument_too_many() -> None:
    class Target:
        measure = functools.partial(len)

    patches = PatchSet()
    patches.apply([Change(Target, "measure", lambda original: functools.partial(original, "abc"))])
    assert Target().measure() == 3


def test_attributes_are_put_back_last_first() -> None:
    order = []

    class Watching(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            order.append(name)
            type.__setattr__(cls, name, value)

    class Target(metaclass=Watching):
        f = g = h = 0

    patches = PatchSet()
    patches.apply([Change(Target, name, lambda _: 1) for name in "fgh"])
    patches.revert()
    assert order == list("fghhgf")
