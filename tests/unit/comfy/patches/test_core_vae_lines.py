"""The lines that tell where a VAE's own code stopped: in each mode, before the work, once each.

The classes are stand-ins; tests/comfyui has the real ones.
"""

from __future__ import annotations

import logging
import logging.handlers
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import patches_doubles
import pytest
import torch
import vae_patch_doubles
from vae_patch_doubles import Model, core_patched, latents, pixels

from hy3d_rocm.conv import forget
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.decoding import stages

fake_comfy, core = patches_doubles.fake_comfy, vae_patch_doubles.core

METHODS = ("decode", "decode_tiled", "encode", "encode_tiled")
NUMBER = re.compile(r"\d+\.\d+")


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    forget()


def call(vae: Any, name: str) -> torch.Tensor:
    made: torch.Tensor = getattr(vae, name)(pixels() if "encode" in name else latents())
    return made


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of stages, with 0.0 for each figure; memory lines by their heads."""
    found = [NUMBER.sub("0.0", message) for message in caplog.messages if message[0] == "["]
    return [line.partition(" Free:")[0] for line in found]


def expected(name: str) -> list[str]:
    encode = "encode" in name
    stage, verb = ("VAE Encode", "encode") if encode else ("VAE Decode", "decode")
    given, made = ("pixels", (2, 4, 4, 2)), (2, 2, 4, 4)
    if not encode:
        given, made = ("latents", (2, 2, 4, 4)), (2, 4, 4, 2)
    return [
        "[Before VAE Load]",
        f"[{stage}] Starting - {given[0]} shape {given[1]}, device cpu",
        f"[{stage}] VAE device cpu, VAE dtype torch.float32",
        f"[{stage}] Attempting CPU {verb} on cpu",
        f"[{stage}] CPU {verb} SUCCESS - result device cpu, shape {made}, 0.0 s",
        f"[After {stage}]",
    ]


def managed(core: SimpleNamespace) -> Any:
    vae = core.VAE(Model())
    vae.patcher, vae.device, vae.vae_dtype = None, torch.device("cpu"), torch.float32
    return vae


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("mode", ["protect", "full", "cpu"])
def test_each_method_says_where_it_is_in_each_mode(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    mode: str, name: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("HY3D_ROCM_VAE", mode)
    caplog.set_level(logging.INFO, logger="hy3d_rocm")
    vae = managed(core)
    with core_patched():
        call(vae, name)
    found, want = lines(caplog), expected(name)
    if mode != "protect" and name == "decode":  # our decode, which plans first
        heads = [line.partition(" - ")[0] for line in want]
        said = [line.partition(" - ")[0] for line in found]
        assert [line for line in dict.fromkeys(said) if line in heads] == heads
        assert said.count(heads[0]) == said.count(heads[-1]) == said.count(heads[-2]) == 1
    else:
        assert found == want
    assert not [m for m in caplog.messages if "Hy3DRocm" in m]  # another node's name


def test_off_and_previews_say_nothing(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hy3d_rocm")
    vae = managed(core)
    with core_patched():
        monkeypatch.setenv("HY3D_ROCM_VAE", "off")
        call(vae, "decode")
        monkeypatch.setenv("HY3D_ROCM_VAE", "protect")
        vae.latent_dim = 1
        call(vae, "decode")
    assert lines(caplog) == []


def test_the_lines_are_out_before_the_work_that_may_hang(core: SimpleNamespace) -> None:
    """Also where a handler keeps lines until it has a thousand."""
    out: list[str] = []

    class Target(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            out.append(record.getMessage())

    handler = logging.handlers.MemoryHandler(1000, target=Target())
    logger = logging.getLogger("hy3d_rocm")
    vae = managed(core)
    seen: list[str] = []
    vae.first_stage_model.before = lambda: seen.append(out[-1])
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        with core_patched():
            call(vae, "decode")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert seen == ["[VAE Decode] Attempting CPU decode on cpu"]


def test_the_device_is_waited_for_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(stages, "synchronize", lambda device: order.append("waited"))
    monkeypatch.setattr(stages, "say_attempt", lambda *_: order.append("attempting"))
    monkeypatch.setattr(stages, "say_success", lambda *_: order.append("success"))
    stages.logged(lambda: order.append("work"), latents(), torch.device("cpu"), torch.float32)
    assert order == ["waited", "attempting", "work", "waited", "success"]


@pytest.mark.parametrize("error", [RuntimeError("no\nroom"), patches_doubles.InterruptAsBase()])
def test_what_ends_by_an_error_says_so_and_does_not_look_like_a_hang(
    core: SimpleNamespace, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    caplog.set_level(logging.INFO, logger="hy3d_rocm")
    vae = managed(core)
    vae.first_stage_model.before = fail
    with core_patched(), pytest.raises(type(error)):
        call(vae, "decode")
    said = "RuntimeError: no" if isinstance(error, RuntimeError) else "InterruptAsBase"
    assert lines(caplog)[-2:] == [
        f"[VAE Decode] CPU decode ended after 0.0 s by {said}", "[After VAE Decode]"
    ]  # fmt: skip


def test_the_status_tells_of_a_decode_that_went_well(core: SimpleNamespace) -> None:
    from hy3d_rocm.comfy.nodes import machine

    with core_patched():
        call(managed(core), "decode")
    (decodes,) = [s for s in machine.report() if s.title.startswith("Decodes")]
    assert NUMBER.sub("0.0", decodes.lines[-1]) == (
        "VAE.decode, in place, by its own code, with failing convolutions caught: (2, 2, 4, 4) -> "
        "(2, 4, 4, 2) in 0.0 s; 0 of 1 convolutions went another way than the first"
    )


@pytest.mark.parametrize("name", METHODS)
def test_cpu_has_each_convolution_of_the_vaes_own_code_on_the_cpu(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HY3D_ROCM_VAE", "cpu")
    vae = managed(core)
    want = call(vae, name)
    policies: list[str] = []

    def protecting(policy: str, **settings: Any) -> Any:
        policies.append(policy)
        return protect(policy=policy, **settings)

    with core_patched(), monkeypatch.context() as patch:
        patch.setattr("hy3d_rocm.comfy.running.protect", protecting)
        assert torch.equal(call(vae, name), want)
    assert set(policies) == {"pin:cpu"}


def test_cpu_asks_our_decode_and_encode_for_the_cpu(
    core: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import running
    from hy3d_rocm.comfy.patches import vaes
    from hy3d_rocm.decoding.report import DecodeReport

    asked: list[Any] = []

    def work(vae: Any, given: torch.Tensor, **more: Any) -> Any:
        asked.append((more["strategy"], running.POLICY.get()))
        return given, DecodeReport("X", (), (), "cpu", "float32", 0, "none")

    monkeypatch.setenv("HY3D_ROCM_VAE", "cpu")
    monkeypatch.setattr(vaes, "run_vae", work)
    with core_patched():
        call(managed(core), "decode")
        call(managed(core), "encode")
    assert asked == [("cpu", "pin:cpu")] * 2
    assert running.POLICY.get() == "auto"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: torch.zeros(2, 3), "device cpu, shape (2, 3)"),
        (lambda: [torch.zeros(2), torch.zeros(3)], "device cpu, shape (2,), (3,)"),
        (lambda: SimpleNamespace(sample=torch.zeros(4)), "device cpu, shape (4,)"),
        (lambda: (SimpleNamespace(vertices=[1, 2, 3]),), "a SimpleNamespace of 3 vertices"),
        (lambda: None, "a NoneType"),
    ],
)
def test_a_result_of_any_kind_is_told_in_words(made: Callable[[], Any], words: str) -> None:
    assert stages.described(made()) == words
