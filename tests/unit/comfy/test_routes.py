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

from hy3d_rocm.diagnose.doctor import examination
from hy3d_rocm.diagnose.doctor.examination import Examination
from hy3d_rocm.diagnose.doctor.finding import Finding, Severity

__all__ = ["comfy"]  # a fixture


class Response:
    def __init__(self, text: str, status: int = 200, **options: Any) -> None:
        self.text, self.status, self.options = text, status, options


class Routes:
    def __init__(self) -> None:
        self.table: dict[str, Any] = {}

    def get(self, path: str) -> Callable[[Any], Any]:
        return lambda handler: self.table.setdefault(f"GET {path}", handler)

    def post(self, path: str) -> Callable[[Any], Any]:
        return lambda handler: self.table.setdefault(f"POST {path}", handler)


class Connection:
    """A client's, as aiohttp's request.transport."""

    def __init__(self) -> None:
        self.is_open = True

    def is_closing(self) -> bool:
        return not self.is_open


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
        routes=Routes(), asked=[], takes_s=0.05,
        prompt_queue=SimpleNamespace(get_tasks_remaining=lambda: 0),
    )  # fmt: skip
    module = ModuleType("server")
    module.PromptServer = SimpleNamespace(instance=instance)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "server", module)
    from hy3d_rocm.comfy import routes

    found = Examination({"when": "now"}, (Finding("a", Severity.ERROR, "broken", "e", "r"),))

    def examine(**options: Any) -> Examination:
        instance.asked.append({key: options[key] for key in ("self_test", "seconds")})
        until = time.monotonic() + instance.takes_s
        while time.monotonic() < until:
            options["cancel"]()
            time.sleep(0.005)
        return found

    monkeypatch.setattr(routes, "examine", examine)
    assert routes.add_routes() is True
    yield instance
    examination.host_facts.pop("comfyui", None)


def request(
    server: Any, method: str, query: dict[str, str], connection: Connection | None = None
) -> Any:
    """The handler's coroutine for a request."""
    asked = SimpleNamespace(method=method, query=query, transport=connection or Connection())
    return server.routes.table[f"{method} /hy3d_rocm/doctor"](asked)


def ask(server: Any, method: str = "GET", **query: str) -> Response:
    response: Response = asyncio.run(request(server, method, query))
    return response


def test_the_route_answers_in_three_formats(server: Any) -> None:
    assert json.loads(ask(server).text)["exit_code"] == 2
    page = ask(server, format="html")
    assert page.text.startswith("<!doctype html>")
    assert page.options["content_type"] == "text/html"
    assert ask(server, format="text").text.startswith("hy3d-rocm doctor: 1 error")
    assert server.asked == [{"self_test": False, "seconds": 90.0}] * 3


def test_only_post_computes(server: Any) -> None:
    assert ask(server, "POST", seconds="7").status == 200
    assert server.asked == [{"self_test": True, "seconds": 7.0}]
    for parameter in ("self_test", "seconds"):
        refused = ask(server, **{parameter: "1"})
        assert refused.status == 400
        assert "send POST" in json.loads(refused.text)["error"]
    assert len(server.asked) == 1


def test_while_a_prompt_runs_nothing_is_computed(server: Any) -> None:
    server.prompt_queue.get_tasks_remaining = lambda: 1
    assert ask(server).status == 200
    refused = ask(server, "POST")
    assert refused.status == 409
    assert "queue is empty" in json.loads(refused.text)["error"]
    assert [a["self_test"] for a in server.asked] == [False]


def test_a_prompt_that_began_while_a_self_test_waited_is_not_disturbed(server: Any) -> None:
    server.takes_s = 0.3

    async def both() -> list[Any]:
        first = asyncio.ensure_future(request(server, "GET", {}))
        await asyncio.sleep(0.05)  # it works
        second = asyncio.ensure_future(request(server, "POST", {}))
        await asyncio.sleep(0.05)  # it waits: nothing ran when it was asked for
        server.prompt_queue.get_tasks_remaining = lambda: 1
        return [(await first).status, (await second).status]

    assert asyncio.run(both()) == [200, 409]


@pytest.mark.parametrize(
    ("name", "value"),
    [("format", "pdf"), ("self_test", "yes"), ("seconds", "x"), ("seconds", "1e9"),
     ("seconds", "nan")],
)  # fmt: skip
def test_what_makes_no_sense_is_a_sentence(server: Any, name: str, value: str) -> None:
    response = ask(server, "POST", **{name: value})
    assert response.status == 400
    said = json.loads(response.text)["error"]
    assert value in said or name in said
    assert server.asked == []


def doctors() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "hy3d doctor"]


def test_five_hundred_requests_are_one_thread_a_method(server: Any) -> None:
    server.takes_s = 0.3

    async def many() -> tuple[list[Any], int]:
        calls = [
            asyncio.ensure_future(request(server, "POST", {"seconds": str(5 + n / 10)}))
            for n in range(500)
        ]
        calls += [asyncio.ensure_future(request(server, "GET", {})) for _ in range(5)]
        await asyncio.sleep(0.1)
        count = len(doctors())
        return [response.text for response in await asyncio.gather(*calls)], count

    texts, count = asyncio.run(many())
    assert count == 2
    assert len(set(texts)) == 1
    assert sorted(asked["self_test"] for asked in server.asked) == [False, True]


def test_the_servers_loop_stays_free(server: Any) -> None:
    async def count() -> int:
        call, ticks = asyncio.ensure_future(request(server, "GET", {})), 0
        while not call.done():
            await asyncio.sleep(0.005)
            ticks += 1
        return ticks

    assert asyncio.run(count()) >= 5


def test_an_examination_whose_clients_hung_up_ends_and_the_next_client_is_answered(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import routes

    monkeypatch.setattr(routes, "_LOOK_S", 0.01)
    server.takes_s = 60.0

    async def leave() -> Any:
        working, waiting = Connection(), Connection()
        calls = [
            asyncio.ensure_future(request(server, "POST", {}, working)),
            asyncio.ensure_future(request(server, "GET", {}, waiting)),
        ]
        await asyncio.sleep(0.1)
        waiting.is_open = False
        left = [(await calls[1]).status]
        working.is_open = False
        left.append((await calls[0]).status)
        while routes._jobs:
            await asyncio.sleep(0.005)
        server.takes_s = 0.0
        return left, (await request(server, "POST", {})).status

    began = time.monotonic()
    assert asyncio.run(leave()) == ([503, 503], 200)
    assert time.monotonic() - began < 30
    assert len(server.asked) == 2  # the one that waited was never begun
    assert routes._jobs == {}


def test_a_client_that_goes_away_harms_nobody(server: Any) -> None:
    async def leave() -> Any:
        gone = asyncio.ensure_future(request(server, "GET", {}))
        await asyncio.sleep(0.01)
        stays = asyncio.ensure_future(request(server, "GET", {}))
        await asyncio.sleep(0.01)
        gone.cancel()
        return await stays

    assert asyncio.run(leave()).status == 200
    assert len(server.asked) == 1


def test_a_doctor_that_fails_is_a_sentence_and_comes_again(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import routes

    def broken(**_: Any) -> Any:
        raise OSError("no room in /home/bob/private")

    monkeypatch.setattr(routes, "examine", broken)
    response = ask(server)
    assert response.status == 500
    assert "bob" not in response.text
    assert routes._jobs == {}
    for thread in doctors():
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
