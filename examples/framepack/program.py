"""lllyasviel's own FramePack (demo_gradio.py), with its memory looked after.

Its functions for memory, sampling and the VAE are replaced in its modules as these are imported,
before demo_gradio.py takes them by name; its files stay as they are. What it calls in which order
is what specification 003 describes: text encoders, VAE, image encoder, then for each section the
transformer, the VAE. The program keeps its own order of imports: what it sets before it imports
diffusers (HF_HOME) must still come first.
"""

from __future__ import annotations

import logging
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from hy3d_rocm.framepack import importing

logger = logging.getLogger("hy3d_rocm")

PARTS = ("demo_gradio.py", "diffusers_helper/memory.py", "diffusers_helper/hunyuan.py")
# What is replaced, by module; what a program of this kind lacks of it is another program.
REPLACED: Mapping[str, tuple[str, ...]] = {
    "diffusers_helper.memory": (
        "unload_complete_models",
        "load_model_as_complete",
        "move_model_to_device_with_memory_preservation",
        "offload_model_from_device_for_memory_preservation",
        "fake_diffusers_current_device",
    ),
    "diffusers_helper.hunyuan": ("encode_prompt_conds", "vae_decode", "vae_encode"),
    "diffusers_helper.pipelines.k_diffusion_hunyuan": ("sample_hunyuan",),
}


def why_not(folder: Path, script: str = PARTS[0]) -> str | None:
    """A sentence if `folder` is no FramePack, None if it is."""
    missing = [name for name in (*PARTS, script) if not (folder / name).is_file()]
    if not missing:
        return None
    return (
        f"{folder} is not FramePack: it has no {missing[0]}; give the folder with "
        "demo_gradio.py and diffusers_helper/ (https://github.com/lllyasviel/FramePack)"
    )


def run(folder: Path, script: str = PARTS[0], arguments: Sequence[str] = ()) -> None:
    """Runs FramePack's `script` in its folder as `python script arguments` would, with memory
    looked after. ValueError, a sentence, if the folder is no FramePack."""
    folder = folder.resolve()
    reason = why_not(folder, script)
    if reason is not None:
        raise ValueError(reason)
    from hy3d_rocm.diagnose.env import startup

    startup.run(os.environ)  # before torch
    importing.install()
    sys.path.insert(0, str(folder))
    sys.argv = [script, *arguments]
    os.chdir(folder)
    with AfterImport(changes()):
        runpy.run_path(str(folder / script), run_name="__main__")


def changes() -> dict[str, Callable[[ModuleType], None]]:
    """What is changed in which module: for AfterImport."""
    held: list[Any] = []  # one Memory for all, made when torch is there

    def change(module: ModuleType) -> None:
        from examples.framepack.memory import Memory

        names = REPLACED[module.__name__]
        absent = [name for name in names if not callable(getattr(module, name, None))]
        if absent:
            logger.warning(
                "hy3d_rocm: %s is left alone: it has no %s", module.__name__, ", ".join(absent)
            )
            return
        if not held:
            held.append(Memory())
        for name in names:
            setattr(module, name, getattr(held[0], name)(getattr(module, name)))
        if hasattr(module, "gpu"):
            held[0].begin(module.gpu)

    return dict.fromkeys(REPLACED, change)


class AfterImport(MetaPathFinder):
    """While open (`with`), `changes` by a module's full name are made once it has been run."""

    def __init__(self, changes: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self.changes = dict(changes)

    def __enter__(self) -> AfterImport:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give, with the change behind its loader."""
        if fullname not in self.changes:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    importing.run_by(spec.loader, self._run)
                return spec
        return None

    def _run(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        execute(module)
        self.changes[module.__name__](module)
