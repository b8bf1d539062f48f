"""What the nodes' modules share: their schemas (nodes.toml), what inputs mean, and fingerprints.

A number widget can't be empty, so each option of a decode that may be None has a number that means
it. All options are optional inputs, so that prompts saved without them still run.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import nodes as core_nodes
from comfy_api.v0_0_2 import io, ui

from hy3d_rocm.comfy import settings, vaes
from hy3d_rocm.comfy.decode import latents_of
from hy3d_rocm.comfy.running import Asked
from hy3d_rocm.decoding.checks import STRATEGIES
from hy3d_rocm.decoding.device_names import parse_devices
from hy3d_rocm.decoding.memory.budget import parse_budget
from hy3d_rocm.decoding.precision import PRECISIONS
from hy3d_rocm.decoding.report import DecodeOptions
from hy3d_rocm.seed import SEED_MODES
from hy3d_rocm.tools import loading
from hy3d_rocm.units import MB

_PLAIN = DecodeOptions()
# The numbers that stand for None, or for as much as is sensible.
_NONE_AT = {"memory_fraction": 0.0, "chunk_size": 0, "slice_mb": 0, "cleanup_frequency": -1,
            "halo_pixels": -1}  # fmt: skip


class _Any(str):
    """The type "*". The core of 2025-10 finds types compatible by `!=`: it differs from none."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return False


_KINDS = {
    # The sockets of ComfyUI-Hunyuan3DWrapper: its diffusers pipelines, and those for shapes.
    "Pipeline": io.Custom("HY3DDIFFUSERSPIPE"),
    "EitherPipeline": io.Custom("HY3DDIFFUSERSPIPE,HY3DMODEL"),
    # ComfyUI's VAEs, and the WanVideoWrapper's.
    "EitherVae": io.Custom("VAE,WANVAE"),
    "Anything": io.Custom(_Any("*")),
}
_OPTIONS = {
    "STRATEGIES": STRATEGIES, "PRECISIONS": PRECISIONS,
    "SEED_MODES": (settings.SETTING, *SEED_MODES),
    "OFFLOADS": (settings.SETTING, *settings.OFFLOADS),
}  # fmt: skip


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("nodes.toml").read_text(encoding="utf-8"))


def _text(written: str) -> str:
    return " ".join(written.replace("{budget}", _tables()["budget"]).split())


def _kind(name: str) -> Any:
    return _KINDS[name] if name in _KINDS else getattr(io, name)


def _input(name: str, written: dict[str, Any]) -> Any:
    given = {**({} if "kind" in written else _tables()["common"][name]), **written}
    kind, is_advanced = _kind(given.pop("kind")), given.pop("advanced", False)
    given["tooltip"] = _text(given["tooltip"])
    usual = getattr(_PLAIN, name, None)
    if usual is not None or name in _NONE_AT:
        given.setdefault("default", _NONE_AT[name] if usual is None else usual)
    if "options" in given:
        found = given["options"]
        given["options"] = list(_OPTIONS[found] if isinstance(found, str) else found)
    made = kind.Input(name, **given)
    if is_advanced:  # the core of 2025-10 has no argument for it, but passes extra_dict on
        made.extra_dict = {**(getattr(made, "extra_dict", None) or {}), "advanced": True}
    return made


class Node(io.ComfyNode):  # type: ignore[misc]
    """A node of nodes.toml: what stands there under the name of its class."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        nodes = _tables()["nodes"]
        # ComfyUI runs a class made of ours, with another name.
        name = next(one.__name__ for one in cls.__mro__ if one.__name__ in nodes)
        node = nodes[name]
        fields: dict[str, Any] = {
            "node_id": name,
            "display_name": node["name"],
            "category": "advanced/rocm",
            "description": _text(node["description"]),
            "inputs": [_input(name, written) for name, written in node["inputs"].items()],
            "outputs": [
                _kind(given["kind"]).Output(
                    name, display_name=name.removesuffix("_out"), tooltip=_text(given["tooltip"])
                )
                for name, given in node["outputs"].items()
            ],
        }
        if "beside" in node:
            fields["category"] = getattr(core_nodes, node["beside"]).CATEGORY
        if "is_output" in node:
            fields["is_output_node"] = node["is_output"]
        if "search_aliases" in getattr(io.Schema, "__dataclass_fields__", ["search_aliases"]):
            fields["search_aliases"] = node["aliases"]  # unknown to the core of 2025-10
        return io.Schema(**fields)


class EachTime(Node):
    """A node that runs each time, whatever its inputs were the last time."""

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> float:
        return never_the_same()


class AsSet(Node):
    """A node that runs again once the settings say something else for an input left to them."""

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> str:
        choices = {"seed_mode": settings.SETTING, "offload": settings.SETTING, **inputs}
        names = [name for name in ("seed_mode", "offload") if choices[name] == settings.SETTING]
        return settings.fingerprint(*names) if names else ""


def text_and_picture(text: str, image: Any) -> dict[str, Any]:
    """What a node shows of both."""
    return {**ui.PreviewImage(image).as_dict(), **ui.PreviewText(text).as_dict()}


def never_the_same() -> float:
    """A fingerprint that the cache never finds. A new NaN each time: one and the same object would
    equal itself inside the tuples that are compared."""
    return float("nan")


def asked(inputs: dict[str, Any], who: str = "VAE.decode") -> Asked:
    """What a node's inputs ask for: budget, strategy, precision and the optional ones. who: the
    node, for the log. ValueError (a sentence) for a budget, devices or an option that are none."""
    options = dict(inputs)
    request = parse_budget(options.pop("budget").strip() or None)
    strategy, precision = options.pop("strategy"), options.pop("precision")
    devices = str(options.pop("devices", ""))
    parse_devices(devices)
    return Asked(request, strategy, precision, decode_options(options), who, devices)


def decode_options(given: dict[str, Any]) -> DecodeOptions:
    """DecodeOptions of a node's optional inputs; those that are missing have their defaults.

    ValueError (a sentence) for a value that DecodeOptions does not take.
    """
    values: dict[str, Any] = {
        name: None if value == _NONE_AT.get(name) and not isinstance(value, bool) else value
        for name, value in given.items()
    }
    slice_mb = values.pop("slice_mb", None)
    return DecodeOptions(slice_bytes=None if slice_mb is None else slice_mb * MB, **values)


@dataclass(frozen=True)
class Wanted:
    """What the user asks about: frames of width x height pixels, or the size of a LATENT."""

    width: int
    height: int
    frames: int
    samples: Any = None


def latent_shape(family: Any, wanted: Wanted) -> tuple[int, ...]:
    """(B, C, T, H, W). Sides and frames are rounded up to what the VAE makes of whole latents.

    ValueError (a sentence) for a LATENT that is none, or of another model.
    """
    if wanted.samples is not None:
        return tuple(vaes.as_video(latents_of(wanted.samples), family).shape)
    for name in ("width", "height", "frames"):
        value = getattr(wanted, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}; give a whole number of 1 or more")
    shape = loading.latent_shape(family, wanted.frames, wanted.height, wanted.width)
    return (wanted.frames, *shape[1:]) if family.is_image else shape
