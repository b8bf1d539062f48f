"""The demo's trained VAE and its held-out clip: what the demo and its reader rely on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from places import ROOT

torch = pytest.importorskip("torch", reason="the demo VAE is a torch model")
pytest.importorskip("diffusers", reason="the demo VAE is a diffusers class")
pytest.importorskip("safetensors", reason="the demo weights are safetensors")

from examples import demo_vae  # noqa: E402

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def clip() -> object:
    """5 frames of 96x128 of the held-out clip."""
    pytest.importorskip("av", reason="clips are decoded with PyAV")
    try:
        return demo_vae.held_out_clip(5, 96, 128, start=30)
    except demo_vae.ClipNotFoundError as error:
        pytest.skip(f"no held-out clip: {error}")


@pytest.fixture(scope="module")
def vae() -> object:
    return demo_vae.load_demo_vae()


def test_the_weights_are_the_pinned_ones_and_at_most_8_mb() -> None:
    path = demo_vae.weights_path()
    assert demo_vae.file_sha256(path) == demo_vae.WEIGHTS_SHA256
    assert path.stat().st_size <= 8_000_000


def test_no_json_lies_under_examples() -> None:
    """ComfyUI would list one as a workflow template."""
    assert list(EXAMPLES.rglob("*.json")) == []


def test_altered_weights_are_refused_with_the_remedy(tmp_path: Path) -> None:
    data = bytearray(demo_vae.weights_path().read_bytes())
    data[-1] ^= 1
    altered = tmp_path / "altered.safetensors"
    altered.write_bytes(bytes(data))
    with pytest.raises(demo_vae.DemoModelError, match="check=False"):
        demo_vae.load_demo_vae(altered)


def test_weights_without_a_configuration_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    bare = tmp_path / "bare.safetensors"
    save_file({"x": torch.zeros(1)}, str(bare))
    with pytest.raises(demo_vae.DemoModelError, match="config"):
        demo_vae.load_demo_vae(bare, check=False)


def test_saved_weights_load_as_the_same_model(tmp_path: Path) -> None:
    config = {"block_out_channels": [8, 8, 8, 8], "layers_per_block": 1, "latent_channels": 2,
              "norm_num_groups": 2}  # fmt: skip
    small = demo_vae.build_vae(config)
    path = tmp_path / "small.safetensors"
    demo_vae.save_vae(path, config, small.state_dict())
    loaded = demo_vae.load_demo_vae(path, check=False)
    for name, value in small.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.half().float()), name


def test_the_loaded_vae_is_fp32_frozen_and_decodes_unsplit(vae: object) -> None:
    assert {p.dtype for p in vae.parameters()} == {torch.float32}  # type: ignore[attr-defined]
    assert not any(p.requires_grad for p in vae.parameters())  # type: ignore[attr-defined]
    assert not vae.use_framewise_decoding  # type: ignore[attr-defined]
    assert not vae.use_framewise_encoding  # type: ignore[attr-defined]
    assert not vae.training  # type: ignore[attr-defined]


def test_a_filmed_clip_it_never_saw_comes_back_at_25_db_or_better(vae, clip) -> None:  # type: ignore[no-untyped-def]
    with torch.no_grad():
        decoded = vae.decode(vae.encode(clip).latent_dist.mode()).sample
    assert decoded.shape == clip.shape
    mse = float((decoded.clamp(-1, 1) - clip).double().square().mean()) / 4
    assert -10 * math.log10(mse) >= 25.0


def test_the_held_out_clip_is_not_among_the_training_sources() -> None:
    script = (EXAMPLES / "train_demo_vae.py").read_text()
    sources = script[script.index("CLIPS = ") : script.index("WARM_UP")]
    assert Path(demo_vae.HELD_OUT_FILE).name not in sources


def test_the_clip_is_in_the_models_range_and_layout(clip) -> None:  # type: ignore[no-untyped-def]
    assert clip.shape == (1, 3, 5, 96, 128)
    assert clip.dtype == torch.float32
    assert -1.0 <= float(clip.min()) < float(clip.max()) <= 1.0


@pytest.mark.parametrize(("frames", "height", "width"), [(8, 96, 128), (9, 100, 128), (9, 96, 20)])
def test_a_size_the_vae_cannot_take_is_refused(frames: int, height: int, width: int) -> None:
    with pytest.raises(ValueError, match="multiples of 8"):
        demo_vae.held_out_clip(frames, height, width)


def test_a_missing_package_is_named_with_the_remedy() -> None:
    with pytest.raises(demo_vae.ClipNotFoundError, match="pip install"):
        demo_vae.package_file("no_such_package_here", "x.mp4")


def test_a_clip_too_short_is_refused_with_both_numbers(clip) -> None:  # type: ignore[no-untyped-def]
    del clip  # only so that this is skipped where the clip is absent
    with pytest.raises(ValueError, match="10 frames from frame 240; 33"):
        demo_vae.held_out_clip(33, 96, 128, start=240)


def test_the_configuration_in_the_weights_is_the_scripts_own() -> None:
    """The script's CONFIG, read without running it, is what the weights say but for the scale."""
    from ast import literal_eval

    from safetensors import safe_open

    script = (EXAMPLES / "train_demo_vae.py").read_text()
    start = script.index("CONFIG: dict[str, Any] = ") + len("CONFIG: dict[str, Any] = ")
    written = literal_eval(script[start : script.index("}\n", start) + 1])
    with safe_open(str(demo_vae.weights_path()), framework="pt") as file:
        stored = json.loads(file.metadata()["config"])
    written.pop("scaling_factor")
    assert stored.pop("scaling_factor") > 0
    assert stored == written
