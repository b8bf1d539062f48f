"""Kills, stops and slows ranks of a group that decodes together, at random points.

    python tests/long/check_ranks.py --count 200 [--seed 1] [--jobs 2] [--only NUMBER]

Each case is a decode of a tiny VAE by 2, 3 or 4 processes; in half of them rank 0 alone has the
latents. One of them is killed (SIGKILL), stopped
for longer than the group's time-out or for a shorter while, interrupted (SIGINT), or sleeps at some
steps: before the first meeting, at a step, at a meeting, within a wait, within an exchange, after
the last frame.
Then rank 0 has the frames of one device, and has said once that it decodes alone where it did;
where a rank was stopped for a while or slow, nothing is lost; the others end with GroupLostError,
or as if nothing had happened, as do all where rank 0 is killed; an interrupt at a step is a cancel
of all; each process can end. A case that takes longer than LIMIT hangs, and the stacks of its
processes are printed.

Processes are forks of this one, which has imported everything and computes nothing.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from decode_doubles import (  # noqa: E402
    EVERY_KIND,
    TIMESTEP,
    relative_error,
    tiny_latents,
    tiny_vae,
)

import hy3d_rocm.conv.protection  # noqa: E402  (what a decode imports is there in each fork)
import hy3d_rocm.decoding.backends.triton.backend  # noqa: E402, F401
from hy3d_rocm.decoding.executor import decode_with_report  # noqa: E402
from hy3d_rocm.decoding.families import family_for  # noqa: E402
from hy3d_rocm.decoding.group import Group, GroupLostError, group_of  # noqa: E402
from hy3d_rocm.decoding.report import DecodeCancelled  # noqa: E402

TIMEOUT = 4.0  # of the group, in seconds
LIMIT = 20 * TIMEOUT  # of a case
# Twice that of tests/unit/decoding/test_shared_run.py, as shapes are drawn: HunyuanVideo's norms of
# three rows are off by 87 epsilons, and one device's frames by 73 from those of float64.
BOUND = 128 * torch.finfo(torch.float32).eps
ACTS = ("killed", "stopped for long", "stopped for a while", "slowed")
INTERRUPTED = "interrupted"
PLACES = ("before", "step", "meeting", "wait", "exchange", "after")
IMAGES = ("image", "image16", "qwen")


@dataclass(frozen=True)
class Case:
    """What is decoded by how many ranks, and what happens to one of them where. share: of the
    steps (or meetings ...) that there are, when."""

    number: int
    kind: str
    shape: tuple[int, int, int, int]  # samples, latent frames, rows, columns
    ranks: int
    victim: int
    act: str
    place: str
    share: float
    outside: int = 0  # processes that are not of the group, which begins behind them
    is_sent: bool = False  # rank 0 alone has the latents

    @property
    def job(self) -> tuple[Any, ...]:
        return self.kind, self.shape


def drawn(number: int, seed: int) -> Case:
    """Case `number` of a seed."""
    draw = random.Random(f"{seed}/{number}")
    kind, ranks = draw.choice(EVERY_KIND), draw.choice((2, 2, 3, 4))
    frames = 1 if kind in IMAGES else draw.choice((1, 2, 3))
    shape = draw.choice((1, 1, 1, 1, 2, 3)), frames, draw.choice((1, 3, 4, 5)), draw.choice((2, 3))
    victim, act, place = draw.randrange(ranks), draw.choice(ACTS), draw.choice(PLACES)
    share, outside = draw.random(), draw.choice((0, 0, 1))
    if place not in ("before", "after") and draw.random() < 0.25:
        act = INTERRUPTED
    is_sent = draw.random() < 0.5
    return Case(number, kind, shape, ranks, victim, act, place, share, outside, is_sent)


# In a rank


class Trap:
    """Counts what a rank does, and acts on it where the case says so."""

    def __init__(self, case: Case, rank: int, counts: dict[str, int] | None) -> None:
        self.case, self.counts = case, dict.fromkeys(PLACES, 0)
        self.longest = 0.0  # wait, less the time-outs but one that it had
        self._is_victim = counts is not None and rank == case.victim
        self._at = 1 + int(case.share * (counts or {}).get(case.place, 1))
        self._sleeps = random.Random(case.number)

    def come(self, place: str) -> None:
        self.counts[place] += 1
        if not self._is_victim:
            return
        if self.case.act == "slowed":  # at a tenth of what comes
            if place == self.case.place and self._sleeps.random() < 0.1:
                time.sleep(self._sleeps.uniform(0.0, 0.25) * TIMEOUT)
        elif place == self.case.place and self.counts[place] == self._at:
            signals = {"killed": signal.SIGKILL, INTERRUPTED: signal.SIGINT}
            os.kill(os.getpid(), signals.get(self.case.act, signal.SIGSTOP))

    def set(self) -> None:
        """Into the group's functions."""
        wait, post, meet = Group.wait, Group.post, Group.meet

        def waiting(
            group: Group, works: Any, held: Any, on_stream: bool, timeouts: int = 1
        ) -> None:  # fmt: skip
            self.come("wait")
            began = time.monotonic()
            try:
                wait(group, works, held, on_stream, timeouts)
            finally:
                lasted = time.monotonic() - began
                self.longest = max(self.longest, lasted - (timeouts - 1) * TIMEOUT)

        def posting(group: Group, *given: Any) -> Any:
            pending = post(group, *given)
            self.come("exchange")
            return pending

        def meeting(group: Group, *given: Any, **more: Any) -> Any:
            self.come("meeting")
            return meet(group, *given, **more)

        Group.wait, Group.post, Group.meet = waiting, posting, meeting  # type: ignore[method-assign]


