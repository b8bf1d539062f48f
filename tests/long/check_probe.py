"""A thousand probes with the child killed, hung, crashing, chatty, on a full disk, by two hosts.

    python tests/long/check_probe.py [--count 1000] [--hosts 2] [--seed 1] [--only NAME]

Each probe has a real child with a fake tier (tests/support/probe_tier.py). Checked after each one:
the verdicts; the host is back within limit + 1 s; no process of the child's is alive (they are
found by a variable in their environment) and none is a zombie of the host. At the end also
that nothing was handed on to the hosts' own parent, which is made to adopt orphans as PID 1 would,
but the dead of scenarios that kill the keeper or the host itself. Both hosts keep the verdicts in
one file (hy3d_rocm.conv.verdict_store), some of them on the full and the read-only disk:
afterwards the file is sound and has every verdict. --only with --seed replays one scenario.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import selectors
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from probe_doubles import case, environment, marked, processes  # noqa: E402
from probe_scenarios import MARK, SCENARIOS, Scenario, play, settle  # noqa: E402

from hy3d_rocm.conv.probe.parent import Outcome  # noqa: E402
from hy3d_rocm.conv.verdict_store.records import Key, Record  # noqa: E402
from hy3d_rocm.conv.verdict_store.store import Store  # noqa: E402

_PR_SET_CHILD_SUBREAPER = 36
FOLDERS = ("FULL", "READ_ONLY")
# Scenarios of these names are played with every folder on that disk.
PLACES = {"disk full": "FULL", "folder read-only": "READ_ONLY"}
HOST_KILLED = "host killed"
_VICTIM = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
from probe_doubles import case, fake_probe
fake_probe([case("ok"), case("grandchildren", then="hang")], 60.0)
"""


def disk_scenarios() -> list[Scenario]:
    """Those that need the folders of `folders()`."""
    found = []
    full, read_only = (os.environ.get(f"HY3D_PROBE_{name}") for name in FOLDERS)
    if full:
        build = lambda: [case("disk_full", folder=full), case("ok")]  # noqa: E731
        needle = "No space left"
        found.append(Scenario("disk full, tier", build, ("not-run", "ok"), needle))
        for name in ("healthy", "HSA abort", "hang"):
            found.append(replace(_scenario(name), name=f"disk full, {name}"))
    if read_only:
        build = lambda: [case("read_only", folder=read_only), case("ok")]  # noqa: E731
        needle = "Read-only file system"
        found.append(Scenario("folder read-only, tier", build, ("not-run", "ok"), needle))
        for name in ("healthy", "HSA abort"):
            found.append(replace(_scenario(name), name=f"folder read-only, {name}"))
    return found


def _scenario(name: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.name == name)


@contextmanager
def placed(name: str) -> Iterator[None]:
    """Current, home and temporary folder on the full or read-only disk, for scenarios about it."""
    place, comma, _ = name.partition(",")
    folder = os.environ[f"HY3D_PROBE_{PLACES[place]}"] if comma and place in PLACES else ""
    if not folder:
        yield
        return
    before = os.getcwd()
    os.chdir(folder)
    try:
        with environment(TMPDIR=folder, HOME=folder, XDG_CACHE_HOME=folder):
            yield
    finally:
        os.chdir(before)


