"""PatchSet: all or none, taken back exactly, inert where it cannot be taken back."""

from __future__ import annotations

import functools
import inspect
import random
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from patch_doubles import marking

from hy3d_rocm.comfy.patch import MISSING, Change, PatchError, PatchSet

NAMES = ("plain", "klass", "static", "prop", "inherited", "inherited_klass", "constant", "coro")


def make_target() -> type:
    """A class with an attribute of every kind; made anew for each test."""

    class Base:
        def inherited(self, x: int) -> Any:
            return ("inherited", x)

        @classmethod
        def inherited_klass(cls, x: int) -> Any:
            return ("inherited_klass", cls.__name__, x)

    class Target(Base):
        constant = 7

        def plain(self, x: int, *, seed: int = 3) -> Any:
            """Doc of plain."""
            return ("plain", x, seed)

        @classmethod
        def klass(cls, x: int) -> Any:
            return ("klass", cls.__name__, x)

        @staticmethod
        def static(x: int) -> Any:
            return ("static", x)

        @property
        def prop(self) -> Any:
            """Doc of prop."""
            return "prop"

        async def coro(self) -> Any:
            return "coro"

    return Target


def make_property(original: property) -> property:
    return property(lambda self: ("patched", original.__get__(self)))


def make_async(original: Any) -> Any:
    async def replacement(self: Any) -> Any:
        return ("patched", await original(self))

    return replacement


def change(owner: Any, name: str) -> Change:
    makers: dict[str, Callable[[Any], Any]] = {
        "prop": make_property,
        "constant": lambda original: ("patched", original),
        "coro": make_async,
    }
    return Change(owner, name, makers.get(name, marking("patched")))


def all_changes(target: type) -> list[Change]:
    return [change(target, name) for name in NAMES]


def values(target: type) -> list[Any]:
    thing = target()
    coroutine = thing.coro()  # type: ignore[attr-defined]
    with pytest.raises(StopIteration) as stop:
        coroutine.send(None)
    return [
        thing.plain(1), thing.klass(1), target.klass(1), thing.static(1), thing.prop,  # type: ignore[attr-defined]
        thing.inherited(1), thing.inherited_klass(1), thing.constant, stop.value.value,  # type: ignore[attr-defined]
    ]  # fmt: skip


def snapshot(owner: Any) -> dict[str, Any]:
    return dict(vars(owner))


def assert_same(owner: Any, before: dict[str, Any]) -> None:
    now = dict(vars(owner))
    assert now.keys() == before.keys()
    assert all(now[key] is before[key] for key in before)


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
    assert target.plain.__doc__ == "Doc of plain."  # type: ignore[attr-defined]
    assert target.plain.__wrapped__ is originals["plain"]  # type: ignore[attr-defined]
    assert target.klass.__wrapped__ is originals["klass"].__func__  # type: ignore[attr-defined]
    assert target.prop.__doc__ == "Doc of prop."  # type: ignore[attr-defined]
    assert inspect.iscoroutinefunction(target.coro)  # type: ignore[attr-defined]
    assert not inspect.iscoroutinefunction(target.plain)  # type: ignore[attr-defined]


def test_modules_and_objects_can_be_owners() -> None:
    module = ModuleType("m")
    module.__dict__["f"] = lambda: "f"
    thing = make_target()()
    before_module, before_thing = snapshot(module), snapshot(thing)
    patches = PatchSet()
    patches.apply([change(module, "f"), change(thing, "plain")])
    assert module.f() == ("patched", "f")
    assert thing.plain(1) == ("patched", ("plain", 1, 3))  # type: ignore[attr-defined]
    assert type(thing)().plain(1) == ("plain", 1, 3)  # type: ignore[attr-defined]
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
    assert target.IS_CHANGED() == "Target"  # type: ignore[attr-defined]
    patches.revert()
    assert_same(target, before)


