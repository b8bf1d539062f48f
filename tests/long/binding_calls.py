"""Calls of every function of _core, good and bad ones, whose outcome can be compared."""

from __future__ import annotations

import copy
import gc
import importlib.util
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import dlpack_liar
import numpy as np
import steady_calls
from fuzz_calls import READY, good_plan
from fuzz_program import NODES, good_request

from hy3d_rocm import _core


@dataclass
class Call:
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    by_ctypes: bool = False  # calls back through ctypes, which crashes without memory

    def __post_init__(self) -> None:
        self.arrays = [*_arrays(self.args), *_arrays(self.kwargs)]
        self.before = [array.copy() for array in self.arrays]

    def reset(self) -> None:
        """The arrays as they were before the first call."""
        for array, content in zip(self.arrays, self.before, strict=True):
            array[...] = content

    def outcome(self, run: Callable[..., Any] | None = None) -> tuple[Any, ...]:
        """What a call gives and leaves in its arrays, or what it raises."""
        self.reset()
        try:
            given = (run or _plainly)(self.function, self.args, self.kwargs)
        except Exception as error:  # noqa: BLE001  it is what is compared
            return ("raised", type(error).__name__, str(error))
        return ("gave", _content(given), [array.tobytes() for array in self.arrays])

    def references(self) -> list[int]:
        """Of the arguments that belong to this call alone."""
        mine = (*self.args, *self.kwargs.values(), *self.arrays)
        shared = (int, float, str, bytes, tuple, bool, type(None))
        return [sys.getrefcount(one) for one in mine if not isinstance(one, shared)]


def _plainly(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


def _arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray) and value.flags.writeable:
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _arrays(one)
    elif isinstance(value, dict):
        yield from _arrays(list(value.values()))


_OBJECTS = (
    _core.PreparedWeights, _core.CancelFlag, _core.Schedule, _core.Program, _core.Rates,
    _core.Admission, _core.KnownCalls,
)  # fmt: skip


