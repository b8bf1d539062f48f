"""Ctrl-C during a decode: once stops it in order, twice at once, whatever is being computed."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PATIENCE_SECONDS = 1.0  # for Python to come back from a library's call
INTERRUPTED = 130


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
    before = signal.signal(signal.SIGINT, stopping.handle)
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    watcher.start()
    try:
        yield stopping.event
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGINT, before)
        writer.close()  # ends the watcher
        watcher.join()


class _Stopping:
    def __init__(self, say: Callable[[str], None]) -> None:
        self.event = threading.Event()
        self._say = say
        self._raised = threading.Event()
        self._handled = 0

    def _first(self) -> None:
        """By whichever of the two sees it first; both may, then it is said twice at worst."""
        if not self.event.is_set():
            self.event.set()
            self._say("stopping after the part that is being computed; Ctrl-C again stops at once")

    def handle(self, _signal: int, _frame: object) -> None:
        """By Python, in the main thread."""
        self._handled += 1
        if self._handled > 1:
            self._raised.set()
            raise KeyboardInterrupt
        self._first()

    def watch(self, reader: socket.socket) -> None:
        """In a thread: what the signals write when they come."""
        with reader:
            count = 0
            while data := reader.recv(64):
                count += data.count(bytes([signal.SIGINT]))
                if count == 1:
                    self._first()
                elif (count == 2 and not self._raised.wait(_PATIENCE_SECONDS)) or count > 2:
                    self._end()

    def _end(self) -> None:
        self._say("stopped at once")
        os._exit(INTERRUPTED)
