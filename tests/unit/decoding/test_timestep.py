"""A timestep that was given to a family goes with it into every copy of its VAE."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import TIMESTEP, tiny_latents, tiny_vae, unsplit  # noqa: E402

from hy3d_rocm.decoding import decode_with_report  # noqa: E402
from hy3d_rocm.decoding.black_box import meta_family  # noqa: E402
from hy3d_rocm.decoding.copies import converted_family  # noqa: E402
from hy3d_rocm.decoding.families import family_for  # noqa: E402


@pytest.mark.parametrize("kind", TIMESTEP)
def test_a_whole_decode_with_a_timestep_has_the_vaes_own_bits(kind: str) -> None:
    vae = tiny_vae(kind)
    latents = tiny_latents(vae, 2, 2, 2)
    family = family_for(vae, timestep=TIMESTEP[kind])
    frames, _ = decode_with_report(family, latents, "8GB", "whole")
    assert torch.equal(frames, unsplit(vae, latents, TIMESTEP[kind]))


@pytest.mark.parametrize("kind", TIMESTEP)
def test_a_copy_of_the_family_takes_its_timestep(kind: str) -> None:
    family: Any = family_for(tiny_vae(kind), timestep=0.125)
    assert meta_family(family, torch.float32).timestep == 0.125
    assert converted_family(family, torch.float64).timestep == 0.125
