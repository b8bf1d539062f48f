from __future__ import annotations

import torch

gpu = torch.device(f"cuda:{torch.cuda.current_device()}")


def get_cuda_free_memory_gb(device=None):
    memory_stats = torch.cuda.memory_stats(gpu if device is None else device)
    free, _ = torch.cuda.mem_get_info(gpu if device is None else device)
    return (free + memory_stats["reserved_bytes.all.current"]) / 1024**3


def move_model_to_device_with_memory_preservation(model, target_device, preserved_memory_gb=0):
    for part in model.modules():
        if get_cuda_free_memory_gb(target_device) <= preserved_memory_gb:
            return
        part.to(device=target_device)


def offload_model_from_device_for_memory_preservation(model, target_device, preserved_memory_gb=0):
    for part in model.modules():
        if get_cuda_free_memory_gb(target_device) >= preserved_memory_gb:
            return
        part.to(device="cpu")
