"""Capture Latent, Validate Decode and Doctor, with stand-ins for ComfyUI and tiny real VAEs."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from comfy_doubles import Comfy, Interrupt, comfy, door, execute, module  # noqa: E402
from decode_doubles import tiny_latents, tiny_vae  # noqa: E402

from hy3d_rocm import capture  # noqa: E402

__all__ = ["comfy", "door", "execute"]  # fixtures

Execute = Callable[..., Any]
OFF = {"whole": False, "streamed": False, "tiled": False, "cpu": False}
DEFAULTS = {"budget": "auto", "share": 0.25, "statistic_passes": 0}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """ComfyUI's output directory."""
    made = module("folder_paths", get_output_directory=lambda: str(tmp_path / "output"))
    monkeypatch.setitem(sys.modules, "folder_paths", made)
    return tmp_path / "output"


@pytest.fixture
def vae() -> Any:
    return tiny_vae("wan")


@pytest.fixture
def samples(vae: Any) -> dict[str, Any]:
    return {"samples": tiny_latents(vae, 2, 4, 5)}


# --- Capture Latent -------------------------------------------------------------------------


def test_a_capture_is_read_by_the_tools_and_the_latents_pass_on(
    execute: Execute, output: Path, vae: Any, samples: dict[str, Any]
) -> None:
    out = execute("Hy3DRocmCaptureLatent", samples=samples, vae=vae, folder="here/there")
    passed, path, report = out.values
    assert passed is samples
    assert Path(path).parent == output / "here" / "there"
    found = capture.read_capture(path)
    assert torch.equal(found.latents, samples["samples"])
    assert found.facts["vae"]["class"] == "AutoencoderKLWan"
    assert found.facts["vae"]["fingerprint"] == capture.fingerprint(vae)
    assert found.facts["outcome"] == "captured"
    assert found.facts["comfyui"]["latent_keys"] == ["samples"]
    assert str(output) not in report
    assert f"output/here/there/{Path(path).name}" in report
    assert out.ui.as_dict() == {"text": (report,)}


def test_frames_are_kept_with_the_count_of_what_eight_bits_cannot_hold(
    execute: Execute, output: Path, vae: Any, samples: dict[str, Any]
) -> None:
    from safetensors.torch import load_file

    frames = torch.tensor([0.0, 0.5, 1.0, float("nan"), float("inf"), -3.0]).reshape(1, 2, 1, 3)
    out = execute("Hy3DRocmCaptureLatent", samples=samples, vae=vae, folder="", frames=frames)
    path = Path(out.values[1])
    facts = json.loads(path.read_text(encoding="utf-8"))
    assert {k: facts["frames"][k] for k in ("nan", "infinite", "least", "most")} == {
        "nan": 1, "infinite": 1, "least": -3.0, "most": 1.0
    }  # fmt: skip
    stored = load_file(path.with_suffix(".safetensors"))["frames"]
    assert stored.dtype == torch.uint8
    assert stored.flatten().tolist() == [0, 128, 255, 0, 255, 0]


def test_a_vae_of_unknown_layers_is_captured_all_the_same(
    execute: Execute, output: Path, samples: dict[str, Any]
) -> None:
    class Strange(torch.nn.Linear):
        dtype = torch.float32

    path = execute("Hy3DRocmCaptureLatent", samples=samples, vae=Strange(2, 2), folder="a").values[
        1
    ]
    facts = json.loads(Path(path).read_text(encoding="utf-8"))
    assert facts["vae"]["class"] == "Strange"
    assert len(facts["vae"]["fingerprint"]) == 64


@pytest.mark.parametrize("folder", ["..", "../x", "/etc", "a/../../b"])
def test_a_folder_outside_of_comfyuis_output_is_refused(
    execute: Execute, output: Path, vae: Any, samples: dict[str, Any], folder: str
) -> None:
    with pytest.raises(ValueError, match="leads out of ComfyUI's output directory; give a name"):
        execute("Hy3DRocmCaptureLatent", samples=samples, vae=vae, folder=folder)
    assert not output.exists()


@pytest.mark.parametrize(
    ("folder", "words"),
    [("a\0b", "is no name of"), ("x" * 300, "is no name of|can't be written to"),
     ("x/" * 3000, "is no name of|can't be written to"), ("file/x", "can't be written to")],
)  # fmt: skip
def test_a_folder_that_no_disk_can_have_is_a_sentence(
    execute: Execute, output: Path, vae: Any, samples: dict[str, Any], folder: str, words: str
) -> None:
    output.mkdir()
    (output / "file").write_text("")
    with pytest.raises(ValueError, match=words) as caught:
        execute("Hy3DRocmCaptureLatent", samples=samples, vae=vae, folder=folder)
    assert len(str(caught.value).replace(str(output), "")) < 7000


def test_what_is_no_latent_is_refused_in_a_sentence(
    execute: Execute, output: Path, vae: Any
) -> None:
    with pytest.raises(ValueError, match="not a LATENT; connect an output of that type"):
        execute("Hy3DRocmCaptureLatent", samples=torch.zeros(1), vae=vae, folder="a")


# --- Validate Decode ------------------------------------------------------------------------


