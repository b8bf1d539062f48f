"""The child's side of `bench raster`: makes a peer's jobs, runs the one it is told to and says how
long it took. A line of JSON in, a line of JSON out; libraries may print to stdout meanwhile."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from tools.dev.bench.raster_jobs import Given, Job, MissingError
from tools.dev.bench.raster_scene import load_scene


def main(module: str) -> int:
    """Serves until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    jobs: list[Job] = []
    for line in sys.stdin:
        request = json.loads(line)
        _answer(answers, partial(_DO[request["do"]], jobs, module, request))
    return 0


def _answer(answers: TextIO, do: Callable[[], dict[str, Any]]) -> None:
    try:
        answer = do()
    except MissingError as error:
        answer = {"missing": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is its row's reason
        answer = {"failed": f"{type(error).__name__}: {error}"}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _make(jobs: list[Job], module: str, request: dict[str, Any]) -> dict[str, Any]:
    folder = Path(request["folder"])
    given = None
    if request["is_given"]:
        given = Given(*(np.load(folder / f"{name}.npy") for name in ("face_index", "barycentric")))
    jobs.clear()
    peer = importlib.import_module(module)
    jobs += peer.jobs(load_scene(folder), given, request["threads"])
    said = [{"name": j.name, "kind": j.kind, "prepared": dict(j.prepared)} for j in jobs]
    return {"jobs": said}


def _run(jobs: list[Job], module: str, request: dict[str, Any]) -> dict[str, Any]:
    return {"seconds": jobs[request["job"]].run()}


def _keep(jobs: list[Job], module: str, request: dict[str, Any]) -> dict[str, Any]:
    """Writes the last run's result."""
    found = [array for array in jobs[request["job"]].result() if array is not None]
    names = [str(Path(request["folder"]) / f"result{number}.npy") for number in range(len(found))]
    for name, array in zip(names, found, strict=True):
        np.save(name, array)
    return {"files": names}


_DO: dict[str, Callable[[list[Job], str, dict[str, Any]], dict[str, Any]]] = {
    "make": _make,
    "run": _run,
    "keep": _keep,
}
