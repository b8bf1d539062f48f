"""A thousand faults of the disk under everything that the library writes.

    python tests/long/check_disk_faults.py [--count 1000] [--jobs N] [--seed 1] [--only NAME]

What is written: frames (.npy, in segments, pictures), what lets a decode go on, the knowledge of
convolutions, captures, reports, MIOpen backups. The faults: a call that fails with "no space left",
an error of the disk, "read-only" or "not permitted", at any of the calls that open, write,
synchronise, rename or remove; a kill before any of them, and by the clock; a file that may not grow
beyond a size, so that what is written is torn; a file that is damaged when the library starts.
After each: every file has its old or its new content, none a third; nothing half-written is left
but by a kill; what was raised is of the documented class and a sentence, and where nothing is
raised a line is logged; the same once more, undisturbed, gives the new content, or is refused where
that has its name already and nothing may be replaced.

A failure prints its number: --first NUMBER --count 1 --seed S replays it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from disk_damage import READERS, Reader
from disk_faults import KINDS, Fault, Outcome, run_in_child
from disk_writers import WRITERS, Contents, Writer, is_result

DAMAGED = 0.15  # share of the faults that a file has at the start


class DiskError(AssertionError):
    """A fault that was not survived."""


class Known:
    """What a writer gives undisturbed."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        with tempfile.TemporaryDirectory(prefix="check_disk_") as name:
            folder, log = Path(name, "data"), Path(name, "log")
            folder.mkdir()
            writer.prepare(folder)
            self.old = writer.look(folder)
            outcome = run_in_child(lambda: writer.act(folder), Fault(), log)
            if outcome.how != "done":
                raise DiskError(f"{writer.name} fails undisturbed: {log.read_text()[-2000:]}")
            self.new = writer.look(folder)
            self.calls, self.seconds = outcome.calls, outcome.seconds
            sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
            self.largest = max(sizes, default=1)
            self.names = {path.name for path in folder.rglob("*")}


def chosen_fault(known: Known, rng: random.Random) -> Fault:
    kind = rng.choice(KINDS)
    if kind == "kill by the clock":
        return Fault(kind, rng.uniform(0, known.seconds))
    if kind == "cut":
        return Fault(kind, rng.randrange(known.largest + 1))
    return Fault(kind, rng.randrange(known.calls + (kind == "kill")))


def fault_trial(known: Known, rng: random.Random) -> str:
    writer, fault = known.writer, chosen_fault(known, rng)
    with tempfile.TemporaryDirectory(prefix="check_disk_") as name:
        folder, log = Path(name, "data"), Path(name, "log")
        folder.mkdir()
        writer.prepare(folder)
        before = {path.name for path in folder.rglob("*")}
        try:
            outcome = run_in_child(lambda: writer.act(folder), fault, log)
            judge_outcome(writer, fault, outcome)
            judge_contents(known, writer.look(folder))
            if outcome.how == "raised":
                judge_left(known, before, folder)
            is_done = writer.look(folder) == known.new
            again = run_in_child(lambda: writer.act(folder), Fault(), log)
            if writer.refuses and is_done:  # killed after it had its name: as a user's own file
                if again.how != "raised":
                    raise DiskError(f"the next attempt replaces what was not to be: {again.how}")
                judge_outcome(writer, fault, again)
            elif again.how != "done":
                raise DiskError(f"the next attempt fails: {again.text}")
            found = writer.look(folder)
            wrong = [name for name in known.new if found.get(name) != known.new[name]]
            if wrong:
                raise DiskError(f"the next attempt gives something else in {wrong}")
        except Exception as error:
            raise DiskError(f"{writer.name}, {fault}: {str(error)[-900:]}") from error
    return f"{fault.kind}: {outcome.how}"


def judge_outcome(writer: Writer, fault: Fault, outcome: Outcome) -> None:
    if outcome.how == "raised":
        documented = {error.__name__ for error in writer.errors}
        if not documented & set(outcome.error):
            raise DiskError(f"{writer.name} raised {outcome.error[0]}: {outcome.text}")
        if len(outcome.text.split()) < 3:
            raise DiskError(f"what it raised is no sentence: {outcome.text!r}")


def judge_contents(known: Known, found: Contents) -> None:
    """Each name has its old or its new content; a name that both have is there."""
    every = [*known.old.values(), *known.new.values()]
    for name, content in found.items():
        allowed: list[Any] = [side[name] for side in (known.old, known.new) if name in side]
        if content not in (allowed or every):
            raise DiskError(f"{name} is neither as it was nor as it is to be")
    lost = [name for name in known.old if name in known.new and name not in found]
    if lost:
        raise DiskError(f"{lost} are lost")


