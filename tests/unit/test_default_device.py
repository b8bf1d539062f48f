"""A default device (torch.set_default_device, `with torch.device`) changes nothing."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import how_much  # noqa: E402
from torch.utils._device import _device_constructors  # noqa: E402

import hy3d_rocm  # noqa: E402
from hy3d_rocm import PipelineProxy, conv2d, conv3d, decode, make_generator, protect, raster  # noqa: E402
from hy3d_rocm.conv import conv3d_op, functional  # noqa: E402
from hy3d_rocm.conv.tiers import TIER_NAMES  # noqa: E402
from hy3d_rocm.decoding import DecodeOptions, decode_with_report, encode  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
SOURCES = Path(hy3d_rocm.__file__).parent
#: Functions of torch that make a tensor on the default device where none is named
CONSTRUCTORS = {f.__name__ for f in _device_constructors() if getattr(torch, f.__name__, None) is f}


def _constructed(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each call torch.CONSTRUCTOR(...) that names no device."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "torch"
            and node.func.attr in CONSTRUCTORS
            and not any(word.arg == "device" for word in node.keywords)
        ):
            yield node.lineno, node.func.attr


def test_every_tensor_is_made_on_a_device_that_is_named() -> None:
    found = [
        f"{path.relative_to(SOURCES)}:{line}: torch.{name}() without device="
        for path in sorted(SOURCES.rglob("*.py"))
        for line, name in _constructed(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, "\n".join(found)


def test_the_search_finds_what_it_is_for() -> None:
    assert {"empty", "zeros", "arange", "tensor", "randn", "as_tensor", "full"} <= CONSTRUCTORS
    text = "torch.zeros(3)\ntorch.zeros(3, device=d)\nx.new_zeros(3)\ntorch.zeros_like(x)"
    assert list(_constructed(ast.parse(text))) == [(1, "zeros")]


def alike(made: Any, want: Any) -> bool:
    """The same type, device and bits, whatever holds the tensors."""
    if isinstance(want, torch.Tensor):
        return bool(made.device == want.device and torch.equal(made, want))
    return len(made) == len(want) and all(map(alike, made, want))


def same_on_meta(work: Callable[[], Any]) -> None:
    """A default device on which nothing can be computed: what is made there shows at once."""
    want = work()
    with torch.device("meta"):
        made = work()
    assert alike(made, want)
    torch.set_default_device("meta")
    try:
        made = work()
    finally:
        torch.set_default_device(None)
    assert alike(made, want)


def tiny(kind: str) -> tuple[Any, Any, Any]:
    """A VAE or its family, latents and frames for it."""
    pytest.importorskip("diffusers")
    from decode_doubles import TIMESTEP, tiny_latents, tiny_pixels, tiny_vae

    from hy3d_rocm.decoding.families import family_for

    vae = tiny_vae(kind)
    pixels = tiny_pixels(1 if kind == "image" else 9, 32, 32)
    z = tiny_latents(vae, 1 if kind == "image" else 2, 4, 4)
    return (family_for(vae, timestep=TIMESTEP[kind]) if kind in TIMESTEP else vae), z, pixels


@pytest.mark.parametrize(
    ("kind", "strategy"),
    how_much.in_turns(
        ("hunyuan", "hunyuan15", "wan", "ltx095", "image"), ("streamed", "tiled", "cpu", "whole")
    ),
)
def test_a_decode_is_the_same(kind: str, strategy: str) -> None:
    vae, z, _ = tiny(kind)
    same_on_meta(lambda: decode(vae, z, strategy=strategy))


@pytest.mark.parametrize(
    ("kind", "strategy"),
    how_much.in_turns(("hunyuan", "wan", "ltx095", "image"), ("streamed", "cpu")),
)
def test_an_encode_is_the_same(kind: str, strategy: str) -> None:
    vae, _, pixels = tiny(kind)
    same_on_meta(lambda: encode(vae, pixels, strategy=strategy))


def test_a_decode_of_a_vae_of_no_known_kind_is_the_same() -> None:
    class Doubled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Conv3d(4, 3, 1).requires_grad_(False)

        def decode(self, z: Any) -> Any:
            return torch.nn.functional.interpolate(self.layer(z), scale_factor=(1, 2, 2))

    vae, z = Doubled(), torch.randn(1, 4, 2, 40, 40)
    same_on_meta(lambda: decode(vae, z))
    options = DecodeOptions(halo_pixels=0, overlap_pixels=4, min_tile_pixels=8)
    same_on_meta(lambda: decode_with_report(vae, z, strategy="tiled", options=options)[0])


def test_a_video_that_is_read_from_a_file_is_the_same(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    from decode_doubles import tiny_vae
    from safetensors.torch import save_file

    from hy3d_rocm.tools import loading

    vae = tiny_vae("wan")
    vae.register_to_config(latents_mean=[0.1] * 4, latents_std=[1.5] * 4)
    vae.save_pretrained(tmp_path / "vae")
    save_file({"latents": torch.randn(1, 4, 2, 4, 4)}, tmp_path / "z.safetensors")

    def read() -> Any:
        vae = loading.load_vae(loading.find_vae(tmp_path / "vae"))
        return decode(vae, loading.unscaled(loading.load_latents(tmp_path / "z.safetensors"), vae))

    same_on_meta(read)


@pytest.mark.parametrize("tier", [name for name in TIER_NAMES if name not in ("vendor", "triton")])
def test_every_tier_is_the_same(tier: str) -> None:
    x, weight, bias = torch.randn(2, 3, 4, 9, 8), torch.randn(5, 3, 3, 3, 3), torch.randn(5)

    def routed() -> Any:
        with torch.inference_mode(), protect(policy=f"pin:{tier}", check_finite=True) as guard:
            made = [
                torch.nn.functional.conv3d(x, weight, bias, (1, 2, 1), 1),
                torch.nn.functional.conv2d(x[:, :, 0], weight[:, :, 0], bias, padding=1),
            ]
        assert guard.stats.calls == 2
        return made

    same_on_meta(routed)


def test_the_public_convolutions_are_the_same() -> None:
    x, weight, bias = torch.randn(1, 3, 4, 9, 8), torch.randn(5, 3, 3, 3, 3), torch.randn(5)
    last = x.to(memory_format=torch.channels_last_3d)
    same_on_meta(lambda: [
        conv3d(x, weight, bias, padding=1), conv3d(last, weight, padding="same", accuracy="fast"),
        conv2d(x[:, :, 0], weight[:, :, 0], bias), conv3d_op(x, weight, bias),
        functional.fused_conv3d(list(x[0].unbind(1)), weight, bias, activation="silu"),
    ])  # fmt: skip


def test_the_rasteriser_is_the_same() -> None:
    corners = torch.tensor([[-1.0, -1, 0, 1], [1, -1, 0.2, 1], [1, 1, 0.4, 1], [-1, 1, 0, 1]])
    faces = torch.tensor([[0, 1, 2], [0, 2, 3]])
    uv = corners[:, :2] / 2 + 0.5
    texture, mask = torch.rand(6, 6, 3), torch.zeros(6, 6, dtype=torch.uint8)
    mask[1:4] = 1

    def drawn() -> Any:
        seen = raster.rasterize(corners, faces, (12, 10))
        colours = raster.interpolate(uv, faces, seen.face_index, seen.barycentric)
        texels, total = raster.scatter(colours.reshape(-1, 2), colours.reshape(-1, 2), (4, 4))
        normals = raster.vertex_normals(corners[:, :3], faces)
        filled = raster.inpaint_vertices(texture, mask, corners[:, :3], uv, faces, faces)
        return [*seen, colours, texels, total, normals, *filled[:2]]

    same_on_meta(drawn)


@pytest.mark.parametrize("mode", ["stream", "per_image", "legacy"])
def test_seeds_draw_the_same_numbers(mode: Any) -> None:
    def drawn() -> Any:
        made = make_generator(7, mode=mode, count=2)
        generators = made if isinstance(made, list) else [made]
        return [torch.randn(3, generator=g, device="cpu") for g in generators]

    same_on_meta(drawn)


def test_a_pipelines_draws_are_the_same() -> None:
    class Pipeline:
        device = torch.device("cpu")

        def __call__(self, generator: Any = None) -> Any:
            return torch.randn(4, generator=generator, device="cpu")

    same_on_meta(lambda: PipelineProxy(Pipeline())(generator=torch.Generator("cpu").manual_seed(3)))


def test_measures_of_frames_are_the_same() -> None:
    from hy3d_rocm.tools import metrics

    a, b = torch.rand(1, 3, 2, 24, 24), torch.rand(1, 3, 2, 24, 24)
    same_on_meta(lambda: metrics.error_map(a, b))
    same_on_meta(lambda: torch.as_tensor(metrics.ssim(a, b), device="cpu"))
