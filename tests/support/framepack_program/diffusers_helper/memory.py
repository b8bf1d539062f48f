"""A stand-in: the names and the faults of FramePack's own."""

import torch

cpu = torch.device("cpu")
gpu = torch.device(f"cuda:{torch.cuda.current_device()}")
gpu_complete_modules = []


def fake_diffusers_current_device(model, target_device):
    print("one part of", type(model).__name__)


def get_cuda_free_memory_gb(device=None):
    return torch.cuda.mem_get_info(gpu if device is None else device)[0] / 1024**3


def move_model_to_device_with_memory_preservation(model, target_device, preserved_memory_gb=0):
    raise AssertionError("upstream's own is not to be called")


def offload_model_from_device_for_memory_preservation(model, target_device, preserved_memory_gb=0):
    print(f"Offloading {type(model).__name__} from {target_device} to preserve memory")


def unload_complete_models(*args):
    raise AssertionError("upstream's own is not to be called")


def load_model_as_complete(model, target_device, unload=True):
    raise AssertionError("upstream's own is not to be called")
