"""Whether tensors on a GPU can be rasterised there, and the calls. Imports triton late.

What can't be done here is None: no Triton, a card that the kernels were not checked for, a kernel
that does not compile (each said in one line, once), arrays of an unusual kind, too little memory,
and values that are wrong. The caller then copies to main memory, where the C core does it or says
what is wrong.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from hy3d_rocm._native import CancelFlag
from hy3d_rocm.conv.triton import configs, launch
from hy3d_rocm.raster.arrays import Raster

logger = logging.getLogger("hy3d_rocm")
_MOST_INDEX = 2**31 - 1
T = TypeVar("T")


def rasterize_on_gpu(
    clip: Any, faces: Any, size: tuple[int, int], rule: str = "topleft", prior: Any = None,
    cancel: Any = None,
) -> Raster | None:  # fmt: skip
    """As hy3d_rocm.raster.rasterize, bit for bit, on the GPU where the tensors are; or None.

    clip (V, 4), faces (F, 3), prior (height, width) or None: tensors of one device. size: (height,
    width) of 1 to 32768. cancel: a CancelFlag, looked at between launches.
    """
    floats = [_floats(clip, (None, 4)), _indices(faces)]
    if prior is not None:
        floats.append(_floats(prior, size))
    if any(tensor is None for tensor in floats):
        return None
    triangles: Any = floats[1]
    if triangles.shape[0] >= _MOST_INDEX or clip.shape[0] > _MOST_INDEX:
        return None
    if not (cancel is None or isinstance(cancel, CancelFlag)):
        return None  # no fault of the kernels

    def drawn(draw: Any, sizes: Any) -> Any:
        return draw.draw(
            floats[0], triangles, *size, compat=rule == "compat",
            prior=None if prior is None else floats[2], sizes=sizes,
            is_cancelled=lambda: cancel is not None and cancel.requested,
        )  # fmt: skip

    made = _try(clip.device, drawn)
    return None if made is None else Raster(*made)


def interpolate_on_gpu(
    attributes: Any, faces: Any, face_index: Any, barycentric: Any
) -> Tensor | None:
    """As hy3d_rocm.raster.interpolate, bit for bit, on the GPU where the tensors are; or None.

    attributes (V, C), faces (F, 3), face_index (...), barycentric (..., 3): tensors of one device.
    """
    space = tuple(face_index.shape)
    values, triangles = _floats(attributes, (None, None)), _indices(faces)
    shares, named = _floats(barycentric, (*space, 3)), _int32(face_index)
    if values is None or triangles is None or shares is None or named is None:
        return None
    if not values.shape[1] or triangles.shape[0] >= _MOST_INDEX or values.shape[0] > _MOST_INDEX:
        return None
    made: Tensor | None = _try(
        attributes.device,
        lambda draw, _: draw.interpolate(
            values, triangles, named.reshape(-1), shares.reshape(-1, 3)
        ),
    )
    return None if made is None else made.reshape(*space, values.shape[1])


def refusal(device: Any) -> str | None:
    """Why nothing can be rasterised on a device, in a few words, or None. Imports Triton."""
    if device.type != "cuda":
        return f"Triton computes on GPUs, not on {device.type}"
    return _card_refusal(launch.architecture(device))


@functools.cache
def _card_refusal(arch: str) -> str | None:
    if not configs.is_known(arch):
        return f"the kernels were never checked for {arch}"
    return launch.kernel_problem()


class _State:
    """What was said in this process, and whether the kernels failed."""

    told = False
    failed = False


def _try(device: Any, call: Callable[[Any, Any], T]) -> T | None:
    """The call, given the module `draw` and sizes for the device. None where it can't be made."""
    if _State.failed:
        return None
    reason = refusal(device)
    if reason is not None:
        _tell(logging.INFO, "rasterising on the CPU: %s", reason)
        return None
    try:
        from hy3d_rocm.raster.gpu import draw

        _tell(logging.INFO, "rasterising on the GPU: kernels take some seconds at first use")
        arch = launch.architecture(device)
        sizes = draw.sizes_for(configs.wave_size(arch) if arch.startswith("gfx") else 32)
        with torch.cuda.device(device), torch.no_grad():
            return call(draw, sizes)
    except torch.OutOfMemoryError:
        return None  # main memory may do
    except Exception as error:  # noqa: BLE001 - compilers raise what they like
        _State.failed = True
        logger.warning(
            "rasterising on the CPU from now on: the GPU's kernels failed (%s: %s)",
            type(error).__name__, str(error).strip()[:300],
        )  # fmt: skip
        return None


def _tell(level: int, message: str, *given: object) -> None:
    if not _State.told:
        _State.told = True
        logger.log(level, message, *given)


def _floats(tensor: Any, shape: tuple[int | None, ...]) -> Any:
    """The tensor as dense float32; None where it isn't one of floats and of this shape."""
    known = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    fits = len(tensor.shape) == len(shape) and all(
        wanted in (None, found) for wanted, found in zip(shape, tensor.shape, strict=True)
    )
    if not fits or tensor.dtype not in known or tensor.layout is not torch.strided:
        return None
    return tensor.detach().resolve_neg().to(torch.float32).contiguous()


def _indices(tensor: Any) -> Any:
    return _int32(tensor) if len(tensor.shape) == 2 and tensor.shape[1] == 3 else None


def _int32(tensor: Any) -> Any:
    """The tensor as dense int32, what does not fit as an index that is none; None where it isn't
    one of integers."""
    if tensor.layout is not torch.strided:
        return None
    if tensor.dtype is torch.int64:
        tensor = tensor.clamp(-1, _MOST_INDEX)
    elif tensor.dtype not in (torch.int32, torch.int16, torch.int8, torch.uint8):
        return None
    return tensor.to(torch.int32).contiguous()
