"""Ranks that decode together: what they send each other, and how they learn that one has failed.

The engine is torch.distributed: NCCL (RCCL on AMD) between GPUs, gloo between CPUs, and gloo by way
of host memory where GPUs have nothing else (Windows). All ranks do the same in the same order, so a
message need not say what it is. Every wait has an end: where a rank died or hangs, the others raise
GroupLostError, and nobody uses the group again.

A rank whose step failed goes on to send what the others wait for, whatever it holds, up to the next
meeting. There all learn of it and act alike: they take what comes after such a failure.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn
from weakref import WeakKeyDictionary, proxy

import torch
from torch import Tensor

from hy3d_rocm.conv.errors import described, first_line
from hy3d_rocm.decoding.faults import NOT_FINITE, Failure, failure_of
from hy3d_rocm.decoding.precision import NonFiniteError
from hy3d_rocm.decoding.report import DecodeCancelled

logger = logging.getLogger("hy3d_rocm")

#: that a rank waits for another
TIMEOUT_SECONDS = 300.0
# Of a meeting's first message: longer ones take a second.
_WORD_BYTES = 1024
_CANCELLED, _ERROR = "cancelled", "an error"

Parts = Sequence[tuple[int, Tensor]]  # a rank and what goes to it or comes from it


#: for NCCL, read when its process group is made: a lost rank ends no process of another, nor does
#: torch's watch over its own watch, for which a GPU that hangs is enough; no trace of Python's
#: stack for each operation, which takes longer than the operation itself
VARIABLES = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_FR_BUFFER_SIZE": "0",
}
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):  # its name before, warned of now
    VARIABLES["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "0"


def set_variables() -> None:
    """Sets VARIABLES where they are not set, before a process group is made. torchrun's "1" for the
    first of them is nobody's choice: it sets that in every process that it starts."""
    first = next(iter(VARIABLES))
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get(first) == "1":
        del os.environ[first]
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)


class GroupLostError(ConnectionError):
    """A rank did not answer in time or is gone: the others can't go on together."""


