"""Rasterising on a real GPU: every bit must be the C core's.

    python -m pytest tests/gpu/test_raster.py

Skipped where PyTorch sees no CUDA or HIP device. Timings: tests/bench/raster_gpu.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import raster_gpu_scenes as scenes
import torch

from hy3d_rocm import _native, raster
from hy3d_rocm.raster.gpu import dispatch

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA or HIP device on this machine"
)
GPU = torch.device("cuda:0")
SEED = 3


@pytest.fixture(scope="module", autouse=True)
def usable() -> None:
    reason = dispatch.refusal(torch.device("cuda", torch.cuda.current_device()))
    assert reason is None, reason


def on_gpu(of: scenes.Scene) -> raster.Raster:
    prior = None if of.prior is None else of.prior.to(GPU)
    made = dispatch.rasterize_on_gpu(of.clip.to(GPU), of.faces.to(GPU), of.size, of.rule, prior)
    assert made is not None, "the kernels failed: the log says why"
    assert all(tensor.device.type == "cuda" for tensor in made)
    return made


@pytest.mark.parametrize(
    ("count", "most"),
    [(1400, {}), (280, {"corners": 300, "faces": 3000, "side": 200}),
     (28, {"corners": 20_000, "faces": 60_000, "side": 700})],
    ids=["small", "middle", "large"],
)  # fmt: skip
def test_random_scenes_are_the_c_cores_bit_for_bit(count: int, most: dict[str, int]) -> None:
    covered = 0
    for index in range(count):
        of = scenes.scene(SEED, index, **most)
        wanted, made = scenes.core(of), on_gpu(of)
        counts = [scenes.differing(a, b) for a, b in zip(made, wanted, strict=True)]
        assert not any(counts), f"seed {SEED}, scene {index} ({of.kind}, {of.rule}): {counts}"
        covered += int((wanted[0] > 0).sum())
    assert covered > 10 * count


@pytest.mark.parametrize("rule", ["topleft", "compat"])
@pytest.mark.parametrize("name", ["sphere", "grid", "soup"])
def test_meshes_are_the_c_cores_bit_for_bit(name: str, rule: str) -> None:
    of = scenes.mesh(name, 100_000, (1024, 1024), rule)
    counts = [scenes.differing(a, b) for a, b in zip(on_gpu(of), scenes.core(of), strict=True)]
    assert counts == [0, 0, 0]


def test_two_faces_over_a_large_picture_are_the_c_cores() -> None:
    corners = torch.tensor([[-1.0, -1, 0, 1], [1, -1, 0.5, 1], [1, 1, 1, 1], [-1, 1, 0.25, 1]])
    faces = torch.tensor([[0, 1, 2], [0, 2, 3]], dtype=torch.int32)
    for rule in ("topleft", "compat"):
        of = scenes.Scene("quad", rule, corners, faces, None, (6000, 6000))
        made, wanted = on_gpu(of), scenes.core(of)
        assert [scenes.differing(a, b) for a, b in zip(made, wanted, strict=True)] == [0, 0, 0]
        assert int((wanted[0] == 0).sum()) == 0


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7, 32, 45])
def test_interpolation_is_the_c_cores_bit_for_bit(channels: int) -> None:
    of = scenes.mesh("soup", 5000, (300, 200), "topleft")
    made = on_gpu(of)
    rng = np.random.default_rng(channels)
    values = torch.from_numpy(rng.normal(size=(len(of.clip), channels)).astype(np.float32))
    found = dispatch.interpolate_on_gpu(
        values.to(GPU), of.faces.to(GPU), made.face_index, made.barycentric
    )
    assert found is not None
    wanted = raster.interpolate(values, of.faces, made.face_index.cpu(), made.barycentric.cpu())
    assert scenes.differing(found, wanted) == 0


def test_the_same_picture_comes_again_and_from_the_door() -> None:
    of = scenes.mesh("soup", 20_000, (400, 400), "compat")
    first = on_gpu(of)
    for _ in range(5):
        assert all(scenes.differing(a, b) == 0 for a, b in zip(on_gpu(of), first, strict=True))
    found = raster.rasterize(of.clip.to(GPU), of.faces.long().to(GPU), of.size, rule="compat")
    assert found.depth.device.type == "cuda"
    assert all(scenes.differing(a, b) == 0 for a, b in zip(found, first, strict=True))


def test_wrong_values_are_said_in_the_c_cores_words() -> None:
    of = scenes.mesh("soup", 1000, (64, 64), "topleft")
    clip, faces = of.clip.to(GPU), of.faces.to(GPU)
    bad_clip, bad_faces = clip.clone(), faces.clone()
    bad_clip[77, 2], bad_faces[500, 1] = float("nan"), 10**6
    assert dispatch.rasterize_on_gpu(bad_clip, faces, of.size) is None
    assert dispatch.rasterize_on_gpu(clip, bad_faces, of.size) is None
    with pytest.raises(ValueError, match="NaN or an infinity in vertex 77"):
        raster.rasterize(bad_clip, faces, of.size)
    with pytest.raises(ValueError, match="index 1000000 in face 500"):
        raster.rasterize(clip, bad_faces, of.size)
    made = on_gpu(of)
    values = clip[:, :3].contiguous()
    assert dispatch.interpolate_on_gpu(values, bad_faces, *made[:2]) is None
    assert dispatch.interpolate_on_gpu(values, faces, made[0] + 1000, made[1]) is None


def test_nothing_gives_an_empty_picture() -> None:
    for clip, faces in ((torch.zeros(0, 4), torch.zeros(0, 3)), (torch.ones(3, 4), [[0, 1, 2]])):
        triangles = torch.as_tensor(faces, dtype=torch.int32).reshape(-1, 3)
        made = on_gpu(scenes.Scene("empty", "topleft", clip, triangles, None, (5, 7)))
        assert made.face_index.count_nonzero() == made.barycentric.count_nonzero() == 0
        assert bool(torch.isinf(made.depth).all())


def test_a_cancelled_call_leaves_no_picture() -> None:
    of = scenes.mesh("soup", 1000, (512, 512), "topleft")
    big = of.clip.to(GPU) * torch.tensor([30.0, 30, 1, 1], device=GPU)
    flag = _native.CancelFlag()
    flag.request()
    faces = of.faces.to(GPU)
    assert dispatch.rasterize_on_gpu(big, faces, of.size, cancel=flag) is None
    flag.reset()
    assert dispatch.rasterize_on_gpu(big, faces, of.size, cancel=flag) is not None
