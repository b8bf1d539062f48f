"""The child's side of the probe: reads cases line by line, answers line by line.

Lines in (fd 0): one header, then one case each; "quit" or end of file ends it. Lines out: the
run's nonce, a blank, JSON. The out pipe is what was fd 1: it is moved to a descriptor that
nothing else knows, and fd 1 becomes stderr, so that nothing a library prints can be mistaken for
an answer; what gets there all the same lacks the nonce.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

# Only for tests: the path of a Python file whose run(tier, spec) stands for the tier and whose
# start(), if there is one, for the import of torch. The child then never imports torch.
TIER_MODULE = "HY3D_ROCM_PROBE_TIER_MODULE"

_MAX_CALLS = 5
_REPEAT_S = 1.0


class Lines:
    """Lines of a descriptor, without reading past what a forked twin needs."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._rest = b""

    def next(self) -> bytes | None:
        """The next line without its end; None at the end of the file."""
        while b"\n" not in self._rest:
            data = os.read(self.fd, 65536)
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line


class Answers:
    """Writes messages of this run. Safe for keeper and worker at once: a line is one write of
    less than PIPE_BUF bytes, which the kernel does not mix."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.nonce = ""

    def __call__(self, message: dict[str, Any]) -> None:
        line = f"{self.nonce} {json.dumps(message)}\n".encode("ascii")
        # A line end before it: garbage without one must not swallow the message.
        data = b"\n" + line
        while data:
            data = data[os.write(self._fd, data) :]


def _private_descriptors() -> tuple[int, int]:
    """Moves the pipes on 0 and 1 out of the reach of what runs here; not inherited by exec."""
    control, out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return control, out


def _no_core_dumps() -> None:
    """The core of a process with GPU mappings is gigabytes, in the host's folder."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        pass


def _watch_host() -> None:
    """Where there is no keeper: ends the group when the host is gone (POSIX)."""

    import threading

    host = os.getppid()

    def watch() -> None:
        while os.getppid() == host:
            time.sleep(0.5)
        os.killpg(0, 9)

    threading.Thread(target=watch, daemon=True).start()


def main() -> NoReturn:
    control, out = _private_descriptors()
    _no_core_dumps()
    lines, answer = Lines(control), Answers(out)
    first = lines.next()
    if first is None:
        os._exit(0)
    header = json.loads(first)
    answer.nonce = header["nonce"]
    if header["keeper"]:
        from hy3d_rocm.conv.probe import keeper

        keeper.split(control, answer)
    elif os.name == "posix":
        _watch_host()
    _prepare(header)
    if "call" in header:
        answer({"event": "answer", "value": _called(header["call"])})
        sys.stderr.flush()
        os._exit(0)
    bench = _bench(header)
    answer({"event": "ready", "loading_s": bench.loading_s})
    _serve(lines, answer, bench)
    # Without the interpreter's and the GPU runtime's teardown, which may hang too.
    sys.stderr.flush()
    os._exit(0)


def _prepare(header: dict[str, Any]) -> None:
    version = list(sys.version_info[:2])
    if version != header["version"]:
        raise SystemExit(
            f"this is Python {version}, the host is {header['version']}: its packages can't be used"
        )
    sys.path[:] = header["path"]


def _called(name: str) -> Any:
    """What "module:function" of this package returns: plain types that fit into one line."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)()


def _bench(header: dict[str, Any]) -> Any:
    path = os.environ.get(TIER_MODULE)
    if not path:
        from hy3d_rocm.conv.probe.measure import Bench

        return Bench(header["devices"], header["flags"])
    return FakeBench(path)


class FakeBench:
    """A test's module in place of torch and tiers."""

    def __init__(self, path: str) -> None:
        spec = importlib.util.spec_from_file_location("hy3d_probe_tier", path)
        assert spec is not None
        assert spec.loader is not None
        self._module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self._module)
        self.loading_s: float = getattr(self._module, "LOADING_S", 0.0)
        start = getattr(self._module, "start", None)
        if start is not None:
            start()

    def prepare(
        self, tier: str, spec: Any, check: bool = False
    ) -> tuple[Callable[[], None], Callable[[], int | None]]:
        run = self._module.run
        return (lambda: run(tier, spec)), (lambda: None)

    def release(self) -> None:
        """Nothing is held between cases."""


def _serve(lines: Lines, answer: Answers, bench: Any) -> None:
    while (line := lines.next()) is not None:
        request = json.loads(line)
        if "quit" in request:
            return
        answer({"event": "begin", "case": request["case"]})
        result, is_sound = _one(answer, bench, request)
        done = {"event": "done", "case": request["case"], "last": not is_sound}
        answer({**done, **result})
        if not is_sound:
            return


def _one(answer: Answers, bench: Any, request: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The fields of one result, and whether this process can go on."""
    run = peak = None
    try:
        check = {"check": True} if request.get("check") else {}
        run, peak = bench.prepare(request["tier"], request["spec"], **check)
        return {**_timed(answer, run, request["case"]), "peak_bytes": peak()}, True
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent has to hear of it
        return _failed(error, was_tried=run is not None)
    finally:
        del run, peak
        bench.release()


def _failed(error: Exception, was_tried: bool) -> tuple[dict[str, Any], bool]:
    # Not at the top: most children never need the table of errors, and start sooner without.
    from hy3d_rocm.conv.probe import judge
    from hy3d_rocm.conv.probe.cases import NOT_RUN, OOM

    verdict, detail, is_sound = judge.exception_verdict(error)
    if not was_tried:
        verdict = OOM if verdict == OOM else NOT_RUN
        detail = f"could not be tried: {detail}"
    return {"verdict": verdict, "detail": detail}, is_sound


def _timed(answer: Answers, run: Callable[[], None], case: int) -> dict[str, Any]:
    """One first call, then at least one and at most _MAX_CALLS more within _REPEAT_S."""
    first = _seconds(run)
    answer({"event": "first", "case": case, "seconds": first})
    times = [_seconds(run)]
    while len(times) < _MAX_CALLS and sum(times) + times[-1] < _REPEAT_S:
        times.append(_seconds(run))
    return {"first_seconds": first, "seconds": sorted(times)[len(times) // 2]}


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
