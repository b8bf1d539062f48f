"""PatchSet under faults and threads: all of a set or none of it."""

from __future__ import annotations

import random
import threading
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
                answer = target().plain(1)
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
            seen.append((cls.f(), cls.g()))

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


def test_a_second_thread_waits_until_the_first_has_applied() -> None:
    target = make_target()
    entered, release = threading.Event(), threading.Event()
    made = []

    def make(original: Any) -> Any:
        made.append(original)
        entered.set()
        assert release.wait(10)
        return lambda *args, **kwargs: ("patched", original(*args, **kwargs))

    patches = PatchSet()
    threads = [
        threading.Thread(target=patches.apply, args=([Change(target, "plain", make)],))
        for _ in range(2)
    ]
    threads[0].start()
    assert entered.wait(10)
    threads[1].start()
    threads[1].join(0.2)  # long enough for a thread that does not wait to reach `make`
    assert threads[1].is_alive()
    release.set()
    for thread in threads:
        thread.join(10)
    assert len(made) == 1
    assert target().plain(1) == ("patched", ("plain", 1, 3))