class RankFailedError(RuntimeError):
    """Another rank failed in a way that another program may cure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class _Word(NamedTuple):
    """What a rank says at a meeting. about: what it is at. what: how it failed, "" where it did
    not."""

    about: str
    values: Any
    what: str = ""
    text: str = ""
    on_host: bool = False


class Pending:
    """Tensors on their way to and from other ranks: not to be touched before wait(). A Ticket
    (placing.py) of what they fill.

    works: torch.distributed's. held: the memory that they use. copies: (place, what came for it),
    in order.
    """

    def __init__(
        self, group: Group, works: Sequence[Any], held: Any, copies: list[Any], on_stream: bool
    ) -> None:
        self._group, self._works, self._on_stream = group, works, on_stream
        self._held, self._copies = held, copies

    def wait(self) -> None:
        """Until all is sent and in its place; what NCCL does the current stream waits for, not
        we."""
        if self._works:
            self._group.wait(self._works, self._held, self._on_stream)
        self._works, self._held = (), None
        while self._copies:  # one that fails is made again
            place, came = self._copies[0]
            place.copy_(came)
            del self._copies[0]

    join = wait

    def drop(self) -> None:
        """Nobody wants what comes any more; it is still on its way."""
        self._copies = []


class Group:
    """Ranks 0 .. size - 1 that decode together.

    control: takes tensors of the CPU: a process group of torch.distributed, or its backend
    (ProcessGroupGloo). data: the backend that takes those of the device (ProcessGroupNCCL); None:
    they go by way of the CPU. timeout: seconds that a rank waits for another, which may have
    kernels to compile in its first decode; what NCCL does ends by `data`'s own time-out. Call
    set_variables() before that is made: torch ends the process of a rank that lost another else.

    lost: why the group can't be used any more, "" while it can. sent_bytes: by this rank so far.
    """

    def __init__(self, control: Any, data: Any = None, timeout: float = TIMEOUT_SECONDS) -> None:
        if not timeout > 0:
            raise ValueError(f"a group's time-out of {timeout} s: give more than 0")
        self.control, self.data, self.timeout = control, data, timeout
        self.rank, self.size = int(control.rank()), int(control.size())
        self.lost = ""
        self.sent_bytes = 0
        self.weights: tuple[Any, int] | None = None  # of the last decode, and what stands for them
        self._last: Any = None  # of what NCCL was given
        self._kept: list[Any] = []  # what others may still write to after all was lost

    def wait(
        self, works: Sequence[Any], held: Any, on_stream: bool, timeouts: int = 1
    ) -> None:  # fmt: skip
        """Waits for operations, of which `held` is the memory. on_stream: the GPU does, and NCCL's
        own watch ends it (with a time-out NCCL would hold up this thread). GroupLostError."""
        began = time.perf_counter()
        with self.watched(works, held):
            for work in works:
                # One time-out for all of them. 0 would be for ever.
                left = self.timeout * timeouts - (time.perf_counter() - began)
                work.wait(*(() if on_stream else (timedelta(seconds=max(left, 0.001)),)))

    def post(self, sends: Parts, comes: Parts, copies: Sequence[Any] = ()) -> Pending:
        """Begins to send tensors, and to fill tensors with what is sent to this rank: contiguous
        ones, all of one device. copies: (place, one of these), made when it has come."""
        self.sent_bytes += sum(tensor.nbytes for _, tensor in sends)
        through, arrived = self.control, list[Any]()
        on_device = any(tensor.device.type != "cpu" for _, tensor in (*sends, *comes))
        if on_device and self.data is not None:
            through = self.data
        elif on_device:
            sends = [(peer, tensor.cpu()) for peer, tensor in sends]
            hosts = [(peer, torch.empty_like(tensor, device="cpu")) for peer, tensor in comes]
            arrived = [(t, there) for (_, t), (_, there) in zip(comes, hosts, strict=True)]
            comes = hosts
        every = [(through.send, peer, tensor) for peer, tensor in sends]
        every += [(through.recv, peer, tensor) for peer, tensor in comes]
        works: list[Any] = []
        with (
            self.watched(works, every),
            _at_once(through, works, through is self.data and bool(every)),
        ):
            for begin, peer, tensor in every:
                works.append(begin([tensor], peer, 0))
        if through is self.data and works:
            self._last = works[-1]
        return Pending(self, works, every, [*arrived, *copies], through is self.data)

    def gather(self, tensor: Tensor, timeouts: int = 1) -> list[Tensor]:
        """Every rank's tensor, all of one size, in the order of ranks. timeouts: that this waits
        for at most."""
        direct = tensor.device.type == "cpu" or self.data is not None
        given = tensor.contiguous() if direct else tensor.cpu()
        through = self.control if given.device.type == "cpu" else self.data
        made = given.new_empty((self.size, *given.shape))
        works: list[Any] = []
        with self.watched(works, (given, made)):
            if through is self.data:
                works.append(through._allgather_base(made, given))
            else:
                works.append(self.begin_gather(list(made.unbind()), given, timeouts))
        self.wait(works, (given, made), through is self.data, timeouts)
        return list((made if direct else made.to(tensor.device)).unbind())

    def begin_gather(self, places: list[Tensor], given: Tensor, timeouts: int) -> Any:
        from torch._C._distributed_c10d import AllgatherOptions

        options = AllgatherOptions()
        # Else a thread of gloo's waits for as long as its process group does, and the process,
        # which waits for that thread, can't end.
        options.timeout = timedelta(seconds=self.timeout * timeouts)
        return self.control.allgather([places], [given], options)

    def meet(
        self, about: str, error: BaseException | None = None, values: Any = None,
        timeouts: int = 1,
    ) -> list[Any]:  # fmt: skip
        """Every rank's `values` (of JSON), once all are at the same place. error: how this rank
        failed: then all raise, those that failed alike their own error, the others one that says
        the same. timeouts: that this waits for at most, where ranks may be that far apart.
        GroupLostError where the ranks do different things."""
        return Meeting(self, about, error, values, timeouts).answer()

    def check_alike(self, verb: str, told: Sequence[Any]) -> None:
        """GroupLostError unless all ranks have told the same."""
        own = told[self.rank]
        for rank, theirs in enumerate(told):
            if theirs != own:
                self.lose(
                    f"the ranks do different things: rank {self.rank} {verb} {own}, rank {rank} "
                    f"{verb} {theirs}. Give all ranks the same VAE, latents and options, and the "
                    "same versions of hy3d-rocm and torch"
                )

    def leave(self, error: BaseException) -> None:
        """This rank ends a decode with `error`. Where not all ranks do the group is lost: others
        wait for this one."""
        if not self.lost and not is_settled(error):
            self.lost = f"rank {self.rank} left a decode of the group ({described(error, 300)})"

    def settle(self) -> None:
        """Behind all that the device was given: GroupLostError where NCCL gave something up, so
        that what was made of it is worth nothing."""
        if self._last is not None:
            last, self._last = self._last, None
            with self.watched((), None):
                last.wait()

    def check(self) -> None:
        """GroupLostError where the group was lost before."""
        if self.lost:
            raise GroupLostError(self.lost)

    def error_of(
        self, rank: int, words: Sequence[_Word], own: BaseException | None
    ) -> BaseException:
        """What this rank raises where `rank` is the first that failed."""
        word, mine = words[rank], words[self.rank]
        if own is not None and (mine.what, mine.on_host) == (word.what, word.on_host):
            return own
        text = f"rank {rank}: {word.text}"
        if word.what == _CANCELLED:
            return DecodeCancelled(text)
        if word.what == NOT_FINITE:
            return NonFiniteError(text)
        if word.what == _ERROR:
            return ValueError(f"another rank of the group ended the decode ({text})")
        return RankFailedError(Failure(word.what, text, word.on_host))

    @contextmanager
    def watched(self, works: Sequence[Any], held: Any) -> Iterator[None]:
        self.check()
        try:
            yield
        except RuntimeError as error:  # whatever torch.distributed raises is one
            self._kept += [works, held]
            self.lose(
                f"rank {self.rank} of {self.size} lost another one, which did not answer within "
                f"{self.timeout:g} s or is gone ({first_line(error, 500)})"
            )

    def lose(self, why: str) -> NoReturn:
        self.lost = why
        self.abort()
        raise GroupLostError(why)

    def abort(self) -> None:
        """GPUs wait for ever otherwise."""
        abort = getattr(self.data, "abort", None)
        if abort is not None:
            with suppress(RuntimeError):
                abort()


class Meeting:
    """What every rank says at a place. A rank may go on meanwhile: what comes of it answer() says.
    The arguments are those of Group.meet()."""

    def __init__(
        self, group: Group, about: str, error: BaseException | None = None, values: Any = None,
        timeouts: int = 1,
    ) -> None:  # fmt: skip
        self._group, self._error = group, error
        self._timeouts = timeouts
        self._text = json.dumps(_word(about, values, error)).encode()
        head = len(self._text).to_bytes(4, "little") + self._text[: _WORD_BYTES - 4]
        self._mine = torch.frombuffer(bytearray(head.ljust(_WORD_BYTES)), dtype=torch.uint8)
        self._heads = self._mine.new_empty((group.size, _WORD_BYTES))
        self._works: list[Any] = []
        with group.watched(self._works, (self._mine, self._heads)):
            every = list(self._heads.unbind())
            self._works.append(group.begin_gather(every, self._mine, timeouts))

    def answer(self) -> list[Any]:
        """Every rank's values; raises as meet() does."""
        group = self._group
        words = [_Word(*json.loads(text)) for text in self._texts()]
        group.check_alike("is at", [word.about for word in words])
        for rank, word in enumerate(words):
            if word.what:
                raise settled(group.error_of(rank, words, self._error))
        return [word.values for word in words]

    def _texts(self) -> list[bytes]:
        group = self._group
        group.wait(self._works, (self._mine, self._heads), False, self._timeouts)
        heads = [head.numpy().tobytes() for head in self._heads]
        sizes = [int.from_bytes(head[:4], "little") for head in heads]
        if max(sizes) > _WORD_BYTES - 4:  # all see that, and say the whole of it
            padded = bytearray(self._text.ljust(max(sizes)))
            parts = group.gather(torch.frombuffer(padded, dtype=torch.uint8))
            return [part.numpy().tobytes()[:n] for part, n in zip(parts, sizes, strict=True)]
        return [head[4 : 4 + size] for head, size in zip(heads, sizes, strict=True)]