def judge_left(known: Known, before: set[str], folder: Path) -> None:
    """After an error nothing lies about that was not there and is not whole."""
    for path in folder.rglob("*"):
        relative = str(path.relative_to(folder))
        is_known = path.name in before or (path.name in known.names and is_result(path))
        if not (is_known or known.writer.stays(relative) or path.is_dir()):
            raise DiskError(f"{relative} was left")


def damage_trial(reader: Reader, rng: random.Random) -> str:
    with tempfile.TemporaryDirectory(prefix="check_disk_") as name:
        folder, log = Path(name, "data"), Path(name, "log")
        folder.mkdir()
        reader.prepare(folder)
        how = reader.damage(folder, rng)
        try:
            outcome = run_in_child(lambda: reader.act(folder), Fault(), log)
            if outcome.how == "raised":
                documented = {error.__name__ for error in reader.errors}
                if not documented & set(outcome.error) or len(outcome.text.split()) < 3:
                    raise DiskError(f"it raised {outcome.error[0]}: {outcome.text}")
        except Exception as error:
            raise DiskError(f"{reader.name}, {how}: {error}") from error
    return f"damaged: {outcome.how}"


def run_part(part: tuple[int, int, int, str]) -> tuple[Counter[str], list[str]]:
    """(first, count, seed, only): how each ended, and what was wrong."""
    first, count, seed, only = part
    writers = [writer for writer in WRITERS if only in writer.name]
    readers = [reader for reader in READERS if only in reader.name]
    known: dict[str, Known] = {}
    ends: Counter[str] = Counter()
    wrong = []
    for number in range(first, first + count):
        rng = random.Random(f"{seed}/{number}")
        try:
            if readers and (not writers or rng.random() < DAMAGED):
                ends[damage_trial(rng.choice(readers), rng)] += 1
                continue
            writer = writers[number % len(writers)]
            if writer.name not in known:
                known[writer.name] = Known(writer)
            ends[fault_trial(known[writer.name], rng)] += 1
        except (DiskError, AssertionError) as error:
            wrong.append(f"fault {number} of seed {seed}: {error}")
    return ends, wrong


def on_full_disk(writer: Writer, disk: Path) -> None:
    folder = disk / "data"
    folder.mkdir()
    writer.prepare(folder)
    room = os.statvfs(disk)
    (disk / "filler").write_bytes(b"x" * (room.f_bavail * room.f_frsize))
    with tempfile.TemporaryDirectory(prefix="check_disk_") as elsewhere:
        outcome = run_in_child(lambda: writer.act(folder), Fault(), Path(elsewhere, "log"))
    judge_outcome(writer, Fault("full file system"), outcome)
    writer.look(folder)
    (disk / "filler").unlink()
    shutil.rmtree(folder)


def full_disk() -> str:
    """Whether a real full disk can be made here, and what the writers do there."""
    with tempfile.TemporaryDirectory(prefix="check_disk_") as name:
        mounted = shutil.which("mount") is not None and os.geteuid() == 0
        mounted = mounted and os.system(f"mount -t tmpfs -o size=64k none {name} 2>/dev/null") == 0
        if not mounted:
            return "a full file system was skipped: none can be mounted here"
        try:
            for writer in WRITERS:
                on_full_disk(writer, Path(name))
        finally:
            os.system(f"umount {name}")
    return f"a full file system: {len(WRITERS)} writers"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="writers and readers whose name holds this")
    options = parser.parse_args()
    began = time.monotonic()
    last = options.first + options.count
    size = max(1, min(50, -(-options.count // options.jobs)))
    parts = [(at, min(size, last - at), options.seed, options.only)
             for at in range(options.first, last, size)]  # fmt: skip
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for more, failed in pool.map(run_part, parts):
            ends += more
            wrong += failed
            for line in failed:
                print(line, flush=True)
    try:
        print(full_disk())
    except (DiskError, AssertionError) as error:
        wrong.append(str(error))
        print(f"on a full file system: {error}")
    how = Counter(key.split(": ")[1] for key in ends.elements())
    print("; ".join(f"{name} {count}" for name, count in sorted(ends.items())))
    print(
        f"{sum(ends.values()) + len(wrong)} faults of the disk: {how['raised']} raised a sentence, "
        f"{how['killed']} were kills, {how['done']} were done without or came after the end, "
        f"{len(wrong)} wrong, {time.monotonic() - began:.0f} s"
    )
    return 1 if wrong or not ends else 0


if __name__ == "__main__":
    sys.exit(main())
