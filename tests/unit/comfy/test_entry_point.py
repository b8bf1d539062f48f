"""The door and the nodes, with small stand-ins for ComfyUI's modules.

docs/comfyui.md says how the same was tried in the real ComfyUI.
"""

from __future__ import annotations

import importlib.machinery
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from comfy_doubles import ROOT, Comfy, FakeBar, Interrupt, comfy, door, execute, nodes_of, offload

import hy3d_rocm

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
import hy3d_rocm.diagnose.env.rules
assert hy3d_rocm.__file__.startswith({str(ROOT)!r}), hy3d_rocm.__file__
assert sys.path == path and "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)


def a_folder(at: Path) -> Path:
    """A clone of the pack, as git leaves it: nothing is built."""
    built = shutil.ignore_patterns("_core*.so", "_core*.pyd", "_vendor", "__pycache__")
    shutil.copytree(ROOT / "hy3d_rocm", at / "hy3d_rocm", ignore=built)
    for name in ("__init__.py", "prestartup_script.py"):
        shutil.copy(ROOT / name, at)
    return at


def an_installed_one(site: Path, version: str, *, core: bool) -> Path:
    """Something that pip has left: enough of it to be told from the folder's."""
    package = site / "hy3d_rocm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n')
    if core:
        (package / f"_core{importlib.machinery.EXTENSION_SUFFIXES[0]}").touch()
    return package


def start(folder: Path, site: Path) -> tuple[str, list[str]]:
    """Where `hy3d_rocm` comes from after prestartup, and what was said of it."""
    code = """
import logging, runpy, sys
sys.meta_path = [f for f in sys.meta_path if 'editable' not in str(f).lower()]
logging.basicConfig(format='%(message)s')
runpy.run_path(sys.argv[1] + '/prestartup_script.py')
import hy3d_rocm
assert 'torch' not in sys.modules
print(hy3d_rocm.__file__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=site, capture_output=True, text=True,
        check=True, timeout=100, env={**os.environ, "PYTHONPATH": str(site)},
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if "files differ" in line]
    return done.stdout.strip(), said


def test_a_folder_that_is_newer_than_the_installed_package_is_used_and_both_are_named(
    tmp_path: Path,
) -> None:
    folder = a_folder(tmp_path / "pack")
    package = an_installed_one(tmp_path / "site", "0.0.9", core=False)
    used, said = start(folder, package.parent)
    assert used == str(folder / "hy3d_rocm" / "__init__.py")
    (line,) = said
    assert line.startswith(
        f"hy3d_rocm: this folder's {hy3d_rocm.__version__} ({folder}) is used, not the installed "
        f"0.0.9 ({package.parent}); "
    )
    assert "Run `pip install .` in the folder" in line


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda own: None, "which has no C core"),
        (lambda own: (own / "units.py").write_text("<<<<<<< HEAD\n"),
         "which is broken (units.py: "),
        (lambda own: (own / "__init__.py").unlink(), "which is not there"),
        (lambda own: (own / "__init__.py").write_text("1 / 0"),
         "which cannot be imported (ZeroDivisionError: "),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_used_says_why_the_installed_package_is(
    tmp_path: Path, spoil: Callable[[Path], Any], reason: str
) -> None:
    folder = a_folder(tmp_path / "pack")
    spoil(folder / "hy3d_rocm")
    has_core = reason == "which has no C core"
    package = an_installed_one(tmp_path / "site", "0.0.9", core=has_core)
    used, said = start(folder, package.parent)
    assert used == str(package / "__init__.py")
    (line,) = said
    assert line.startswith(f"hy3d_rocm: the installed 0.0.9 ({package.parent}) is used, not this ")
    assert reason in line


def test_an_installed_package_that_is_the_folders_is_used_without_a_word(tmp_path: Path) -> None:
    folder, site = a_folder(tmp_path / "pack"), tmp_path / "site"
    shutil.copytree(folder / "hy3d_rocm", site / "hy3d_rocm")
    for path in (folder / "hy3d_rocm").rglob("*.py"):  # as git checks them out on Windows
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert start(folder, site) == (str(site / "hy3d_rocm" / "__init__.py"), [])


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
    """A VAE that hy3d_rocm.decoding does not know: one convolution, IMAGE out as ComfyUI's has."""

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


def test_the_report_of_own_code_says_how_its_convolutions_ran(
    execute: Callable[..., Any],
) -> None:
    from hy3d_rocm.comfy import during, running

    samples = {"samples": torch.ones(1, 4, 3, 2, 2)}

    def decode() -> str:
        return str(execute("Hy3DRocmVAEDecode", samples=samples, vae=PlainVae(), **AUTO).values[1])

    assert "own code was run with failing convolutions caught; budget" in decode()
    with during(running.POLICY, running.ON_CPU):  # the setting `vae` is cpu
        assert "own code was run with each convolution on the CPU; budget" in decode()


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
