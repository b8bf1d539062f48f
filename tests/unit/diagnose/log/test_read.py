"""Reading logs: encodings, line ends, colours, prefixes, any bytes, bounded memory, linear time."""

from __future__ import annotations

import io
import math
import time
import tracemalloc
from collections.abc import Callable, Iterator

import how_much
import pytest
from diagnose_cases import excerpts
from hypothesis import given, settings
from hypothesis import strategies as st

from hy3d_rocm.diagnose.log.examine import EVIDENCE_LINES, UNKNOWN_LINES, Examination, examine
from hy3d_rocm.diagnose.log.read import PIECE_CHARS, lines_of_stream, lines_of_text
from hy3d_rocm.diagnose.log.report import WIDTH, as_dict, exit_code, text_of

EXCERPTS = excerpts()
NO_ALGORITHM = "MIOpen Error: No suitable algorithm was found to execute the required convolution"


def examined(data: bytes) -> Examination:
    return examine(lines_of_stream(io.BytesIO(data)))


def rules_of(data: bytes) -> list[str]:
    return [found.rule for found in examined(data).diagnoses]


WAYS: dict[str, Callable[[list[str]], bytes]] = {
    "utf-8": lambda lines: "\n".join(lines).encode(),
    "utf-8 with mark": lambda lines: "\n".join(lines).encode("utf-8-sig"),
    "utf-16 with mark": lambda lines: "\r\n".join(lines).encode("utf-16"),
    "utf-16 without mark": lambda lines: ("log of a run\n" + "\r\n".join(lines)).encode(
        "utf-16-le"
    ),
    "latin-1": lambda lines: "\n".join(lines).encode("latin-1", errors="replace"),
    "gbk": lambda lines: "\n".join(lines).encode("gbk", errors="replace"),
    "windows line ends": lambda lines: "\r\n".join(lines).encode(),
    "colours": lambda lines: "\n".join(f"\x1b[31;1m{line}\x1b[0m" for line in lines).encode(),
    "comfyui's time": lambda lines: "\n".join(
        f"2025-05-12T01:47:55.556813 - {line}" for line in lines
    ).encode(),
    "docker compose": lambda lines: "\n".join(f"comfyui-rocm  | {line}" for line in lines).encode(),
    "a level": lambda lines: "\n".join(f"[INFO] {line}" for line in lines).encode(),
    "quoted": lambda lines: "\n".join(f"> {line}" for line in lines).encode(),
    "indented": lambda lines: "\n".join(f"      {line}" for line in lines).encode(),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_encoding_line_end_colour_or_prefix_changes_a_diagnosis(way: str) -> None:
    for found in EXCERPTS[:: how_much.of(6, 1)]:
        assert rules_of(WAYS[way](found["lines"])) == found["expected"], found["link"]


def test_line_numbers_are_those_of_an_editor() -> None:
    text = "one\r\n 1%|#| 1/9\r 2%|#| 2/9\r\n\x1b[2J\n\n" + NO_ALGORITHM + "\r\n"
    found = examined(text.encode())
    assert [row.line for row in found.diagnoses[0].evidence] == [5]
    assert found.lines == 5


@pytest.mark.parametrize("offset", [0, 1, PIECE_CHARS - 40, PIECE_CHARS, 70_000, 3_000_001])
def test_an_error_inside_one_enormous_line_is_found_once(offset: int) -> None:
    noise = '{"id":7,"type":"KSampler"},'
    head = (noise * (offset // len(noise) + 1))[:offset]
    found = examined((head + NO_ALGORITHM + noise * 9000).encode())
    assert [(d.rule, d.count) for d in found.diagnoses] == [("miopen-no-algorithm", 1)]
    assert found.lines == 1


def test_a_sentence_broken_by_the_logger_is_put_together() -> None:
    text = "12:00:00-1 ERROR    Expected all tensors to be\n        on the\n      same device, but"
    assert rules_of(text.encode()) == ["device-mismatch"]
    assert rules_of(b"Expected all tensors to be\n\nsomething else\non the\nsame device") == []


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=3000))
def test_any_bytes_can_be_read_and_reported(data: bytes) -> None:
    found = examined(data)
    assert exit_code(found) in (0, 1, 3, 4)
    assert all(row.line >= 1 for row in found.unknown)
    text_of(found, "log")
    as_dict(found, "log")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(
    st.sampled_from([line for found in EXCERPTS for line in found["lines"]]), st.text(max_size=60)
), max_size=12))  # fmt: skip
def test_any_mixture_of_lines_can_be_read_and_fits_its_evidence(lines: list[str]) -> None:
    text = "\n".join(lines)
    found = examine(lines_of_text(text))
    real = text.split("\n")
    for diagnosis in found.diagnoses:
        assert 1 <= len(diagnosis.evidence) <= EVIDENCE_LINES + 1
        assert all(1 <= row.line <= len(real) for row in diagnosis.evidence)
        assert diagnosis.count >= len(diagnosis.evidence)
    assert len(found.unknown) <= UNKNOWN_LINES
    for row in text_of(found, "log").splitlines():
        assert len(row) <= WIDTH or max(map(len, row.split())) > WIDTH - 15


class _Log(io.RawIOBase):
    """`count` times `lines`, made while it is read."""

    def __init__(self, lines: str, count: int) -> None:
        self._parts: Iterator[bytes] = iter(lines.encode() for _ in range(count))

    def read(self, size: int = -1) -> bytes:
        return next(self._parts, b"")


def peak_bytes(count: int) -> int:
    lines = "".join("\n".join(found["lines"]) + "\n" for found in EXCERPTS[:60])
    tracemalloc.start()
    examine(lines_of_stream(_Log(lines, count)))  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_log() -> None:
    peak_bytes(1)
    assert peak_bytes(9) - peak_bytes(3) < 100_000


ADVERSARIES = {
    "escapes": "\x1b[" + "1;" * 40,
    "unfinished titles": "\x1b]0;",
    "words of many rules": "amdgpu HSA_STATUS_ERROR_ miopen HIP naive cuda triton ",
    "almost a kernel's line": "amdgpu ring gfx ",
    "open parentheses": "Input type (cuda",
    "loading": "Error loading \\torch\\lib\\",
    "carriage returns": "\r50%|#| 10/20 ",
    "digits": "2025-05-12T01:47:55",
    "spaces": "Aborted  \t",
}


def seconds(data: bytes, enough: float = 0.0) -> float:
    """The least of three times, or the first below `enough`."""
    times: list[float] = []
    while len(times) < 3 and min(times, default=math.inf) >= enough:
        began = time.process_time()
        examined(data)
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.parametrize(("name", "end"), how_much.in_turns(ADVERSARIES, ("", "\n")))
def test_time_is_linear_in_the_length_of_the_log(name: str, end: str) -> None:
    piece = (ADVERSARIES[name] + end).encode()
    count = 12_000 // len(piece)
    # Quadratic time would give 16; twice the linear 4 allows for the machine.
    most = 8 * seconds(piece * count) + 0.05
    assert seconds(piece * count * 4, enough=most) < most
