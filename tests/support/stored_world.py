"""A machine of scripted tiers with the real verdict store."""

from __future__ import annotations

import pytest
import torch
from router_world import World

from hy3d_rocm.conv import policy
from hy3d_rocm.conv.choice import Setting
from hy3d_rocm.conv.policy import Memory
from hy3d_rocm.conv.verdict_store.store import Store

X, W = torch.ones(1, 2, 4, 6, 6), torch.ones(3, 2, 3, 3, 3)
ROCM = Setting(on_gpu=True, is_rocm=True, current="vendor")
CPU = torch.device("cpu")


def world_with(patch: pytest.MonkeyPatch, store: Store) -> World:
    prove = policy.prove
    world = World(patch, ROCM)
    memory = Memory(CPU, store)
    patch.setattr("hy3d_rocm.conv.policy.memory_for", lambda device: memory)
    patch.setattr("hy3d_rocm.conv.policy.prove", prove)
    return world
