"""What the nodes' modules share: sockets, inputs and fingerprints."""

from __future__ import annotations

from typing import Any

from comfy_api.v0_0_2 import io

from hy3d_rocm.comfy import settings
from hy3d_rocm.seed import SEED_MODES

CATEGORY = "advanced/rocm"

SEED_MODE_TOOLTIP = (
    "setting: as ComfyUI's settings say. stream: one generator for the batch. per_image: image i "
    "has a seed of its own, however the batch is split. legacy: every image the same noise."
)


class _Any(str):
    """The type "*". The core of 2025-10 finds types compatible by `!=`: it differs from none."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return False


# The sockets of ComfyUI-Hunyuan3DWrapper: its diffusers pipelines, and those for shapes.
Pipeline = io.Custom("HY3DDIFFUSERSPIPE")
EitherPipeline = io.Custom("HY3DDIFFUSERSPIPE,HY3DMODEL")
# ComfyUI's VAEs, and the WanVideoWrapper's.
EitherVae = io.Custom("VAE,WANVAE")
Anything = io.Custom(_Any("*"))


def schema(**fields: Any) -> io.Schema:
    """A Schema; search_aliases are left out where the core does not know them (2025-10)."""
    if "search_aliases" not in getattr(io.Schema, "__dataclass_fields__", fields):
        fields.pop("search_aliases")
    return io.Schema(**fields)


def advanced(given: Any) -> Any:
    """An input that the front end folds away. (The core of 2025-10 has no argument for it, but
    passes extra_dict on.)"""
    given.extra_dict = {**(getattr(given, "extra_dict", None) or {}), "advanced": True}
    return given


def seed_mode_input() -> Any:
    return io.Combo.Input(
        "seed_mode",
        options=[settings.SETTING, *SEED_MODES],
        default=settings.SETTING,
        tooltip=SEED_MODE_TOOLTIP,
    )


def never_the_same() -> float:
    """A fingerprint that the cache never finds. A new NaN each time: one and the same object would
    equal itself inside the tuples that are compared."""
    return float("nan")


def looked_up(inputs: dict[str, Any]) -> str:
    """What the settings say for the inputs that are left to them: a change runs the node again."""
    choices = {"seed_mode": settings.SETTING, "offload": settings.SETTING, **inputs}
    names = [name for name in ("seed_mode", "offload") if choices[name] == settings.SETTING]
    return settings.fingerprint(*names) if names else ""
