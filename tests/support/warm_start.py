"""Processes that begin with torch and the VAEs of diffusers imported.

Importing torch takes 1.7 s of a core, with a VAE of diffusers 7 s; the tests start some hundred
processes that need them. One process imports them, once a run of pytest, for all its processes; it
ends with the last of these. From it others are forked, each of which imports what some tests need
beside that, and from these the tests' own, and pytest-xdist's (conftest.py). What was imported is
no garbage: to look through it takes each decode 0.2 s. This file is the first of them, too:
`python warm_start.py DESCRIPTOR`.

    made = warm_start.run("-c", "import torch; print(torch.ones(3).sum())")

stands for subprocess.run([sys.executable, "-c", ...], capture_output=True, text=True), where what
is tested is neither what is imported nor what reads the environment before that: such tests start
an interpreter. Without abstract sockets run() starts one, too.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

IS_THERE = sys.platform == "linux" and hasattr(os, "fork")
#: A variable of all processes of one run of pytest (conftest.py sets it): the first one's number
RUN = "WARM_START_OF"
#: imported once for all; beyond that each Server names what else
MODULES = ("torch.distributed", "diffusers.models.autoencoders")


class Server:
    """Of processes that have these modules imported, too. start takes the place of
    conv.probe.process.start."""

    #: of processor time, which forked processes took that are known to have ended
    seconds = 0.0

    def __init__(self, *modules: str) -> None:
        told = {"modules": modules, "path": list(filter(None, sys.path))}
        for _ in range(3):
            self._socket = _connected()
            self._heard = self._socket.makefile("rb", buffering=0)  # for select
            with suppress(ConnectionError):
                self._socket.sendall(json.dumps(told).encode() + b"\n")
                if self._heard.readline():
                    break
            self.close()  # the first process was just ending
        else:
            raise RuntimeError(f"no process begins with {', '.join((*MODULES, *modules))}")
        self._codes: dict[int, int] = {}
        self._reads = threading.Lock()

    def start(self, _python: str, serve: str, stderr: int, variables: Mapping[str, str]) -> Started:
        from hy3d_rocm.conv.probe import process

        environ = {**os.environ, process.INSIDE: "1", **variables}
        return self.run(process.CHILD, serve, stderr=stderr, environ=environ)

    def run(
        self, script: Path | str, *arguments: str, stderr: int, environ: Mapping[str, str],
        cwd: Path | str = "",
    ) -> Started:  # fmt: skip
        """A process that runs `python SCRIPT ARGUMENTS`; script may be -c or -m."""
        (read, stdin), (stdout, write) = os.pipe(), os.pipe()
        pid = self._fork([script, *arguments], [read, write, stderr], environ, cwd)
        os.close(read)
        os.close(write)
        return Started(self, pid, stdin, stdout)

    def _fork(
        self, words: Sequence[Any], streams: list[int], environ: Mapping[str, str],
        cwd: Path | str = "", threads: int = 1,
    ) -> int:  # fmt: skip
        told = {
            "argv": [*map(str, words)], "environ": dict(environ), "threads": threads,
            "cwd": str(cwd) or os.getcwd(),
        }  # fmt: skip
        text = json.dumps(told).encode()
        socket.send_fds(self._socket, [len(text).to_bytes(4, "little")], streams)
        self._socket.sendall(text)
        with self._reads:
            while "code" in (line := self._line()):
                pass
        return int(line["pid"])

    def code(self, pid: int) -> int | None:
        """The exit code of a process that has ended."""
        with self._reads:  # a watcher may ask, too
            while pid not in self._codes and select.select([self._socket], [], [], 0)[0]:
                self._line()
        return self._codes.get(pid)

    def close(self) -> None:
        self._heard.close()
        self._socket.close()

    def _line(self) -> dict[str, Any]:
        line: dict[str, Any] = json.loads(self._heard.readline())
        if "code" in line:
            self._codes[line["pid"]] = line["code"]
            Server.seconds += line["seconds"]
        return line


class Started:
    """What Workers, and the tests, use of subprocess.Popen."""

    def __init__(self, server: Server, pid: int, stdin: int, stdout: int) -> None:
        self._server, self.pid = server, pid
        self.stdin, self.stdout = os.fdopen(stdin, "wb", 0), os.fdopen(stdout, "rb", 0)

    def poll(self) -> int | None:
        return self._server.code(self.pid)

    def wait(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(0.01)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, signal.SIGKILL)


@functools.cache
def usual() -> Server:
    """Of processes that need no more than MODULES. It is held until this process ends, so that the
    first process is there for as long."""
    return Server()


def run(
    *words: str, timeout: float = 60.0, env: Mapping[str, str] | None = None, text: str = "",
    cwd: Path | str = "",
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """`python WORDS` with this standard input, to its end."""
    environ = os.environ if env is None else env
    if not IS_THERE:
        return subprocess.run(
            [sys.executable, *words], input=text, capture_output=True, text=True, check=False,
            timeout=timeout, env=environ, cwd=cwd or None,
        )  # fmt: skip
    with tempfile.TemporaryFile() as errors:
        child = usual().run(*words, stderr=errors.fileno(), environ=environ, cwd=cwd)
        late = threading.Event()
        ending = threading.Timer(timeout, lambda: (late.set(), child.kill()))
        ending.start()
        try:
            with suppress(BrokenPipeError), child.stdin:
                child.stdin.write(text.encode())
            with child.stdout:
                said = child.stdout.read()
            code = child.wait(timeout)
        finally:
            ending.cancel()
        errors.seek(0)
        why = errors.read()
    if late.is_set():
        raise subprocess.TimeoutExpired(list(words), timeout, said, why)
    return subprocess.CompletedProcess(list(words), code, said.decode(), why.decode())


def start(
    _python: str, serve: str = "", stderr: int = subprocess.PIPE,
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Takes the place of conv.probe.process.start where a child has to be this process's own: it
    stands for the forked one. To kill it kills no more than itself."""
    from hy3d_rocm.conv.probe import process

    return subprocess.Popen(
        [sys.executable, __file__, "--as-python", str(process.CHILD), *([serve] if serve else [])],
        bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
        env={**os.environ, process.INSIDE: "1", **(variables or {})}, start_new_session=True,
    )  # fmt: skip


