"""Interpolation as PyTorch does it on the CPU, in `bench raster`, in the ways that are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tools.dev.bench.raster_jobs import VALUES, Given, Job, MissingError
from tools.dev.bench.raster_scene import Scene


def variables(threads: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(threads)}


def jobs(scene: Scene, given: Given | None, threads: int) -> list[Job]:
    """None that draws: PyTorch has no rasteriser."""
    if given is None:
        return []
    try:
        import torch
    except ImportError as error:
        raise MissingError(str(error)) from error
    torch.set_num_threads(threads)
    # Pixels without a face take the last one's corners, by weights of 0. Tables of 64-bit indices
    # are made before: a favour.
    face = torch.from_numpy(given.face_index.reshape(-1)).long() - 1
    face = torch.where(face < 0, len(scene.faces) - 1, face)
    weights = torch.from_numpy(given.barycentric.reshape(-1, 3))
    faces = torch.from_numpy(scene.faces).long()
    attributes = torch.from_numpy(scene.attributes)

    def einsum() -> Any:
        return torch.einsum("pk,pkc->pc", weights, attributes[faces[face]])

    def product() -> Any:
        return (weights[..., None] * attributes[faces[face]]).sum(dim=1)

    def bag() -> Any:
        return torch.nn.functional.embedding_bag(
            faces[face], attributes, per_sample_weights=weights, mode="sum"
        )

    ways: dict[str, Callable[[], Any]] = {"gather, einsum": einsum, "gather, product": product,
                                          "embedding_bag": bag}  # fmt: skip
    return [_job(f"torch {name}", way) for name, way in ways.items()]


def _job(name: str, way: Callable[[], Any]) -> Job:
    import torch

    made = {}

    def call() -> None:
        with torch.inference_mode():
            made["out"] = way()

    return Job(name, VALUES, {"gather": call}, lambda: (made["out"].numpy(),))
