"""Patching of upstream's nodes in place: engine, recognition of upstream, gate, installation."""

from __future__ import annotations

from hy3d_rocm.comfy.patch.engine import MISSING, Change, PatchError, PatchSet
from hy3d_rocm.comfy.patch.install import install, install_patches, installed, uninstall
from hy3d_rocm.comfy.patch.packs import Pack, Place
from hy3d_rocm.comfy.patch.upstream import (
    PatchSpec,
    Upstream,
    UpstreamError,
    constants_missing,
    defaults_differ,
    find_upstream,
    find_upstreams,
    is_v1,
    methods_differ,
    names_missing,
    node_differs,
    parameters_missing,
    written,
)

__all__ = [
    "MISSING",
    "Change",
    "Pack",
    "PatchError",
    "PatchSet",
    "PatchSpec",
    "Place",
    "Upstream",
    "UpstreamError",
    "constants_missing",
    "defaults_differ",
    "find_upstream",
    "find_upstreams",
    "install",
    "install_patches",
    "installed",
    "is_v1",
    "methods_differ",
    "names_missing",
    "node_differs",
    "parameters_missing",
    "uninstall",
    "written",
]
