"""A real decoder (diffusers' HunyuanVideo VAE at reduced width) under injected faults."""

from __future__ import annotations

import random
from typing import Any

import check_router
import pytest
import torch
from router_doubles import guarded

from hy3d_rocm.conv import faults
from hy3d_rocm.conv.faults import Fault, inject_faults

diffusers = pytest.importorskip("diffusers")


pytestmark = pytest.mark.usefixtures("nothing_remembered")


@pytest.fixture(scope="module")
def vae() -> Any:
    torch.manual_seed(0)
    model = diffusers.AutoencoderKLHunyuanVideo(
        block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4, latent_channels=4
    )
    # Float64: the decoder's norms and attention magnify the rounding of a convolution without a
    # bound that could be proven; in float64 what is left is far below float32's own rounding.
    return model.double().eval()


@pytest.fixture(scope="module")
def latents() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1, 4, 2, 4, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    "broken",
    [
        [Fault("current")],
        [Fault("current", text=faults.MIOPEN_UNKNOWN, every=3)],
        [Fault("current"), Fault("native", text=faults.HIP_OOM)],
        [Fault("current", text=faults.HIP_OOM, every=2), Fault("native", every=5)],
    ],
    ids=["all", "every third", "native full", "mixed"],
)
def test_a_decode_through_faults_gives_the_frames_of_an_undisturbed_one(
    vae: Any, latents: torch.Tensor, broken: list[Fault]
) -> None:
    plain = vae.decode(latents).sample
    with inject_faults(broken), guarded() as guard:
        frames = vae.decode(latents).sample
    assert guard.stats.recovered > 0
    assert guard.stats.raised == 0
    assert frames.shape == plain.shape
    # What a viewer gets: the same float32 frames to the last bit or its neighbour.
    scale = plain.abs().max()
    assert (frames - plain).abs().max() <= scale * torch.finfo(torch.float32).eps


def test_an_unprotected_decode_dies_of_the_same_fault(vae: Any, latents: torch.Tensor) -> None:
    with inject_faults(Fault("current", "conv3d")), pytest.raises(RuntimeError, match="suitable"):
        vae.decode(latents)


def test_without_faults_protect_changes_no_bit(vae: Any, latents: torch.Tensor) -> None:
    plain = vae.decode(latents).sample
    with guarded() as guard:
        frames = vae.decode(latents).sample
    assert torch.equal(frames, plain)
    assert guard.stats.calls > 20
    assert guard.stats.recovered == 0


def test_faults_of_every_kind_at_random_tiers_and_calls_lose_no_call() -> None:
    """A share of tests/long/check_router.py, which runs all of them."""
    seed = random.randrange(2**32)
    outcome = check_router.check(quick=30, seed=seed)
    assert outcome.said == [], f"seed {seed}"
    assert outcome.lost == 0, f"seed {seed}"
    assert outcome.fired > 0
    assert outcome.worst_share_of_bound <= 1
