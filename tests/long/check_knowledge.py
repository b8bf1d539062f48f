"""The verdict store under hosts that write at once, kills, full disks and long use; its cost.

    python tests/long/check_knowledge.py [--kills 200] [--records 1000] [--seed 0]

Exits with 1 at the first claim that does not hold. About two minutes; parts of it run in
`make test` (tests/unit/conv/verdict_store/test_faults.py).
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from verdict_store_doubles import be_patient, finish, key, record, start, tables  # noqa: E402

from hy3d_rocm.conv.verdict_store import database  # noqa: E402
from hy3d_rocm.conv.verdict_store import store as store_module  # noqa: E402
from hy3d_rocm.conv.verdict_store.records import make_key  # noqa: E402
from hy3d_rocm.conv.verdict_store.store import Store  # noqa: E402

_WRITES = """
import sys
from verdict_store_doubles import key, record
from hy3d_rocm.conv.verdict_store.store import Store
path, host, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = Store.open(path)
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    store.put(key(number), record(f"tier{host}"))
    store.put(key(0), record("both", seconds=float(number)))
assert store.flush(60), store.trouble
store.close()
"""

# "put 3": record 3 is committed; "in 3": inside the first call 3; "out 3": about to leave it.
_RUNS_UNTIL_KILLED = """
import itertools, sys, time
from verdict_store_doubles import key, record
from hy3d_rocm.conv.verdict_store.store import Store
path, host = sys.argv[1:]
def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()
store = Store.open(path, patience_s=30)
for number in itertools.count():
    one = key(number, driver=host)
    store.put(one, record())
    if number % 3 == 0:
        assert store.flush(30), store.trouble
        say("put", number)
    with store.in_flight(one, "vendor"):
        say("in", number)
        time.sleep(0.002)
        say("out", number)
