"""The probe with real child processes and a fake tier (probe_tier.py); no GPU is needed."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT, SUPPORT
from probe_doubles import TIER, FakeSpec, bounded, case, cases, environment, fake_probe, marked
from probe_scenarios import MARK, SCENARIOS, Scenario, play, settle

from hy3d_rocm.conv.probe import process
from hy3d_rocm.conv.probe.child import TIER_MODULE
from hy3d_rocm.conv.probe.parent import Case, Progress, probe
from hy3d_rocm.conv.probe.process import left_behind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(autouse=True)
def mark() -> Iterator[str]:
    """Set in the environment of every child of a test, so that all of them can be found."""
    value = f"{os.getpid()}-{time.monotonic_ns()}"
    with environment(**{MARK: value}):
        yield f"{MARK}={value}"


# tests/long/check_probe.py has these too; here they would only take time.
IN_THE_LONG_CHECK_ONLY = {
    "exit with 0", "garbage at start", "grandchildren, abort", "hang in the second call",
    "hang, total", "busy, total", "deaf, total", "flood, total", "stopped, total",
    "grandchildren, total", "host out of memory", "no engine", "slow always", "stopped", "zombies",
}  # fmt: skip
SHORT = [scenario for scenario in SCENARIOS if scenario.name not in IN_THE_LONG_CHECK_ONLY]


@pytest.mark.parametrize("scenario", SHORT, ids=lambda scenario: scenario.name)
def test_the_verdict_is_right_and_nothing_is_left(scenario: Scenario) -> None:
    play(scenario)


WITHOUT_KEEPER = ("healthy", "hang", "garbage", "HSA abort", "killed")


@pytest.mark.parametrize("name", WITHOUT_KEEPER)
def test_without_a_keeper_it_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # How it runs on Windows, the Job aside.
    monkeypatch.setattr(process, "HAS_KEEPER", False)
    play(next(scenario for scenario in SCENARIOS if scenario.name == name))


def test_the_processes_of_a_child_can_be_found(mark: str) -> None:
    # Otherwise "none is left" would say nothing.
    seen: list[int] = []
    fake_probe(
        [case("grandchildren", then="hang")], case_limit_s=1.5,
        progress=lambda _: seen.append(len(marked(mark))),
    )  # fmt: skip
    assert max(seen) >= 5  # keeper, worker, two forks, sleep
    assert not marked(mark)


def test_one_child_serves_the_list_and_a_new_one_goes_on_after_a_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[object] = []
    real = process.start
    monkeypatch.setattr(process, "start", lambda *given: started.append(0) or real(*given))
    fake_probe(cases(*["ok"] * 20))
    assert len(started) == 1
    fake_probe(cases("ok", "hang", "ok", "ok"), case_limit_s=0.3)
    assert len(started) == 3


def test_cases_without_time_are_not_run_and_say_so() -> None:
    # No child is started with less than slow_s left, and on a busy machine one takes a second.
    with bounded(3.0):
        found = fake_probe(cases(*["hang"] * 20), 3.0, slow_s=1.4)
    assert found[0].verdict == "hang"
    assert found[-1].verdict == "not-run"
    assert "time was up" in found[-1].detail
    assert len(found) == 20


def test_a_hang_names_the_limit_that_it_had() -> None:
    (found,) = fake_probe(cases("hang"), case_limit_s=0.4)
    assert found.limit_s == 0.4
    assert found.is_verdict


def test_first_and_later_calls_are_told_apart() -> None:
    slow, steady = fake_probe([case("slow_find", seconds=0.4), case("sleep", seconds=0.05)], 20.0)
    assert slow.first_seconds is not None
    assert slow.seconds is not None
    assert steady.seconds is not None
    assert slow.first_seconds >= 0.4 > slow.seconds
    assert steady.seconds >= 0.05


def test_what_a_process_loads_once_is_not_taken_for_a_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = tmp_path / "tier.py"
    tier.write_text(
        "import time\nfrom probe_bench import bench\nseen = set()\n"
        "def run(tier, spec):\n"
        "    time.sleep(0.0 if spec['id'] in seen else 0.4)\n"
        "    seen.add(spec['id'])\n"
        "Bench = bench(run, loading_s=0.5)\n"
    )
    monkeypatch.setenv(TIER_MODULE, str(tier))
    found = probe(cases("ok", "ok"), limit_s=20.0, slow_s=0.2)
    assert [outcome.verdict for outcome in found] == ["ok", "slow-find"]


def seconds_until_cancelled(mark: str) -> float:
    class Cancelled(BaseException):
        pass

    asked = 0.0

    def cancel() -> None:
        nonlocal asked
        if marked(mark) and not asked:
            asked = time.monotonic()
        if asked and time.monotonic() > asked + 0.3:
            asked = time.monotonic()
            raise Cancelled

    with pytest.raises(Cancelled):
        fake_probe(cases("deaf"), 20.0, cancel=cancel)
    took = time.monotonic() - asked
    settle(mark)
    return took


def test_cancel_is_honoured_within_a_fifth_of_a_second(mark: str) -> None:
    took = [seconds_until_cancelled(mark)]
    while min(took) >= 0.2 and len(took) < 3:  # others may compute here, too
        took.append(seconds_until_cancelled(mark))
    assert min(took) < 0.2, took


def test_cancel_is_asked_and_progress_told_all_the_time() -> None:
    asked: list[float] = []
    told: list[Progress] = []
    fake_probe(
        cases("ok", "hang"), 20.0, case_limit_s=1.5,
        cancel=lambda: asked.append(time.monotonic()), progress=told.append,
    )  # fmt: skip
    gaps = [b - a for a, b in itertools.pairwise(asked)]
    assert max(gaps) < 0.2
    assert [p.outcome.verdict for p in told if p.outcome is not None] == ["ok", "hang"]
    assert [p.done for p in told if p.outcome is not None] == [1, 2]
    assert sum(p.outcome is None and p.done == 1 for p in told) >= 3  # begun, and two heartbeats


def test_what_progress_raises_passes_through_and_ends_the_child(mark: str) -> None:
    def progress(state: Progress) -> None:
        if state.outcome is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fake_probe(cases("ok", "hang"), 20.0, progress=progress)
    settle(mark)


def test_nothing_is_leaked_in_the_host() -> None:
    fake_probe(cases("ok"))
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for name in ("ok", "abort", "garbage", "killed", "exit"):
        fake_probe(cases(name))
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_two_threads_may_probe_at_once(mark: str) -> None:
    names = ("ok", "abort", "ok", "exit")
    results: dict[int, list[str]] = {}

    def work(index: int) -> None:
        found = probe(cases(*names), limit_s=20.0, slow_s=0.2)
        results[index] = [outcome.verdict for outcome in found]

    with environment(**{TIER_MODULE: str(TIER)}):
        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert results == {index: ["ok", "error", "ok", "error"] for index in range(2)}
    settle(mark)


HOST = """
import os, sys
sys.path[:0] = [{root!r}, {tests!r}]
with open({log!r}, "a") as file:
    file.write("main\\n")
