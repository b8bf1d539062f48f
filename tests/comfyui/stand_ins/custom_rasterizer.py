"""Has the two functions of upstream's custom_rasterizer and their shapes; every pixel is empty.

Enough to run a MeshRender without its CUDA wheel: the results are zeros on the inputs' device.
"""

from __future__ import annotations

from typing import Any


def rasterize(
    pos: Any, tri: Any, resolution: tuple[int, int], clamp_depth: Any = None, use_prior: int = 0
) -> tuple[Any, Any]:
    """findices (H, W) int32, 0 for an empty pixel, and barycentric (H, W, 3) float32."""
    import torch

    height, width = resolution
    findices = torch.zeros((height, width), dtype=torch.int32, device=pos.device)
    return findices, torch.zeros((height, width, 3), device=pos.device)


def interpolate(col: Any, findices: Any, barycentric: Any, tri: Any) -> Any:
    """(1, H, W, C) for col (1, V, C)."""
    import torch

    height, width = barycentric.shape[:2]
    return torch.zeros((1, height, width, col.shape[-1]), device=col.device)
