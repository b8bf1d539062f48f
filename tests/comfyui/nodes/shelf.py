"""Tensors kept in files, so that what one server made can be compared with another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .probes import ANY, Probe


class HarnessShelf(Probe):
    """Keeps IMAGE, LATENT or a video in `keep`, or says how far it is from what lies in `like`.

    Either path may be "". Never cached.
    """

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        path = ("STRING", {"default": ""})
        return {"required": {"value": (ANY,), "keep": path, "like": path}}

    @classmethod
    def IS_CHANGED(cls, **inputs: Any) -> float:
        return float("nan")

    def look(self, value: Any, keep: str, like: str) -> dict[str, Any]:
        tensor = value["samples"] if isinstance(value, dict) else value
        if keep:
            Path(keep).parent.mkdir(parents=True, exist_ok=True)
            torch.save(tensor.detach().cpu().clone(), keep)
        found = difference(tensor, torch.load(like)) if like else {}
        finite = bool(torch.isfinite(tensor.float()).all())
        about = {"shape": list(tensor.shape), "dtype": str(tensor.dtype), "finite": finite}
        return {"ui": {"seen": [{**about, **found}]}}


def difference(seen: torch.Tensor, wanted: torch.Tensor) -> dict[str, Any]:
    """same: the bits; far: the largest difference, None where the shapes differ."""
    seen, alike = seen.detach().cpu(), seen.shape == wanted.shape
    far = float((seen.double() - wanted.double()).abs().max()) if alike else None
    same = alike and seen.dtype == wanted.dtype and torch.equal(seen, wanted)
    return {"same": same, "far": far, "wanted": list(wanted.shape)}


class HarnessFresh:
    """Passes `value` on and is never cached, so all that follows runs again."""

    RETURN_TYPES = (ANY,)
    FUNCTION = "give"
    CATEGORY = "harness"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": (ANY,)}}

    @classmethod
    def IS_CHANGED(cls, **inputs: Any) -> float:
        return float("nan")

    def give(self, value: Any) -> tuple[Any]:
        return (value,)
