"""The GPU that a command is for. torch is imported late."""

from __future__ import annotations

from typing import Any

_NONE = (
    "PyTorch sees no GPU here (torch.cuda.is_available() is False), and this measures GPU"
    " back-ends; on a ROCm machine use the Python that runs ComfyUI"
)


class NoGpuError(Exception):
    """There is no such GPU; the text says what to do."""


def find_gpu(text: str) -> Any:
    """The torch.device, with its index; it is made the current one, on which events are recorded
    and Triton launches. NoGpuError with a sentence where there is none."""
    import torch

    try:
        device: Any = torch.device(text)
    except RuntimeError as error:
        raise NoGpuError(f'--device {text!r} is no device; write "cuda" or "cuda:1"') from error
    if device.type != "cuda" or not torch.cuda.is_available():
        raise NoGpuError(_NONE)
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise NoGpuError(f"there is no {text}: PyTorch sees {torch.cuda.device_count()} GPUs")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