class Lines(logging.Handler):
    """Warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def decode_as(
    case: Case, rank: int, folder: Path, counts: dict[str, int] | None, vae: Any, ranks: int
) -> None:  # fmt: skip
    """This process's decode; frames and what happened go to files. ranks: 1 for the reference."""
    torch.set_num_threads(1)
    logger, lines = logging.getLogger("hy3d_rocm"), Lines()
    logger.addHandler(lines)
    logger.propagate = False
    group: Any = None
    given: Any = None
    trap = Trap(case, rank, counts)
    if ranks > 1:
        size, store = ranks + case.outside, str(folder / "store")
        dist.init_process_group(
            "gloo", store=dist.FileStore(store, size), rank=rank + case.outside, world_size=size
        )
        given = dist.group.WORLD
        if case.outside:
            given = dist.new_group(list(range(case.outside, size)))
        if rank < 0:
            return
        group = group_of(given, torch.device("cpu"), TIMEOUT)
        trap.set()
    samples, *size = case.shape
    z = torch.cat([tiny_latents(vae, *size, seed=n) for n in range(samples)])
    z = z.to("meta") if case.is_sent and rank else z
    family = family_for(vae, timestep=TIMESTEP.get(case.kind))
    told: dict[str, Any] = {}
    trap.come("before")
    try:
        frames, _ = decode_with_report(
            family, z, progress=lambda *_: trap.come("step"), group=group and given
        )
        told["end"] = "nothing" if frames is None else "frames"
        if frames is not None:
            torch.save(frames, folder / "frames.part")
            (folder / "frames.part").rename(folder / "frames.pt")
    except GroupLostError as error:
        told |= {"end": "lost", "text": str(error)}
    except DecodeCancelled as error:
        told |= {"end": "cancelled", "text": str(error)}
    except KeyboardInterrupt:
        told["end"] = INTERRUPTED
    trap.come("after")
    began = time.monotonic()
    if group is not None:
        told["lost"] = group.lost
        dist.destroy_process_group()
        group = given = None
        gc.collect()
    told |= {
        "lines": lines.lines, "counts": trap.counts, "longest": trap.longest,
        "leaving": time.monotonic() - began,
    }  # fmt: skip
    (folder / f"{rank}.json").write_text(json.dumps(told))


