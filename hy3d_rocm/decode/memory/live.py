"""Follows the storages that a run makes on "meta": how many bytes live where, and the most.

What the run may do with the host: a tensor that it makes on the "cpu" while the device is a GPU
counts on the host, and becomes a meta tensor itself where it is large. `on_host(tensor)` says it of
one that exists; `given(tensor)` says that a tensor was there before. Outside a prediction both do
nothing.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hy3d_rocm.units import MB

if TYPE_CHECKING:
    from torch import Tensor

    from hy3d_rocm.decode.memory.workspace import OperatorWorkspace

# Below it a tensor made on the CPU stays one: what layers compute from their parameters.
_REAL_BYTES = 1 * MB

_running = threading.local()


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows storages that operators make; those in `known` were there before."""

    def __init__(self, known: Iterable[Tensor], workspace: OperatorWorkspace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.workspace = workspace
        self.on_cpu = workspace.device.type == "cpu"
        self._known = [t.untyped_storage() for t in known]  # kept, so that addresses stay taken
        self._seen: dict[int, tuple[str, int]] = {s._cdata: ("given", 0) for s in self._known}
        self._once: set[int] = set()
        self.birthplace: str | None = None  # where tensors count that are made now
        self._true: set[int] = set()  # storages of what `all` said
        self._made: dict[Hashable, tuple[Any, Any, torch.dtype]] = {}  # by operators, on shapes
        self.live = {"device": 0, "host": 0}
        self.device_peak = self.host_peak = self.both_peak = 0
        self.macs = 0

    def note(self, inside: int = 0) -> None:
        """Peaks with `inside` bytes on the device beside what lives."""
        device, host = self.live["device"] + inside, self.live["host"]
        device += self.workspace.code_bytes
        self.device_peak = max(self.device_peak, device)
        self.host_peak = max(self.host_peak, host)
        self.both_peak = max(self.both_peak, device + host)

    def born(self, tensor: Tensor, place: str | None = None) -> None:
        """Counts the tensor's storage unless it is known."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return
        place = self.birthplace or place
        if place is None:
            place = "host" if tensor.device.type == "cpu" and not self.on_cpu else "device"
        if place == "given":
            self._known.append(storage)
            self._seen[key] = (place, 0)
            return
        size = storage.nbytes()
        self._seen[key] = (place, size)
        # By a weak reference: what finalize() holds, it holds until the storage dies, and a run's
        # storages that lie in _known die with this object only.
        weakref.finalize(storage, _freed, weakref.ref(self), key)
        self.live[place] += size
        self.note()

    def move(self, tensor: Tensor, place: str) -> None:
        """The tensor's storage lies at `place` ("device", "host", "given") from now on."""
        key = tensor.untyped_storage()._cdata
        if key not in self._seen:
            self.born(tensor, "device")
        old, size = self._seen[key]
        if old == "given":
            return
        self.live[old] -= size
        if place == "given":
            self._known.append(tensor.untyped_storage())
            size = 0
        else:
            self.live[place] += size
        self._seen[key] = (place, size)
        self.note()

    def is_on_host(self, tensor: Tensor) -> bool:
        """Whether a meta tensor stands for one on the host."""
        place = self._seen.get(tensor.untyped_storage()._cdata, ("device", 0))[0]
        return tensor.is_meta and place == "host"

    def freed(self, key: int) -> None:
        """The storage of this address is no more."""
        self._true.discard(key)
        place, size = self._seen.pop(key, ("given", 0))
        if place != "given":
            self.live[place] -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return self._scalar(args[0])
        if func is torch.ops.aten.copy_.default and args[1].is_meta and not args[0].is_meta:
            return args[0]  # a small one on the host; it has no contents to get
        place = None
        if "device" in kwargs or "pin_memory" in kwargs:
            place, kwargs = self._placed(func, args, kwargs)
        out = self._out(func, args, kwargs)
        if isinstance(out, torch.Tensor):
            self.born(out, place)
        else:
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self.born(leaf, place)
        self._inside(func, args, out)
        return out

    def _out(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """What the operator makes; where it was called on such operands before, and made one tensor
        with a storage of its own, that once more: torch's rules take most of a run."""
        key = _key_of(func, args, kwargs)
        known = None if key is None else self._made.get(key)
        if known is not None:
            return torch.empty_strided(known[0], known[1], dtype=known[2], device="meta")
        out = func(*args, **kwargs)
        if key is not None and type(out) is torch.Tensor and _is_plain(out):
            self._made[key] = out.shape, out.stride(), out.dtype
        return out

    def stays(self, once: int) -> None:
        """Counts what a library takes at its first call and keeps."""
        if once and once not in self._once:
            self._once.add(once)
            self.live["device"] += once
            self.note()

    def _inside(self, func: Any, args: Any, out: Any) -> None:
        self.stays(self.workspace.once(func))
        inside = self.workspace.of(func, args, out)
        if inside:
            self.note(inside)
        if func is torch.ops.aten.convolution.default:
            self.macs += out.numel() * math.prod(args[1].shape[1:])
        elif func is torch.ops.aten.all.default:
            self._true.add(out.untyped_storage()._cdata)

    def _placed(
        self, func: Any, args: Any, kwargs: dict[str, Any]
    ) -> tuple[str | None, dict[str, Any]]:
        """Where a tensor made with `device=` counts; large ones are made on "meta"."""
        kwargs = dict(kwargs)
        pinned = kwargs.pop("pin_memory", None)
        device = kwargs.get("device")
        if device is None or torch.device(device).type == "meta":
            return ("host" if pinned and not self.on_cpu else None), kwargs
        place = "host" if torch.device(device).type == "cpu" and not self.on_cpu else "device"
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        is_factory = source is None or func in _SHAPED
        if (source is not None and source.is_meta and not is_factory) or (
            is_factory and _made_bytes(args, kwargs) >= _REAL_BYTES
        ):
            kwargs["device"] = "meta"
        return place, kwargs

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
    try:
        key = func, tuple(map(_part, args)), tuple((k, _part(kwargs[k])) for k in sorted(kwargs))
        hash(key)
    except TypeError:
        return None
    return key


def _part(value: Any) -> Any:
    """Of an argument. TypeError for tensors that are no ordinary ones on "meta", and for those
    without axes, whose types count for less."""
    if isinstance(value, torch.Tensor):
        if type(value) not in _ORDINARY or not value.is_meta or not value.dim():
            raise TypeError
        return value.shape, value.stride(), value.dtype, value.is_neg(), value.is_conj()
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(_part, value))
    return type(value), value  # 1, 1.0 and True are equal


def _is_plain(out: Tensor) -> bool:
    """Whether empty_strided() makes such a tensor, storage and all."""
    reach = sum((n - 1) * s for n, s in zip(out.shape, out.stride(), strict=True)) + 1
    size = reach * out.itemsize if out.numel() else 0
    plain = out.is_meta and not out.is_neg() and not out.is_conj() and not out.storage_offset()
    return plain and out.untyped_storage().nbytes() == size


def _freed(live: weakref.ref[Live], key: int) -> None:
    """A storage that `live` followed has died."""
    follower = live()
    if follower is not None:
        follower.freed(key)


_aten = torch.ops.aten
_ORDINARY = (torch.Tensor, torch.nn.Parameter)
_SHAPED = frozenset(
    {
        _aten.empty_like.default,
        _aten.zeros_like.default,
        _aten.ones_like.default,
        _aten.full_like.default,
        _aten.new_empty.default,
        _aten.new_zeros.default,
        _aten.new_full.default,
        _aten.new_ones.default,
        _aten.new_empty_strided.default,
    }
)


def _made_bytes(args: Any, kwargs: dict[str, Any]) -> int:
    """Bytes of what a factory makes; 0 where its arguments do not tell."""
    if args and isinstance(args[0], torch.Tensor):
        source, args = args[0], args[1:]
        dtype = kwargs.get("dtype") or source.dtype
        sizes = args[0] if args and isinstance(args[0], (list, tuple)) else source.shape
    else:
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        sizes = args[0] if args and isinstance(args[0], (list, tuple)) else ()
    return int(math.prod(sizes)) * int(dtype.itemsize) if sizes else 0


class NoScores(TorchFunctionMode):
    """What operators do not show: attention counts by rule, since on "meta" torch would compose one
    with its scores; a copy from the host to the device is none for torch, as both are "meta"."""

    def __init__(self, live: Live) -> None:
        super().__init__()
        self._live = live

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.to and self._live.is_on_host(args[0]):
            device, dtype = torch._C._nn._parse_to(*args[1:], **kwargs)[:2]
            if device is not None and device.type == "meta":  # for torch it is there already
                return torch.empty_like(args[0], dtype=dtype or args[0].dtype)
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        names = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | kwargs
        q, k, v = names["query"], names["key"], names["value"]
        out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype, device=q.device)
        inside = self._live.workspace.attention(q, k, v, names.get("attn_mask"))
        if inside:
            self._live.stays(self._live.workspace.once(_aten.bmm.default))
        self._live.note(inside)
        return out


