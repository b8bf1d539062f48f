"""GET /hy3d_rocm/doctor with stand-ins for ComfyUI's server and aiohttp."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from comfy_doubles import Comfy, comfy
from doctor_machines import healthy

from hy3d_rocm.doctor import Examination, examination
from hy3d_rocm.doctor.finding import Finding, Severity

__all__ = ["comfy"]  # a fixture


class Response:
    def __init__(self, text: str, status: int = 200, **options: Any) -> None:
        self.text, self.status, self.options = text, status, options


class Routes:
    def __init__(self) -> None:
        self.table: dict[str, Any] = {}

    def get(self, path: str) -> Callable[[Any], Any]:
        return lambda handler: self.table.setdefault(path, handler)


@pytest.fixture
def server(comfy: Comfy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """ComfyUI's server with our route in it; `asked` are the arguments of examine()."""
    web = SimpleNamespace(
        Response=Response,
        json_response=lambda data, status=200: Response(json.dumps(data), status),
    )
    aiohttp = ModuleType("aiohttp")
    aiohttp.web = web  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aiohttp", aiohttp)
    instance = SimpleNamespace(
        routes=Routes(), asked=[],
        prompt_queue=SimpleNamespace(get_tasks_remaining=lambda: 0),
    )  # fmt: skip
    module = ModuleType("server")
    module.PromptServer = SimpleNamespace(instance=instance)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "server", module)
    from hy3d_rocm.comfy import routes

    found = Examination({"when": "now"}, (Finding("a", Severity.ERROR, "broken", "e", "r"),))

    def examine(**options: Any) -> Examination:
        instance.asked.append(options)
        time.sleep(0.05)
        return found

    monkeypatch.setattr(routes, "examine", examine)
    assert routes.add_routes() is True
    yield instance
    examination.host_facts.pop("comfyui", None)


def ask(server: Any, **query: str) -> Response:
    handler = server.routes.table["/hy3d_rocm/doctor"]
    response: Response = asyncio.run(handler(SimpleNamespace(query=query)))
    return response


def test_the_route_answers_in_three_formats(server: Any) -> None:
    assert json.loads(ask(server).text)["exit_code"] == 2
    page = ask(server, format="html")
    assert page.text.startswith("<!doctype html>")
    assert page.options["content_type"] == "text/html"
    assert ask(server, format="text").text.startswith("hy3d-rocm doctor: 1 error")
    assert server.asked == [{"self_test": True, "seconds": 60.0}] * 3


def test_while_a_prompt_runs_nothing_is_computed_unless_asked_for(server: Any) -> None:
    server.prompt_queue.get_tasks_remaining = lambda: 1
    ask(server)
    ask(server, self_test="1", seconds="5")
    assert [a["self_test"] for a in server.asked] == [False, True]


@pytest.mark.parametrize(
    ("name", "value"),
    [("format", "pdf"), ("self_test", "yes"), ("seconds", "x"), ("seconds", "1e9"),
     ("seconds", "nan")],
)  # fmt: skip
def test_what_makes_no_sense_is_a_sentence(server: Any, name: str, value: str) -> None:
    response = ask(server, **{name: value})
    assert response.status == 400
    assert value in json.loads(response.text)["error"]
    assert server.asked == []


def test_requests_at_the_same_time_share_one_examination_and_the_loop_stays_free(
    server: Any,
) -> None:
    async def many() -> list[Any]:
        ticks = 0

        async def tick() -> int:
            nonlocal ticks
            for _ in range(5):
                await asyncio.sleep(0.005)
                ticks += 1
            return ticks

        handler = server.routes.table["/hy3d_rocm/doctor"]
        calls = [handler(SimpleNamespace(query={})) for _ in range(5)]
        return list(await asyncio.gather(*calls, tick()))

    *responses, ticks = asyncio.run(many())
    assert ticks == 5
    assert len({response.text for response in responses}) == 1
    assert len(server.asked) == 1


def test_a_client_that_goes_away_harms_nobody(server: Any) -> None:
    async def leave() -> Any:
        handler = server.routes.table["/hy3d_rocm/doctor"]
        gone = asyncio.ensure_future(handler(SimpleNamespace(query={})))
        await asyncio.sleep(0.01)
        gone.cancel()
        return await handler(SimpleNamespace(query={}))

    assert asyncio.run(leave()).status == 200
    assert len(server.asked) == 1


def test_a_doctor_that_fails_is_a_sentence_and_comes_again(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import routes

    def broken(**_: Any) -> Any:
        raise OSError("disk")

    monkeypatch.setattr(routes, "examine", broken)
    assert ask(server).status == 500
    assert routes._running == {}
    for thread in threading.enumerate():
        if thread.name == "hy3d doctor":
            thread.join(10)
            assert not thread.is_alive()


def test_the_route_is_added_once_and_not_without_a_server(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import routes

    assert routes.add_routes() is False
    monkeypatch.delitem(sys.modules, "server")
    assert routes.add_routes() is False


def test_comfyuis_models_and_settings_are_facts(
    server: Any, comfy: Comfy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import routes

    class AutoencoderKL:
        pass

    loaded = SimpleNamespace(
        model=SimpleNamespace(model=AutoencoderKL()), device="cuda:0",
        model_loaded_memory=lambda: 5 << 30,
    )  # fmt: skip
    import comfy.model_management as management

    monkeypatch.setattr(management, "current_loaded_models", [loaded], raising=False)
    facts = routes.about_comfyui()
    assert facts["models"] == [{"name": "AutoencoderKL", "device": "cuda:0", "bytes": 5 << 30}]
    base = healthy(tmp_path)  # collects the host's facts, too
    assert base["comfyui"]["models"] == facts["models"]
    assert "AutoencoderKL: 5.0 GB on cuda:0" in Examination(base, ()).text()
