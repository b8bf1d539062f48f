"""The peak memory of a piece of work, known before anything runs: a dry run.

The very function that will run is run on "meta" tensors, which have shapes and no data, in a
thread of its own; a dispatch mode follows every storage from its birth to its death. So the peak
of live tensors is exact for any VAE, with no constants per model; what operators take inside
themselves comes from workspace.py.

"meta" stands for the device. Where that is a GPU, a tensor that is made on the "cpu" counts on the
host, and is a meta tensor itself where it is large.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace
from hy3d_rocm.units import MB

Result = TypeVar("Result")

# Planned = predicted + this share, on the CPU at least the allowance: generated code, thread
# stacks and heap fragments, 20 to 30 MB by tests/bench/measure_decode.py.
PLANNED_SHARE = 0.05
CPU_ALLOWANCE_BYTES = 32 * MB
# Below it a tensor made on the CPU stays one: what layers compute from their parameters.
_REAL_BYTES = 1 * MB

_aten = torch.ops.aten
_ORDINARY = (torch.Tensor, torch.nn.Parameter)
_CONVOLUTION, _COPY, _ALL = _aten.convolution.default, _aten.copy_.default, _aten.all.default
_SCALAR = _aten._local_scalar_dense.default
_MOVE = _aten._to_copy.default
# Whose rules torch has in Python: 0.2 ms a shape, and 1.3 ms of a clamp.
_POINTWISE = frozenset(map(id, (_aten.add.Tensor, _aten.mul.Tensor, _aten.clamp.default)))
_here = threading.local()  # rules: of the device that "meta" stands for; live: of a dry run


@dataclass(frozen=True)
class Prediction:
    """Peak bytes above what was there before: on the device, on the host, and of both together
    (which may be less than their sum); multiply-accumulates of the convolutions."""

    device_bytes: int
    host_bytes: int = 0
    both_bytes: int = 0
    macs: int = 0


def planned_bytes(predicted: int, on_cpu: bool) -> int:
    """predicted + 5 %, on the CPU at least 32 MiB more."""
    allowance = math.ceil(predicted * PLANNED_SHARE)
    return predicted + (max(allowance, CPU_ALLOWANCE_BYTES) if on_cpu else allowance)


def predict(
    run: Callable[[], object], *, known: Iterable[Tensor] = (), workspace: OperatorWorkspace
) -> Prediction:
    """Peaks of `run()`, its result included, on the device of `workspace`.

    known: tensors that are there before and after. run is called once, as apart() does.
    """

    def task() -> Prediction:
        live = _here.live = Live(known, workspace)
        with standing_for(workspace), NoScores(live), live:
            kept = run()  # the result lives until the peak is read
            del kept
        return Prediction(live.device_peak, live.host_peak, live.both_peak, live.macs)

    return apart(task)


def apart(work: Callable[[], Result]) -> Result:
    """work() without gradients in a thread of its own: the caller's function modes (protect()) and
    inference mode do not reach it. What it raises is raised here."""
    with ThreadPoolExecutor(1, "hy3d-shapes") as worker:
        return worker.submit(torch.no_grad()(work)).result()


@contextmanager
def standing_for(workspace: OperatorWorkspace) -> Iterator[None]:
    """Within it "meta" stands for the device of these rules, in this thread."""
    before = workspace_rules()
    _here.rules = workspace
    try:
        yield
    finally:
        _here.rules = before


def workspace_rules() -> OperatorWorkspace | None:
    """The rules of the device that "meta" stands for; None where it stands for none."""
    rules: OperatorWorkspace | None = getattr(_here, "rules", None)
    return rules


def modelled(device: torch.device) -> torch.device:
    """`device`, or the one that "meta" stands for. For rules that differ by device."""
    rules = workspace_rules()
    return device if rules is None or device.type != "meta" else rules.device


def in_turn(count: int, run: Callable[[int], Tensor]) -> list[Tensor]:
    """[run(0), ..., run(count - 1)], of which from the second on all make the same and from the
    third on all take the same. In a dry run the last stands for those after the second."""
    live: Live | None = getattr(_here, "live", None)
    if live is None or count < 4:
        return [run(i) for i in range(count)]
    made = [run(0), run(1)]
    like = made[1]
    layout = like.shape, like.stride(), like.storage_offset()
    held = like.untyped_storage().nbytes() // like.itemsize
    made += [like.new_empty(held).as_strided(*layout) for _ in range(count - 3)]
    before = live.macs
    made.append(run(count - 1))
    live.macs += (count - 3) * (live.macs - before)
    return made


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows storages that operators make; those of `known` were there before."""

    def __init__(self, known: Iterable[Tensor], workspace: OperatorWorkspace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.workspace = workspace
        self.on_cpu = workspace.device.type == "cpu"
        self._known = [t.untyped_storage() for t in known]  # kept, so that addresses stay taken
        self._lives: dict[weakref.ref[Any], int] = {}  # the address of each storage
        here = weakref.ref(self)  # a VAE may keep storages for longer

        def died(life: weakref.ref[Any]) -> None:
            follower = here()
            if follower is not None:
                follower.freed(follower._lives.pop(life))

        self._died = died
        # Where a storage lies, and the bytes that count, by its address.
        self._places = {s._cdata: ("device", 0) for s in self._known}
        self._once: set[int] = set()
        self._true: set[int] = set()  # storages of what `all` said
        self._made: dict[Hashable, Any] = {}  # by operators, on shapes
        self.live = {"device": 0, "host": 0}
        self.device_peak = self.host_peak = self.both_peak = 0
        self.macs = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """For torch: no, since nothing is compiled here. Else each operator takes 3 us longer."""
        return False

    def note(self, inside: int = 0) -> None:
        """Peaks with `inside` bytes on the device beside what lives."""
        host = self.live["host"]
        device = self.live["device"] + inside + self.workspace.code_bytes
        self.device_peak = max(self.device_peak, device)
        self.host_peak = max(self.host_peak, host)
        self.both_peak = max(self.both_peak, device + host)

    def stays(self, once: int) -> None:
        """Counts what a library takes at its first call and keeps."""
        if once and once not in self._once:
            self._once.add(once)
            self.live["device"] += once
            self.note()

    def is_on_host(self, tensor: Tensor) -> bool:
        """Whether a meta tensor stands for one on the host."""
        key = tensor.untyped_storage()._cdata
        return tensor.is_meta and self._places.get(key, ("device", 0))[0] == "host"

    def freed(self, key: int) -> None:
        self._true.discard(key)
        place, size = self._places.pop(key, ("device", 0))
        self.live[place] -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _SCALAR and args[0].is_meta:
            return self._scalar(args[0])
        if func is _COPY and args[1].is_meta and not args[0].is_meta:
            return args[0]  # a small one on the host; it has no contents to get
        place = ""
        if "device" in kwargs or "pin_memory" in kwargs:
            place, kwargs = self._placed(func, args, kwargs)
        out, inside = self._out(func, args, kwargs)
        for leaf in (out,) if isinstance(out, torch.Tensor) else tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._born(leaf, place)
        if inside:
            self.note(inside)
        if func is _CONVOLUTION:
            self.macs += out.numel() * math.prod(args[1].shape[1:])
        elif func is _ALL:
            self._true.add(out.untyped_storage()._cdata)
        return out

    def _born(self, tensor: Tensor, place: str) -> None:
        """Counts the tensor's storage unless it is known. place: "" where its device says it."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._places:
            return
        place = place or self._place_of(tensor.device)
        size = storage.nbytes()
        self._places[key] = place, size
        self._lives[weakref.ref(storage, self._died)] = key
        self.live[place] += size
        self.note()

    def _place_of(self, device: torch.device) -> str:
        return "host" if device.type == "cpu" and not self.on_cpu else "device"

    def _out(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, int]:
        """What the operator makes, and the bytes that it takes inside; where it was called on such
        operands before, and made tensors with storages of their own, those once more: rules, most
        of all torch's, take most of a run."""
        key = _key_of(func, args, kwargs)
        try:
            known = self._made.get(key)
        except TypeError:  # an argument has no hash
            key = known = None
        if known is None and key is not None and id(func) in _POINTWISE and _leads(*args):
            known = self._made[key] = False, [(args[0].shape, args[0].stride(), args[0].dtype)], 0
        if known is not None:
            several, made, inside = known
            again = [torch.empty_strided(*m[:2], dtype=m[2], device="meta") for m in made]
            return tuple(again) if several else again[0], inside
        out = func(*args, **kwargs)
        self.stays(self.workspace.once(func))
        inside = self.workspace.of(func, args, out)
        several = type(out) is tuple
        made = out if several else (out,)
        if key is not None and all(type(t) is torch.Tensor and _is_plain(t) for t in made):
            self._made[key] = several, [(t.shape, t.stride(), t.dtype) for t in made], inside
        return out, inside

    def _placed(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Where a tensor made with `device=` counts; large ones are made on "meta"."""
        kwargs = dict(kwargs)
        pinned = kwargs.pop("pin_memory", None)
        device = torch.device(kwargs.get("device") or "meta")
        if device.type == "meta":
            return ("host" if pinned and not self.on_cpu else ""), kwargs
        on_meta = {**kwargs, "device": "meta"}
        if args[0].is_meta if func is _MOVE else func(*args, **on_meta).nbytes >= _REAL_BYTES:
            kwargs = on_meta
        return self._place_of(device), kwargs

    def _scalar(self, tensor: Tensor) -> Any:
        """A value that nobody knows: that everything is finite, that a count is one."""
        if tensor.dtype == torch.bool:
            return tensor.untyped_storage()._cdata in self._true
        return 1.0 if tensor.is_floating_point() else 1


@lru_cache(maxsize=1024)
def _makes_anew(func: Any) -> bool:
    """Whether an operator writes to none of its operands and returns none, nor a view of one."""
    schema = func._schema
    return all(a.alias_info is None for a in (*schema.arguments, *schema.returns))


def _key_of(func: Any, args: Any, kwargs: dict[str, Any]) -> Hashable:
    """What the shape of an operator's result depends on; None where that can't be told."""
    if not _makes_anew(func):
        return None
    try:  # operators stay, and take long to hash
        named = tuple((k, _part(kwargs[k])) for k in sorted(kwargs)) if kwargs else ()
        return id(func), tuple(map(_part, args)), named
    except TypeError:
        return None


def _part(value: Any) -> Any:
    """Of an argument. TypeError for tensors that are no ordinary ones on "meta", and for those
    without axes, whose types count for less."""
    kind = type(value)
    if kind in _ORDINARY:
        if not value.is_meta or not value.dim():
            raise TypeError
        return value.shape, value.stride(), value.dtype
    if kind is list or kind is tuple:
        return kind, *map(_part, value)
    if isinstance(value, (torch.Tensor, list, tuple)):
        raise TypeError
    return kind, value  # 1, 1.0 and True are equal


def _leads(x: Tensor, *others: Any) -> bool:
    """Whether the result of a pointwise operator is as x is, since the other operands are numbers
    or contiguous, of its type and no larger."""
    if not x.is_floating_point() or not x.is_contiguous():
        return False
    return all(
        other.dtype == x.dtype and other.dim() <= x.dim() and other.is_contiguous()
        and all(n in (1, m) for n, m in zip(other.shape[::-1], x.shape[::-1], strict=False))
        if isinstance(other, torch.Tensor) else not isinstance(other, complex)
        for other in others
    )  # fmt: skip


def _is_plain(out: Tensor) -> bool:
    """Whether empty_strided() makes such a tensor, storage and all."""
    if not out.is_meta or out.storage_offset():
        return False
    reach = sum((n - 1) * s for n, s in zip(out.shape, out.stride(), strict=True)) + 1
    return out.untyped_storage().nbytes() == (reach * out.itemsize if out.numel() else 0)


class NoScores(TorchFunctionMode):
    """What operators do not show: attention counts by rule, since on "meta" torch would compose one
    with its scores; a copy from the host to the device is none for torch, as both are "meta"."""

    def __init__(self, live: Live) -> None:
        super().__init__()
        self._live = live

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _SEEN:
            return func(*args, **kwargs)
        if func is torch.Tensor.to and self._live.is_on_host(args[0]):
            device, dtype = torch._C._nn._parse_to(*args[1:], **kwargs)[:2]
            if device is not None and device.type == "meta":  # for torch it is there already
                return torch.empty_like(args[0], dtype=dtype or args[0].dtype)
        if func is F.normalize and kwargs == _NORMALIZE and len(args) == 1:
            return self._normalized(args[0])
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        names = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | kwargs
        q, k, v = names["query"], names["key"], names["value"]
        out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype, device=q.device)
        inside = self._live.workspace.attention(q, k, v, names.get("attn_mask"))
        if inside:
            self._live.stays(self._live.workspace.once(_aten.bmm.default))
        self._live.note(inside)
        return out

    def _normalized(self, x: Tensor) -> Tensor:
        """Of four operators, Wan's norm: the length, that again but clamped, then x over it."""
        length = x.nbytes // max(x.shape[1], 1)
        self._live.note(2 * length)
        out = torch.empty_like(x)
        self._live.note(length)
        return out


_SEEN = frozenset((torch.Tensor.to, F.normalize, F.scaled_dot_product_attention))
# How torch passes on what F.normalize(x, dim=1) was called with.
_NORMALIZE = {"p": 2.0, "dim": 1, "eps": 1e-12, "out": None}
