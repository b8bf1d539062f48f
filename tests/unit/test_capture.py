"""What a capture of a decode holds, what it never holds, and that it never disturbs a decode."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import how_much
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("safetensors")

from decode_doubles import tiny_latents, tiny_vae  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import hy3d_rocm  # noqa: E402
from hy3d_rocm import capture  # noqa: E402
from hy3d_rocm.capture import (  # noqa: E402
    CaptureError,
    capturing,
    fingerprint,
    read_capture,
)
from hy3d_rocm.decoding import (  # noqa: E402
    DecodeCancelled,
    DecodeOptions,
    decode_with_report,
)
from hy3d_rocm.decoding.executor import decode, encode  # noqa: E402
from hy3d_rocm.files import plain, stamped, write_whole  # noqa: E402
from hy3d_rocm.tools.runs import subject_from_capture  # noqa: E402

DATA = Path(__file__).resolve().parents[1] / "data"

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def vae() -> Any:
    return tiny_vae("wan")


@pytest.fixture(scope="module")
def latents(vae: Any) -> Any:
    return tiny_latents(vae, 2, 4, 4)


def test_a_capture_gives_back_the_latents_the_options_and_the_vae_bit_for_bit(
    vae: Any, latents: Any, tmp_path: Path
) -> None:
    with capturing(tmp_path) as written:
        decode_with_report(
            vae, latents, "2GB", "streamed", "fp32", options=DecodeOptions(chunk_size=2)
        )
    assert len(written) == 1
    found = read_capture(written[0])
    assert torch.equal(found.latents, latents)
    facts = found.facts
    assert (facts["kind"], facts["outcome"], facts["error"]) == ("decode", "done", None)
    assert facts["vae"]["class"] == "AutoencoderKLWan"
    assert facts["vae"]["config"]["z_dim"] == 4
    assert facts["vae"]["fingerprint"] == fingerprint(vae)
    wanted = {"budget": "2GB", "strategy": "streamed", "precision": "fp32", "chunk_size": 2}
    assert {key: facts["options"][key] for key in wanted} == wanted
    assert facts["report"]["strategy"] == "streamed"
    assert read_capture(tmp_path).path == written[0]
    assert torch.equal(read_capture(written[0].with_suffix(".safetensors")).latents, latents)


def test_the_vae_can_be_built_again_from_a_capture(vae: Any, latents: Any, tmp_path: Path) -> None:
    import diffusers

    with capturing(tmp_path) as written:
        decode(vae, latents, strategy="whole")
    facts = read_capture(written[0]).facts["vae"]
    again = getattr(diffusers, facts["class"]).from_config(facts["config"])
    assert {n: p.shape for n, p in again.named_parameters()} == {
        n: p.shape for n, p in vae.named_parameters()
    }


def test_weights_are_never_stored(vae: Any, latents: Any, tmp_path: Path) -> None:
    with capturing(tmp_path):
        decode(vae, latents)
    weights = sum(p.numel() * p.element_size() for p in vae.parameters())
    stored = sum(p.stat().st_size for p in tmp_path.iterdir())
    assert stored < latents.numel() * 4 + 20_000 < weights


def test_the_fingerprint_tells_one_changed_value(vae: Any) -> None:
    other = tiny_vae("wan")
    assert fingerprint(other) == fingerprint(vae)
    name, parameter = next(iter(other.named_parameters()))
    with torch.no_grad():
        parameter.view(-1)[0] += 1e-6
    assert fingerprint(other) != fingerprint(vae), name


def test_the_variable_captures_every_decode_and_encode_and_counts_up_within_a_second(
    vae: Any, latents: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(capture.VARIABLE, str(tmp_path / "new" / "folder"))
    decode(vae, latents)
    frames = decode(vae, latents)
    encode(vae, frames)
    kinds = [
        read_capture(path).facts["kind"] for path in sorted((tmp_path / "new").rglob("*.json"))
    ]
    assert sorted(kinds) == ["decode", "decode", "encode"]


def test_nothing_is_written_unless_asked_for(
    vae: Any, latents: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(capture.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    decode(vae, latents)
    assert not list(tmp_path.iterdir())


def test_the_files_are_there_before_the_decode_begins(
    vae: Any, latents: Any, tmp_path: Path
) -> None:
    seen: list[str] = []

    def look(done: int, total: int, step: object) -> None:
        seen.append(read_capture(tmp_path).facts["outcome"])

    with capturing(tmp_path):
        decode(vae, latents, strategy="streamed", progress=look)
    assert set(seen) == {"began"}


class _Broken(torch.overrides.TorchFunctionMode):
    """Every convolution fails with `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.conv3d:
            raise self.error
        return func(*args, **(kwargs or {}))


def test_a_failed_decode_leaves_its_error_in_the_facts_and_in_the_log_of_errors(
    vae: Any, latents: Any, tmp_path: Path
) -> None:
    error = torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB in /opt/a/b.py")
    options = DecodeOptions(backend="torch")  # whose convolutions _Broken sees
    with capturing(tmp_path) as written, pytest.raises(MemoryError), _Broken(error):
        decode_with_report(vae, latents, strategy="streamed", options=options)
    facts = read_capture(written[0]).facts
    assert (facts["outcome"], facts["error"]["type"]) == ("failed", "MemoryError")
    assert "HIP out of memory" in facts["error"]["text"]
    assert "/opt" not in json.dumps(facts)
    lines = [
        json.loads(line)
        for path in tmp_path.glob("errors-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert [line["survived"] for line in lines] == [True] * (len(lines) - 1) + [False]
    assert len(lines) == 1 + len(facts["report"]["events"]) >= 2
    assert {line["capture"] for line in lines} == {written[0].name}


def test_a_cancelled_decode_is_no_error(vae: Any, latents: Any, tmp_path: Path) -> None:
    with capturing(tmp_path) as written, pytest.raises(DecodeCancelled):
        decode(vae, latents, strategy="streamed", cancel=lambda: True)
    assert read_capture(written[0]).facts["outcome"] == "cancelled"
    assert not list(tmp_path.glob("errors-*"))


def test_an_interruption_passes_unchanged(vae: Any, latents: Any, tmp_path: Path) -> None:
    class InterruptProcessingException(BaseException):
        pass

    def stop(done: int, total: int, step: object) -> None:
        raise InterruptProcessingException

    with capturing(tmp_path) as written, pytest.raises(InterruptProcessingException):
        decode(vae, latents, strategy="streamed", progress=stop)
    assert read_capture(written[0]).facts["outcome"] == "cancelled"


def test_a_folder_that_cannot_be_written_is_a_warning_and_the_same_frames(
    vae: Any, latents: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    with capturing(taken) as written:
        frames = decode(vae, latents)
    assert written == []
    assert "Not captured" in caplog.text
    assert torch.equal(frames, decode(vae, latents))


def test_nothing_names_the_machine_its_user_or_a_path(
    vae: Any, latents: Any, tmp_path: Path
) -> None:
    class Odd(type(vae)):  # type: ignore[misc]
        pass

    named = tiny_vae("wan")
    named.__class__ = Odd
    named.register_to_config(_name_or_path="/secret/models/vae", note="/secret/place/file.txt")
    with capturing(tmp_path) as written:
        decode(named, latents)
    text = written[0].read_text()
    assert "/secret" not in text
    assert str(tmp_path) not in text
    node = platform.node()
    assert len(node) <= 4 or node not in text


def test_what_is_no_capture_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="holds no capture"):
        read_capture(tmp_path)
    with pytest.raises(CaptureError, match=r"can't be read"):
        read_capture(tmp_path / "nothing.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(CaptureError, match="no JSON"):
        read_capture(tmp_path / "bad.json")
    (tmp_path / "other.json").write_text('{"format": 99, "file": "x"}')
    with pytest.raises(CaptureError, match="of this version"):
        read_capture(tmp_path / "other.json")
    (tmp_path / "half.json").write_text('{"format": 1, "file": "../../half.safetensors"}')
    with pytest.raises(CaptureError, match=r"^half.safetensors is missing"):
        read_capture(tmp_path / "half.json")


def test_a_capture_of_the_first_version_with_captures_is_read(tmp_path: Path) -> None:
    """tests/data/capture_format_1.json is what c7cc77d8 wrote, but for facts of the machine."""
    facts = json.loads((DATA / "capture_format_1.json").read_text())
    facts |= {"of a later version": {"unknown": 1}}
    path = tmp_path / "Wan_decode_20261121_191520.json"
    path.write_text(json.dumps(facts))
    latents = torch.arange(16.0).reshape(1, 4, 1, 2, 2)
    save_file({"latents": latents, "more": latents + 1}, path.with_suffix(".safetensors"))
    found = subject_from_capture(tmp_path, None, torch.device("cpu"))
    assert torch.equal(found.latents, latents)
    assert found.text == "AutoencoderKLWan as captured, random weights"
    assert found.vae.config.base_dim == 4


@pytest.mark.parametrize("number", [2, 0, "two", None])
def test_a_capture_of_another_format_names_both_and_stays(number: Any, tmp_path: Path) -> None:
    path = tmp_path / "wan_decode_20300101_000000.json"
    path.write_text(json.dumps({"format": number, "file": "x.safetensors", "vae": []}))
    before = path.read_bytes()
    with pytest.raises(CaptureError) as caught:
        read_capture(path)
    assert str(caught.value) == (
        f"{path} is no capture of this version of hy3d_rocm (format {number}; this one, "
        f"{hy3d_rocm.__version__}, reads 1): read it with the one that made it"
    )
    assert path.read_bytes() == before


def test_names_with_time_stamps_are_never_taken_twice(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    now = datetime(2026, 1, 31, 23, 59, 58, tzinfo=UTC)
    names = []
    for _ in range(3):
        path = stamped(tmp_path, "x", ".json", now)
        path.write_text("")
        names.append(path.name)
    assert names == [f"x_20260131_235958{tail}.json" for tail in ("", "_2", "_3")]


def test_json_stays_strict() -> None:
    found = json.dumps(plain({"a": float("inf"), "b": (float("nan"), 1), 3: torch.float32}))
    assert json.loads(found) == {"a": "inf", "b": ["nan", 1], "3": "torch.float32"}


def test_captures_at_once_are_pairs_and_none_is_lost(tmp_path: Path) -> None:
    """Eight threads within one second: each JSON names the latents that it was written with."""
    from concurrent.futures import ThreadPoolExecutor

    def write(number: int) -> tuple[int, Path]:
        facts = {"format": 1, "vae": {"family": "x"}, "kind": "decode", "number": number}
        return number, capture.write_capture(tmp_path, torch.full((3,), float(number)), facts)

    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(write, range(64)))
    assert len({path for _, path in written}) == 64
    for number, path in written:
        found = read_capture(path)
        assert found.facts["number"] == number
        assert found.latents.tolist() == [number] * 3
    assert len(list(tmp_path.iterdir())) == 128


def test_processes_at_once_are_given_different_names(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; from hy3d_rocm.files import *\n"
        "from datetime import datetime\n"
        "sys.stdin.readline()\n"
        "for n in range(int(sys.argv[3])):\n"
        "    path = stamped(Path(sys.argv[1]), 'x', '.json', datetime(2026, 1, 31))\n"
        "    write_json(path, [int(sys.argv[2]), n])\n"
    )
    each = how_much.of(20, 50)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), str(n), str(each)], stdin=subprocess.PIPE
        )
        for n in range(4)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.close()
    assert [child.wait(60) for child in children] == [0] * 4
    found = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert sorted(found) == [[child, n] for child in range(4) for n in range(each)]


def test_a_capture_that_fails_gives_its_name_back(tmp_path: Path) -> None:
    facts = {"vae": {"family": "x"}, "kind": "decode", "bad": object}
    facts["vae"]["loop"] = facts  # JSON has no circles
    with pytest.raises(RecursionError):
        capture.write_capture(tmp_path, torch.zeros(1), facts)
    assert list(tmp_path.iterdir()) == []


def test_a_whole_text_replaces_the_old_one_with_the_mode_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "report"
    for text, given in (("old\n", {}), ("new\n", {"mode": 0o600})):
        write_whole(path, text, **given)
        assert path.read_bytes() == text.encode()
        if os.name == "posix":
            assert path.stat().st_mode & 0o777 == given.get("mode", 0o644)
    assert list(tmp_path.iterdir()) == [path]
