"""What the tests of installation share: a ComfyUI that ends clean, and what a decode node gives."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from patch_doubles import Core

ON = {"HY3D_ROCM_PATCH": "on"}
ORIGINAL = (5, "decode")
PATCHED = ("decode", ORIGINAL)
SUMMARY = (
    "hy3d_rocm: ComfyUI-Hunyuan3DWrapper: delight, vae-decode, multiview run on the right device "
    "(HY3D_ROCM_PATCH=off leaves them alone)"
)


def uninstall() -> tuple[str, ...]:
    """Everything taken back, hooks included; what could not be. Whichever import of the package has
    installed it."""
    server = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    found = getattr(server, "_hy3d_rocm_patches", None)
    return () if found is None else found.uninstall()


@pytest.fixture(name="core")
def clean_core(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Core]:
    caplog.set_level(logging.DEBUG, logger="hy3d_rocm")
    yield Core(monkeypatch)
    uninstall()


@pytest.fixture(name="said")
def said_above_debug(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return lambda: [r.getMessage() for r in caplog.records if r.levelno >= logging.INFO]


def decoded(table: dict[str, Any]) -> Any:
    return table["Hy3DVAEDecode"]().process(lambda latents: latents, 5)
