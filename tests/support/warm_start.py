"""Processes that begin with a VAE's packages imported: forked from one that does nothing else.

Importing torch and a VAE of diffusers takes 5 s of a core, and the tests of Workers start some
twenty processes. What was imported is no garbage: to look through it takes each decode 0.2 s.
This file is the server, too: `python warm_start.py SOCKET MODULE ...`.
"""

from __future__ import annotations

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
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


class Server:
    """start takes the place of conv.probe.process.start."""

    def __init__(self, *modules: str) -> None:
        self._socket, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-B", __file__, str(theirs.fileno()), *modules],
            pass_fds=[theirs.fileno()],
            env={
                **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "OMP_NUM_THREADS": "1",  # read when torch is imported
            },
        )  # fmt: skip
        theirs.close()
        self._heard = self._socket.makefile("rb", buffering=0)  # for select
        self._codes: dict[int, int] = {}
        self._reads = threading.Lock()

    def start(self, _python: str, serve: str, stderr: int, variables: Mapping[str, str]) -> Started:
        from hy3d_rocm.conv.probe import process

        environ = {**os.environ, process.INSIDE: "1", **variables}
        return self.run(process.CHILD, serve, stderr=stderr, environ=environ)

    def run(
        self, script: Path, *arguments: str, stderr: int, environ: Mapping[str, str]
    ) -> Started:
        """A process that runs the script as `python SCRIPT ARGUMENTS`."""
        (read, stdin), (stdout, write) = os.pipe(), os.pipe()
        text = json.dumps({"argv": [str(script), *arguments], "environ": dict(environ)}).encode()
        socket.send_fds(self._socket, [len(text).to_bytes(4, "little")], [read, write, stderr])
        self._socket.sendall(text)
        os.close(read)
        os.close(write)
        with self._reads:
            while "code" in (line := self._line()):
                pass
        return Started(self, line["pid"], stdin, stdout)

    def code(self, pid: int) -> int | None:
        """The exit code of a process that has ended."""
        with self._reads:  # a watcher may ask, too
            while pid not in self._codes and select.select([self._socket], [], [], 0)[0]:
                self._line()
        return self._codes.get(pid)

    def close(self) -> None:
        self._heard.close()
        self._socket.close()
        self._process.wait()

    def _line(self) -> dict[str, int]:
        line: dict[str, int] = json.loads(self._heard.readline())
        if "code" in line:
            self._codes[line["pid"]] = line["code"]
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


def main() -> None:
    asked = socket.socket(fileno=int(sys.argv[1]))
    path = list(sys.path)
    for name in sys.argv[2:]:
        importlib.import_module(name)
    sys.path[:] = path
    gc.collect()
    gc.freeze()
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
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                children.discard(pid)
                tell(asked, pid=pid, code=os.waitstatus_to_exitcode(status))


def become(request: dict[str, Any], fds: list[int]) -> None:
    """The script's process. Does not return."""
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.argv[:] = request["argv"]
    code: Any = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as error:
        code = error.code
    finally:  # nothing of the server's
        os._exit(code)


def tell(asked: socket.socket, **fields: int) -> None:
    asked.sendall(json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    main()