def forked(work: Callable[[], None], log: Path) -> int:
    """A child that does `work`; SIGUSR1 makes it write its stacks."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
        work()
        code = 0
    except BaseException:  # noqa: BLE001  the child must never come back into the parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# In the parent


@dataclass
class Running:
    """A case's processes."""

    case: Case
    folder: Path
    children: dict[int, int]  # rank by process
    began: float = field(default_factory=time.monotonic)
    wakes: float | None = None  # when the one that is stopped goes on
    codes: dict[int, int] = field(default_factory=dict)
    is_hung: bool = False

    def poll(self) -> bool:
        """Whether all have ended."""
        for child, rank in list(self.children.items()):
            done, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
            if not done:
                continue
            if os.WIFSTOPPED(status):
                longer = self.case.act == "stopped for long"
                self.wakes = time.monotonic() + (1.6 if longer else 0.3) * TIMEOUT
                continue
            del self.children[child]
            self.codes[rank] = os.waitstatus_to_exitcode(status)
        if self.wakes is not None and time.monotonic() > self.wakes:
            self.wakes = None
            for child, rank in self.children.items():
                if rank == self.case.victim:
                    os.kill(child, signal.SIGCONT)
        if self.children and time.monotonic() - self.began > LIMIT:
            self.is_hung = True
            self.end()
        return not self.children

    def end(self) -> None:
        for child in self.children:
            os.kill(child, signal.SIGUSR1)
        time.sleep(0.5)
        for child in self.children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        self.children.clear()

    def faults(self, want: torch.Tensor) -> list[str]:
        """What is wrong with how it ended."""
        case = self.case
        if self.is_hung:
            return ["it hung"]
        told, found = self.told(), list[str]()
        is_killed = case.act == "killed" and case.victim not in told
        for rank in range(case.ranks):
            wanted = -signal.SIGKILL if is_killed and rank == case.victim else 0
            if self.codes.get(rank) != wanted or (rank not in told and not wanted):
                found.append(f"rank {rank} ended with {self.codes.get(rank)}")
        for rank, one in told.items():
            if one["end"] not in self._ends(rank):
                found.append(f"rank {rank} ended with {one}")
            if one["lost"] and self._keeps_all:
                found.append(f"rank {rank} lost the group: {one['lost']}")
            if one["leaving"] > 3 * TIMEOUT:  # most of it is a busy machine's
                found.append(f"rank {rank} took {one['leaving']:.1f} s to leave")
        first = told.get(0)
        if first is not None and first["end"] == "frames":
            alone = [line for line in first["lines"] if line.endswith("decoding alone")]
            if len(alone) != bool(first["lost"]):
                found.append(f"rank 0 said {first['lines']}")
            error = relative_error(torch.load(self.folder / "frames.pt"), want)
            if not error < BOUND:
                found.append(f"WRONG FRAMES: off by {error:.1e} of their range")
        return found

    @property
    def _keeps_all(self) -> bool:
        """Whether no rank may be lost."""
        case = self.case
        told = case.act == INTERRUPTED and case.place == "step"
        return told or case.act in ("stopped for a while", "slowed")

    def _ends(self, rank: int) -> tuple[str, ...]:
        """How a rank may end."""
        usual = "nothing" if rank else "frames"
        if self.case.act == INTERRUPTED and rank == self.case.victim:
            return (INTERRUPTED,)
        if self._keeps_all:
            return ("cancelled",) if self.case.act == INTERRUPTED else (usual,)
        ends = (usual, "lost") if rank else (usual,)
        return (*ends, "cancelled") if self.case.act == INTERRUPTED else ends

    def told(self) -> dict[int, Any]:
        """By rank, of those that could."""
        paths = {rank: self.folder / f"{rank}.json" for rank in range(self.case.ranks)}
        return {r: json.loads(path.read_text()) for r, path in paths.items() if path.exists()}

    def logs(self) -> str:
        texts = [p.read_text(errors="replace") for p in sorted(self.folder.glob("log*"))]
        return "\n".join(text[-4000:] for text in texts if text)