def _content(value: Any) -> Any:
    """A result by what it says: objects that are made anew are no difference."""
    if isinstance(value, memoryview):
        return value.tobytes()
    if isinstance(value, _OBJECTS):
        return type(value).__name__
    if isinstance(value, dict):
        return {key: _content(one) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [_content(one) for one in value]
    return value if isinstance(value, (int, float, str, bytes, type(None))) else type(value)


def _import_again() -> Any:
    """The extension's module once more, as a sub-interpreter or a test would have it."""
    spec = importlib.util.spec_from_file_location("hy3d_rocm._core", _core.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return sorted(name for name in vars(module) if not name.startswith("_"))


class Pipeline:
    """Where a pipeline computes is found behind several look-ups."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class OldProducer:
    """An array as torch gave them before DLPack 1, with torch's bits."""

    def __init__(self) -> None:
        self.memory = np.arange(8, dtype="f4")

    def is_neg(self) -> bool:
        return False

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, stream: object = None) -> Any:
        return self.memory.__dlpack__()


def pipelines() -> list[Any]:
    cuda = Pipeline(type="cuda", index=1)
    inner = Pipeline(_hf_hook=Pipeline(execution_device=cuda))
    return [
        Pipeline(_hf_hook=Pipeline(hooks=(Pipeline(execution_device=cuda),))),
        Pipeline(_execution_device="cuda:1"), Pipeline(_execution_device=cuda), inner,
        Pipeline(components={"a": None, "b": inner}), Pipeline(_modules={"a": inner, "b": inner}),
        Pipeline(parameters=lambda: iter([Pipeline(device=cuda)])), Pipeline(device=0),
        Pipeline(device=Pipeline(type="meta", index=None)), Pipeline(),
    ]  # fmt: skip


EXCHANGE = dlpack_liar.Exchange()


def known_calls() -> list[Call]:
    """Of KnownCalls."""
    given = (EXCHANGE.capsule, (dlpack_liar.Described,), (bool,), (bool,), float)
    one = dlpack_liar.Described()
    arguments = (one, one, None, (1, 1), [1, 1])

    def straight() -> Any:
        calls = _core.KnownCalls(*given)
        key = calls.call(max, (one, one))
        calls.add(key, "who")
        calls.add(key, "who")
        try:
            calls.call(max, (one, one))
        finally:
            failed = calls.failed()
            assert failed is None or failed[0] == "who"

    def counted() -> Any:
        calls = _core.KnownCalls(*given)
        calls.add(calls.call(_pair, (one, one)), "who")
        for _ in range(2):
            calls.call(_pair, (one, one))
        return calls.take()

    calls = _core.KnownCalls(*given)
    return [
        Call("KnownCalls", _core.KnownCalls, given, {}),
        Call("KnownCalls.call", lambda: type(calls.call(max, arguments)), (), {}, by_ctypes=True),
        Call("KnownCalls.call", calls.call, (max, (one, 1)), {}, by_ctypes=True),
        Call("KnownCalls.call", calls.call, (max, 1), {}),
        Call("KnownCalls.call", straight, (), {}, by_ctypes=True),
        Call("KnownCalls.take", counted, (), {}, by_ctypes=True),
        Call("KnownCalls.add", calls.add, (b"key", "who"), {}),
        Call("KnownCalls.failed", calls.failed, (), {}),
    ]


def _pair(*arguments: Any) -> int:
    return len(arguments)


def methods() -> list[Call]:
    """Of the types, and the module's own making."""
    flag = _core.CancelFlag()
    found = [Call("CancelFlag", _core.CancelFlag, (), {}), Call("import", _import_again, (), {})]
    for name in ("request", "reset"):
        found.append(Call(f"CancelFlag.{name}", getattr(flag, name), (), {}))
    found.append(Call("CancelFlag.requested", getattr, (flag, "requested"), {}))
    rates, cache, key = _core.Rates(), _core.Admission(100), ((1, 2), 3)
    work = (2, 1e9, 1e6, 1e6, 1e6, 27, 3, 64)
    found += [
        Call("Rates", _core.Rates, (), {}),
        Call("Rates.learn", lambda: _core.Rates().learn(1, work, 1.0), (), {}),
        Call("Rates.seconds", rates.seconds, (1, work), {}),
        Call("Admission", _core.Admission, (100,), {}),
        Call("Admission.request", lambda: _core.Admission(100).request(key), (), {}),
        Call("Admission.reserve", cache.reserve, (key, 1), {}),
        Call("Admission.info", cache.info, (), {}),
        Call("Admission.clear", cache.clear, (), {}),
    ]
    found += [Call(f"Admission.{n}", getattr(cache, n), (key,), {}) for n in ("put", "cancel",
              "drop", "has")]  # fmt: skip
    found += known_calls()
    for ready in READY:
        names = [n for n in dir(ready) if not n.startswith("__")]
        found += [Call(f"PreparedWeights.{n}", getattr, (ready, n), {}) for n in names]
        found.append(Call("PreparedWeights.repr", repr, (ready,), {}))
    return found


def _schedule(**request: Any) -> Any:
    return _core.compile_schedule(NODES, **(good_request(random.Random(1)) | request))


def scheduled() -> list[Call]:
    """What a schedule and its program say of themselves; of a program with tiles, too."""
    whole = _schedule(device_budget=0)
    tiled = _schedule(
        size=(2, 24, 24), strategies=4, halos=((4, 2, 4),), device_budget=0, is_host=0
    )
    names = ("candidates", "program")
    found = [Call(f"Schedule.{name}", getattr, (whole, name), {}) for name in names]
    for schedule in (whole, tiled):
        program = schedule.program
        pairs = ("shares", "input_rows")
        for name in (
            "candidate",
            "cut",
            "prefix_bytes",
            "copies_bytes",
            *pairs,
            "weights",
            "tiles",
            "sections",
        ):
            found.append(Call(f"Program.{name}", getattr, (program, name), {}))
        for name in ("steps", "kept", "slices", "start"):
            found.append(Call(f"Program.{name}", getattr(program, name), (0,), {}))
        found.append(Call("Program.step", program.step, (0, 0), {}))
        found.append(Call("Program.prepared", program.prepared, (), {}))
        stop = {"reason": "cancelled", "can_widen": True}
        found.append(Call("Program.fallback", program.fallback, (1,), stop))
    return found


def of_frames() -> Call:
    """A convolution of frames in place of x."""
    frame, out = np.ones((2, 4, 5), "f4"), np.empty((1, 2, 2, 4, 5), "f4")
    weight = np.ones((2, 2, 1, 1, 1), "f4")
    one, none = (1, 1, 1), (0, 0, 0)
    args = (None, weight, None, out, one, one, none, none, "zeros", 1)
    return Call("conv3d", _core.conv3d, args, {"frames": (frame, None)})


def raising() -> list[Call]:
    """Calls that end in Hy3dError, whose making wants memory of its own."""
    flag = _core.CancelFlag()
    flag.request()
    ones = np.ones((1, 2, 3, 4, 5), "f4")
    plan = good_plan(random.Random(1)) | {"budget_bytes": 1, "fixed_bytes": 10}
    sums = (np.zeros(2), np.zeros(2))
    return [
        Call("schedule_plan", _core.schedule_plan, (), plan),
        Call("channel_moments", _core.channel_moments, (ones, *sums, 1, flag), {}),
        Call("channel_moments", _core.channel_moments, (bytearray(8), *sums, 1, None), {}),
        Call("fingerprint", _core.fingerprint, (memoryview(bytearray(64)).cast("f"), 1), {}),
        Call("fingerprint", _core.fingerprint, (OldProducer(), 1), {}),
    ]


def drawn(name: str, seed: int, spoilt: bool) -> Call | None:
    """A call that the fuzzer would make; None where it does not give the same twice."""
    rng = random.Random(f"{seed}/{name}/{spoilt}")
    random.seed(seed)
    args, kwargs = steady_calls.call(name, rng, steady_calls.arrays(), spoilt=spoilt)
    if "Endless" in repr((args, kwargs)):  # has other attributes each time
        return None
    call = Call(name, getattr(_core, name), tuple(args), copy.copy(kwargs))
    first = call.outcome()
    if first[0] == "raised" and first[1] not in ("ValueError", "Hy3dError", "TypeError"):
        return None
    return call if first == call.outcome() == call.outcome() else None


def list_calls(good: int, bad: int) -> list[Call]:
    """`good` calls of each function that give something, `bad` that raise; those of the types."""
    found = [*methods(), *scheduled(), of_frames(), *raising()]
    found += [Call("resolve_device", _core.resolve_device, (one, "cpu"), {}) for one in pipelines()]
    for name in steady_calls.FUNCTIONS:
        for spoilt, wanted in ((False, good), (True, bad)):
            kept = 0
            for seed in range(8 * wanted):
                call = drawn(name, seed, spoilt)
                is_bad = call is not None and call.outcome()[0] == "raised"
                if call is not None and kept < wanted and is_bad == spoilt:
                    found.append(call)
                    kept += 1
    for call in found:
        call.outcome()  # what is made once is made here
    gc.collect()
    return found
