"""FramePackWrapper corrected in place: a stand-in for it, and for ComfyUI; the CPU is the card.

docs/framepack.md says what was tried with the real ones.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from patches_doubles import (  # noqa: F401
    Comfy,
    InterruptAsBase,
    InterruptAsException,
    fake_comfy,
    module,
    settings_are,
)
from PIL import Image

from hy3d_rocm.framepack import importing
from hy3d_rocm.units import GB

DOUBLE = Path(__file__).parent / "framepack_double"
PACKAGE = "framepack_double_pack"
HERE = torch.device("cpu")


class Loaded:
    """One of ComfyUI's loaded models: what it is shows in what it has."""

    def __init__(self, name: str, trait: str) -> None:
        self.device = HERE
        self.model = SimpleNamespace(model=type(name, (), {trait: None})())

    def __repr__(self) -> str:
        return type(self.model.model).__name__


class Card:
    """A card of 9 GB whose sections take 2 GB."""

    def __init__(self) -> None:
        self.sections = 0
        self.emptied = 0

    def free(self) -> int:
        return 9 * GB

    def empty(self) -> None:
        self.emptied += 1

    def start(self) -> None:
        self.sections += 1

    def need(self) -> int:
        return 2 * GB

    def retries(self) -> int:
        return 0


@pytest.fixture(name="comfy")
def comfy_with_a_vae(fake_comfy: Comfy, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    """fake_comfy with a VAE, an image encoder, previews and a queue. unloaded: kinds in order."""
    state = SimpleNamespace(base=fake_comfy, unloaded=[], shown=[], frames=[], queue={})
    management = fake_comfy.management

    def free_memory(count: float, device: Any, keep: Any = ()) -> None:
        going = [one for one in management.current_loaded_models if one not in keep]
        state.unloaded.append([repr(one) for one in going])
        management.current_loaded_models[:] = list(keep)

    class Bar:
        def __init__(self, total: int) -> None:
            self.total = total

        def update_absolute(self, step: int, total: int, picture: Any = None) -> None:
            fake_comfy.throw()
            state.shown.append((step, total, picture))

    class Previewer:
        def decode_latent_to_preview_image(self, kind: str, latents: torch.Tensor) -> Any:
            if latents.ndim == 5:
                state.frames.append(tuple(latents.shape))
            return kind, Image.new("RGB", (8, 4)), 512

    state.previewer = Previewer()
    names = ("encode", "encode_tiled", "decode", "decode_tiled")
    vae = type("VAE", (), {n: lambda self, x, n=n: (n, x) for n in names})
    vision = type("ClipVisionModel", (), {"encode_image": lambda self, x: ("seen", x)})
    server = SimpleNamespace(prompt_queue=SimpleNamespace(currently_running=state.queue))
    modules = {
        "comfy.sd": {"VAE": vae},
        "comfy.clip_vision": {"ClipVisionModel": vision},
        "comfy.latent_formats": {"HunyuanVideo": SimpleNamespace},
        "latent_preview": {
            "get_previewer": lambda device, kind: state.previewer,
            "prepare_callback": lambda model, steps: lambda *a: state.shown.append("upstream's"),
            "MAX_PREVIEW_RESOLUTION": 512,
        },
        "server": {"PromptServer": SimpleNamespace(instance=server)},
    }
    for name, parts in modules.items():
        made = module(name, **parts)
        monkeypatch.setitem(sys.modules, name, made)
        if name.startswith("comfy."):
            setattr(sys.modules["comfy"], name.partition(".")[2], made)
    management.free_memory = free_memory
    sys.modules["comfy.utils"].ProgressBar = Bar  # type: ignore[attr-defined]
    state.management, state.vae, state.vision = management, vae(), vision()
    return state


@pytest.fixture(name="place")
def wrapper_found(comfy: Any) -> Iterator[Any]:
    """The stand-in, imported as ComfyUI does, found as the engine does."""
    from hy3d_rocm.framepack import known

    importing.install(device=lambda: "cpu")
    known.forget()
    spec = importlib.util.spec_from_file_location(
        PACKAGE, DOUBLE / "__init__.py", submodule_search_locations=[str(DOUBLE)]
    )
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    from hy3d_rocm.comfy.patch.packs import find_framepack

    (found,) = find_framepack(made.NODE_CLASS_MAPPINGS)
    yield found
    importing.uninstall()
    for name in [n for n in sys.modules if n == PACKAGE or n.startswith(PACKAGE + ".")]:
        del sys.modules[name]


@pytest.fixture(name="apply")
def applied_and_taken_back(place: Any) -> Iterator[Callable[..., None]]:
    """Applies the patches of these names (all without one); they are taken back afterwards."""
    sets: list[Any] = []

    def apply(*names: str) -> None:
        from hy3d_rocm.comfy.patch import PatchSet
        from hy3d_rocm.comfy.patches.framepack import SPECS

        for spec in SPECS:
            if not names or spec.name in names:
                assert spec.expects(place) is None
                patches = PatchSet(spec.name)
                patches.apply(spec.changes(place))
                sets.append(patches)

    yield apply
    for patches in reversed(sets):
        assert patches.revert() == ()


@pytest.fixture(name="card")
def cpu_is_a_card(comfy: Any, monkeypatch: pytest.MonkeyPatch) -> Card:
    from hy3d_rocm.framepack import card as cards

    made = Card()
    monkeypatch.setattr(cards, "card_of", lambda device, free=None: made)
    return made


def transformer(place: Any) -> Any:
    torch.manual_seed(1)
    return place.part("nodes").HunyuanVideoTransformer3DModel()


def sample(place: Any, model: Any = None, **more: Any) -> torch.Tensor:
    """As ComfyUI runs the node."""
    model = transformer(place) if model is None else model
    given: dict[str, Any] = {
        "model": {"transformer": model, "dtype": torch.float32}, "seed": 3, "steps": 3, "cfg": 1.0,
        "start_latent": {"samples": torch.zeros(1, 16, 1, 8, 8)}, "latent_window_size": 2,
        "gpu_memory_preservation": 6.0, **more,
    }  # fmt: skip
    (made,) = place.part("FramePackSampler")().process(**given)
    return made["samples"]


def attributes(place: Any) -> dict[str, dict[str, Any]]:
    owners = ("nodes", "memory", "FramePackSampler", "LoadFramePackModel")
    found = {name: dict(vars(place.part(name))) for name in owners}
    found["VAE"] = dict(vars(sys.modules["comfy.sd"].VAE))
    return found


def test_all_four_are_applied_and_taken_back_without_a_trace(place: Any) -> None:
    from hy3d_rocm.comfy.patch import PatchSet
    from hy3d_rocm.comfy.patches.framepack import SPECS

    before = attributes(place)
    sets = []
    for spec in SPECS:
        assert spec.expects(place) is None
        sets.append(PatchSet(spec.name))
        sets[-1].apply(spec.changes(place))
    assert [patches.label for patches in sets] == [
        "framepack-import", "framepack-unload", "framepack-memory", "framepack-preview",
    ]  # fmt: skip
    assert attributes(place) != before
    for patches in reversed(sets):  # as the installation does
        assert patches.revert() == ()
    now = attributes(place)
    for owner, names in before.items():
        assert now[owner].keys() == names.keys()
        assert all(now[owner][name] is value for name, value in names.items())


def test_the_settings_know_every_patch_by_name(place: Any) -> None:
    from hy3d_rocm.comfy.patches.framepack import SPECS
    from hy3d_rocm.comfy.settings import PATCHES

    assert {spec.name for spec in SPECS} <= set(PATCHES)


def test_patched_it_makes_what_upstream_makes(
    place: Any, apply: Callable[..., None], card: Card
) -> None:
    alone = sample(place)
    apply()
    assert torch.equal(sample(place), alone)
    assert card.sections == 2


def test_models_leave_in_the_specifications_order_one_kind_at_a_time(
    place: Any, comfy: Any, apply: Callable[..., None]
) -> None:
    loaded = comfy.management.current_loaded_models
    loaded[:] = [
        Loaded("Siglip", "vision_model"), Loaded("AutoencoderKL", "decoder"),
        Loaded("Llama", "encode_token_weights"), Loaded("Clip", "encode_token_weights"),
    ]  # fmt: skip
    apply("framepack-unload")
    sample(place)
    assert comfy.unloaded == [["Llama", "Clip"], ["AutoencoderKL"], ["Siglip"]]
    assert loaded == []


@pytest.mark.parametrize(
    ("call", "gone", "left"),
    [
        ("encode", ["Llama", "AutoencoderKL"], ["Siglip", "Other"]),
        ("encode_image", ["Llama", "AutoencoderKL", "Siglip"], ["Other"]),
        ("decode", ["Llama", "Siglip", "AutoencoderKL"], ["Other"]),
        ("decode_tiled", ["Llama", "Siglip", "AutoencoderKL"], ["Other"]),
    ],
)
def test_each_kind_goes_when_its_work_is_done(
    call: str, gone: list[str], left: list[str], comfy: Any, apply: Callable[..., None]
) -> None:
    comfy.queue[1] = (0, "id", {"7": {"class_type": "FramePackSampler", "inputs": {}}}, {}, [])
    loaded = comfy.management.current_loaded_models
    loaded[:] = [
        Loaded("Other", "weights"), Loaded("AutoencoderKL", "decoder"),
        Loaded("Llama", "encode_token_weights"), Loaded("Siglip", "vision_model"),
    ]  # fmt: skip
    apply("framepack-unload")
    owner = comfy.vision if call == "encode_image" else comfy.vae
    assert getattr(owner, call)("x")[1] == "x"
    assert [name for names in comfy.unloaded for name in names] == gone
    assert sorted(repr(one) for one in loaded) == sorted(left)


def test_a_previewers_small_vae_unloads_nothing(comfy: Any, apply: Callable[..., None]) -> None:
    """It decodes at every step, while the sampler's models are at work."""
    comfy.queue[1] = (0, "id", {"7": {"class_type": "FramePackSampler", "inputs": {}}}, {}, [])
    comfy.management.current_loaded_models[:] = [Loaded("TAEHV", "decoder")]
    comfy.vae.first_stage_model = type("TAEHV", (), {})()
    comfy.vae.latent_dim = 3
    apply("framepack-unload")
    assert comfy.vae.decode("x") == ("decode", "x")
    assert comfy.unloaded == []


def test_prompts_without_a_framepack_sampler_are_left_as_they_are(
    comfy: Any, apply: Callable[..., None]
) -> None:
    comfy.queue[1] = (0, "id", {"7": {"class_type": "KSampler", "inputs": {}}}, {}, [])
    comfy.management.current_loaded_models[:] = [Loaded("AutoencoderKL", "decoder")]
    apply("framepack-unload")
    assert comfy.vae.decode("x") == ("decode", "x")
    assert comfy.unloaded == []


@pytest.mark.parametrize("error", [InterruptAsBase(), InterruptAsException(), ValueError("no")])
def test_after_a_failure_or_a_cancel_the_transformer_leaves_the_card(
    error: BaseException, place: Any, apply: Callable[..., None]
) -> None:
    model = transformer(place)

    def fail() -> None:
        raise error

    model.on_step = fail
    with pytest.raises(type(error)):
        sample(place, model)
    alone = list(model.moved)  # to the card; upstream then leaves it there
    model.moved.clear()
    apply("framepack-unload")
    with pytest.raises(type(error)):
        sample(place, model)
    assert model.moved == [*alone, "cpu"]


def test_the_partial_offload_is_a_whole_one_and_its_line_is_never_printed(
    place: Any, apply: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    apply("framepack-unload")
    model = transformer(place)
    place.part("memory").offload_model_from_device_for_memory_preservation(
        model, target_device=HERE, preserved_memory_gb=8
    )
    assert model.moved == ["cpu"]
    assert "to preserve memory" not in capsys.readouterr().out


@pytest.mark.parametrize("teacache", [True, False])
@pytest.mark.parametrize("at", [1, 4, 6])
def test_a_section_that_runs_out_of_memory_is_made_again_and_the_video_is_the_same(
    at: int, teacache: bool, place: Any, apply: Callable[..., None], card: Card
) -> None:
    alone = sample(place, use_teacache=teacache)
    model, steps = transformer(place), [0]

    def once() -> None:
        steps[0] += 1
        if steps[0] == at:
            raise torch.OutOfMemoryError("HIP out of memory. Tried to allocate 3.00 GiB.")

    model.on_step = once
    apply("framepack-memory")
    assert torch.equal(sample(place, model, use_teacache=teacache), alone)
    assert card.sections == 3


def test_upstreams_default_is_computed_and_another_value_is_kept(
    place: Any, apply: Callable[..., None], card: Card, caplog: pytest.LogCaptureFixture
) -> None:
    apply("framepack-memory")
    caplog.set_level("INFO", logger="hy3d_rocm")
    for value in (6.0, 5.5, 6.0):
        sample(place, gpu_memory_preservation=value)
    kept = [line.split(" free: ") for line in caplog.messages if line.startswith("FramePack keeps")]
    assert [(amount.split("keeps ")[1], why.split(";")[0]) for amount, why in kept] == [
        ("6.8 GB", "75% of the 9.0 GB that are free"),
        ("2.8 GB", "a section took 2.0 GB"),
        ("5.5 GB", "the node's own value"),
        ("5.5 GB", "earlier sections took 2.0 GB"),
    ] or kept[-1][1].startswith("earlier sections took 2.0 GB")


def test_without_a_card_all_of_it_runs_where_it_is(place: Any, apply: Callable[..., None]) -> None:
    """On the CPU upstream's own placing raises: there is no CUDA memory to ask for."""
    apply("framepack-memory")
    assert sample(place).shape == (1, 16, 4, 1, 1)


@pytest.mark.parametrize(("free", "told"), [(9, "offload_device"), (90, "main_device")])
def test_the_loader_fills_the_card_only_where_sections_have_room_beside_the_weights(
    free: int, told: str, place: Any, apply: Callable[..., None], card: Card, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    file = tmp_path / "framepack.safetensors"
    with file.open("wb") as handle:
        handle.truncate(8 * GB)  # sparse
    sys.modules["folder_paths"].get_full_path = lambda kind, name: str(file)  # type: ignore[attr-defined]
    monkeypatch.setattr(card, "free", lambda: free * GB)
    apply("framepack-memory")
    (made,) = place.part("LoadFramePackModel")().loadmodel("framepack.safetensors", "bf16")
    assert made["dtype"] == told  # the stand-in tells where it was to load


def test_finished_sections_are_shown_under_the_frame_in_work(
    place: Any, comfy: Any, apply: Callable[..., None]
) -> None:
    apply("framepack-preview", "framepack-import", "framepack-memory")
    sample(place)
    assert "upstream's" not in comfy.shown
    pictures = [picture[1].size for _, _, picture in comfy.shown]
    # 3 steps of a section of 2 latent frames, then the section; the second one has it underneath.
    assert pictures == [(8, 4)] * 3 + [(16, 4)] + [(16, 12)] * 3 + [(16, 8)]
    assert comfy.frames == [(1, 16, 1, 1, 1)] * 4
    assert [(step, total) for step, total, _ in comfy.shown] == [(1, 3), (2, 3), (3, 3), (3, 3)] * 2


def test_a_preview_that_fails_costs_nothing_and_a_cancel_in_it_goes_on(
    place: Any, comfy: Any, apply: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    apply("framepack-preview", "framepack-memory")

    def fail(kind: str, latents: Any) -> Any:
        raise KeyError("no such layer")

    monkeypatch.setattr(comfy.previewer, "decode_latent_to_preview_image", fail, raising=False)
    assert sample(place).shape == (1, 16, 4, 1, 1)
    assert all(picture is None for _, _, picture in comfy.shown)
    comfy.base.interrupt = InterruptAsException()
    with pytest.raises(InterruptAsException):
        sample(place)


def test_with_previews_off_upstreams_callback_runs(
    place: Any, comfy: Any, apply: Callable[..., None]
) -> None:
    comfy.previewer = None
    apply("framepack-preview", "framepack-memory")
    sample(place)
    assert comfy.shown == ["upstream's"] * 6


def test_switched_off_in_the_settings_each_does_nothing(
    place: Any, comfy: Any, apply: Callable[..., None], card: Card,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from hy3d_rocm.comfy.patches.framepack import SPECS

    apply()
    off = frozenset(spec.name for spec in SPECS) - {"framepack-import"}
    settings_are(monkeypatch, patches_off=off)
    comfy.management.current_loaded_models[:] = [Loaded("AutoencoderKL", "decoder")]
    sample(place)
    assert comfy.unloaded == []
    assert card.sections == 0
    assert comfy.shown == ["upstream's"] * 6


@pytest.mark.parametrize(
    ("owner", "name", "spec", "sentence"),
    [
        ("nodes", "sample_hunyuan", "framepack-memory", "of nodes has no sample_hunyuan"),
        ("nodes", "sample_hunyuan", "framepack-preview", "of nodes has no sample_hunyuan"),
        ("memory", "get_cuda_free_memory_gb", "framepack-import", "its memory module has no"),
        ("FramePackSampler", "FUNCTION", "framepack-unload", "does not run its method process"),
        ("FramePackSampler", "INPUT_TYPES", "framepack-memory", "has no input gpu_memory_preser"),
    ],
)  # fmt: skip
def test_a_changed_upstream_is_left_alone_with_a_sentence(
    owner: str, name: str, spec: str, sentence: str, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy.patches.framepack import SPECS

    monkeypatch.delattr(place.part(owner), name)
    (found,) = [one for one in SPECS if one.name == spec]
    assert sentence in (found.expects(place) or "")