class Check:
    """Cases, a few at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.vaes = {kind: tiny_vae(kind) for kind in EVERY_KIND}
        self.frames: dict[tuple[Any, ...], torch.Tensor] = {}
        self.counts: dict[tuple[Any, ...], list[dict[str, int]]] = {}
        self.running: list[Running] = []
        self.ends: Counter[str] = Counter()
        self.longest, self.wrong, self.hung = 0.0, 0, 0
        self.failed: list[int] = []

    def start(self, case: Case, ranks: int, counts: dict[str, int] | None) -> Running:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        vae, children = self.vaes[case.kind], {}
        for rank in range(-case.outside if ranks > 1 else 0, ranks):
            work = lambda rank=rank: decode_as(case, rank, folder, counts, vae, ranks)  # noqa: E731
            children[forked(work, folder / f"log{rank}")] = rank
        return Running(case, folder, children)

    def undisturbed(self, case: Case) -> dict[str, int]:
        """How much of what the victim does without being one. Once for each decode, with one
        device's frames."""
        if case.job not in self.frames:
            alone = self.start(case, 1, None)
            self.wait_for(alone)
            if alone.codes != {0: 0}:
                sys.exit(f"one device can't do {case}: {alone.logs()}")
            self.frames[case.job] = torch.load(alone.folder / "frames.pt")
        key = (*case.job, case.ranks, case.outside, case.is_sent)
        if key not in self.counts:
            for _ in range(2):  # gloo's first connections may fail on a busy machine
                plain = self.start(case, case.ranks, None)
                self.wait_for(plain)
                told = plain.told()
                if len(told) == case.ranks:
                    break
            else:
                sys.exit(f"{case} undisturbed: {plain.codes} {plain.logs()}")
            self.counts[key] = [told[rank]["counts"] for rank in range(case.ranks)]
        return self.counts[key][case.victim]

    def wait_for(self, one: Running) -> None:
        while not one.poll():
            for other in self.running:  # a stopped one goes on in time
                other.poll()
            time.sleep(0.01)

    def judge(self, running: Running) -> None:
        case, told = running.case, running.told()
        faults = running.faults(self.frames[case.job])
        self.hung += running.is_hung
        self.wrong += any("WRONG" in fault for fault in faults)
        for rank, one in told.items():
            if rank != case.victim:
                self.longest = max(self.longest, one["longest"] - TIMEOUT)
        self.ends[case.act] += 1
        if faults:
            self.failed.append(case.number)
            print(f"FAILED {case}: {'; '.join(faults)}\n{running.logs()}", flush=True)
        shutil.rmtree(running.folder)

    def run(self, cases: list[Case], jobs: int) -> None:
        waiting, running = list(reversed(cases)), self.running
        while waiting or running:
            while waiting and len(running) < jobs:
                case = waiting.pop()
                counts = self.undisturbed(case)
                if not counts[case.place]:  # of this decode there is no such place
                    self.ends["no such place"] += 1
                    continue
                running.append(self.start(case, case.ranks, counts))
            for one in list(running):
                if one.poll():
                    running.remove(one)
                    self.judge(one)
                    if (done := sum(self.ends.values())) % 20 == 0:
                        print(f"{done} cases, {len(self.failed)} failed", flush=True)
            time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--only", type=int, help="one case of the seed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    numbers = range(options.count) if options.only is None else [options.only]
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="hy3d-ranks-"))
    try:
        check = Check(folder)
        check.run([drawn(number, options.seed) for number in numbers], options.jobs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    acts = ", ".join(f"{count} {act}" for act, count in sorted(check.ends.items()))
    print(
        f"{sum(check.ends.values())} cases ({acts}): {check.hung} hangs, {check.wrong} with wrong "
        f"frames, {len(check.failed)} failed{check.failed or ''}, the longest wait "
        f"{max(check.longest, 0.0):.2f} s beyond the time-out of {TIMEOUT:g} s, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