"""


def check_hosts_at_once(path: Path, hosts: int, count: int) -> None:
    """Hosts that write at once, to the same keys: each finds its own rows, none is lost."""
    children = [start(_WRITES, path, host, count) for host in range(hosts)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n", child.communicate()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        finish(child, 120)
    assert len(tables(path)["records"]) == hosts * count + 1
    store = Store.open(path)
    wanted = {f"tier{host}" for host in range(hosts)}
    assert all(set(store.records(key(n))) - {"both"} == wanted for n in range(count))
    assert store.records(key(0))["both"].seconds == count - 1
    store.close()


def check_kills(path: Path, kills: int, seed: int, hosts: int = 2) -> tuple[int, int, int]:
    """Hosts killed (SIGKILL) at random moments. After each: the file is sound, each row that was
    said to be committed is there, and a first call that was running is known. Returns how many
    were killed, committed rows, and killed within a first call."""
    chance = random.Random(seed)
    committed: set[tuple[str, str]] = set()
    done = inside = 0
    while done < kills:
        names = [f"{done + n}" for n in range(min(hosts, kills - done))]
        outputs = _run_and_kill(path, names, chance)
        content = tables(path)
        rows = {(row[5], row[1]) for row in content["records"]}
        trying = {(row[6], row[2]) for row in content["trying"]}
        # The host that lived longer may have found what the other left.
        hung = {(row[5], row[1]) for row in content["records"] if row[10] == "hang"}
        begun: dict[str, str] = {}
        for name, lines in zip(names, outputs, strict=True):
            committed |= {(name, _shape(line)) for line in lines if line.startswith("put")}
            if lines and lines[-1].startswith("in "):
                begun[name] = _shape(lines[-1])
        assert committed <= rows, f"seed {seed}: lost {committed - rows}"
        assert set(begun.items()) <= trying | hung, f"seed {seed}: {begun} not in {trying}"
        store = Store.open(path, announce=False)
        rows_now = store.rows()
        store.close()
        found = {(k.driver, k.shape) for k, r in rows_now if r.verdict == "hang"}
        assert found == trying | hung, f"seed {seed}: suspects {found}, rows {trying}, {hung}"
        inside += len(begun)
        done += len(names)
    return done, len(committed), inside


def _run_and_kill(path: Path, names: list[str], chance: random.Random) -> list[list[str]]:
    """What each host said before it was killed; some die before they have opened the file."""
    children = [start(_RUNS_UNTIL_KILLED, path, name) for name in names]
    outputs = []
    try:
        for child in children:
            assert child.stdout is not None
            if chance.random() < 0.1:
                time.sleep(chance.uniform(0.0, 0.2))
            else:
                first = child.stdout.readline()
                time.sleep(chance.uniform(0.0, 0.08))
                child.kill()
                out, error = child.communicate(timeout=30)
                assert child.returncode == (1 if os.name == "nt" else -9), error
                outputs.append(_whole_lines(first + out))
                continue
            child.kill()
            outputs.append(_whole_lines(child.communicate(timeout=30)[0]))
    finally:
        for child in children:
            child.kill()
            child.wait()
    return outputs


def _whole_lines(text: str) -> list[str]:
    return text[: text.rfind("\n") + 1].splitlines()


def _shape(line: str) -> str:
    return key(int(line.split()[1])).shape


def check_full_disk(folder: Path, sizes: range) -> None:
    """A file that may not grow beyond some pages: sound, and what was flushed is in it."""
    for pages in sizes:
        path = folder / f"full{pages}.db"
        with mock.patch.object(database, "MOST_PAGES", pages):
            store = Store.open(path, announce=False)
        flushed = 0
        for number in range(600):
            store.put(key(number), record())
            if number % 10 == 0 and store.flush():
                flushed = number + 1
        assert store.records(key(599)) == {"triton": record()}
        assert store.trouble is not None
        store.close()
        if path.stat().st_size:
            assert len(tables(path)["records"]) >= flushed
        assert path.stat().st_size <= pages * 4096


def check_small_disk(megabytes: int = 1) -> str:
    """The same on a real file system that is too small; root only."""
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        return "left out: only root can mount a small disk"
    code = (
        "import sys; from verdict_store_doubles import *;"
        " from hy3d_rocm.conv.verdict_store.store import"
        " Store; s = Store.open(sys.argv[1], announce=False)\n"
        "for n in range(9000):\n    s.put(key(n), record(detail='x' * 400))\n"
        "    n % 100 or s.flush()\n"
        "assert s.records(key(8999))\nprint(s.trouble)\ns.close()\n"
        "assert len(tables(Path(sys.argv[1]))['records']) > 100"
    )
    with tempfile.TemporaryDirectory() as folder:
        mount = f'mount -t tmpfs -o size={megabytes}m tmpfs "$1" && exec "$2" -c "$3" "$1/k.db"'
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", mount, "sh", folder, sys.executable, code],
            env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    if "unshare" in done.stderr or "mount" in done.stderr.partition("Traceback")[0]:
        return f"left out: {done.stderr.strip()}"
    assert done.returncode == 0, done.stderr
    assert "the disk is full" in done.stdout, done.stdout
    return done.stdout.strip()


def check_growth(path: Path, count: int, most_rows: int) -> int:
    """Rows come for ever, the file stops growing: bytes of all its parts at the end."""
    sizes = []
    with mock.patch.object(store_module, "MOST_ROWS", most_rows):
        store = Store.open(path)
        for number in range(count):
            store.put(key(number), record(when=1e9 + number, detail="x" * 200))
            if number % 1000 == 999:
                assert store.flush(60)
                sizes.append(sum(f.stat().st_size for f in path.parent.glob(f"{path.name}*")))
        rows = len(store.rows())
        store.close()
    assert rows <= most_rows + 256
    # By then the rows are at their cap, and SQLite's log at its limit of 4 MiB.
    early = sizes[: len(sizes) * 2 // 3]
    assert max(sizes) <= max(early) * 1.05, sizes
    return max(sizes)


def microseconds(act: Callable[[int], object], calls: int, rounds: int = 7) -> float:
    """Median over rounds of the mean time of a call."""
    found = []
    for turn in range(rounds):
        begin = time.perf_counter()
        for number in range(turn * calls, (turn + 1) * calls):
            act(number)
        found.append((time.perf_counter() - begin) / calls * 1e6)
    return statistics.median(found)


def measure(path: Path) -> dict[str, float]:
    """Microseconds of what a decode does."""
    import torch

    from hy3d_rocm.conv.call import make_spec
    from hy3d_rocm.conv.verdict_store.records import this_machine

    store = Store.open(path)
    keys = [key(n) for n in range(2000)]
    for one in keys:
        for tier in ("vendor", "triton", "gemm", "native"):
            store.put(one, record(tier))
    assert store.flush(60)
    x, weight = torch.zeros(1, 4, 3, 6, 5), torch.zeros(8, 4, 3, 3, 3)
    spec = make_spec((x, weight, None, 1, 1, 1, 1), 3)
    assert spec is not None
    machine = this_machine("cpu")

    def tried(number: int) -> None:
        with store.in_flight(keys[number], "vendor"):
            pass

    found = {
        "records()": microseconds(lambda n: store.records(keys[n % 100]), 20000),
        "generation": microseconds(lambda n: store.generation, 20000),
        "make_key()": microseconds(lambda n: make_key(spec, machine), 5000),
        "put()": microseconds(lambda n: store.put(keys[n], record()), 250),
        "in_flight(), fsync included": microseconds(tried, 50),
    }
    store.close()
    return found


def open_time(path: Path) -> float:
    """Milliseconds to open a file (check included)."""
    begin = time.perf_counter()
    store = Store.open(path, patience_s=60)
    seconds = time.perf_counter() - begin
    store.close()
    return seconds * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    be_patient()
    logging.getLogger("hy3d_rocm").setLevel(logging.ERROR)  # a line for each of the suspects
    print(f"SQLite {sqlite3.sqlite_version}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory(prefix="hy3d-knowledge-") as name:
        folder = Path(name)
        begin = time.perf_counter()
        check_hosts_at_once(folder / "two.db", 2, options.records)
        seconds = time.perf_counter() - begin
        print(f"2 hosts x {options.records} records at once, none lost: {seconds:.1f} s")
        killed, committed, inside = check_kills(folder / "kill.db", options.kills, options.seed)
        print(
            f"{killed} kills (seed {options.seed}), {inside} of them in a first call: file sound"
            f" after each, {committed} committed rows, none lost"
        )
        check_full_disk(folder, range(1, 41))
        print("40 sizes of a full disk: sound, nothing flushed is lost")
        print(f"a disk of 1 MB: {check_small_disk()}")
        size = check_growth(folder / "long.db", 60_000, 20_000)
        print(f"60,000 rows where 20,000 may be: the file ends at {size / 2**20:.1f} MB")
        print(f"opening that file, checked: {open_time(folder / 'long.db'):.0f} ms")
        for what, value in measure(folder / "cost.db").items():
            print(f"{what:34} {value:8.2f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
