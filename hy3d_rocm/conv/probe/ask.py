"""Asking a child process for the result of one function, where this process could be hung by it."""

from __future__ import annotations

import json
import os
import secrets
import time
from typing import Any

from hy3d_rocm.conv.probe import judge, launch, process
from hy3d_rocm.conv.probe.process import Child

_STEP_S = 0.05
_LAST_WORDS_S = 0.03


class NoAnswerError(Exception):
    """The text says why. is_hang: the child did not end by itself in its time."""

    def __init__(self, text: str, *, is_hang: bool = False) -> None:
        super().__init__(text)
        self.is_hang = is_hang


def ask(call: str, *, limit_s: float, python: str | os.PathLike[str] | None = None) -> Any:
    """What "module:function" of this package returns in a child process, as JSON carries it.

    The function takes nothing and answers within 16,000 characters. NoAnswerError where no child
    can be started, where it dies or raises, and where it takes longer than limit_s; that is
    raised at most a second after limit_s, whatever the child does.
    """
    judge.check_limits(limit_s, limit_s, None)
    path, why = launch.interpreter(python)
    if os.environ.get(launch.INSIDE):
        why = "this is a probe's child process itself"
    if path is None or why:
        raise NoAnswerError(why)
    nonce = secrets.token_hex(8)
    try:
        child = Child(path, nonce, process.HAS_KEEPER)
    except OSError as error:
        raise NoAnswerError(f"no process could be started: {error}") from error
    try:
        header = launch.header([], nonce, process.HAS_KEEPER) | {"call": call}
        child.pipes.send(json.dumps(header).encode("ascii") + b"\n")
        return _wait(child, limit_s)
    finally:
        child.end()


def _wait(child: Child, limit_s: float) -> Any:
    until = time.monotonic() + limit_s
    code: int | None = None
    while time.monotonic() < until:
        is_over = child.has_ended() or code is not None
        child.pipes.pump(_LAST_WORDS_S if is_over else _STEP_S)
        for message in child.messages.take():
            if message.get("event") == "answer":
                return message.get("value")
            if message.get("event") == "exit":
                code = message.get("code")
        if is_over:  # and what it wrote before has been read
            line, _ = judge.telling_line(child.stderr.lines())
            how = f"the child {judge.exit_text(code)}"
            raise NoAnswerError(f"{line} ({how})" if line else how)
    raise NoAnswerError(f"nothing came back in {limit_s:.0f} s", is_hang=True)
