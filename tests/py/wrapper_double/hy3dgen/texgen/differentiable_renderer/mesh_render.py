"""A renderer whose device is "cuda" unless somebody says otherwise."""

import torch


class MeshRender:
    def __init__(self, default_resolution=4, device="cuda"):
        self.resolution = default_resolution
        self.device = device

    def drawn(self, trimesh):
        return torch.as_tensor(trimesh).to(self.device).float()
