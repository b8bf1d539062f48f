"""The host's ends of the child's three pipes: never blocks, never grows without bound."""

from __future__ import annotations

import json
import os
import queue
import selectors
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, Protocol

_CHUNK = 65536
# What a line of ours may have at most; a longer one is garbage and is dropped up to its end.
_MAX_LINE = 16384
# Of stderr the end is kept: that is where a dying process says why.
_TAIL_BYTES = 65536


# A stream of the child and what takes its bytes.
Output = tuple[IO[bytes], Callable[[bytes], None]]


class Messages:
    """Lines of this run out of whatever arrives; anything else is dropped."""

    def __init__(self, nonce: str) -> None:
        self._prefix = f"{nonce} ".encode("ascii")
        self._rest = b""
        self.found: list[dict[str, Any]] = []

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        # Keeping the end is enough: our messages begin on a new line.
        self._rest = rest[:_MAX_LINE]
        for line in lines:
            if not line.startswith(self._prefix) or len(line) > _MAX_LINE:
                continue
            try:
                message = json.loads(line[len(self._prefix) :])
            except ValueError:
                continue
            if isinstance(message, dict):
                self.found.append(message)

    def take(self) -> list[dict[str, Any]]:
        found, self.found = self.found, []
        return found


class Tail:
    """The last _TAIL_BYTES that were fed."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> None:
        self._data = (self._data + data)[-_TAIL_BYTES:]

    def clear(self) -> None:
        self._data = b""

    def lines(self) -> list[str]:
        return self._data.decode("utf-8", "replace").splitlines()


class Pipes(Protocol):
    """Both kinds below."""

    def send(self, data: bytes) -> None:
        """Queues bytes for the child's stdin; what it does not read is lost without a word."""

    def pump(self, timeout_s: float) -> bool:
        """Moves what is there; waits at most `timeout_s` for something. Whether any came in."""

    def hang_up(self) -> None:
        """Closes the child's stdin: for the keeper the order to end everything."""

    def close(self) -> None:
        """Closes everything."""


class SelectPipes:
    """POSIX: one selector, no threads; a grandchild that holds a pipe holds nobody up."""

    def __init__(self, stdin: IO[bytes], outputs: Sequence[Output]) -> None:
        self._stdin = stdin
        self._outputs = outputs
        self._pending = b""
        self._is_writing = False
        self._selector = selectors.DefaultSelector()
        os.set_blocking(stdin.fileno(), False)
        for stream, feed in outputs:
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, feed)

    def send(self, data: bytes) -> None:
        if self._stdin.closed:
            return
        self._pending += data
        self._write()

    def _write(self) -> None:
        try:
            self._pending = self._pending[os.write(self._stdin.fileno(), self._pending) :]
        except BlockingIOError:
            pass
        except OSError:  # the reader is gone; its end is noticed elsewhere
            self._pending = b""
        if bool(self._pending) != self._is_writing:
            self._is_writing = not self._is_writing
            if self._is_writing:
                self._selector.register(self._stdin, selectors.EVENT_WRITE)
            else:
                self._selector.unregister(self._stdin)

    def pump(self, timeout_s: float) -> bool:
        if not self._selector.get_map():
            time.sleep(min(timeout_s, 0.01))
            return False
        came = False
        for key, _ in self._selector.select(max(timeout_s, 0.0)):
            if key.fileobj is self._stdin:
                self._write()
            else:
                came |= self._read(key)
        return came

    def _read(self, key: selectors.SelectorKey) -> bool:
        try:
            data = os.read(key.fd, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(key.fileobj)
            return False
        key.data(data)
        return True

    def hang_up(self) -> None:
        if self._is_writing:
            self._selector.unregister(self._stdin)
            self._is_writing = False
        self._stdin.close()

    def close(self) -> None:
        self.hang_up()
        self._selector.close()
        for stream, _ in self._outputs:
            stream.close()


class ThreadPipes:
    """Windows, where pipes can't be waited for: a thread a pipe. The Job ends all who hold them."""

    def __init__(self, stdin: IO[bytes], outputs: Sequence[Output]) -> None:
        self._stdin = stdin
        self._outputs = outputs
        self._closed = False
        self._read: queue.Queue[tuple[Callable[[bytes], None], bytes]] = queue.Queue(64)
        self._to_write: queue.Queue[bytes | None] = queue.Queue()
        self._threads = [
            threading.Thread(target=self._reader, args=output, daemon=True) for output in outputs
        ]
        self._threads.append(threading.Thread(target=self._writer, daemon=True))
        for thread in self._threads:
            thread.start()

    def _reader(self, stream: IO[bytes], feed: Callable[[bytes], None]) -> None:
        while not self._closed:
            try:
                data = os.read(stream.fileno(), _CHUNK)
            except (OSError, ValueError):
                return
            if not data:
                return
            while not self._closed:
                try:
                    self._read.put((feed, data), timeout=0.1)
                    break
                except queue.Full:
                    continue

    def _writer(self) -> None:
        try:
            while (data := self._to_write.get()) is not None:
                while data:
                    data = data[os.write(self._stdin.fileno(), data) :]
        except (OSError, ValueError):
            pass
        finally:
            self._stdin.close()

    def send(self, data: bytes) -> None:
        self._to_write.put(data)

    def pump(self, timeout_s: float) -> bool:
        try:
            feed, data = self._read.get(timeout=max(timeout_s, 0.001))
        except queue.Empty:
            return False
        feed(data)
        return True

    def hang_up(self) -> None:
        self._to_write.put(None)

    def close(self) -> None:
        """A thread that is still in a read keeps its descriptor: closing it under the thread
        could hand its number to another file."""
        self.hang_up()
        self._closed = True
        for thread in self._threads:
            thread.join(0.1)
        for (stream, _), thread in zip(self._outputs, self._threads, strict=False):
            if not thread.is_alive():
                stream.close()


def make_pipes(stdin: IO[bytes], outputs: Sequence[Output]) -> Pipes:
    kind = ThreadPipes if sys.platform == "win32" else SelectPipes
    return kind(stdin, outputs)
