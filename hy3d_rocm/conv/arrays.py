"""What the C convolution needs of torch tensors and NumPy arrays, the same words for both."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

__all__ = ["Kind", "NumpyArrays", "TorchTensors", "kind_of"]


class NumpyArrays:
    """What the convolution needs of NumPy arrays."""

    @staticmethod
    def owns(value: object) -> bool:
        numpy = sys.modules.get("numpy")
        return numpy is not None and isinstance(value, numpy.ndarray)

    @staticmethod
    def operand(value: Any, name: str) -> Any:
        if value.dtype.kind != "f" or value.dtype.itemsize not in (2, 4, 8):
            raise ValueError(
                f"{name} is {value.dtype}: conv3d takes float32, float64 and float16 arrays "
                "(bfloat16 as torch tensors); convert it with .astype"
            )
        whole = all(step % value.itemsize == 0 for step in value.strides)
        if value.flags.aligned and value.dtype.isnative and whole:
            return value
        return value.astype(value.dtype.newbyteorder("="), order="C", copy=True)

    @staticmethod
    def target(value: Any) -> Any:
        return value  # never a copy: what the core cannot write to, it refuses

    @staticmethod
    def empty(size: tuple[int, ...], like: Any) -> Any:
        import numpy as np

        return np.empty(size, dtype=like.dtype)

    @staticmethod
    def insert(value: Any, axis: int) -> Any:
        return value.reshape((*value.shape[:axis], 1, *value.shape[axis:]))

    @staticmethod
    def remove(value: Any, axis: int) -> Any:
        return value.squeeze(axis)


class TorchTensors:
    """The same of torch tensors."""

    @staticmethod
    def owns(value: object) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(value, torch.Tensor)

    @classmethod
    def operand(cls, value: Any, name: str) -> Any:
        cls.check(value, name)
        cls.check_grad(value, name)
        cls.check_recorded(value, name)
        return value.detach().resolve_neg()

    @staticmethod
    def check(value: Any, name: str, devices: tuple[str, ...] = ("cpu",)) -> None:
        """Refuses other devices, layouts and types of numbers."""
        import torch

        if value.device.type not in devices or value.layout is not torch.strided:
            raise ValueError(
                f"{name} is a {value.layout} tensor on {value.device}: conv3d computes on the CPU "
                f"with dense tensors; pass {name}.cpu(), or let hy3d_rocm.protect() choose"
            )
        if value.dtype not in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            raise ValueError(
                f"{name} is {value.dtype}: conv3d takes float32, float64, float16 and bfloat16"
            )

    @classmethod
    def check_grad(cls, value: Any, name: str) -> None:
        """Refuses what gradients are wanted of."""
        import torch

        if value.requires_grad and torch.is_grad_enabled():
            cls.refuse_grad(name)

    @staticmethod
    def check_recorded(value: Any, name: str, *, graphs: bool = True) -> None:
        """Refuses what is more than its numbers: those alone would come out."""
        from hy3d_rocm.conv.recording import loses

        lost = loses(value, graphs=graphs)
        if lost:
            raise ValueError(
                f"{name} is more than numbers ({lost}), and this conv3d computes numbers alone: "
                "call torch.nn.functional.conv3d there, or hy3d_rocm.conv.conv3d_op for a graph"
            )

    @staticmethod
    def refuse_grad(name: str) -> NoReturn:
        raise ValueError(
            f"{name} requires grad, and this conv3d has no backward pass: call it under "
            f"torch.no_grad(), or pass {name}.detach()"
        )

    @classmethod
    def target(cls, value: Any) -> Any:
        if value.is_neg():
            raise ValueError("out is a lazily negated view: pass an ordinary tensor")
        return cls.operand(value, "out")

    @staticmethod
    def empty(size: tuple[int, ...], like: Any, device: Any = "cpu") -> Any:
        import torch

        last = like.is_contiguous(memory_format=torch.channels_last_3d)
        kept = torch.channels_last_3d if last and not like.is_contiguous() else None
        return torch.empty(
            size, dtype=like.dtype, device=device, memory_format=kept or torch.contiguous_format
        )

    @staticmethod
    def insert(value: Any, axis: int) -> Any:
        return value.unsqueeze(axis)

    @staticmethod
    def remove(value: Any, axis: int) -> Any:
        return value.squeeze(axis)


Kind = type[NumpyArrays] | type[TorchTensors]


def kind_of(named: dict[str, Any]) -> Kind:
    """The one kind that all arrays are of."""
    x = named["x"]
    kind: Kind | None = (
        TorchTensors if TorchTensors.owns(x) else NumpyArrays if NumpyArrays.owns(x) else None
    )
    if kind is None:
        raise TypeError(f"x must be a torch tensor or a NumPy array, not {type(x).__name__}")
    for name, value in named.items():
        if not kind.owns(value):
            raise TypeError(
                f"{name} is {type(value).__name__} but x is {type(x).__name__}: pass all as torch "
                "tensors or all as NumPy arrays"
            )
    return kind
