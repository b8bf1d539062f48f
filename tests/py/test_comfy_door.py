"""The door and the nodes, with small stand-ins for ComfyUI's modules.

docs/comfyui.md says how the same was tried in the real ComfyUI.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from comfy_doubles import ROOT, Comfy, FakeBar, Interrupt, comfy, door, execute, nodes_of, offload

__all__ = ["comfy", "door", "execute", "offload"]  # fixtures


def test_the_door_offers_nodes_whose_ids_are_ours(comfy: Comfy, door: ModuleType) -> None:
    schemas = [node.GET_SCHEMA() for node in nodes_of(door)]
    ids = [schema.node_id for schema in schemas]
    assert {"Hy3DRocmVAEDecode", "Hy3DRocmStatus"} <= set(ids)
    assert all(name.startswith("Hy3DRocm") for name in ids)
    assert schemas[0].category == "model/latent"  # beside the core's own decode
    # With this name there as well ComfyUI would not look at the entry point.
    assert not hasattr(door, "NODE_CLASS_MAPPINGS")


def test_a_broken_pack_is_one_log_line_and_no_node(
    comfy: Comfy, door: ModuleType, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "hy3d_rocm.comfy.extension", None)
    with caplog.at_level(logging.DEBUG):
        assert nodes_of(door) == []
    ours = [r for r in caplog.records if r.name.startswith("hy3d_rocm")]
    assert len(ours) == 1
    assert "ComfyUI is not affected: ModuleNotFoundError" in ours[0].getMessage()


def test_a_clone_under_any_name_is_found_without_touching_sys_path(tmp_path: Path) -> None:
    clone = tmp_path / "ComfyUI-hy3d rocm.v1"
    clone.symlink_to(ROOT, target_is_directory=True)
    code = f"""
import sys, importlib.util, importlib.machinery
class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if (name, path) == ("hy3d_rocm", None) else super().find_spec(name, path)
machinery = importlib.machinery
sys.meta_path = [machinery.BuiltinImporter, machinery.FrozenImporter, Finder]
path = list(sys.path)
spec = importlib.util.spec_from_file_location("pack", {str(clone / "__init__.py")!r})
door = importlib.util.module_from_spec(spec); spec.loader.exec_module(door)
door._make_importable()
import hy3d_rocm.env.variables
assert hy3d_rocm.__file__.startswith({str(ROOT)!r}), hy3d_rocm.__file__
assert sys.path == path and "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)


def test_switched_off_there_are_no_nodes_and_one_line(
    comfy: Comfy, door: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setenv("HY3D_ROCM", "off")
    with caplog.at_level(logging.INFO, "hy3d_rocm"):
        assert nodes_of(door) == []
        door.prestartup()
    assert [r.getMessage() for r in caplog.records] == [
        "hy3d_rocm: HY3D_ROCM=off: no nodes, no patches, no variables"
    ]


class PlainVae:
    """A VAE that hy3d_rocm.decode does not know: one convolution, IMAGE out as ComfyUI's has."""

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        weight = torch.ones(3, latents.shape[1], 1, 1, 1)
        return torch.nn.functional.conv3d(latents, weight).movedim(1, -1)


AUTO = {"budget": "auto", "strategy": "auto", "precision": "auto"}


def test_an_unknown_vae_is_decoded_by_its_own_code_through_failing_convolutions(
    execute: Callable[..., Any],
) -> None:
    from hy3d_rocm.conv import forget
    from hy3d_rocm.conv.faults import MIOPEN_NO_ALGORITHM, Fault, inject_faults

    samples = {"samples": torch.ones(2, 4, 3, 2, 2)}
    forget()
    with inject_faults(Fault("current", "conv3d", MIOPEN_NO_ALGORITHM)):
        out = execute("Hy3DRocmVAEDecode", samples=samples, vae=PlainVae(), **AUTO)
    forget()
    images, report, _ = out.values
    assert images.shape == (6, 2, 2, 3)  # the frames of both videos
    assert bool((images == 4).all())
    assert "PlainVae cannot be cut into parts" in report
    assert "recovered 1" in report


def tiny_video_vae() -> Any:
    diffusers = pytest.importorskip("diffusers")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        vae = diffusers.AutoencoderKLHunyuanVideo(
            latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1,
            norm_num_groups=4,
        )  # fmt: skip
    vae.use_framewise_decoding = False
    return vae.eval()


def test_a_video_vae_gives_the_images_of_its_own_decode(execute: Callable[..., Any]) -> None:
    vae, latents = tiny_video_vae(), torch.zeros(1, 4, 2, 4, 4)
    choice = {**AUTO, "strategy": "whole"}  # auto begins with the C convolution, up to rounding
    out = execute("Hy3DRocmVAEDecode", samples={"samples": latents}, vae=vae, **choice)
    with torch.no_grad():
        whole = vae.decode(latents).sample
    images, report, _ = out.values
    assert torch.equal(images, ((whole + 1) / 2).clamp(0, 1)[0].movedim(0, -1))
    assert "HunyuanVideo on cpu in float32: whole" in report
    assert FakeBar.seen[-1] == (1, 1)
    status = execute("Hy3DRocmStatus").values[0]
    assert "ComfyUI computes on cpu" in status
    assert report in status


def test_an_interrupt_ends_the_decode(execute: Callable[..., Any], comfy: Comfy) -> None:
    comfy.interrupted = True
    for vae, channels in ((PlainVae(), 4), (tiny_video_vae(), 4)):
        samples = {"samples": torch.zeros(1, channels, 2, 4, 4)}
        with pytest.raises(Interrupt):
            execute("Hy3DRocmVAEDecode", samples=samples, vae=vae, **AUTO)


def test_what_is_no_latent_is_a_sentence(execute: Callable[..., Any]) -> None:
    for wrong in (torch.zeros(1), {"latent": 1}, None):
        with pytest.raises(ValueError, match=r"samples is .*, not a LATENT; connect"):
            execute("Hy3DRocmVAEDecode", samples=wrong, vae=PlainVae(), **AUTO)


def test_the_pipeline_node_gives_a_proxy(
    execute: Callable[..., Any], offload: list[tuple[Any, ...]]
) -> None:
    class Pipeline:
        device = torch.device("cpu")

        def __call__(self, generator: Any = None) -> torch.Tensor:
            return torch.randn(2, generator=generator)

    proxy = execute("Hy3DRocmPipeline", pipeline=Pipeline(), seed_mode="stream").values[0]
    with proxy.batch():
        pictures = [proxy(generator=torch.manual_seed(1)) for _ in range(2)]
    assert not torch.equal(*pictures)
    status = execute("Hy3DRocmStatus", pipeline=proxy).values[0]
    assert "computes on cpu (rule: device)" in status
