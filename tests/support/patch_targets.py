"""A class with an attribute of every kind, and changes of them, for the patch engine's tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from patch_doubles import marking

from hy3d_rocm.comfy.patches.engine import Change

NAMES = ("plain", "klass", "static", "inherited", "inherited_klass", "constant", "coro")


def make_target() -> Any:
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

        async def coro(self) -> Any:
            return "coro"

    return Target


def make_async(original: Any) -> Any:
    async def replacement(self: Any) -> Any:
        return ("patched", await original(self))

    return replacement


def change(owner: Any, name: str) -> Change:
    makers: dict[str, Callable[[Any], Any]] = {
        "constant": lambda original: ("patched", original),
        "coro": make_async,
    }
    return Change(owner, name, makers.get(name, marking("patched")))


def all_changes(target: Any) -> list[Change]:
    return [change(target, name) for name in NAMES]


def values(target: Any) -> list[Any]:
    thing = target()
    coroutine = thing.coro()
    with pytest.raises(StopIteration) as stop:
        coroutine.send(None)
    return [
        thing.plain(1), thing.klass(1), target.klass(1), thing.static(1),
        thing.inherited(1), thing.inherited_klass(1), thing.constant, stop.value.value,
    ]  # fmt: skip


def snapshot(owner: Any) -> dict[str, Any]:
    return dict(vars(owner))


def assert_same(owner: Any, before: dict[str, Any]) -> None:
    now = dict(vars(owner))
    assert now.keys() == before.keys()
    assert all(now[key] is before[key] for key in before)


def marks(value: Any) -> list[str]:
    found = []
    while isinstance(value, tuple) and value[0] not in ("plain", "inherited"):
        found.append(value[0])
        value = value[1]
    return sorted(found)