def test_exact_strategies_are_found_exact_and_drawn(
    execute: Execute, vae: Any, samples: dict[str, Any]
) -> None:
    out = execute(
        "Hy3DRocmValidateDecode", samples=samples, vae=vae,
        **{**OFF, "streamed": True, "whole": True}, **DEFAULTS,
    )  # fmt: skip
    picture, table = out.values
    assert picture.shape[0] == 1
    assert picture.shape[3] == 3
    assert 0 <= float(picture.min()) < float(picture.max()) <= 1
    assert "AutoencoderKLWan (Wan) on cpu in float32" in table
    assert table.count("\npass  ") == 1  # whole is what it is held against
    assert "whole: whole, the exact decode itself" in table
    assert "FAIL" not in table
    assert out.ui["images"]
    assert out.ui["text"] == (table,)


def test_a_share_too_small_for_tiles_is_raised_to_what_they_need(
    execute: Execute, vae: Any, samples: dict[str, Any]
) -> None:
    given = {**DEFAULTS, "share": 0.01}
    table = execute(
        "Hy3DRocmValidateDecode", samples=samples, vae=vae, **{**OFF, "tiled": True}, **given
    ).values[1]
    assert "tiled: tiled in " in table
    assert "was not run" not in table


def test_a_budget_that_is_too_small_is_said_and_is_no_broken_promise(
    execute: Execute, vae: Any, samples: dict[str, Any]
) -> None:
    given = {**DEFAULTS, "budget": "1MB"}
    switched = {**OFF, "streamed": True, "tiled": True}
    table = execute("Hy3DRocmValidateDecode", samples=samples, vae=vae, **switched, **given).values[
        1
    ]
    assert "tiled was not run: the strategy 'tiled' does not fit" in table
    assert "streamed was not run: the strategy 'streamed' does not fit" in table
    assert "FAIL" not in table


def test_no_strategy_is_refused_before_anything_is_decoded(
    execute: Execute, vae: Any, samples: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="no strategy is switched on"):
        execute("Hy3DRocmValidateDecode", samples=samples, vae=vae, **OFF, **DEFAULTS)


def test_a_cancel_ends_the_comparison_with_comfyuis_own_exception(
    execute: Execute, comfy: Comfy, vae: Any, samples: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whichever decode is running: the exact one, or any of the strategies."""
    from hy3d_rocm.comfy.nodes import decode as tools

    for at in (0, 1, 2):
        begun: list[str] = []

        class Bar(tools.Bar):
            def begin(self, label: str, at: int = at, begun: list[str] = begun) -> None:
                begun.append(label)
                comfy.interrupted = len(begun) > at

        monkeypatch.setattr(tools, "Bar", Bar)
        comfy.interrupted = False
        with pytest.raises(Interrupt):
            execute(
                "Hy3DRocmValidateDecode", samples=samples, vae=vae,
                **{**OFF, "whole": True, "streamed": True}, **DEFAULTS,
            )  # fmt: skip
        assert begun == ["exact", "whole", "streamed"][: at + 1]


def test_the_bar_goes_on_over_all_decodes_and_never_back(comfy: Comfy) -> None:
    from comfy_doubles import FakeBar

    from hy3d_rocm.comfy.nodes import decode as tools

    bar = tools.Bar(3)
    for total in (4, 0, 2):  # 0: a decode whose steps can't be counted
        bar.begin("one")
        for done in range(1, 3):
            bar(done, total, None)
    values = [value for value, _ in FakeBar.seen]
    assert values == sorted(values)
    assert {total for _, total in FakeBar.seen} == {3000}
    assert values[0] == 0
    assert values[-1] == 3000


# --- Doctor ---------------------------------------------------------------------------------


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The doctor's module with an examine() that is to be replaced."""
    from hy3d_rocm.diagnose.doctor import examination

    found = SimpleNamespace(
        findings=(
            SimpleNamespace(severity="error", title="A", evidence="one\ntwo", remedy="do this"),
            SimpleNamespace(severity="fine", title="B", evidence="three", remedy=""),
        ),
        text=lambda: "the text",
    )
    monkeypatch.setattr(examination, "examine", lambda **asked: (asked, found)[1])
    return examination


def test_findings_are_shown_with_evidence_and_remedy(execute: Execute, doctor: ModuleType) -> None:
    from hy3d_rocm.comfy.nodes import machine

    out = execute("Hy3DRocmDoctor", self_test=True, seconds=5)
    text, image = out.values
    assert text == "the text"
    assert image.shape[0] == 1
    sections = machine.sections_of(doctor.examine())
    assert [(s.title, list(s.lines)) for s in sections] == [
        ("error: A", ["  one", "  two", "-> do this"]), ("fine: B", ["  three"]),
    ]  # fmt: skip


def test_an_error_of_the_examination_is_the_nodes_own(
    execute: Execute, doctor: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: Any) -> Any:
        raise OSError("no such driver")

    monkeypatch.setattr(doctor, "examine", broken)
    with pytest.raises(OSError, match="no such driver"):
        execute("Hy3DRocmDoctor", self_test=True, seconds=5)


def test_a_cancel_does_not_wait_for_a_self_test_that_hangs(
    execute: Execute, comfy: Comfy, doctor: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def hangs(**_: Any) -> Any:
        comfy.interrupted = True
        ended.wait(30)

    monkeypatch.setattr(doctor, "examine", hangs)
    began = time.monotonic()
    try:
        with pytest.raises(Interrupt):
            execute("Hy3DRocmDoctor", self_test=True, seconds=60)
        assert time.monotonic() - began < 10
    finally:
        ended.set()
