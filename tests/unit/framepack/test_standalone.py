"""The stand-alone FramePack, run by examples/framepack_rocm.py: tried on a tiny double of it.

The double has FramePack's names and the order of its calls; docs/framepack.md says what was tried
with the real one.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from places import ROOT, SUPPORT

from examples.framepack import memory as problems
from examples.framepack import memory as standalone_memory
from examples.framepack import program as standalone
from examples.framepack.program import AfterImport
from hy3d_rocm.conv.router import LOCAL
from hy3d_rocm.framepack import sections
from hy3d_rocm.framepack.preservation import Preservation
from hy3d_rocm.framepack.sections import SectionRunner
from hy3d_rocm.units import GB, MB

PROGRAM = SUPPORT / "framepack_program"
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="torch has a GPU here")


def launched(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples/framepack_rocm.py"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The double can be imported, and is forgotten at the end."""
    monkeypatch.syspath_prepend(str(PROGRAM))
    monkeypatch.setenv("HF_HOME", os.environ.get("HF_HOME", ""))
    yield
    for name in [n for n in sys.modules if n.startswith(("demo_gradio", "diffusers_helper"))]:
        del sys.modules[name]


@NO_GPU
@pytest.mark.usefixtures("found")
def test_a_program_that_needs_cuda_to_be_imported_runs_without_a_gpu() -> None:
    with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA|GPU"):
        importlib.import_module("demo_gradio")
    done = launched(str(PROGRAM), "2")
    assert done.returncode == 0, done.stderr
    assert "free True" in done.stdout
    assert "sum" in done.stdout
    assert "Offloading" not in done.stdout + done.stderr


@pytest.mark.parametrize("what", ["an empty folder", "no folder", "another script"])
def test_a_folder_that_is_not_framepack_ends_with_a_sentence(what: str, tmp_path: Path) -> None:
    arguments = {
        "an empty folder": [str(tmp_path)],
        "no folder": [str(tmp_path / "absent")],
        "another script": [str(PROGRAM), "--script", "demo_other.py"],
    }[what]
    done = launched(*arguments)
    assert done.returncode == 2
    missing = "demo_other.py" if what == "another script" else "demo_gradio.py"
    assert f"is not FramePack: it has no {missing}; give the folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_changed_upstream_is_left_alone_with_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = ModuleType("diffusers_helper.hunyuan")
    module.__dict__.update(vae_decode=len, vae_encode=len)
    standalone.changes()["diffusers_helper.hunyuan"](module)
    assert module.vae_decode is len
    assert [r.getMessage() for r in caplog.records] == [
        "hy3d_rocm: diffusers_helper.hunyuan is left alone: it has no encode_prompt_conds"
    ]


def test_the_double_has_all_names_that_are_replaced(program: ModuleType) -> None:
    for name, functions in standalone.REPLACED.items():
        assert all(hasattr(sys.modules[name], function) for function in functions)


class Card:
    """24 GB; a section takes 4 GB, a decode 2 GB, a weight of the transformer is a GB."""

    def __init__(self) -> None:
        self.needs = {"section": 4 * GB, "decode": 2 * GB}
        self.now = "section"
        self.emptied = 0

    def free(self) -> int:
        return 24 * GB

    def empty(self) -> None:
        self.emptied += 1

    def start(self) -> None:
        pass

    def need(self) -> int:
        return self.needs[self.now]

    def retries(self) -> int:
        return 0


@pytest.fixture(name="card")
def a_card(monkeypatch: pytest.MonkeyPatch) -> Card:
    """Memory believes that its device, the CPU, is a card."""
    made = Card()

    def begin(self: standalone_memory.Memory, device: torch.device) -> None:
        self.device, self.card, self.limit_bytes = torch.device("cpu"), made, 24 * GB
        self.is_capped = True

    monkeypatch.setattr(standalone_memory.Memory, "begin", begin)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: 1 * MB)
    sections._known.clear()
    return made


