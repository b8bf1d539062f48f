"""Generators for a batch of images, without touching a global random state.

`torch.manual_seed(seed)` reseeds the generator of the whole process, and called once an image it
gives every image of a batch the same noise. The generators made here are private ones, and live on
the CPU unless asked otherwise: a picture then does not depend on the device it is computed on, and
the first one equals upstream's bit for bit.
"""

from __future__ import annotations

import operator
from typing import Literal, get_args

import torch

from hy3d_rocm import _native
from hy3d_rocm.device import resolve_device

SeedMode = Literal["stream", "per_image", "legacy"]
SEED_MODES: tuple[str, ...] = get_args(SeedMode)

_SEED_LIMIT = 2**64  # ComfyUI's seeds are 0 .. 0xffffffffffffffff


def make_generator(
    seed: int,
    device: torch.device | str = "cpu",
    mode: SeedMode = "stream",
    count: int = 1,
    first_index: int = 0,
    pipeline: object = None,
) -> torch.Generator | list[torch.Generator]:
    """Generator(s) for a batch of `count` images whose first has number `first_index`.

    stream: one generator for the whole batch, seeded with `seed`; `count` is not looked at, and
    `first_index` must be 0, since a stream cannot be entered in its middle.
    per_image: a list of `count`, image i seeded with `seed_image(seed, first_index + i)`: number 0
    is the seed itself, and a picture is the same however its batch is split.
    legacy: a list of `count`, each seeded with `seed` itself, which gives every image the same
    noise, as upstream's loop does.

    `device="execution"` takes the device on which `pipeline` computes (`resolve_device`).
    Raises ValueError or TypeError, in a sentence, for a seed outside 0 .. 2**64 - 1, a negative
    count or index, an unknown mode, and a device without generators.
    """
    seed = check_seed(seed)
    mode = check_mode(mode)
    count = _check_count("count", count)
    first_index = _check_count("first_index", first_index)
    target = _generator_device(device, pipeline)
    if mode == "stream":
        if first_index:
            raise ValueError(
                f"first_index is {first_index} with mode 'stream', where only the generator of "
                "the whole batch exists; start at 0, or use mode 'per_image'"
            )
        return seeded(seed, target)
    if mode == "legacy":
        return [seeded(seed, target) for _ in range(count)]
    if first_index + count > _SEED_LIMIT:
        raise ValueError(f"image {first_index + count - 1} is beyond number 2**64 - 1")
    return [seeded(_native.seed_image(seed, first_index + i), target) for i in range(count)]


def seeded(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A private generator on `device`, freshly seeded with `seed`."""
    return torch.Generator(device=device).manual_seed(seed)


def check_seed(seed: object) -> int:
    """`seed` as an int in 0 .. 2**64 - 1. TypeError or ValueError, in a sentence."""
    if isinstance(seed, bool):
        raise TypeError(f"seed is {seed}; give a whole number from 0 to 2**64 - 1")
    try:
        value = operator.index(seed)  # type: ignore[arg-type]
    except TypeError as error:
        raise TypeError(
            f"seed is {seed!r} of type {type(seed).__name__}; "
            "give a whole number from 0 to 2**64 - 1"
        ) from error
    if not 0 <= value < _SEED_LIMIT:
        raise ValueError(f"seed is {value}; give a whole number from 0 to 2**64 - 1")
    return value


def check_mode(mode: str) -> SeedMode:
    """`mode` if it is one of SEED_MODES, else a ValueError."""
    if mode not in SEED_MODES:
        raise ValueError(f"mode is {mode!r}; give one of {', '.join(SEED_MODES)}")
    return mode  # type: ignore[return-value]


def check_first_index(first_index: object, mode: SeedMode) -> int:
    """`first_index` if a batch of `mode` can begin with that number, else a ValueError."""
    first = _check_count("first_index", first_index)
    if first and mode != "per_image":
        raise ValueError(
            f"first_index is {first} with seed_mode {mode!r}; "
            "give 0, or a positive number with 'per_image'"
        )
    return first


def _check_count(name: str, value: object) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise TypeError(f"{name} is {value!r}; give a whole number, 0 or larger") from error
    if number < 0:
        raise ValueError(f"{name} is {number}; give 0 or a larger number")
    return number


def _generator_device(device: torch.device | str, pipeline: object) -> torch.device:
    if isinstance(device, str) and device == "execution":
        if pipeline is None:
            raise ValueError('device="execution" needs the pipeline; give pipeline=...')
        return resolve_device(pipeline).device
    try:
        target = torch.device(device)
        torch.Generator(device=target)
    except (RuntimeError, TypeError) as error:
        reason = str(error).split("\n")[0].split(". ")[0]
        raise ValueError(
            f"device is {device!r}, where torch has no generator here ({reason}); give a device "
            'of this machine such as "cpu" or "cuda:0", or "execution" with pipeline=...'
        ) from error
    return target