@contextmanager
def _at_once(through: Any, works: list[Any], is_wanted: bool) -> Iterator[None]:
    """What is begun inside is one operation of NCCL's, which can't wait for itself."""
    if not is_wanted:
        yield
        return
    through._start_coalescing()
    yield
    works[:] = [through._end_coalescing()]


def _word(about: str, values: Any, error: BaseException | None) -> _Word:
    if error is None:
        return _Word(about, values)
    if isinstance(error, (DecodeCancelled, NonFiniteError)):
        what = NOT_FINITE if isinstance(error, NonFiniteError) else _CANCELLED
        return _Word(about, values, what, str(error)[:300])
    if not isinstance(error, Exception):  # KeyboardInterrupt, or a host's own
        return _Word(about, values, _CANCELLED, described(error, 300))
    try:
        failure = error.failure if isinstance(error, RankFailedError) else failure_of(error, False)
    except BaseException:  # noqa: BLE001 - it is given back where nothing cures it
        return _Word(about, values, _ERROR, described(error, 300))
    return _Word(about, values, failure.what, failure.text, failure.on_host)


_MARK = "_hy3d_rocm_settled"


def settled(error: BaseException) -> BaseException:
    """The error, marked as one after which no rank waits for another in this decode."""
    with suppress(AttributeError, TypeError):  # a class with __slots__
        setattr(error, _MARK, True)
    return error