def as_python(words: list[str]) -> int:
    """This process stands for `python WORDS`, which is forked and has its streams: as pytest-xdist
    starts its processes. The exit code."""
    if words[0] == "-u":
        del words[0]
    server = Server()
    pid = server._fork(words, [0, 1, 2], os.environ, threads=0)
    for stream in (0, 1):  # it alone reads and writes them
        os.close(stream)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGKILL))
    while (code := server.code(pid)) is None:
        select.select([server._socket], [], [])
    return code


def _connected() -> socket.socket:
    """To the first process, which is started if there is none: a name that others can have, too, is
    bound once."""
    name = f"\0hy3d-tests-{os.getuid()}-{os.environ.setdefault(RUN, str(os.getpid()))}"
    for _ in range(100):
        listening = socket.socket(socket.AF_UNIX)
        with suppress(OSError), listening:
            listening.bind(name)
            listening.listen()
            _begin(listening)
        asked = socket.socket(socket.AF_UNIX)
        try:
            asked.connect(name)
            return asked
        except ConnectionRefusedError:  # the last one is just ending, or the next not listening yet
            asked.close()
            time.sleep(0.05)
    raise RuntimeError("no process that has torch imported can be started")


def _begin(listening: socket.socket) -> None:
    subprocess.Popen(
        [sys.executable, "-B", __file__, str(listening.fileno())],
        pass_fds=[listening.fileno()], start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )  # fmt: skip


# The processes


def main() -> None:
    """The first one: it imports MODULES, and forks a process for each Server."""
    listening = socket.socket(fileno=int(sys.argv[1]))
    del sys.path[0]  # this folder
    for name in MODULES:
        with suppress(ImportError):  # tests that need it are skipped
            importlib.import_module(name)
    settle()
    children: set[int] = set()
    seconds = 30.0  # for whoever started it
    while True:
        if select.select([listening], [], [], seconds)[0]:
            asked, _ = listening.accept()
            pid = os.fork()
            if pid == 0:
                listening.close()
                serve(asked)
                os._exit(0)
            children.add(pid)
            asked.close()
        elif not children:
            listening.close()  # whoever comes now starts the next
            os._exit(0)
        children -= {pid for pid in children if os.waitpid(pid, os.WNOHANG)[0]}
        seconds = 0.5 if children else 0.0


def settle() -> None:
    gc.collect()
    gc.freeze()


def serve(asked: socket.socket) -> None:
    """A Server's process: it imports its modules and forks the tests' processes."""
    with asked.makefile("rb", buffering=0) as lines:
        line = lines.readline()
    if not line:
        return
    told, path = json.loads(line), list(sys.path)
    sys.path[:0] = [place for place in told["path"] if place not in path]
    for name in told["modules"]:
        importlib.import_module(name)
    sys.path[:] = path
    settle()
    tell(asked, ready=1)
    children: set[int] = set()
    while True:
        if select.select([asked], [], [], 0.02 if children else None)[0]:
            size, fds, _, _ = socket.recv_fds(asked, 4, 3)
            if not size:
                return
            request = json.loads(asked.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL))
            pid = os.fork()
            if pid == 0:
                asked.close()
                become(request, fds)
            children.add(pid)
            for one in fds:
                os.close(one)
            tell(asked, pid=pid)
        for pid in [*children]:
            ended, status, used = os.wait4(pid, os.WNOHANG)
            if ended:
                children.discard(pid)
                seconds = used.ru_utime + used.ru_stime
                tell(asked, pid=pid, code=os.waitstatus_to_exitcode(status), seconds=seconds)


def become(request: dict[str, Any], fds: list[int]) -> None:
    """The test's process. Does not return."""
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["cwd"])
    if request["threads"] and (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(request["threads"])
    first, *rest = request["argv"]
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    code: Any = 1
    try:
        if first == "-c":
            sys.argv[:], sys.path[:0] = ["-c", *rest[1:]], [""]
            sys.modules["__main__"] = home = types.ModuleType("__main__")
            exec(compile(rest[0], "<string>", "exec"), vars(home))
        elif first == "-m":
            sys.argv[:], sys.path[:0] = rest, [os.getcwd()]
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv[:], sys.path[:0] = [first, *rest], [str(Path(first).parent)]
            runpy.run_path(first, run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:  # noqa: BLE001 - what an interpreter does at its end
        traceback.print_exc()
    finally:  # nothing of the server's
        with suppress(Exception):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


def tell(asked: socket.socket, **fields: float) -> None:
    asked.sendall(json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    if sys.argv[1] == "--as-python":
        sys.exit(as_python(sys.argv[2:]))
    main()
