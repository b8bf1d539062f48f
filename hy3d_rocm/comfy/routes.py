"""/hy3d_rocm/doctor on ComfyUI's server: the doctor's findings about the running ComfyUI.

    GET    ?format=json|html|text             default json; computes nothing
    POST   ?format=json|html|text&seconds=N   with the self-test; 5 to 120 seconds, default 60

The self-test takes memory and time, so it is no answer to GET, which any page may make a browser
send, and it is refused (409) while a prompt runs or waits. One examination works at a time, in a
thread of its own; who asks meanwhile waits for the same one, at most one of each method. An
examination for which nobody waits any more ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from hy3d_rocm.comfy import comfy_server, settings
from hy3d_rocm.comfy.patches.install import installed
from hy3d_rocm.diagnose.doctor.examination import DEFAULT_SECONDS, Examination, examine, host_facts
from hy3d_rocm.diagnose.env.shown import anonymous

logger = logging.getLogger("hy3d_rocm")

PATH = "/hy3d_rocm/doctor"
FORMATS = {"json": "application/json", "html": "text/html", "text": "text/plain"}
_LEAST_SECONDS, _MOST_SECONDS = 5.0, 120.0
_LOOK_S = 0.5  # how often it is seen whether a client is still there
_MARK = "_hy3d_rocm_routes"


class RefusedError(Exception):
    """The text is the sentence for who asked; status: HTTP's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Job:
    """One examination, for all who ask for one of its kind before it is done. Once none of them
    waits any more nobody joins it: see _examined."""

    def __init__(self, self_test: bool, seconds: float) -> None:
        self.self_test, self.seconds, self.waiting = self_test, seconds, 1
        self.result: Future[Examination] = Future()
        threading.Thread(target=self._run, name="hy3d doctor", daemon=True).start()

    def _run(self) -> None:
        """Examines once no other job does; the result is there, or why there is none."""
        try:
            with _one_at_a_time:
                self._check()
                if self.self_test and is_busy():
                    raise RefusedError(409, _BUSY)
                found = examine(self_test=self.self_test, seconds=self.seconds, cancel=self._check)
        except BaseException as error:  # noqa: BLE001  (goes to who waits)
            self.result.set_exception(error)
        else:
            self.result.set_result(found)

    def _check(self) -> None:
        """Ends an examination that nobody waits for."""
        if not self.waiting:
            raise RefusedError(503, "nobody waits for this examination any more")


_BUSY = (
    "a prompt is running or waiting, and the self-test would take its memory: ask again when the "
    "queue is empty, or send GET for an examination without it"
)
_jobs: dict[bool, _Job] = {}  # by whether it has a self-test; the server's loop's alone
_one_at_a_time = threading.Lock()


def add_routes() -> bool:
    """Puts the routes into ComfyUI's table, once; False where no server runs here.

    The doctor hears of ComfyUI's models and settings from now on, in nodes too.
    """
    host_facts["comfyui"] = about_comfyui
    server = comfy_server()
    if server is None or getattr(server, _MARK, False):
        return False
    server.routes.get(PATH)(answer)
    server.routes.post(PATH)(answer)
    setattr(server, _MARK, True)
    return True


async def answer(request: Any) -> Any:
    """The handler. 400 with a sentence for what makes no sense, 409 while a prompt runs."""
    from aiohttp import web

    self_test = request.method == "POST"
    try:
        kind, seconds = parse(request.query, self_test)
        examination = await _examined(request, self_test, seconds)
        # What it says is large enough to be put together beside the loop, too.
        body = await asyncio.to_thread(_body, examination, kind)
    except RefusedError as error:
        return web.json_response({"error": str(error)}, status=error.status)
    except Exception as error:  # noqa: BLE001  (said to who asked; ComfyUI goes on)
        logger.warning("hy3d_rocm: the doctor failed: %s: %s", type(error).__name__, error)
        said = {"error": anonymous(f"the doctor failed: {type(error).__name__}: {error}")}
        return web.json_response(said, status=500)
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.Response(text=body, content_type=FORMATS[kind], charset="utf-8", headers=headers)


def parse(query: Mapping[str, str], self_test: bool) -> tuple[str, float]:
    """(format, seconds) of a request's parameters; RefusedError with a sentence."""
    kind = query.get("format", "json")
    if kind not in FORMATS:
        raise RefusedError(400, f"format is {kind!r}; give one of {', '.join(FORMATS)}")
    unknown = sorted(set(query) - {"format", "seconds"} if self_test else set(query) - {"format"})
    if unknown:
        hint = "" if self_test else "; send POST for an examination with the self-test"
        raise RefusedError(400, f"there is no parameter {unknown[0]!r} here{hint}")
    try:
        seconds = float(query.get("seconds", DEFAULT_SECONDS))
    except ValueError:
        seconds = -1.0
    if not _LEAST_SECONDS <= seconds <= _MOST_SECONDS:
        raise RefusedError(
            400,
            f"seconds is {query.get('seconds')!r}; give {_LEAST_SECONDS:g} to {_MOST_SECONDS:g}",
        )
    return kind, seconds


async def _examined(request: Any, self_test: bool, seconds: float) -> Examination:
    """The examination that runs or waits for this already, or a new one.

    aiohttp does not cancel the handler of a client that hung up, so its connection is looked at.
    """
    job = _jobs.get(self_test)
    if job is None:
        job = _jobs[self_test] = _Job(self_test, seconds)
    else:
        job.waiting += 1
    try:
        found = asyncio.wrap_future(job.result)
        while not (await asyncio.wait([found], timeout=_LOOK_S))[0]:
            if request.transport is None or request.transport.is_closing():
                # An outcome that nobody asks for would be logged by asyncio as an error.
                found.add_done_callback(lambda gone: gone.cancelled() or gone.exception())
                raise RefusedError(503, "the client hung up")
        return found.result()
    finally:
        job.waiting -= 1
        if not job.waiting:
            del _jobs[self_test]


def _body(examination: Examination, kind: str) -> str:
    if kind == "html":
        return examination.html()
    if kind == "text":
        return examination.text() + "\n"
    return json.dumps(examination.as_dict(), indent=1) + "\n"


def is_busy() -> bool:
    """Whether a prompt runs or waits."""
    queue = getattr(comfy_server(), "prompt_queue", None)
    return bool(queue is not None and queue.get_tasks_remaining())


def about_comfyui() -> dict[str, Any]:
    """{"version", "device", "models", "settings", "switched_off", "patches"}; JSON-able."""
    import comfy.model_management as management

    installation = installed()
    now = settings.current()
    off = sorted(f"patch.{name}" for name in now.patches_off)
    off += ["vae"] if getattr(now, "vae", "") == "off" else []
    return {
        "version": str(getattr(sys.modules.get("comfyui_version"), "__version__", "")),
        "device": str(management.get_torch_device()),
        "models": [_model(loaded) for loaded in list(management.current_loaded_models)],
        "settings": settings.explained(),
        "switched_off": off,
        "patches": [] if installation is None else list(installation.lines),
    }


def _model(loaded: Any) -> dict[str, Any]:
    """A model of ComfyUI's; its patcher may be gone between two lines."""
    patcher = loaded.model
    inner = getattr(patcher, "model", None)
    return {
        "name": type(inner).__name__ if inner is not None else "gone",
        "device": str(loaded.device),
        "bytes": int(loaded.model_loaded_memory()) if patcher is not None else 0,
    }
