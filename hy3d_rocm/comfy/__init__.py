"""ComfyUI nodes: the only place that imports ComfyUI's modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Value = TypeVar("Value")


def comfy_server() -> Any:
    """ComfyUI's server if it runs. Not imported: ComfyUI used as a library has none."""
    return getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)


def when_started(server: Any, run: Callable[[], object]) -> None:
    """Has `run` called once the server has started: all packs are loaded, no request is answered
    yet. At once where it has started."""

    async def on_startup(_app: object) -> None:
        run()

    try:
        server.app.on_startup.append(on_startup)
    except RuntimeError:  # the list is frozen
        run()


@contextmanager
def during(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """While open, `variable` is `value` in this context."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
