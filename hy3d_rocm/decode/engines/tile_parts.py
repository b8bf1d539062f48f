"""A family's decode in two parts: the trunk, on the whole picture, and the head, on tiles of it.

Attention sees all positions, so tiles begin behind the last one. A family is one plain function;
it is cut by counting its calls to the engine: the trunk stops it after the call in question, the
head lets it run through what the trunk has done without doing anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hy3d_rocm.decode.families.survey import Size, Survey

if TYPE_CHECKING:
    from hy3d_rocm.decode.layers import Attention, Conv, Family, Handle, Local

_ROWS = 8


@dataclass(frozen=True)
class Cut:
    """Where the trunk ends: behind call number `call` of the family's function (-1: before all).

    channels, scale: of the trunk's output against the latent. reach: rows of it at a tile's border
    that a cut there can change. norms: group norms in the trunk, and head_norms behind it.
    """

    call: int
    channels: int
    scale: int
    reach: int
    norms: int
    head_norms: int


class _Counted:
    """An engine whose calls are numbered. after(call, result) is told each result."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.calls = 0

    def conv(self, x: Any, layer: Conv, *, add: Any = None, keep: bool = False) -> Any:
        return self._do(lambda: self.engine.conv(x, layer, add=add, keep=keep), 1)

    def convs(self, x: Any, layers: Sequence[Conv]) -> Any:
        return self._do(lambda: self.engine.convs(x, layers), len(layers))

    def attention(self, x: Any, layer: Attention) -> Any:
        return self._do(lambda: self.engine.attention(x, layer), 1)

    def local(self, x: Any, layer: Local, *, keep: bool = False) -> Any:
        return self._do(lambda: self.engine.local(x, layer, keep=keep), 1)

    def add(self, x: Any, y: Any) -> Any:
        return self._do(lambda: self.engine.add(x, y), 1)

    def _do(self, work: Callable[[], Any], results: int) -> Any:
        self.calls += 1
        return work()


class _Reached(Exception):  # noqa: N818  no error: the way out of the family's function
    def __init__(self, handle: Any) -> None:
        super().__init__("the trunk ends here")
        self.handle = handle


class _Trunk(_Counted):
    def __init__(self, engine: Any, last: int) -> None:
        super().__init__(engine)
        self.last = last

    def _do(self, work: Callable[[], Any], results: int) -> Any:
        result = super()._do(work, results)
        if self.calls - 1 == self.last:
            raise _Reached(result)
        return result


class _Head(_Counted):
    def __init__(self, engine: Any, last: int, x: Any) -> None:
        super().__init__(engine)
        self.last = last
        self.x = x

    def _do(self, work: Callable[[], Any], results: int) -> Any:
        self.calls += 1
        if self.calls - 1 > self.last:
            return work()
        if self.calls - 1 == self.last:
            x, self.x = self.x, None
            return x
        return None if results == 1 else (None,) * results


def trunk(family: Family, cut: Cut) -> Callable[[Any, Handle], Handle]:
    """decode() up to the cut, as a function of (engine, z)."""

    def run(engine: Any, z: Handle) -> Handle:
        if cut.call < 0:
            return z
        try:
            family.decode(_Trunk(engine, cut.call), z)
        except _Reached as reached:
            return reached.handle
        raise RuntimeError(f"the decode has fewer than {cut.call + 1} calls")

    return run


def head(family: Family, cut: Cut) -> Callable[[Any, Handle], Handle]:
    """decode() from the cut on, as a function of (engine, the trunk's output)."""

    def run(engine: Any, x: Handle) -> Handle:
        if cut.call < 0:
            return family.decode(engine, x)
        return family.decode(_Head(engine, cut.call, x), None)

    return run


@dataclass(eq=False)
class _Live:
    """A handle of _Surveyed."""

    size: Size


class _Surveyed(_Counted):
    """Runs on sizes and finds the cuts: calls behind which only their result is still needed."""

    def __init__(self, z: _Live) -> None:
        super().__init__(Survey(z.size.height))
        self.live = {id(z)}
        self.norms = 0
        #: (call, size, group norms so far, whether any attention is behind it)
        self.found: list[tuple[int, Size, int, bool]] = []
        self._held: list[Any] = [z]  # kept, so that ids stay taken

    def _norm(self, layer: Any) -> None:
        self.norms += layer.norm is not None and layer.norm.kind == "group"

    def _done(self, used: Sequence[Any], kept: bool, sizes: Sequence[Size], attention: bool) -> Any:
        results = [_Live(size) for size in sizes]
        if not kept:
            self.live -= {id(x) for x in used}
        self.live |= {id(r) for r in results}
        self._held += results
        if self.live == {id(results[0])} and len(results) == 1:
            self.found.append((self.calls, sizes[0], self.norms, attention))
        self.calls += 1
        return results[0] if len(results) == 1 else tuple(results)

    def conv(self, x: Any, layer: Conv, *, add: Any = None, keep: bool = False) -> Any:
        self._norm(layer)
        size = self.engine.conv(x.size, layer, add=None if add is None else add.size)
        if add is not None:
            self.live.discard(id(add))
        return self._done([x], keep, [size], False)

    def convs(self, x: Any, layers: Sequence[Conv]) -> Any:
        for one in layers:
            self._norm(one)
        result = self._done([x], False, self.engine.convs(x.size, layers), False)
        return result if isinstance(result, tuple) else (result,)

    def attention(self, x: Any, layer: Attention) -> Any:
        self._norm(layer)
        return self._done([x], False, [self.engine.attention(x.size, layer)], True)

    def local(self, x: Any, layer: Local, *, keep: bool = False) -> Any:
        return self._done([x], keep, [self.engine.local(x.size, layer)], False)

    def add(self, x: Any, y: Any) -> Any:
        return self._done([x, y], False, [self.engine.add(x.size, y.size)], False)


def cut_of(family: Family) -> Cut:
    """The cut behind the last attention; before everything where there is none."""
    z = _Live(Size(family.latent_channels, 2, _ROWS, _ROWS))
    survey = _Surveyed(z)
    final = family.decode(survey, z).size
    attentions = [found for found in survey.found if found[3]]
    call, size, norms = attentions[-1][:3] if attentions else (-1, z.size, 0)
    scale = size.height // _ROWS
    reach = math.ceil((final.reach - size.reach) * scale)
    return Cut(call, size.channels, scale, reach, norms, survey.norms - norms)
