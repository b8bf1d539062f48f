"""A child process: the probe's, or one that serves something else. Started by file path with a
plain interpreter, without a package.

    host -> keeper (Linux; session and group leader) -> worker (imports torch, runs the tier)

An argument, "module:function", is what serves: it is called with the header, the rest of what comes
in, and what reports. Without one it is the probe's.

Lines in (fd 0): one header, then one case each; "quit" or end of file ends it. Lines out: the
run's nonce, a blank, JSON. The out pipe is what was fd 1: it is moved to a descriptor that
nothing else knows, and fd 1 becomes stderr, so that nothing a library prints can be mistaken for
an answer; what gets there all the same lacks the nonce. What the keeper is for: docs/probe.md.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import torch

    from hy3d_rocm.conv.call import ConvCall, ConvSpec

# Only for tests: the path of a Python file whose Bench stands for the one below. The child then
# never imports torch.
TIER_MODULE = "HY3D_ROCM_PROBE_TIER_MODULE"

# What the first convolution of a process may take more: the vendor library reads its kernels and
# data bases (cuDNN's alone are half a gigabyte). That is no find.
_LOADING_S = 2.0
_MAX_CALLS = 5
_REPEAT_S = 1.0

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# How long killed processes may take to vanish before the host hears that it need not wait for them.
_STUCK_S = 0.3

Report = Callable[[dict[str, Any]], None]


def main() -> NoReturn:
    # The pipes on 0 and 1 go out of the reach of what runs here; not inherited by exec.
    control, out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    _no_core_dumps()
    lines = os.fdopen(control, "rb")
    first = lines.readline()
    if not first:
        os._exit(0)
    header = json.loads(first)
    report: Report = functools.partial(_report, out, header["nonce"])
    if header["keeper"]:
        _split(control, report)
    version = list(sys.version_info[:2])
    if version != header["version"]:
        raise SystemExit(
            f"this is Python {version}, the host is {header['version']}: its packages can't be used"
        )
    sys.path[:] = header["path"]
    if sys.argv[1:]:
        _named(sys.argv[1])(header, lines, report)
    elif "call" in header:
        report({"event": "answer", "value": _named(header["call"])()})
    else:
        stand_in = os.environ.get(TIER_MODULE)
        made = _loaded("hy3d_probe_bench", stand_in).Bench if stand_in else Bench
        bench = made(header["devices"], header["flags"])
        report({"event": "ready", "loading_s": bench.loading_s})
        _serve(lines, report, bench)
    # Without the interpreter's and the GPU runtime's teardown, which may hang too.
    sys.stderr.flush()
    os._exit(0)


def _named(text: str) -> Any:
    module, _, function = text.partition(":")
    return getattr(importlib.import_module(module), function)


def _report(out: int, nonce: str, message: dict[str, Any]) -> None:
    """Safe for keeper and worker at once: a line is one write of less than PIPE_BUF bytes, which
    the kernel does not mix. A line end before it: garbage without one must not swallow it."""
    data = f"\n{nonce} {json.dumps(message)}\n".encode("ascii")
    while data:
        data = data[os.write(out, data) :]


def _no_core_dumps() -> None:
    """The core of a process with GPU mappings is gigabytes, in the host's folder."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# The worker.


def load_package() -> None:
    """Loads the very package this file lies in, without looking at sys.path: a second, older
    hy3d_rocm that stands earlier on the path must not answer for this one, and the folder above
    must not become importable."""
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    entry = os.path.join(folder, "__init__.py")
    sys.modules["hy3d_rocm"] = _loaded("hy3d_rocm", entry, [folder])


def _loaded(name: str, path: str, folders: list[str] | None = None) -> Any:
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} can't be loaded")
    module = importlib.util.module_from_spec(spec)
    if folders is not None:
        sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _serve(lines: Any, report: Report, bench: Any) -> None:
    while line := lines.readline():
        request = json.loads(line)
        if "quit" in request:
            return
        report({"event": "begin", "case": request["case"]})
        result, is_sound = _one(report, bench, request)
        report({"event": "done", "case": request["case"], "last": not is_sound, **result})
        if not is_sound:
            return


