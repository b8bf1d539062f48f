"""Has the two functions of upstream's custom_rasterizer and their shapes, and draws no geometry.

The lower half of each picture is stripes of the faces in turn, each pixel at a point of its face:
enough to run a MeshRender without its CUDA wheel. The results lie on the inputs' device.
"""

from __future__ import annotations

from typing import Any


def rasterize(
    pos: Any, tri: Any, resolution: tuple[int, int], clamp_depth: Any = None, use_prior: int = 0
) -> tuple[Any, Any]:
    """findices (H, W) int32, 0 for an empty pixel, else face + 1; barycentric (H, W, 3) float32."""
    import torch

    height, width = resolution
    columns = torch.arange(width, dtype=torch.int32, device=pos.device)
    findices = torch.zeros((height, width), dtype=torch.int32, device=pos.device)
    findices[height // 2 :] = columns % len(tri) + 1
    down = torch.linspace(0, 1, height, device=pos.device)[:, None].expand(height, width)
    barycentric = torch.stack([down / 2, (1 - down) / 2, torch.full_like(down, 0.5)], dim=-1)
    return findices, barycentric * (findices > 0)[..., None]


def interpolate(col: Any, findices: Any, barycentric: Any, tri: Any) -> Any:
    """(1, H, W, C) for col (1, V, C): the corners' values, weighted; 0 for an empty pixel."""
    corners = tri[(findices.long() - 1).clamp(min=0)].long()
    values = (col[0][corners] * barycentric[..., None]).sum(-2)
    return (values * (findices > 0)[..., None])[None]
