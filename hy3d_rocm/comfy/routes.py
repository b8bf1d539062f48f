"""GET /hy3d_rocm/doctor on ComfyUI's server: the doctor's findings about the running ComfyUI.

    ?format=json|html|text   default json
    ?self_test=1|0           default 1, but 0 while a prompt runs: its memory is not to be taken
    ?seconds=N               5 to 120, default 60

The work is done in a thread of its own and by child processes; requests that come meanwhile wait
for the same examination.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from hy3d_rocm.comfy import settings
from hy3d_rocm.doctor import Examination, examine
from hy3d_rocm.doctor.examination import DEFAULT_SECONDS, host_facts

logger = logging.getLogger("hy3d_rocm")

PATH = "/hy3d_rocm/doctor"
FORMATS = {"json": "application/json", "html": "text/html", "text": "text/plain"}
_LEAST_SECONDS, _MOST_SECONDS = 5.0, 120.0
_MARK = "_hy3d_rocm_routes"

Asked = tuple[bool, float]  # self-test, seconds
_lock = threading.Lock()
_running: dict[Asked, Future[Examination]] = {}
_one_at_a_time = threading.Lock()


class RequestError(Exception):
    """The text is the sentence for who asked."""


def add_routes() -> bool:
    """Puts the route into ComfyUI's table, once; False where no server runs here.

    The doctor hears of ComfyUI's models and settings from now on, in nodes too.
    """
    host_facts["comfyui"] = about_comfyui
    server = _server()
    if server is None or getattr(server, _MARK, False):
        return False
    server.routes.get(PATH)(answer)
    setattr(server, _MARK, True)
    return True


async def answer(request: Any) -> Any:
    """The handler. 400 with a sentence for what makes no sense."""
    from aiohttp import web

    try:
        kind, asked = parse(request.query, is_busy())
    except RequestError as error:
        return web.json_response({"error": str(error)}, status=400)
    try:
        # A client that goes away cancels this handler, not the examination: others may wait.
        examination = await asyncio.shield(asyncio.wrap_future(begin(asked)))
        # What it says is large enough to be put together beside the loop, too.
        body = await asyncio.to_thread(_body, examination, kind)
    except Exception as error:  # noqa: BLE001  (said to who asked; ComfyUI goes on)
        logger.warning("hy3d_rocm: the doctor failed: %s: %s", type(error).__name__, error)
        said = {"error": f"the doctor failed: {type(error).__name__}: {error}"}
        return web.json_response(said, status=500)
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.Response(text=body, content_type=FORMATS[kind], charset="utf-8", headers=headers)


def parse(query: Mapping[str, str], busy: bool) -> tuple[str, Asked]:
    """(format, what is asked for) of a request's parameters; RequestError with a sentence."""
    kind = query.get("format", "json")
    if kind not in FORMATS:
        raise RequestError(f"format is {kind!r}; give one of {', '.join(FORMATS)}")
    choice = query.get("self_test", "")
    if choice not in ("", "0", "1"):
        raise RequestError(f"self_test is {choice!r}; give 1 or 0")
    try:
        seconds = float(query.get("seconds", DEFAULT_SECONDS))
    except ValueError:
        seconds = -1.0
    if not _LEAST_SECONDS <= seconds <= _MOST_SECONDS:
        raise RequestError(
            f"seconds is {query.get('seconds')!r}; give {_LEAST_SECONDS:g} to {_MOST_SECONDS:g}"
        )
    return kind, (not busy if choice == "" else choice == "1", seconds)


def begin(asked: Asked) -> Future[Examination]:
    """The examination that runs for this already, or a new one; one works at a time."""
    with _lock:
        running = _running.get(asked)
        if running is None:
            running = _running[asked] = Future()
            running.set_running_or_notify_cancel()  # so that nobody who waits can cancel it
            threading.Thread(
                target=_examine, args=(asked, running), name="hy3d doctor", daemon=True
            ).start()
    return running


def _examine(asked: Asked, result: Future[Examination]) -> None:
    try:
        with _one_at_a_time:
            found = examine(self_test=asked[0], seconds=asked[1])
    except BaseException as error:  # noqa: BLE001  (goes to who waits)
        outcome: Examination | BaseException = error
    else:
        outcome = found
    with _lock:
        _running.pop(asked, None)
    if isinstance(outcome, BaseException):
        result.set_exception(outcome)
    else:
        result.set_result(outcome)


def _body(examination: Examination, kind: str) -> str:
    if kind == "html":
        return examination.html()
    if kind == "text":
        return examination.text() + "\n"
    import json

    return json.dumps(examination.as_dict(), indent=1) + "\n"


def is_busy() -> bool:
    """Whether a prompt runs or waits."""
    queue = getattr(_server(), "prompt_queue", None)
    return bool(queue is not None and queue.get_tasks_remaining())


def about_comfyui() -> dict[str, Any]:
    """{"version", "device", "models", "settings", "switched_off", "patches"}; JSON-able."""
    import comfy.model_management as management

    from hy3d_rocm.comfy.patch import installed

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


def _server() -> Any:
    """ComfyUI's server if it runs. Not imported: ComfyUI used as a library has none."""
    return getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
