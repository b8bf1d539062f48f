"""What PyTorch's allocator holds for a decode that keeps slices on the host: a model, nothing runs.

    python tests/bench/model_allocator.py [--arch sm_90] [--decode 97x768x1280] [--budgets 22,16,10]
        [--room 25]

The slices of a program of HunyuanVideo's VAE are allocated and freed as its steps make, load, drop
and free them, with each step's workspace as one block, by the rules of CUDACachingAllocator (2.11,
default settings, one stream; csrc/schedule/allocator.c has the same): the smallest free block that
is large enough, split where more than 1 MiB is left; else a segment of its own, rounded to 2 MiB;
segments that are wholly free go back when the device has no more. Of each budget: bytes planned,
the most that is allocated and the most that is held on a device with room for all, the least room,
in parts of what is planned, with which the program ends, and what the core takes in a room of 1.25
times the budget. Weights and what the process has beside are left out. --room: what becomes of the
first program in so much, packed weights included.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from typing import Any

from bench_planning import job_of

from hy3d_rocm.cli.plan import makes
from hy3d_rocm.decoding.memory.budget import Budget
from hy3d_rocm.decoding.planning.compiled import plan_job
from hy3d_rocm.decoding.planning.jobs import MakeBackend
from hy3d_rocm.decoding.run import OPS, OVERWRITE, ProgramStep

MIB = 1 << 20
DECODES = ("97x768x1280", "129x544x960", "33x608x640")


@dataclass
class Block:
    """A part of a segment. key: whose it is; None: free."""

    size: int
    key: Any = None


class Allocator:
    """PyTorch's, of blocks above 1 MiB. room: of the device; 0: no limit."""

    def __init__(self, room: int = 0) -> None:
        self.room, self.held, self.most_held, self.used, self.most_used = room, 0, 0, 0, 0
        self._segments: list[list[Block]] = []
        self._where: dict[Any, list[Block]] = {}

    def allocate(self, key: Any, size: int) -> None:
        """MemoryError where the device has no room, what is idle given back."""
        size = -(-size // 512) * 512
        found = [(b.size, n, b) for n, s in enumerate(self._segments) for b in s
                 if b.key is None and b.size >= size]  # fmt: skip
        if found:
            _, number, block = min(found, key=lambda one: one[:2])
            segment = self._segments[number]
        else:
            block = Block(
                self._taken(20 * MIB if size < 10 * MIB else -(-size // MIB // 2) * 2 * MIB)
            )
            segment = [block]
            self._segments.append(segment)
        if block.size - size > MIB:
            segment.insert(segment.index(block) + 1, Block(block.size - size))
            block.size = size
        block.key = key
        self._where[key] = segment
        self.used += block.size
        self.most_used = max(self.most_used, self.used)

    def _taken(self, size: int) -> int:
        if self.room and self.held + size > self.room:
            for idle in [s for s in self._segments if len(s) == 1 and s[0].key is None]:
                self._segments = [s for s in self._segments if s is not idle]
                self.held -= idle[0].size
        if self.room and self.held + size > self.room:
            raise MemoryError
        self.held += size
        self.most_held = max(self.most_held, self.held)
        return size

    def free(self, key: Any) -> None:
        segment = self._where.pop(key)
        at = next(n for n, block in enumerate(segment) if block.key == key)
        block = segment[at]
        self.used -= block.size
        block.key = None
        for neighbour in (at + 1, at - 1):
            if 0 <= neighbour < len(segment) and segment[neighbour].key is None:
                block.size += segment[neighbour].size
                segment[neighbour].key = block  # goes
        segment[:] = [b for b in segment if b.key is not block]


class Slices:
    """A program's, in an allocator; those below 1 MiB are in segments of their own kind."""

    def __init__(self, program: Any, allocator: Allocator) -> None:
        self.sizes = [size for *_, size, _ in program.slices(0)]
        self.allocator, self.blocks = allocator, dict[int, int]()  # by slice: whose block it has

    def make(self, number: int) -> None:
        if self.sizes[number] > MIB:
            self.allocator.allocate(number, self.sizes[number])
            self.blocks[number] = number

    def free(self, number: int) -> None:
        if number in self.blocks:
            self.allocator.free(self.blocks.pop(number))

    def write_over(self, old: int, new: int) -> None:
        if old in self.blocks:
            self.blocks[new] = self.blocks.pop(old)


def carried_out(program: Any, allocator: Allocator) -> None:
    """MemoryError, which says in which step, where one has no room."""
    slices, known = Slices(program, allocator), set[int]()  # keys are filled by several steps
    steps = program.steps(0)
    for at, step in enumerate(map(ProgramStep._make, steps)):
        try:
            carry_out(step, slices, step.slice in known)
        except MemoryError:
            raise MemoryError(f"no room in step {at + 1} of {len(steps)}") from None
        known.add(step.slice)


def carry_out(step: ProgramStep, slices: Slices, is_known: bool) -> None:
    op, allocator = OPS[step.op], slices.allocator
    if op == "load":
        slices.make(step.slice)
    elif op == "drop":
        slices.free(step.slice)
    elif step.flags & OVERWRITE:
        slices.write_over((step.sources if op == "add" else step.others)[0], step.slice)
    elif makes(op) and step.slice >= 0 and not is_known:
        slices.make(step.slice)
    if step.workspace_bytes > MIB:
        allocator.allocate("workspace", step.workspace_bytes)
        allocator.free("workspace")
    for number in step.frees:
        slices.free(number)


def least_room(program: Any, planned: int) -> float:
    """In parts of `planned`, in steps of a fiftieth."""
    for share in range(50, 151):
        try:
            carried_out(program, Allocator(planned * share // 50))
        except MemoryError:
            continue
        return share / 50
    return float("inf")


def line(job: Any, budget: int, asked: int) -> str:
    """One budget's figures; behind them, what the core takes in a room of 1.25 times the budget, as
    "auto" has it, and how much longer that is estimated to take."""
    plans = []
    for room in (0, budget * 5 // 4):
        try:
            plans.append(plan_job(job, Budget(budget, 10**12, False, "given", device_room=room)))
        except ValueError as error:
            return str(error)
    free, tight = (plan.compiled.program for plan in plans if plan.compiled is not None)
    if free.candidate["order"] == "tiles":
        return str(plans[0].variant.name)
    made, planned = Allocator(), free.candidate["device_bytes"]
    carried_out(free, made)
    figures = [f"{n / 1e9:.1f}" for n in (planned, made.most_used, made.most_held)]
    said = ""
    if asked:
        try:
            carried_out(free, Allocator(asked - sum(free.kept(0))))
            said = "; in that room it ends"
        except MemoryError as error:
            said = f"; {error}"
    taken = tight.candidate
    longer = taken["seconds"] / free.candidate["seconds"]
    lacks = ", which lacks room" if taken["lacks_room"] else ""
    return "{:>8} {:>6} {:>6}  {:>10.2f}  {:.1f} GB, {:.2f} times as long{}".format(
        *figures, least_room(free, planned), taken["device_bytes"] / 1e9, longer, lacks + said
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--decode", action="append", help="frames x height x width")
    parser.add_argument("--budgets", default="20,16,12,8,6,4", help="10^9 bytes")
    parser.add_argument("--room", type=float, default=0, help="10^9 bytes")
    arguments = parser.parse_args()
    room = int(arguments.room * 1e9)
    head = "decode", "budget", "planned", "used", "held"
    print("{:<13} {:>6} {:>8} {:>6} {:>6}  least room  in 1.25".format(*head))
    for decode in arguments.decode or DECODES:
        frames, height, width = map(int, decode.split("x"))
        job = job_of("hunyuan", (frames, height, width), "gpu")
        job = replace(job, make_backend=MakeBackend(arguments.arch))
        for budget in map(float, arguments.budgets.split(",")):
            print(f"{decode:<13} {budget:6g} {line(job, int(budget * 1e9), room)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
