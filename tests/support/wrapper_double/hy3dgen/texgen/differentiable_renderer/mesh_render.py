"""A renderer whose device is "cuda" unless somebody says otherwise."""

import torch

from .mesh_processor import meshVerticeInpaint  # noqa: F401


class MeshRender:
    def __init__(self, default_resolution=4, device="cuda"):
        self.resolution = default_resolution
        self.device = device

        self.vtx_pos = torch.arange(6.0).reshape(2, 3)

    def set_mesh(self, vtx_pos):
        self.vtx_pos = torch.from_numpy(vtx_pos).to("cpu").float()
        self.vtx_pos *= torch.tensor([-1.0, -1.0, 1.0])  # in place, as upstream does it

    def get_mesh(self):
        positions = self.vtx_pos.cpu().numpy()
        positions *= (-1, -1, 1)  # in place, as upstream does it
        return positions

    def drawn(self, trimesh):
        return torch.as_tensor(trimesh).to(self.device).float()
