"""A float64 decode has float64's error in every part, or its report says what has not."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import how_much  # noqa: E402
from decode_doubles import (  # noqa: E402
    EVERY_KIND,
    TIMESTEP,
    tiny_latents,
    tiny_pixels,
    tiny_vae,
    unsplit,
    unsplit_moments,
)
from diffusers.models.embeddings import Timesteps  # noqa: E402
from program_doubles import compiled_tiles, in_tiles  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from hy3d_rocm.decoding import (  # noqa: E402
    decode_with_report,
    encode_with_report,
)
from hy3d_rocm.decoding.families import family_for  # noqa: E402
from hy3d_rocm.decoding.families.proof import rounding_bound  # noqa: E402
from hy3d_rocm.decoding.graph import record  # noqa: E402
from hy3d_rocm.tools.runs import Subject, exact_frames  # noqa: E402

#: Kinds of which some statement of diffusers' own code computes in float32 whatever the type
ROUNDING = ("wan", "wan22", "qwen", "ltx", "ltx_causal", "ltx095", "ltx095_ahead")

pytestmark = pytest.mark.usefixtures("one_thread")


class _Wide(TorchFunctionMode):
    """A VAE's own code as it would be without its statements that narrow float64 to float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_wide = args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64
        narrows = func is torch.Tensor.float or (
            func is torch.Tensor.to and torch.float32 in (*args[1:], *(kwargs or {}).values())
        )
        return args[0] if is_wide and narrows else func(*args, **(kwargs or {}))


@contextmanager
def all_wide(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """But for the sines of a timestep, which are float32 numbers to every decoder."""
    sines = Timesteps.forward

    def forward(self: Any, timesteps: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return sines(self, timesteps)

    with monkeypatch.context() as patch, _Wide():
        patch.setattr(Timesteps, "forward", forward)
        yield


def error_of(got: Any, want: Any) -> float:
    """The largest, in units of the bound for sums in another order in float64."""
    assert got.dtype == want.dtype == torch.float64
    assert got.shape == want.shape
    return float((got - want).abs().max()) / rounding_bound(torch.float64, float(want.abs().max()))


def test_the_reference_of_the_tools_is_as_wide_as_the_vae() -> None:
    vae = tiny_vae("wan").double()
    z = tiny_latents(vae, 1, 4, 4).double()
    exact = exact_frames(Subject(vae, z, "a float64 VAE", True))
    assert exact.dtype == "float64"
    assert torch.equal(exact.frames, unsplit(vae, z))


def family_of(kind: str) -> Any:
    family: Any = family_for(tiny_vae(kind).double())
    if kind in TIMESTEP:
        family.timestep = TIMESTEP[kind]
    return family


@functools.cache
def decode_of(kind: str) -> Any:
    """A family, latents of two frames and their decode in float64 throughout; only to be read."""
    family = family_of(kind)
    z = tiny_latents(family.vae, 1 if family.is_image else 2, 4, 3).double()
    with pytest.MonkeyPatch.context() as patch, all_wide(patch):
        return family, z, unsplit(family.vae, z, TIMESTEP.get(kind))


IN_PARTS = ("streamed", "cpu")
# In the gate one half of the kinds decodes, the other encodes.
DECODED, ENCODED = (how_much.dealt(EVERY_KIND, half, 2) for half in range(2))


@pytest.mark.parametrize(("kind", "strategy"), how_much.in_turns(DECODED, IN_PARTS))
def test_a_decode_in_parts_has_float64s_error(kind: str, strategy: str) -> None:
    family, z, want = decode_of(kind)
    got, report = decode_with_report(family, z, strategy=strategy)
    assert error_of(got, want) <= 1
    says = "float32" in report.precision_reason
    assert report.dtype == "float64"
    assert says is (kind in TIMESTEP), report.precision_reason  # the sines


@pytest.mark.parametrize(("kind", "strategy"), how_much.in_turns(ENCODED, IN_PARTS))
def test_an_encode_in_parts_has_float64s_error(
    kind: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = family_of(kind)
    frames = how_much.of(max(5, 1 + family.pixel_steps[0]), 9)
    pixels = tiny_pixels(1 if family.is_image else frames, 32, 32).double()
    with all_wide(monkeypatch):
        want = unsplit_moments(family.vae, pixels)
    got, report = encode_with_report(family, pixels, strategy=strategy, moments=True)
    assert error_of(got, want) <= 1
    assert "float32" not in report.precision_reason


@pytest.mark.parametrize("kind", DECODED)
def test_the_vaes_own_code_has_it_too_or_the_report_says_in_what_it_computes(
    kind: str,
) -> None:
    family, z, want = decode_of(kind)
    got, report = decode_with_report(family, z, strategy="whole")
    assert torch.equal(got, unsplit(family.vae, z, TIMESTEP.get(kind)))
    says = "computes in float32 on the way" in report.precision_reason
    assert says is (kind in ROUNDING), report.precision_reason
    assert says or error_of(got, want) <= 1


@pytest.mark.parametrize(
    "kind",
    how_much.of(("hunyuan", "ltx095", "image"), tuple(k for k in EVERY_KIND if k != "seedvr2")),
)
def test_tiles_that_see_everything_have_float64s_error(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SeedVR2's norms see the tile and not the frame: families/test_seedvr2.py."""
    family = family_of(kind)
    frames = 1 if family.is_image else 2
    high = tiny_latents(family.vae, frames, 44, 1).double()
    with all_wide(monkeypatch):
        want = unsplit(family.vae, high, TIMESTEP.get(kind))
    graph = record(family)  # chunks so long that statistics are of all there is
    program = compiled_tiles(graph, high, level=1, chunk=1000, overlap=16, least=32).program
    assert program.candidate["tiles"] == 2
    in_tiles(graph, high, program, out := torch.empty_like(want))
    assert error_of(out, want) <= 1