@contextmanager
def folders(base: str) -> Iterator[list[str]]:
    """A full and a read-only file system of 64 KiB under `base`; what could not be made."""
    mounted, missing = [], []
    for name in FOLDERS:
        folder = Path(base, name.lower())
        folder.mkdir()
        made = _run("mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder))
        if not made:
            missing.append(name.lower().replace("_", "-"))
            continue
        mounted.append(folder)
        (folder / "filler").write_bytes(b"x" * 65536)
        if name == "READ_ONLY":
            _run("mount", "-o", "remount,ro", str(folder))
        os.environ[f"HY3D_PROBE_{name}"] = str(folder)
    try:
        yield missing
    finally:
        for folder in mounted:
            _run("umount", str(folder))


def _run(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def kill_a_host(rng: random.Random, mark: str) -> None:
    """Its children are gone soon after, at whatever moment it is killed."""
    script = _VICTIM.format(root=str(ROOT), tests=str(ROOT / "tests" / "support"))
    with subprocess.Popen([sys.executable, "-c", script]) as victim:
        time.sleep(rng.uniform(0.0, 0.8))
        victim.send_signal(signal.SIGKILL)
        victim.wait(10)
    settle(mark, seconds=3.0)


def host(index: int, count: int, seed: int, only: str) -> None:
    """Plays `count` scenarios, a line of JSON for each."""
    rng = random.Random(seed * 1000 + index)
    known = {scenario.name: scenario for scenario in (*SCENARIOS, *disk_scenarios())}
    names = [only] if only else [*known, HOST_KILLED]
    order = [names[i % len(names)] for i in range(count)]
    rng.shuffle(order)
    kept = Kept(os.environ["HY3D_PROBE_DB"])
    for number, name in enumerate(order):
        value = f"check-{os.getpid()}-{number}"
        os.environ[MARK] = value
        start, error, count = time.monotonic(), "", 0
        try:
            with placed(name):
                if name == HOST_KILLED:
                    kill_a_host(rng, f"{MARK}={value}")
                else:
                    outcomes = play(known[name])
                    count = kept.put(name, outcomes)
                    if "," in name and name.partition(",")[0] in PLACES:
                        put_where_it_cannot_be_kept(name, outcomes)
        except AssertionError as wrong:
            error = str(wrong)
        took = time.monotonic() - start
        result = {"name": name, "took": took, "error": error, "kept": count}
        print(json.dumps(result), flush=True)
    kept.close()


class Kept:
    """The verdicts in the hosts' common file."""

    def __init__(self, path: str) -> None:
        self.store, self._count = Store.open(path, announce=False), 0

    def put(self, name: str, outcomes: Sequence[Outcome]) -> int:
        """How many were given to the file."""
        good = [outcome for outcome in outcomes if outcome.is_verdict]
        for outcome in good:
            self._count += 1
            shape = f"{os.getpid()}/{self._count}/{name}"
            key = Key("conv3d", shape, "f32", "contiguous", "fake", "1", "2", "3", "4")
            record = Record(
                outcome.case.tier, outcome.verdict, seconds=outcome.seconds,
                first_seconds=outcome.first_seconds, detail=outcome.detail, measured_by="probe",
            )  # fmt: skip
            self.store.put(key, record)
        return len(good)

    def close(self) -> None:
        self.store.close(10.0)


def put_where_it_cannot_be_kept(name: str, outcomes: Sequence[Outcome]) -> None:
    """A store on the full or the read-only disk: it says so, and nothing fails."""
    kept = Kept(os.path.join(os.getcwd(), "knowledge.db"))
    kept.put(name, outcomes)
    kept.close()
    assert kept.store.trouble, f"{name}: the store says nothing about its disk"


def check_file(path: str, wanted: int) -> tuple[str, bool]:
    """(what to print, whether the file is sound and complete)."""
    if not wanted or not os.path.exists(path):
        return "no verdicts were kept", wanted == 0
    with closing(sqlite3.connect(path)) as connection:
        answer = connection.execute("PRAGMA integrity_check").fetchone()[0]
    store = Store.open(path)
    rows = sum(row.key.architecture == "fake" for row in store.rows())
    store.close()
    return f"verdict store: integrity check {answer}, {rows} of {wanted} verdicts in it", (
        answer == "ok" and rows == wanted
    )


def start_hosts(options: argparse.Namespace) -> list[subprocess.Popen[str]]:
    found = []
    for index in range(options.hosts):
        count = options.count // options.hosts + (index < options.count % options.hosts)
        command = [sys.executable, str(Path(__file__).resolve()), "--host", str(index)]
        command += ["--count", str(count), "--seed", str(options.seed), "--only", options.only]
        found.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    return found


def collect(hosts: Sequence[subprocess.Popen[str]], quiet: bool) -> list[dict[str, Any]]:
    """All results. A host writes whole lines, flushed, so a line is there when anything is."""
    results: list[dict[str, Any]] = []
    streams = {process.stdout.fileno(): process.stdout for process in hosts if process.stdout}
    selector = selectors.DefaultSelector()
    for stream in streams.values():
        selector.register(stream, selectors.EVENT_READ)
    while selector.get_map():
        for key, _ in selector.select():
            line = streams[key.fd].readline()
            if not line:
                selector.unregister(key.fileobj)
                continue
            results.append(json.loads(line))
            if results[-1]["error"]:
                print(f"WRONG {results[-1]}", flush=True)
            elif not quiet and len(results) % 100 == 0:
                print(f"{len(results)} probes", flush=True)
    return results


def adopt_orphans() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(hosts: Sequence[subprocess.Popen[str]]) -> tuple[int, int]:
    """(dead, alive) processes that ended up as this one's children and are not its hosts."""
    own = {process.pid for process in hosts}
    mine = [p for p in processes() if p.parent == os.getpid() and p.pid not in own]
    dead = [p for p in mine if p.state == "Z"]
    for process in dead:
        os.waitpid(process.pid, 0)
    return len(dead), len(mine) - len(dead)


def report(results: list[dict[str, Any]]) -> None:
    print(f"{'scenario':34} {'runs':>5} {'wrong':>5} {'median s':>9} {'longest s':>9}")
    for name in dict.fromkeys(sorted(result["name"] for result in results)):
        rows = [result for result in results if result["name"] == name]
        times = sorted(row["took"] for row in rows)
        wrong = sum(bool(row["error"]) for row in rows)
        median = times[len(times) // 2]
        print(f"{name:34} {len(rows):5} {wrong:5} {median:9.2f} {times[-1]:9.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--host", type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host is not None:
        host(options.host, options.count, options.seed, options.only)
        return 0
    adopt_orphans()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as base, folders(base) as missing:
        os.environ["HY3D_PROBE_DB"] = path = os.path.join(base, "knowledge.db")
        hosts = start_hosts(options)
        results = collect(hosts, quiet=options.count < 200)
        ended = [process.wait(60) for process in hosts]
        left = marked(f"{MARK}=check-")
        dead, alive = reap_orphans(hosts)
        said, is_sound = check_file(path, sum(result["kept"] for result in results))
    report(results)
    for name in missing:
        print(f"no {name} disk could be mounted here (needs root): that part was not tried")
    wrong = sum(bool(result["error"]) for result in results)
    seconds = time.monotonic() - start
    print(
        f"{len(results)} probes by {options.hosts} hosts at once in {seconds:.0f} s"
        f" (seed {options.seed}): {wrong} wrong, {len(left) + alive} processes left, {dead} dead"
        f" orphans of killed keepers and hosts, hosts ended with {ended}"
    )
    print(said)
    is_complete = is_sound and len(results) == options.count and not any(ended)
    return int(bool(wrong or left or alive or not is_complete))


if __name__ == "__main__":
    sys.exit(main())
