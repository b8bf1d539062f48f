from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.Linear(4, 4)


class HunyuanVideoTransformer3DModel(nn.Module):
    """Remembers its last step, as TeaCache does. on_step: called before each."""

    def __init__(self) -> None:
        super().__init__()
        self.x_embedder = nn.Linear(4, 4)
        self.transformer_blocks = nn.ModuleList([Block(), Block()])
        self.on_step = lambda: None
        self.moved: list[str] = []
        self.initialize_teacache(enable_teacache=False)

    def initialize_teacache(self, enable_teacache=True, num_steps=25, rel_l1_thresh=0.15):
        self.enable_teacache = enable_teacache
        self.num_steps = num_steps
        self.rel_l1_thresh = rel_l1_thresh
        self.cnt = 0
        self.accumulated_rel_l1_distance = 0.0
        self.previous_residual = None

    def to(self, *args, **kwargs):
        self.moved.append(str(args[0] if args else kwargs["device"]))
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.on_step()
        self.cnt += 1
        if self.enable_teacache and self.previous_residual is not None:
            x = x + 0.5 * self.previous_residual
        self.previous_residual = x * 0.25
        return x * 0.75 + self.cnt