def begin(live: Live) -> None:
    """This thread runs for a prediction from now on (it has no other use)."""
    _running.live = live


@contextmanager
def standing_for(workspace: OperatorWorkspace) -> Iterator[Live]:
    """Within it "meta" stands for the device of these rules, in this thread, as in a prediction."""
    before = getattr(_running, "live", None)
    _running.live = live = Live((), workspace)
    try:
        yield live
    finally:
        _running.live = before


def predicting() -> bool:
    """Whether this thread runs for a prediction: tensors are on "meta", values mean nothing."""
    return getattr(_running, "live", None) is not None


def on_host(tensor: Tensor) -> Tensor:
    """Says that the tensor lies on the host (what was spilled); returns it."""
    live = getattr(_running, "live", None)
    if live is not None and not live.on_cpu:
        live.move(tensor, "host")
    return tensor


def given(tensor: Tensor) -> Tensor:
    """Says that the tensor was there before (parameters); returns it."""
    live = getattr(_running, "live", None)
    if live is not None:
        live.move(tensor, "given")
    return tensor


def modelled(device: torch.device) -> torch.device:
    """`device`; in a prediction, where "meta" stands for a device, that one. For rules that differ
    by device."""
    live = getattr(_running, "live", None)
    if live is None or device.type != "meta":
        return device
    stands_for: torch.device = live.workspace.device
    return stands_for


def workspace_rules() -> OperatorWorkspace | None:
    """The rules of the prediction that this thread runs for; None outside of one."""
    live = getattr(_running, "live", None)
    return None if live is None else live.workspace


def several_shapes(times: float) -> None:
    """Says that what follows stands for `times` as many shapes of convolutions."""
    live = getattr(_running, "live", None)
    if live is not None:
        live.workspace.code_scale = times


def given_empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor on "meta" that counts as there before (a parameter)."""
    live = getattr(_running, "live", None)
    if live is None:
        return torch.empty(shape, dtype=dtype, device="meta")
    live.birthplace = "given"
    try:
        return torch.empty(shape, dtype=dtype, device="meta")
    finally:
        live.birthplace = None


def count_macs(macs: int) -> None:
    """Adds multiply-accumulates that no aten.convolution shows."""
    live = getattr(_running, "live", None)
    if live is not None:
        live.macs += macs


def macs_counted() -> int:
    """Multiply-accumulates counted so far; 0 outside of a prediction."""
    live = getattr(_running, "live", None)
    return 0 if live is None else int(live.macs)
