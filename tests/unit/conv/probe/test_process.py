"""What a probe's child is started with, and what is made of what it writes."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_doubles import case

from hy3d_rocm.conv.probe import process
from hy3d_rocm.conv.probe.parent import probe
from hy3d_rocm.conv.probe.process import Messages, Tail


@given(seed=st.integers(0, 2**32))
def test_messages_are_found_among_any_garbage_in_any_pieces(seed: int) -> None:
    rng = random.Random(seed)
    sent, data = 0, b""
    for _ in range(rng.randint(0, 8)):
        if rng.random() < 0.5:
            data += b'\nn0nce {"case": %d}\n' % sent
            sent += 1
        else:
            length = rng.choice((1, 20, 16383, 16384, 16385, 70000))
            data += rng.choice((b"\n", b"\xff", b"n0nce {", b"other {}\n")) * length
    found: list[dict[str, Any]] = []
    messages = Messages("n0nce", found.append)
    while data:
        size = rng.choice((1, 7, 4096, 65536)) if len(data) < 5000 else rng.choice((4096, 65536))
        messages.feed(data[:size])
        data = data[size:]
        assert len(messages._rest) <= 16384
    assert [message["case"] for message in found] == list(range(sent))


def test_of_stderr_only_the_end_is_kept() -> None:
    tail = Tail()
    for _ in range(100):
        tail.feed(b"noise\n" * 5000)
    tail.feed("last: ä\n".encode())
    assert tail.lines()[-1] == "last: ä"
    assert len(tail._data) <= 65536


# On Windows a venv's sys.executable only starts that one.
EXECUTABLE = "_base_executable" if os.name == "nt" else "executable"


@pytest.mark.parametrize(
    ("attributes", "needle"),
    [
        ({EXECUTABLE: None}, "embedded"),
        ({EXECUTABLE: ""}, "embedded"),
        ({EXECUTABLE: "/opt/blender/blender"}, "not named like a Python"),
        ({EXECUTABLE: "/nowhere/python3"}, "does not exist"),
        ({"frozen": True}, "frozen"),
    ],
)
def test_a_program_that_is_no_python_is_never_started_as_one(
    attributes: dict[str, Any], needle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", None)
    for name, value in attributes.items():
        monkeypatch.setattr(sys, name, value, raising=False)
    path, why = process.interpreter()
    assert path is None
    assert needle in why
    (outcome,) = probe([case("ok")], limit_s=1.0)
    assert (outcome.verdict, outcome.detail) == ("not-run", why)


@pytest.mark.parametrize(
    "name",
    ["python", "python3", "python3.12", "python3.13t", "Python.exe", "pythonw.exe", "python_d.exe"],
)
def test_the_usual_names_of_python_are_known(name: str) -> None:
    assert process._PYTHON_NAME.fullmatch(name)


@pytest.mark.parametrize("name", ["comfyui.exe", "blender", "python-config", "uvicorn", "pytho"])
def test_other_programs_are_not_taken_for_python(name: str) -> None:
    assert not process._PYTHON_NAME.fullmatch(name)


def test_the_search_path_is_absolute_and_of_strings() -> None:
    here = str(Path.cwd())
    absolute = str(Path(here).parent / "abs")
    found = process.search_path(["", "lib", absolute, Path("/path"), 7])
    assert found == [here, str(Path(here) / "lib"), absolute]