from probe_doubles import case, fake_probe
{setup}
found = fake_probe([case({do!r}, then="hang")], {limit})
assert "torch" not in sys.modules
print([outcome.verdict for outcome in found])
"""


def _host(folder: Path, do: str, limit_s: float, setup: str = "") -> list[str]:
    script = folder / "host.py"
    tests = str(SUPPORT)
    script.write_text(
        HOST.format(
            root=str(ROOT), tests=tests, log=str(folder / "log"), do=do, limit=limit_s, setup=setup
        )
    )
    return [sys.executable, str(script)]


def test_the_hosts_main_runs_once_and_neither_side_imports_torch(tmp_path: Path) -> None:
    # No guard by __name__ in that script: multiprocessing would run it a second time.
    command = _host(tmp_path, "ok", 20.0)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "['ok']", done.stderr
    assert (tmp_path / "log").read_text() == "main\n"


def test_the_end_of_a_child_is_seen_though_the_host_ignores_sigchld(tmp_path: Path) -> None:
    setup = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    command = _host(tmp_path, "abort", 20.0, setup)
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "['error']", done.stderr
    assert time.monotonic() - start < 20.0


def test_nothing_outlives_a_host_that_is_killed(tmp_path: Path, mark: str) -> None:
    with subprocess.Popen(_host(tmp_path, "grandchildren", 60.0)) as host:
        until = time.monotonic() + 30
        while len(marked(mark)) < 6 and time.monotonic() < until:  # the host itself is marked too
            time.sleep(0.02)
        assert len(marked(mark)) >= 6
        host.send_signal(signal.SIGKILL)
        host.wait(10)
    settle(mark, seconds=2.0)


def test_a_child_that_cannot_be_reaped_is_left_and_polled_without_blocking(
    monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    # Stands for a process in state D: it was killed and still is not gone.
    real = process.Child.has_ended
    monkeypatch.setattr(process.Child, "has_ended", lambda self: False)
    with bounded(1.0):
        found = fake_probe(cases("hang", "ok"), 1.0, case_limit_s=0.3)
    # The second is not tried: it would be one more process in the driver.
    assert [outcome.verdict for outcome in found] == ["hang", "not-run"]
    assert "can't be ended" in found[1].detail
    start = time.monotonic()
    assert left_behind() == 1
    assert fake_probe(cases("ok"))[0].verdict == "not-run"
    assert time.monotonic() - start < 5.0  # it would be for ever
    monkeypatch.setattr(process.Child, "has_ended", real)
    assert left_behind() == 0
    assert fake_probe(cases("ok"))[0].verdict == "ok"
    settle(mark)


def test_the_child_has_the_hosts_environment_and_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_the_host_knows.py").write_text("VALUE = 42\n")
    tier = tmp_path / "tier.py"
    tier.write_text(
        "import os, sys\nfrom probe_bench import bench\n"
        "def run(tier, spec):\n"
        "    import only_the_host_knows, hy3d_rocm\n"
        "    assert os.environ['MIOPEN_FIND_MODE'] == '2'\n"
        f"    assert hy3d_rocm.__file__ == {str(ROOT / 'hy3d_rocm' / '__init__.py')!r}\n"
        "    assert sys.path == spec['path'], sys.path\n"
        "Bench = bench(run)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MIOPEN_FIND_MODE", "2")
    monkeypatch.setenv(TIER_MODULE, str(tier))
    wanted = Case("fake", FakeSpec({"path": process.search_path(sys.path)}))
    (found,) = probe([wanted], limit_s=20.0)
    assert found.verdict == "ok", found.detail


def test_a_child_starts_no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(process.INSIDE, "1")
    (found,) = fake_probe(cases("ok"))
    assert found.verdict == "not-run"
    assert "child process itself" in found.detail


def test_a_program_that_cannot_be_started_is_no_verdict(tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_bytes(b"\x7fELF nothing")
    broken.chmod(0o755)
    (found,) = fake_probe(cases("ok"), python=broken)
    assert found.verdict == "not-run"
    assert "no process could be started" in found.detail
    (found,) = fake_probe(cases("ok"), python=tmp_path / "none")
    assert "not a program that can be started" in found.detail


def test_a_program_that_is_no_python_is_no_verdict(tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho what am I >&2\nexit 5\n")
    other.chmod(0o755)
    with bounded(5.0):
        (found,) = fake_probe(cases("ok"), 5.0, python=other)
    assert found.verdict == "not-run"
    assert "what am I" in found.detail


def test_an_empty_list_starts_nothing() -> None:
    assert fake_probe([]) == []


STUCK_CHILD = """
import importlib.util, os, sys, time
spec = importlib.util.spec_from_file_location("child", {child!r})
child = importlib.util.module_from_spec(spec)
spec.loader.exec_module(child)
child.load_package()

class Os:
    first = None
    def __getattr__(self, name):
        return getattr(os, name)
    def kill(self, pid, number):
        self.first = self.first or time.monotonic()
        if time.monotonic() > self.first + 1.5:
            os.kill(pid, number)

child.os = Os()
child.main()
"""


def test_a_worker_that_does_not_die_is_left_to_its_keeper_who_reaps_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    # Stands for a worker that waits in the driver: for 1.5 s killing it has no effect.
    script = tmp_path / "child.py"
    script.write_text(STUCK_CHILD.format(child=str(process.CHILD)))
    monkeypatch.setattr(process, "CHILD", script)
    start = time.monotonic()
    found = fake_probe(cases("hang", "ok"), 20.0, case_limit_s=0.3)
    took = time.monotonic() - start
    assert [outcome.verdict for outcome in found] == ["hang", "not-run"]
    assert took < 5.0
    assert left_behind() == 1
    until = time.monotonic() + 10
    while left_behind() and time.monotonic() < until:
        time.sleep(0.05)
    settle(mark)
