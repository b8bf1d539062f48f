"""Ctrl-C during a decode: once stops it in order, twice at once, whatever is being computed.

Ctrl-Break, which Windows has beside it, does the same. It is what a program there can send to one
that it has started; unheard, it ends a process at once.
"""

from __future__ import annotations

import _thread
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PATIENCE_SECONDS = 1.0  # for Python to come back from a library's call
_SECOND_SECONDS = 0.1  # for the second signal's own call of the handler
INTERRUPTED = 130
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGBREAK") if hasattr(signal, name)]


@contextmanager
def interruptible(say: Callable[[str], None]) -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets. The second one raises KeyboardInterrupt, or, where the
    main thread is in a call that does not come back, ends the process with exit code 130; what is
    written by then is as after a kill."""
    stopping = _Stopping(say)
    if threading.current_thread() is not threading.main_thread():
        yield stopping.event
        return
    # Python runs handlers between two of its own steps only; bytes come here at once.
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    watcher = threading.Thread(target=stopping.watch, args=(reader,), daemon=True)
    before = [signal.signal(number, stopping.handle) for number in _SIGNALS]
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    watcher.start()
    try:
        yield stopping.event
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)
        writer.close()  # ends the watcher
        watcher.join()


class _Stopping:
    def __init__(self, say: Callable[[str], None]) -> None:
        self.event = threading.Event()
        self._say = say
        self._handled_once = threading.Event()
        self._raised = threading.Event()

    def _first(self) -> None:
        """By whichever of the two sees it first; both may, then it is said twice at worst."""
        if not self.event.is_set():
            self.event.set()
            self._say("stopping after the part that is being computed; Ctrl-C again stops at once")

    def handle(self, _signal: int, _frame: object) -> None:
        """By Python, in the main thread. Of two signals that come before it, it is told once."""
        if not self._handled_once.is_set():
            self._first()
            self._handled_once.set()
        elif not self._raised.is_set():  # what comes after it is the watcher's
            self._raised.set()
            raise KeyboardInterrupt

    def watch(self, reader: socket.socket) -> None:
        """In a thread: what the signals write when they come."""
        with reader:
            count = 0
            while data := reader.recv(64):
                count += sum(data.count(number) for number in _SIGNALS)
                if count > 0:
                    self._first()
                if count == 2:
                    count -= self._second()
                if count > 2:
                    self._end()

    def _second(self) -> int:
        """Sees to it that the handler raises, or ends the process. Returns how many signals of its
        own the watcher is going to read."""
        ours = 0
        began = time.monotonic()
        if self._handled_once.wait(_PATIENCE_SECONDS) and not self._raised.wait(_SECOND_SECONDS):
            ours = 1  # two signals were one to Python: once more
            _thread.interrupt_main(signal.SIGINT)
        left = _PATIENCE_SECONDS - (time.monotonic() - began)
        if not self._raised.wait(max(left, 0)):
            self._end()
        return ours

    def _end(self) -> None:
        self._say("stopped at once")
        os._exit(INTERRUPTED)
