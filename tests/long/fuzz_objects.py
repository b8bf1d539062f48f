"""What fuzz_arguments.py puts in the place of sound arguments: numbers at borders, arrays of all
kinds, and objects that lie, raise, or change while they are read."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import numpy as np  # noqa: E402
from dlpack_liar import LIES, Producer, new_capsule  # noqa: E402


class MischiefError(Exception):
    """What hostile objects raise: a function may pass it on."""


class Raising:
    def __index__(self) -> int:
        raise ValueError("no index today")


class Changing:
    """A list that a number inside it empties while it is read."""

    @staticmethod
    def new() -> list[Any]:
        items: list[Any] = [1, 1, 1, 1]

        class Number:
            def __index__(self) -> int:
                items.clear()
                return 1

        items[random.randrange(4)] = Number()
        return items[:3] if random.random() < 0.5 else items


class Endless:
    """Has every attribute, and each is another one of its kind."""

    def __getattr__(self, name: str) -> Any:
        return Endless() if random.random() < 0.9 else random.choice([None, 3, "cuda:0", ()])

    def __call__(self, *_args: object) -> Any:
        return self


class Hook:
    def __init__(self, device: object, hooks: object = ()) -> None:
        self.execution_device = device
        self.hooks = hooks


class Thing:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class Stranger(list[Any]):
    """A list whose length, items and iterator do not agree, and change from call to call."""

    def __len__(self) -> int:
        return random.choice([0, 1, 3, 3, 4, 10**6])

    def __getitem__(self, _index: Any) -> Any:
        if random.random() < 0.1:
            raise MischiefError("no item today")
        return random.choice([1, -1, 2**62, "1", None])

    def __iter__(self) -> Iterator[Any]:
        for _ in range(random.choice([0, 2, 3, 3, 3, 5])):
            if random.random() < 0.1:
                self.clear()
            yield random.choice([1, 1, 2, 0, 2**63, None])


class Pair(tuple[Any, ...]):
    """A tuple that says it is longer or shorter than it is."""

    def __len__(self) -> int:
        return random.choice([0, 2, 3, 2**31])


class Meddler:
    """A number that does something to the other arguments when it is asked what it is."""

    def __init__(self, meddle: Callable[[], object], value: object = 1) -> None:
        self.meddle, self.value = meddle, value

    def __index__(self) -> Any:
        self.meddle()
        return self.value


def meddler(args: list[Any]) -> Meddler:
    """Releases, resizes, writes or forgets what the call was given."""

    def meddle() -> None:
        for item in args:
            try:
                if isinstance(item, memoryview):
                    item.release()
                elif isinstance(item, list | dict):
                    item.clear()
                elif isinstance(item, np.ndarray):
                    item.shape = (-1,)
                elif isinstance(item, bytearray):
                    item.extend(b"more" * 1000)
            except (BufferError, ValueError, AttributeError, TypeError):
                pass  # NumPy and memoryviews refuse while somebody looks

    return Meddler(meddle, random.choice([1, 1, 2, 0, 2**64, "no number"]))


class Shifty:
    """An array behind `__dlpack__` that tells the truth now and then."""

    def __init__(self, array: Any, args: list[Any]) -> None:
        self.array, self.args, self.quirk = array, args, random.randrange(13)
        self.capsule: Any = None
        self.kept: Any = None

    def __dlpack_device__(self) -> Any:
        if self.quirk == 0:
            raise MischiefError("no device today")
        if self.quirk == 1:
            lies = [(10, 0), (2**40, 0), (1,), (-1, -1), ("1", 0), [], Pair((1, 0)), Stranger([1])]
            return random.choice(lies)
        if self.quirk == 2:
            meddler(self.args).__index__()
        return (1, 0)

    def __dlpack__(self, **_kwargs: object) -> Any:
        if self.quirk == 3:
            raise random.choice([MischiefError("no capsule"), BufferError("no"), KeyError(1)])
        if self.quirk == 4:
            return random.choice([None, 3, self, b"dltensor", np.ones(3)])
        if self.quirk == 5 and self.capsule is not None:
            return self.capsule  # used already
        if self.quirk == 6:
            self.kept = ctypes.create_string_buffer(256)
            return new_capsule(ctypes.addressof(self.kept), b"dltensor_versioned", None)
        if self.quirk == 7:
            return np.ones(random.choice(SHAPES), "f4").__dlpack__()
        if self.quirk == 8:
            self.kept = Producer(**random.choice(list(LIES.values())))
            return self.kept.__dlpack__()
        if self.quirk == 9:
            self.kept = Producer((1, 2, 3, 4, 5), raising_deleter=True)
            return self.kept.__dlpack__()
        if self.quirk == 11:
            version = random.choice([(1, 0), (1, 9), (0, 0), (2, 0), (2**32 - 1, 0)])
            flags = random.choice([0, 1, 2, 3, 2**64 - 1])
            self.kept = Producer(random.choice(SHAPES), version=version, flags=flags)
            return self.kept.__dlpack__()
        if self.quirk == 10:
            self.args.clear()
        if not isinstance(self.array, np.ndarray):
            raise MischiefError("nothing to show")
        self.capsule = self.array.__dlpack__()
        return self.capsule


class Buffered:
    """A buffer by `__buffer__` (from CPython 3.12 on), another one each time."""

    def __buffer__(self, _flags: int) -> memoryview:
        if random.random() < 0.2:
            raise MischiefError("no buffer today")
        return memoryview(np.ones(random.choice(SHAPES), random.choice(["f4", "f8", "i4"])))

    def __release_buffer__(self, _view: memoryview) -> None:
        if random.random() < 0.2:
            raise MischiefError("not given back")


def shaken(array: Any, args: list[Any]) -> Any:
    """A sound array in a wrapping that is not."""
    pick = random.randrange(4)
    if pick == 0:
        try:
            return memoryview(array)
        except (BufferError, ValueError, TypeError):
            return Buffered()
    return Buffered() if pick == 1 else Shifty(array, args)


NUMBERS: list[Any] = [
    0, 1, 2, 3, 5, 7, -1, -2, 255, 2**16, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1,
    2**63, -(2**63), 2**64 - 1, 2**64, 10**30, -(10**30), True, False, 1.0, 1.5, float("nan"),
    float("inf"),
]  # fmt: skip
OTHERS: list[Any] = [
    None, "", "zeros", "replicate", "same", "cuda", "meta", "\ud800", b"", b"x" * 64, bytearray(64),
    object(), int, Raising(), Endless(), {}, {1: 2}, set(), lambda: None, Ellipsis, 1j, range(3),
    "a\0b", np.float32(1), np.int64(2), memoryview(b"12345678").cast("d"),
]  # fmt: skip
SHAPES = [(1, 2, 3, 4, 5), (1, 2, 2, 2, 2), (2, 2, 3, 3, 3), (0, 2, 3, 3, 3), (2, 1, 1, 1, 1), (2,),
          (3,), (1, 2, 3, 4), (), (1, 1, 1, 1, 1, 1), (1, 2, 3, 0, 3), (5,),
          (1, 4, 3, 5, 4)]  # fmt: skip


def make_arrays() -> list[Any]:
    arrays: list[Any] = []
    for shape in SHAPES:
        for code in ("f4", "f8", "f2", "i4", ">f4", "O", "U3"):
            arrays.append(np.zeros(shape, code))
    for shape in SHAPES[:5]:
        whole = np.ones(shape, "f4")
        frozen = whole.copy()
        frozen.flags.writeable = False
        arrays += [whole[..., ::-1], whole.T, np.broadcast_to(whole[..., :1], shape), frozen]
        arrays.append(np.zeros((*shape, 2), "f4")[..., 1])
        arrays.append(np.zeros(shape, np.dtype([("a", "u1"), ("b", "f4")]))["b"])
        arrays.append(memoryview(whole))
    return arrays


def number(rng: random.Random) -> Any:
    return rng.choice(NUMBERS) if rng.random() < 0.8 else rng.randrange(-(2**65), 2**65)


def triple(rng: random.Random) -> Any:
    length = rng.choice([3, 3, 3, 3, 0, 1, 2, 4, 7])
    items = [number(rng) if rng.random() < 0.6 else rng.randrange(4) for _ in range(length)]
    if items and rng.random() < 0.1:
        items[0] = rng.choice(OTHERS)
    return rng.choice([tuple, list])(items)


def anything(rng: random.Random, arrays: list[Any]) -> Any:
    pick = rng.randrange(10)
    if pick == 0:
        return number(rng)
    if pick == 1:
        return triple(rng)
    if pick == 2:
        return Producer(**rng.choice(list(LIES.values())))
    if pick == 3:
        return Changing.new()
    if pick == 4:
        return Producer(rng.choice(SHAPES), no_deleter=rng.random() < 0.5)
    if pick == 5:
        return rng.choice(arrays)
    if pick == 6:
        return rng.choice([Stranger([1, 1, 1]), Pair((1, 1, 1)), Buffered()])
    if pick == 7:
        return Shifty(rng.choice(arrays), [])
    return rng.choice(OTHERS)
