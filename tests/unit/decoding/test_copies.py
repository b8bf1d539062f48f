"""A copy of a VAE shares no memory that the VAE will free, and nothing of the VAE changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hy3d_rocm.decoding.copies import copied_family  # noqa: E402


class Buffer:
    """Host memory by its address, freed when the object goes, as ComfyUI's pinned buffers are."""

    freed: list[int] = []  # noqa: RUF012  (counted over all)

    def __init__(self, address: int) -> None:
        self.address = address

    def __del__(self) -> None:
        Buffer.freed.append(self.address)


class Family:
    def __init__(self, vae: Any) -> None:
        self.vae = vae

    def over(self, vae: Any) -> Family:
        return Family(vae)


def to_shapes(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="meta")


def holders(buffer: Buffer) -> dict[str, Any]:
    """The ways that an attribute can hold one."""
    deep = SimpleNamespace(inner={"cpu": ([buffer], None)})
    return {
        "itself": buffer,
        "pins of each device": {"cuda:0": {"weights": (buffer, [], [-1], [0])}},
        "an object's attribute": deep,
        "a set": {buffer},
    }


@pytest.mark.parametrize(
    "held", ["itself", "pins of each device", "an object's attribute", "a set"]
)
@pytest.mark.parametrize("inside", [False, True])
def test_what_a_vae_holds_is_freed_once(held: str, inside: bool) -> None:
    vae = torch.nn.Sequential(torch.nn.Conv3d(2, 2, 1))
    owner = vae[0] if inside else vae
    Buffer.freed.clear()
    owner.pins = holders(Buffer(77))[held]
    ghost = copied_family(Family(vae), to_shapes)
    assert (ghost.vae[0] if inside else ghost.vae).pins is owner.pins
    assert ghost.vae[0].weight.is_meta
    assert not vae[0].weight.is_meta
    del ghost
    assert Buffer.freed == []
    del vae, owner
    assert Buffer.freed == [77]


def test_lists_that_a_decode_writes_to_are_the_copys_own() -> None:
    """Wan's cache of frames is a list on the module."""
    vae = torch.nn.Sequential(torch.nn.Conv3d(2, 2, 1))
    vae.feat_map = [None, None]
    ghost = copied_family(Family(vae), to_shapes)
    ghost.vae.feat_map[0] = "written"
    assert vae.feat_map == [None, None]


def test_an_attribute_that_refers_to_itself_is_copied() -> None:
    vae = torch.nn.Sequential(torch.nn.Conv3d(2, 2, 1))
    vae.ring = [1]
    vae.ring.append(vae.ring)
    ghost = copied_family(Family(vae), to_shapes)
    assert ghost.vae.ring is not vae.ring
    assert ghost.vae.ring[1] is ghost.vae.ring