def _one(report: Report, bench: Any, request: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The fields of one result, and whether this process can go on."""
    run = peak = None
    try:
        run, peak = bench.prepare(request["tier"], request["spec"], request["check"])
        return {**_timed(report, run, request["case"]), "peak_bytes": peak()}, True
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent has to hear of it
        return _failed(error, was_tried=run is not None)
    finally:
        del run, peak
        bench.release()


def _failed(error: Exception, was_tried: bool) -> tuple[dict[str, Any], bool]:
    # Not at the top: most children never need the table of errors, and start sooner without.
    from hy3d_rocm.conv.probe.parent import NOT_RUN, OOM, exception_verdict

    verdict, detail, is_sound = exception_verdict(error)
    if not was_tried:
        verdict = OOM if verdict == OOM else NOT_RUN
        detail = f"could not be tried: {detail}"
    return {"verdict": verdict, "detail": detail}, is_sound


def _timed(report: Report, run: Callable[[], None], case: int) -> dict[str, Any]:
    """One first call, then at least one and at most _MAX_CALLS more within _REPEAT_S."""
    first = _seconds(run)
    report({"event": "first", "case": case, "seconds": first})
    times = [_seconds(run)]
    while len(times) < _MAX_CALLS and sum(times) + times[-1] < _REPEAT_S:
        times.append(_seconds(run))
    return {"first_seconds": first, "seconds": sorted(times)[len(times) // 2]}


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


class WrongResultError(Exception):
    """A tier's result is not what its inputs give (selfcheck.py)."""


class RefusedError(Exception):
    """The tier can't take the shape, and says so itself: nothing was tried."""


class Bench:
    """Runs tiers of hy3d_rocm on the devices it was made for, with tensors of its own.

    Making it brings each device up (context, one elementwise kernel), so that this is neither
    counted as a find nor taken for a fault of the first shape. No convolution is run for that:
    the first one of a process may be what hangs.
    """

    def __init__(self, devices: list[str], flags: dict[str, bool]) -> None:
        import torch

        from hy3d_rocm.conv import selfcheck, tiers  # now, and not in the time of a case

        self._torch, self._selfcheck, self._tiers = torch, selfcheck, tiers
        self.loading_s = _LOADING_S if any(name != "cpu" for name in devices) else 0.0
        for name, value in flags.items():
            with contextlib.suppress(AttributeError, RuntimeError):
                getattr(torch._C, f"_set_{name}")(value)
        for name in devices:
            device = torch.device(name)
            torch.zeros(1, device=device).add_(1)
            self._synchronise(device)

    def prepare(
        self, tier: str, spec: Any, check: bool
    ) -> tuple[Callable[[], None], Callable[[], int | None]]:
        """(one synchronised call, peak bytes of the calls so far). check: see Case."""
        from hy3d_rocm.conv.call import ConvSpec

        torch, conv = self._torch, ConvSpec.from_json(spec)
        call = make_call(conv)
        chosen = self._tiers.make_tier(tier)
        refused = chosen.refusal(call, self._tiers.Limits())
        if refused is not None:
            raise RefusedError(refused)
        device, is_unchecked = conv.device, check
        self._synchronise(device)
        before = 0
        if device.type == "cuda":
            torch.cuda.set_device(device)  # Triton launches on the current one
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)

        def run() -> None:
            nonlocal is_unchecked
            with torch.inference_mode():
                result = chosen.run(call)
            self._synchronise(device)
            if is_unchecked:
                is_unchecked = False
                finding = self._selfcheck.check(tier, call, result)
                if finding.fault:
                    raise WrongResultError(finding.detail)

        def peak() -> int | None:
            if device.type != "cuda":
                return None
            most = int(torch.cuda.max_memory_allocated(device))
            return int(max(most - before - conv.out_bytes, 0))

        return run, peak

    def _synchronise(self, device: torch.device) -> None:
        if device.type == "cuda":
            self._torch.cuda.synchronize(device)

    def release(self) -> None:
        """The next shape finds the memory that this one found."""
        gc.collect()
        if self._torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._torch.cuda.empty_cache()


def make_call(spec: ConvSpec) -> ConvCall:
    """A call of this spec on numbers in [-1, 1)."""
    import torch

    from hy3d_rocm.conv.call import ConvCall
    from hy3d_rocm.conv.tiers.current import run_current

    def numbers(size: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(size, dtype=spec.dtype, device=spec.device).uniform_(-1, 1)

    x = numbers(spec.x_size if spec.batched else spec.x_size[1:])
    weight = numbers(spec.weight_size)
    bias = numbers(spec.weight_size[:1]) if spec.has_bias else None
    if spec.channels_last and spec.batched:
        x = x.contiguous(memory_format=spec.memory_format)
    return ConvCall(spec, x, weight, bias, lambda: run_current(spec, x, weight, bias))


# The keeper.


def _split(control: int, report: Report) -> None:
    """Forks. Returns in the worker only; `control` is the read end of the host's pipe.

    Called before any thread exists and before torch is imported.
    """
    host = os.getppid()
    # A host that ignores it hands that on through exec, and then nothing could be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.getpid()
    worker = os.fork()
    if worker == 0:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:  # it died before the line above
            os._exit(1)
        return
    try:
        _keep(worker, control, host, report)
    finally:
        os._exit(0)


def _prctl(option: int, value: int) -> None:
    # Without it the kill by group remains.
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _keep(worker: int, control: int, host: int, report: Report) -> None:
    poller = select.poll()
    poller.register(control, 0)  # POLLHUP always comes: what is written there is the worker's
    try:  # wakes the poller at once when the worker ends, where the kernel can (5.3 and newer)
        poller.register(os.pidfd_open(worker), select.POLLIN)
        patience_ms = 200
    except (AttributeError, OSError):
        patience_ms = 20
    code: int | None = None
    while code is None:
        hung_up = any(fd == control for fd, _ in poller.poll(patience_ms))
        code, any_left = _reap(worker)
        if hung_up or not any_left or os.getppid() != host:
            break
    code = _end_all(worker, code, report)
    with contextlib.suppress(OSError):  # nobody listens any more
        report({"event": "exit", "code": code})


def _reap(worker: int) -> tuple[int | None, bool]:
    """Reaps whatever has ended: (the worker's return code if it was among it, any left)."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, False
        if pid == 0:
            return code, True
        if pid == worker:
            code = os.waitstatus_to_exitcode(status)


def _end_all(worker: int, code: int | None, report: Report) -> int | None:
    """Kills and reaps until nothing is left; the worker's return code."""
    start, reported, nap = time.monotonic(), False, 0.002
    while True:
        for pid in _children():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        seen, any_left = _reap(worker)
        code = seen if code is None else code
        if not any_left:
            return code
        if not reported and time.monotonic() - start > _STUCK_S:
            with contextlib.suppress(OSError):  # nobody listens any more
                report({"event": "stuck"})
            reported = True
        time.sleep(nap)
        nap = min(2 * nap, 0.1)


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) == me
        ]


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="latin-1") as file:
            # The name in brackets may hold spaces and brackets.
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return -1


if __name__ == "__main__":
    load_package()
    main()
