"""What a browser hears: ComfyUI's events over its websocket, collected by a thread.

A client for one purpose: text, binary, ping and close frames of one server on this machine.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

CLIENT = "harness"
TEXT_EVENT = 3  # protocol.BinaryEventTypes.TEXT
CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
PATIENCE_S = 30.0


class Listener:
    """`with Listener(server.port) as heard:` collects (type, data) in `heard.events`.

    A text of progress is ("text", {"node": ..., "text": ...}).
    """

    def __init__(self, port: int) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.times: list[float] = []  # time.monotonic() of each
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._rest = b""
        self._handshake(port)
        self._thread = threading.Thread(target=self._collect, daemon=True)

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self._socket.close()

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The data of all events of one type so far."""
        return [data for name, data in list(self.events) if name == kind]

    def ticks(self, node: str) -> list[float]:
        """When the node's bar moved."""
        moments = zip(list(self.events), self.times, strict=False)
        return [
            when
            for (kind, data), when in moments
            if kind == "progress" and data.get("node") == node
        ]

    def settle(self, done: Callable[[], bool], seconds: float = 5.0) -> bool:
        """Waits until `done`; events come a moment after the prompt's end."""
        end = time.monotonic() + seconds
        while not done() and time.monotonic() < end:
            time.sleep(0.02)
        return done()

    def _handshake(self, port: int) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        request = (
            f"GET /ws?clientId={CLIENT} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {key}\r\n\r\n"
        )
        self._socket.sendall(request.encode())
        while b"\r\n\r\n" not in self._rest:
            self._receive()
        head, self._rest = self._rest.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.splitlines()[0]:
            raise ConnectionError(f"no websocket: {head.splitlines()[0]!r}")
        self._socket.settimeout(None)

    def _receive(self) -> None:
        piece = self._socket.recv(1 << 16)
        if not piece:
            raise ConnectionError("the server closed its websocket")
        self._rest += piece

    def _take(self, count: int) -> bytes:
        while len(self._rest) < count:
            self._receive()
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    def _frame(self) -> tuple[bool, int, bytes]:
        """Whether it is the message's last frame, what it is, what is in it."""
        first, second = self._take(2)
        length = second & 0x7F
        if length == 126:
            (length,) = struct.unpack(">H", self._take(2))
        elif length == 127:
            (length,) = struct.unpack(">Q", self._take(8))
        return bool(first & 0x80), first & 0x0F, self._take(length)

    def _collect(self) -> None:
        kind, message = TEXT, b""
        try:
            while True:
                last, code, payload = self._frame()
                if code == CLOSE:
                    return
                if code == PING:
                    self._pong(payload)
                elif code in (CONTINUED, TEXT, BINARY):
                    kind, message = (kind if code == CONTINUED else code), message + payload
                    if last:
                        self._event(kind, message)
                        message = b""
        except (ConnectionError, OSError):
            return

    def _pong(self, payload: bytes) -> None:
        """A client's frames are masked; a mask of zeros changes nothing."""
        self._socket.sendall(bytes([0x80 | PONG, 0x80 | len(payload)]) + bytes(4) + payload)

    def _event(self, kind: int, message: bytes) -> None:
        if kind == TEXT:
            event = json.loads(message)
            self._heard(str(event["type"]), event["data"])
            return
        event_type, length = struct.unpack(">II", message[:8].ljust(8, b"\0"))
        if event_type == TEXT_EVENT:
            node, text = message[8 : 8 + length].decode(), message[8 + length :].decode()
            self._heard("text", {"node": node, "text": text})

    def _heard(self, kind: str, data: dict[str, Any]) -> None:
        self.times.append(time.monotonic())
        self.events.append((kind, data))