class Refusing(type):
    """A metaclass whose classes refuse, or half refuse, to have one attribute set."""

    def __setattr__(cls, name: str, value: Any) -> None:
        refused, how = vars(cls).get("refused", (None, None))
        armed = name == refused and not getattr(cls, "tired", False)
        if armed:
            type.__setattr__(cls, "tired", True)  # once, so that the roll-back can go through
        if armed and how == "before":
            raise TypeError("it is sealed")
        type.__setattr__(cls, name, ["mine"] if armed and how == "another" else value)
        if armed and how == "after":
            raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["before", "after", "another"])
@pytest.mark.parametrize("at", range(len(NAMES)))
def test_a_fault_at_any_set_leaves_nothing_changed(at: int, how: str) -> None:
    plain = make_target()
    body = {k: v for k, v in vars(plain).items() if k not in ("__dict__", "__weakref__")}
    target = Refusing("Target", plain.__bases__, {**body, "refused": (NAMES[at], how)})
    type.__setattr__(target, "tired", False)
    old, before = values(target), {name: vars(target).get(name, MISSING) for name in NAMES}
    patches = PatchSet()
    wanted = KeyboardInterrupt if how == "after" else PatchError
    with pytest.raises(wanted) as raised:
        patches.apply(all_changes(target))
    if wanted is PatchError:
        assert f"Target.{NAMES[at]}" in str(raised.value)
    assert vars(target)["tired"] is True  # the fault has happened
    assert {name: vars(target).get(name, MISSING) for name in NAMES} == before
    assert values(target) == old
    assert not patches.active
    assert patches.apply(all_changes(target))  # the next try is as good as the first
    assert values(target) == [("patched", value) for value in old]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), PatchError("no")])
@pytest.mark.parametrize("at", range(len(NAMES)))
def test_a_fault_in_any_make_leaves_nothing_changed(at: int, error: BaseException) -> None:
    target = make_target()
    before = snapshot(target)

    def fail(_original: Any) -> Any:
        raise error

    changes = all_changes(target)
    changes[at] = Change(target, NAMES[at], fail)
    patches = PatchSet()
    wanted = PatchError if isinstance(error, Exception) else type(error)
    with pytest.raises(wanted):
        patches.apply(changes)
    assert_same(target, before)
    assert not patches.active


def test_no_attribute_is_set_before_every_replacement_is_made() -> None:
    target = make_target()
    before = snapshot(target)

    def look(original: Any) -> Any:
        assert_same(target, before)
        return original

    changes = [*all_changes(target), Change(target, "__repr__", look)]
    assert PatchSet().apply(changes)


@pytest.mark.parametrize(
    ("owner", "name", "make", "text"),
    [
        (make_target(), "prop", lambda original: 3, "is a property and 3 is none"),
        (make_target(), "klass", lambda original: staticmethod(len), "is a classmethod"),
        (make_target()(), "prop", make_property, "property of Target; change the class"),
        (object(), "x", marking("x"), "has no __dict__"),
        (int, "bit_length", marking("x"), "int.bit_length cannot be replaced"),
        (make_target(), "nothing", marking("x"), "Target.nothing does not exist"),
    ],
)
def test_what_cannot_be_replaced_is_a_sentence(owner: Any, name: str, make: Any, text: str) -> None:
    with pytest.raises(PatchError, match=text):
        PatchSet().apply([Change(owner, name, make)])


def test_one_attribute_twice_in_one_set_is_refused() -> None:
    target = make_target()
    before = snapshot(target)
    with pytest.raises(PatchError, match=r"Target\.plain is changed twice"):
        PatchSet().apply([change(target, "plain"), change(target, "plain")])
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


def wrapped_by_others(target: type, name: str) -> None:
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
    assert target().plain(1) == ("theirs", ("patched", ("plain", 1, 3)))  # type: ignore[attr-defined]
    assert patches.revert() == ("make_target.<locals>.Target.plain",)
    assert vars(target)["plain"] is theirs
    assert target().plain(1) == ("theirs", ("plain", 1, 3))  # type: ignore[attr-defined]
    assert "inherited" not in vars(target)
    patches.apply([change(target, "plain")])  # ours outside, the old one stays inert
    assert target().plain(1) == ("patched", ("theirs", ("plain", 1, 3)))  # type: ignore[attr-defined]
    patches.revert()
    assert vars(target)["plain"] is theirs