def is_settled(error: BaseException) -> bool:
    """Whether it is so marked: a meeting has raised it, or there was none to come."""
    return bool(getattr(error, _MARK, False))


@contextmanager
def settling() -> Iterator[None]:
    """Where nothing is exchanged any more."""
    try:
        yield
    except BaseException as error:
        settled(error)
        raise


_groups: WeakKeyDictionary[Any, Group] = WeakKeyDictionary()


def group_of(
    given: Any, device: torch.device | None = None, timeout: float = TIMEOUT_SECONDS
) -> Group | None:
    """The group that a caller means: a Group, a process group of torch.distributed
    (torch.distributed.group.WORLD), or None. For a process group one is made, once, with all of its
    ranks. None where it has one rank. device: whose tensors are sent, where that is known."""
    if given is None or isinstance(given, Group):
        return given if given is None or given.size > 1 else None
    import torch.distributed as dist

    if not dist.is_available() or not isinstance(given, dist.ProcessGroup):
        raise TypeError(
            f"group is a {type(given).__name__}: give a process group of torch.distributed, as "
            "torch.distributed.group.WORLD after init_process_group(), or a hy3d_rocm.Group"
        )
    if given.size() == 1:
        return None
    found = _groups.get(given)
    if found is None:
        control, lost = given, ""
        if _takes(given, torch.device("cpu")) != "gloo":
            try:
                control = dist.new_group(
                    dist.get_process_group_ranks(given), timedelta(seconds=timeout), "gloo",
                    use_local_synchronization=True,
                )  # fmt: skip
            except RuntimeError as error:  # one has not come
                lost = f"no group of gloo came about within {timeout:g} s ({described(error, 300)})"
        # torch.distributed holds them; here they would outlive destroy_process_group().
        found = _groups[given] = Group(proxy(control), None, timeout)
        found.lost = lost
    is_other = device is not None and device.type != "cpu" and found.data is None
    if device is not None and is_other and _takes(given, device) not in ("", "gloo"):
        found.data = given._get_backend(device)
        name, wanted = next(iter(VARIABLES.items()))
        if os.environ.get(name) != wanted:
            logger.warning(
                "A rank that is lost may end this process: set %s=%s, or call "
                "hy3d_rocm.set_variables(), before init_process_group()", name, wanted,
            )  # fmt: skip
    return found


def _takes(group: Any, device: torch.device) -> str:
    """The backend that takes tensors of the device, "" where none does."""
    try:
        return str(group._get_backend(device).name()).lower()
    except RuntimeError:
        return ""
