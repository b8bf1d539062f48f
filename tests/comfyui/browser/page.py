"""One page of a headless Chromium: `async with Page(...) as page: await page.run("1 + 1")`."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

_START_S = 60.0
_ANSWER_S = 300.0
_LARGEST = 2**28
_LOGS = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")


class PageError(RuntimeError):
    """The page, or the browser, did not do what it was asked for."""


class Page:
    """logs: what the page wrote to its console, as JSON. The browser ends with the scope."""

    def __init__(self, browser: str, width: int, height: int) -> None:
        self.browser, self.width, self.height = browser, width, height
        self.logs: list[str] = []
        self._number = 0
        self._profile = tempfile.TemporaryDirectory(prefix="hy3d-browser-")

    async def __aenter__(self) -> Self:
        profile = Path(self._profile.name)
        self._process = subprocess.Popen(
            [
                self.browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                "--remote-debugging-port=0", f"--window-size={self.width},{self.height}",
                f"--user-data-dir={profile}", "--lang=en-US", "about:blank",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self._session = aiohttp.ClientSession()
        try:
            port = await self._port(profile / "DevToolsActivePort")
            async with self._session.get(f"http://127.0.0.1:{port}/json") as answer:
                tabs = await answer.json()
            address = next(tab for tab in tabs if tab["type"] == "page")["webSocketDebuggerUrl"]
            self._socket = await self._session.ws_connect(address, max_msg_size=_LARGEST)
            for domain in ("Runtime", "Log", "Page"):
                await self.call(f"{domain}.enable")
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        await self._session.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._profile.cleanup()

    async def _port(self, file: Path) -> int:
        """The port that the browser chose, which it writes into a file of its profile."""
        for _ in range(int(_START_S * 10)):
            if file.is_file() and (lines := file.read_text().split()):
                return int(lines[0])
            await asyncio.sleep(0.1)
        raise PageError(f"{self.browser} did not start within {_START_S:.0f} s")

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A method of the protocol; its result. PageError with what the browser says."""
        self._number += 1
        number = self._number
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            answer = await self._socket.receive_json(timeout=_ANSWER_S)
            if answer.get("method") in _LOGS:
                self.logs.append(json.dumps(answer["params"]))
            if answer.get("id") == number:
                if "error" in answer:
                    raise PageError(f"{method}: {answer['error'].get('message')}")
                return dict(answer.get("result", {}))

    async def run(self, script: str) -> Any:
        """The value of a JavaScript expression, promises awaited. PageError where it throws."""
        found = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise PageError(str(found["exceptionDetails"].get("exception", {}).get("description")))
        return found.get("result", {}).get("value")

    async def wait(self, condition: str, seconds: float, what: str) -> None:
        """Until the expression is true. PageError after `seconds`."""
        for _ in range(int(seconds * 4)):
            if await self.run(f"!!({condition})"):
                return
            await asyncio.sleep(0.25)
        raise PageError(f"{seconds:.0f} s were not enough {what}")

    async def picture(self, box: tuple[float, float, float, float]) -> bytes:
        """A PNG of x, y, width, height in the page's pixels."""
        x, y, width, height = box
        clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        found = await self.call("Page.captureScreenshot", format="png", clip=clip)
        return base64.b64decode(found["data"])