@pytest.fixture(name="program")
def the_double(found: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """demo_gradio of the double, imported as the launcher has it imported."""
    monkeypatch.setattr(sys, "argv", ["demo_gradio.py"])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with AfterImport(standalone.changes()):
        made: Any = importlib.import_module("demo_gradio")
        made.gpu = torch.device("cpu")
        yield made


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [m for m in caplog.messages if m.startswith(("Unloading", "[Before"))]


def heads(lines: list[str]) -> list[str]:
    return [line.split("]")[0] + "]" if line.startswith("[") else line for line in lines]


@pytest.fixture(name="free_query", autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (20 * GB, 24 * GB))


def test_everything_leaves_whole_and_in_the_specifications_order(
    card: Card, program: Any, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    card.needs["decode"] = 30 * GB  # so that no weight may ever stay
    caplog.set_level(logging.INFO, logger="hy3d_rocm")
    program.main(1)
    lines = heads(events(caplog))
    start = lines.index("[Before CLIPTextModel Load]")
    assert lines[start:] == [
        "[Before CLIPTextModel Load]",
        "Unloading LlamaModel completely",
        "Unloading CLIPTextModel completely",
        "[Before VAE Load]",
        "Unloading AutoencoderKLHunyuanVideo completely",
        "[Before SiglipVisionModel Load]",
        "Unloading SiglipVisionModel completely",
        "Unloading HunyuanVideoTransformer3DModelPacked completely",
        "[Before VAE Load]",
        "[Before VAE Decode]",
        "Unloading AutoencoderKLHunyuanVideo completely",
    ]
    assert "Offloading" not in capsys.readouterr().out
    # Once for each of the five times that something left in here, once at the start, and once more
    # since on this card, which is the CPU, the transformer's weights are never seen to be gone.
    assert card.emptied == 7


def test_the_line_has_the_specifications_form(
    card: Card, program: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hy3d_rocm")
    program.main(1)
    assert (
        "[Before VAE Load] Free: 24.0 GB | Allocated: 0.0 GB (0.0% of 24GB limit)"
        in caplog.messages
    )


@pytest.mark.parametrize("at", [2, 5])
def test_a_section_that_runs_out_is_made_again_and_the_video_is_the_same(
    at: int, card: Card, program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = program.main(2)
    sections._known.clear()
    monkeypatch.setattr(sys, "argv", ["demo_gradio.py", "2", str(at)])
    assert torch.equal(program.main(2), alone)


def test_the_slider_at_its_default_is_computed_and_another_value_is_kept(
    card: Card, program: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hy3d_rocm")
    program.main(1)
    sections._known.clear()
    program.main(1, preserved=9)
    kept = [m.split(";")[0] for m in caplog.messages if m.startswith("FramePack keeps")]
    kept = [line for line in kept if "decode" not in line]
    assert kept[0].startswith("FramePack keeps 18.0 GB free: ")
    assert "FramePack keeps 9.0 GB free: the node's own value" in kept


def test_weights_stay_through_the_decode_once_a_decode_has_left_room_for_them(
    card: Card, program: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hy3d_rocm")
    program.main(3)
    gone = [m for m in caplog.messages if m.startswith("Unloading HunyuanVideoTransformer")]
    assert len(gone) == 2  # when the video begins, and before the first decode


def test_a_longer_decode_begins_without_weights_on_the_card() -> None:
    memory = standalone_memory.Memory()
    state = Preservation(3 * GB, 20 * GB, need_bytes=2 * GB)
    memory.decodes = SectionRunner([], torch.device("cpu"), torch.device("cpu"), Card(), state)
    memory.decoded_frames = 9
    for frames, kept in ((9, 3 * GB), (11, 3 * GB), (18, 20 * GB)):
        memory._longer(torch.zeros(1, 16, frames, 1, 1))
        assert memory.decodes.state.preserved_bytes == kept, frames


def test_the_first_lines_verify_the_installation_and_tell_four_problems_apart(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HY3D_ROCM_MAX_VRAM_GB", "20")
    caplog.set_level(logging.INFO, logger="hy3d_rocm")
    for name, answer in (
        ("set_per_process_memory_fraction", None), ("memory_allocated", 0),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(standalone_memory, "gpu_bytes", lambda device: (22 * GB, 24 * GB))
    monkeypatch.setattr(standalone_memory, "host_free_bytes", lambda: 64 * GB)
    standalone_memory.Memory().begin(torch.device("cuda", 0))
    (text,) = caplog.messages
    lines = text.splitlines()
    assert lines[0].endswith(" looks after FramePack on cuda:0:")
    assert lines[1].startswith("  VAE: convolutions that fail go another way")
    assert lines[2] == (
        "  memory: 20.0 GB free, VRAM limit 20GB (HY3D_ROCM_MAX_VRAM_GB, HY3D_ROCM_MAX_VRAM_SHARE)"
    )
    assert lines[3].startswith("  MIOpen: ")
    assert lines[4].startswith("  recommended: 15.0 GB, 75 % of the 20.0 GB that are free, are ")
    assert "Try 2.4 s (two sections, 69 frames) first, then 5 s" in lines[4]
    assert [line.strip() for line in lines[-4:]] == [problem.text() for problem in problems.ALL]


@pytest.mark.parametrize(
    ("text", "in_decode", "problem"),
    [
        ("HSA exception: MemoryRegion::BlockAllocator::alloc failed.", True, problems.NO_MEMORY),
        ("MIOpen Error: No suitable algorithm was found to execute the required convolution", True,
         problems.NO_ALGORITHM),
        ("miopenStatusUnknownError", False, problems.NO_ALGORITHM),
        ("HIP out of memory. Tried to allocate 2.00 GiB", False, problems.OUT_OF_MEMORY),
        ("HIP out of memory. Tried to allocate 2.00 GiB", True, problems.NO_MEMORY),
        ("HSA exception: MemoryRegion::BlockAllocator::alloc failed.", False,
         problems.OUT_OF_MEMORY),
        ("something else", True, None),
    ],
)  # fmt: skip
def test_each_of_the_four_problems_is_known_by_its_text_and_its_place(
    text: str, in_decode: bool, problem: problems.Problem | None,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def fail() -> None:
        raise RuntimeError(text)

    assert problems.problem_of(text, in_decode) is problem
    with pytest.raises(RuntimeError, match=re.escape(text)):
        standalone_memory.Memory()._explained(fail, in_decode)
    said = [] if problem is None else [f"hy3d_rocm: {problem.text()}"]
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == said


def test_a_decode_that_does_not_end_is_worth_a_line(
    card: Card, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = standalone_memory.Memory()
    memory.begin(torch.device("cpu"))
    said = threading.Event()
    monkeypatch.setattr(standalone_memory, "HANG_S", 0.01)
    monkeypatch.setattr(standalone_memory, "flush", said.set)
    assert memory._explained(lambda: said.wait(60), in_decode=True)
    assert problems.HANG.text() in caplog.text


def test_the_decode_has_its_lines_and_the_cpu_can_be_asked_for(
    card: Card, program: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hy3d_rocm")
    program.main(1)
    said = [m.split(" - ")[0] for m in caplog.messages if m.startswith("[VAE ")]
    assert said == [
        f"[VAE {stage}] {text}"
        for stage, verb in (("Encode", "encode"), ("Decode", "decode"))
        for text in (
            "Starting", "VAE device cpu, VAE dtype torch.float32",
            f"Attempting CPU {verb} on cpu", f"CPU {verb} SUCCESS",
        )
    ]  # fmt: skip


class Moves(torch.nn.Conv3d):
    """A VAE that notes where it was sent."""

    def __init__(self) -> None:
        super().__init__(1, 1, 1)
        self.sent: list[str] = []

    def to(self, *args: Any, **kwargs: Any) -> Any:
        self.sent.append(str(kwargs.get("device", *args)))
        return self


class AutoencoderDouble(Moves):
    pass


def test_cpu_keeps_the_vae_off_the_card_and_decodes_there(
    monkeypatch: pytest.MonkeyPatch, card: Card
) -> None:
    monkeypatch.setenv("HY3D_ROCM_VAE", "cpu")
    memory, vae = standalone_memory.Memory(), AutoencoderDouble()
    memory.begin(torch.device("cpu"))
    memory.load_model_as_complete(lambda *_: None)(vae, target_device="cuda:0")
    asked: list[Any] = []
    monkeypatch.setattr(standalone_memory, "_in_parts", lambda *given: asked.append(given) or 5)
    decode = memory.vae_decode(lambda latents, vae: pytest.fail("upstream's own"))
    assert decode(torch.zeros(1), vae) == 5
    assert set(vae.sent) == {"cpu"}
    assert len(asked) == 1


def test_off_leaves_the_vae_to_framepack_and_a_wrong_word_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HY3D_ROCM_VAE", "off")
    caplog.set_level(logging.INFO, logger="hy3d_rocm")
    decode = standalone_memory.Memory().vae_decode(lambda latents, vae: len(LOCAL.modes))
    assert decode(torch.zeros(1), Moves()) == 0
    assert caplog.messages == []
    monkeypatch.setenv("HY3D_ROCM_VAE", "fll")
    assert standalone_memory.Memory().vae_mode == "protect"
    assert caplog.messages == [
        "hy3d_rocm: HY3D_ROCM_VAE is 'fll' and is passed over; give one of off, protect, full, cpu"
    ]


@pytest.mark.parametrize("image_mode", [False, True])
def test_the_vae_in_parts_gives_the_frames_of_the_unsplit_decode(
    image_mode: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the bound that streamed decodes are tested with: 1e-4 of the range."""
    monkeypatch.setenv("HY3D_ROCM_VAE", "full")
    monkeypatch.setenv("HY3D_ROCM_VAE_BUDGET", "500MB")
    from decode_doubles import _hunyuan

    torch.manual_seed(0)
    vae = _hunyuan().eval()
    vae.use_framewise_decoding = False
    latents = torch.randn(
        (1, vae.config.latent_channels, 3, 4, 4), generator=torch.Generator().manual_seed(2)
    )

    def upstreams(latents: torch.Tensor, vae: Any, image_mode: bool = False) -> torch.Tensor:
        scaled = latents / vae.config.scaling_factor
        parts = [p.unsqueeze(2) for p in scaled.unbind(2)] if image_mode else [scaled]
        return torch.cat([vae.decode(part).sample for part in parts], dim=2)

    ours = standalone_memory.Memory().vae_decode(upstreams)
    with torch.no_grad():
        expected = upstreams(latents, vae, image_mode)
        made = ours(latents, vae, image_mode=image_mode)
    assert made.shape == expected.shape
    span = float(expected.max() - expected.min())
    assert float((made - expected).abs().max()) < 1e-4 * span