def test_a_guard_that_somebody_has_kept_is_inert_after_the_revert() -> None:
    target = make_target()
    patches = PatchSet()
    patches.apply(all_changes(target))
    kept = target().plain  # type: ignore[attr-defined]
    assert kept(1) == ("patched", ("plain", 1, 3))
    patches.revert()
    assert kept(1) == ("plain", 1, 3)
    patches.apply(all_changes(target))
    assert kept(1) == ("plain", 1, 3)  # a new apply does not wake the guard of the old one
    assert target().plain(1) == ("patched", ("plain", 1, 3))  # type: ignore[attr-defined]


def test_a_change_that_two_sets_share_is_made_once_and_ends_with_the_last() -> None:
    target = make_target()
    before = snapshot(target)
    shared = change(target, "plain")
    first, second = PatchSet(), PatchSet()
    first.apply([shared])
    wrapped_by_others(target, "klass")  # unrelated
    second.apply([Change(shared.owner, shared.name, shared.make), change(target, "static")])
    assert target().plain(1) == ("patched", ("plain", 1, 3))  # type: ignore[attr-defined]
    first.revert()
    assert target().plain(1) == ("patched", ("plain", 1, 3))  # type: ignore[attr-defined]
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
    assert target().plain(1) == expected  # type: ignore[attr-defined]
    first.revert()
    assert target().plain(1) == expected  # type: ignore[attr-defined]


def marks(value: Any) -> list[str]:
    found = []
    while isinstance(value, tuple) and value[0] not in ("plain", "inherited"):
        found.append(value[0])
        value = value[1]
    return sorted(found)


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


def test_eight_threads_that_apply_and_revert_leave_everything_as_it_was() -> None:
    target = make_target()
    before, old = snapshot(target), values(target)
    one, several = PatchSet("one"), [PatchSet(str(n)) for n in range(8)]
    errors: list[BaseException] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        moves = random.Random(number)
        try:
            start.wait(10)
            for _ in range(60):
                patches = moves.choice([one, several[number]])
                if moves.random() < 0.5:
                    patches.apply(all_changes(target))
                else:
                    patches.revert()
                answer = target().plain(1)  # type: ignore[attr-defined]
                assert set(marks(answer)) <= {"patched"}
        except BaseException as error:  # noqa: BLE001  (handed to the test's thread)
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
    for patches in (one, *several):
        patches.revert()
    assert values(target) == old
    assert_same(target, before)


def test_no_caller_sees_half_a_set() -> None:
    """While it is being set, each guard in place is still inert."""
    seen = []

    class Watching(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            type.__setattr__(cls, name, value)
            seen.append((cls.f(), cls.g()))  # type: ignore[attr-defined]

    class Target(metaclass=Watching):
        @staticmethod
        def f() -> Any:
            return "f"

        @staticmethod
        def g() -> Any:
            return "g"

    patches = PatchSet()
    patches.apply([change(Target, "f"), change(Target, "g")])
    assert (Target.f(), Target.g()) == (("patched", "f"), ("patched", "g"))
    patches.revert()
    assert seen == [("f", "g")] * 4


def test_an_attribute_that_refuses_to_be_put_back_does_not_keep_the_others() -> None:
    class Sealed(type):
        sealed = False

        def __setattr__(cls, name: str, value: Any) -> None:
            if Sealed.sealed and name == "f":
                raise TypeError("sealed")
            type.__setattr__(cls, name, value)

    class Target(metaclass=Sealed):
        def f(self) -> Any:
            return "f"

        def g(self) -> Any:
            return "g"

    before = vars(Target)["g"]
    patches = PatchSet()
    patches.apply([change(Target, "g"), change(Target, "f")])
    Sealed.sealed = True
    left = patches.revert()
    assert [name.rpartition(".")[2] for name in left] == ["f"]
    assert Target().f() == "f"
    assert vars(Target)["g"] is before
