"""Whose code is patched: ComfyUI's own and that of packs, each found by what it is.

A pack's folder may have any name, and ComfyUI names its module after the folder's path. So a pack
is known by a node id whose class comes from a package that has a certain module. Nothing is
imported here: what is not loaded is not there.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Protocol

from hy3d_rocm.comfy.patch.upstream import PatchSpec, UpstreamError, find_upstreams

Specs = Callable[[], Sequence[PatchSpec]]


class Found(Protocol):
    """One loaded copy of somebody's code. name: for messages."""

    name: str

    def same_as(self, other: Any) -> bool:
        """Whether both are one copy, not loaded anew in between."""

    def strange(self) -> str | None:
        """Why nothing of it can be patched, as a sentence; None where nothing speaks against."""


class Place:
    """One loaded copy, by the objects in it that the patches change (classes, modules)."""

    def __init__(self, name: str, parts: Mapping[str, Any]) -> None:
        self.name = name
        self._parts = dict(parts)

    def __repr__(self) -> str:
        return f"Place({self.name!r}, {', '.join(self._parts)})"

    def part(self, name: str) -> Any:
        """The object of this name; UpstreamError if there is none."""
        if name not in self._parts:
            raise UpstreamError(f"it has no {name}")
        return self._parts[name]

    def same_as(self, other: Any) -> bool:
        """See Found."""
        return (
            isinstance(other, Place)
            and self.name == other.name
            and self._parts.keys() == other._parts.keys()
            and all(self._parts[key] is other._parts[key] for key in self._parts)
        )

    def strange(self) -> str | None:
        """See Found: each patch looks for itself."""
        return None


@dataclass(frozen=True)
class Pack:
    """find: ComfyUI's table of nodes -> the loaded copies. specs: its patches, asked when a copy
    has been found. done: how the line that lists the applied ones ends. always_there: part of
    ComfyUI, so that leaving it alone on other machines than AMD's is said to nobody but the status.
    """

    find: Callable[[Mapping[str, Any]], Sequence[Found]]
    specs: Specs
    done: str
    always_there: bool = False


def specs_in(module: str, name: str = "SPECS") -> Specs:
    """A tuple of a module that is imported when it is asked for: the patches import this package,
    and are needed only where upstream is loaded."""

    def specs() -> Sequence[PatchSpec]:
        found: Sequence[PatchSpec] = getattr(importlib.import_module(module), name)
        return found

    return specs


def packages_with(
    suffix: str, node_ids: Sequence[str], node_class_mappings: Mapping[str, Any]
) -> list[str]:
    """Names of loaded packages that have a module `<package>.<suffix>` and whose classes ComfyUI
    runs for one of the ids; copies whose nodes a later copy has replaced come last."""
    found: dict[str, None] = {}
    for node_id in node_ids:
        module = getattr(node_class_mappings.get(node_id), "__module__", "")
        while module and f"{module}.{suffix}" not in sys.modules:
            module = module.rpartition(".")[0]
        if module:
            found[module] = None
    ending = "." + suffix
    for name in list(sys.modules):  # other threads may import
        if name.endswith(ending) and _has_node(name.removesuffix(ending), node_ids):
            found[name.removesuffix(ending)] = None
    return list(found)


def _has_node(package: str, node_ids: Sequence[str]) -> bool:
    table = getattr(sys.modules.get(package), "NODE_CLASS_MAPPINGS", None)
    return isinstance(table, Mapping) and any(node_id in table for node_id in node_ids)


def folder_name(package: str) -> str:
    """The folder of a pack's package, for messages."""
    return PurePath(package.replace("\\", "/")).name.replace("_x_", ".")


def finder(
    suffix: str, node_ids: Sequence[str], classes: Sequence[str]
) -> Callable[[Mapping[str, Any]], list[Place]]:
    """`find` of a Pack whose patches change classes of its module `suffix`. Classes that the
    module has not are missing from the Place."""

    def find(node_class_mappings: Mapping[str, Any]) -> list[Place]:
        places = []
        for package in packages_with(suffix, node_ids, node_class_mappings):
            module = sys.modules.get(f"{package}.{suffix}")
            parts = {name: vars(module)[name] for name in classes if hasattr(module, name)}
            places.append(Place(folder_name(package), parts))
        return places

    return find


def find_core(_node_class_mappings: Mapping[str, Any]) -> list[Place]:
    """ComfyUI itself: its class VAE and its module that runs prompts."""
    parts = {
        "VAE": getattr(sys.modules.get("comfy.sd"), "VAE", None),
        "execution": sys.modules.get("execution"),
    }
    parts = {name: part for name, part in parts.items() if part is not None}
    return [Place("ComfyUI", parts)] if parts else []


FRAMEPACK_IDS = (
    "FramePackSampler",
    "FramePackSingleFrameSampler",
    "LoadFramePackModel",
    "DownloadAndLoadFramePackModel",
)


def find_framepack(node_class_mappings: Mapping[str, Any]) -> list[Place]:
    """Copies of ComfyUI-FramePackWrapper: its module of nodes, its module of memory, its nodes."""
    places = []
    for package in packages_with("diffusers_helper.memory", FRAMEPACK_IDS, node_class_mappings):
        nodes = sys.modules.get(f"{package}.nodes")
        parts = {
            "nodes": nodes,
            "memory": sys.modules.get(f"{package}.diffusers_helper.memory"),
            **{name: getattr(nodes, name, None) for name in FRAMEPACK_IDS},
        }
        found = {name: part for name, part in parts.items() if part is not None}
        places.append(Place(folder_name(package), found))
    return places


HUNYUAN3D_DONE = "run on the right device"
_AS_SET = "run as the VAE settings say"

# Beside ComfyUI-Hunyuan3DWrapper, in the order in which they are patched.
PACKS: tuple[Pack, ...] = (
    Pack(find_core, specs_in("hy3d_rocm.comfy.patches.core_vae"), _AS_SET, always_there=True),
    Pack(
        finder("wanvideo.wan_video_vae", ("WanVideoDecode", "WanVideoEncode"), ("WanVideoVAE",)),
        specs_in("hy3d_rocm.comfy.patches.wrapper_vaes", "WAN_SPECS"),
        _AS_SET,
    ),
    Pack(
        finder(
            "hyvideo.vae.autoencoder_kl_causal_3d",
            ("HyVideoDecode", "HyVideoEncode"),
            ("AutoencoderKLCausal3D",),
        ),
        specs_in("hy3d_rocm.comfy.patches.wrapper_vaes", "HUNYUAN_SPECS"),
        _AS_SET,
    ),
    Pack(find_framepack, specs_in("hy3d_rocm.comfy.patches.framepack"), "are in place"),
)


def hunyuan3d(specs: Specs) -> Pack:
    """ComfyUI-Hunyuan3DWrapper."""
    return Pack(find_upstreams, specs, HUNYUAN3D_DONE)
