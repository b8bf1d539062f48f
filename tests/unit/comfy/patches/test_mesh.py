"""The patches of mesh generation and VAE decode on stand-ins."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import patches_doubles
import pytest
import torch
from offload_doubles import ACCELERATOR, SimulatedAccelerator
from patches_doubles import InterruptAsBase, InterruptAsException, patched, run, settings_are

fake_comfy, wrapper = patches_doubles.fake_comfy, patches_doubles.wrapper

ERRORS = [RuntimeError, InterruptAsBase, InterruptAsException]
OFFLOAD = torch.device("cpu", 7)  # a place of its own that a CPU-only torch can name


class Shape:
    """The shape pipeline's habits: main_device, `to` without a result, no `.device`."""

    main_device = "cpu"

    def __init__(self) -> None:
        self.at: list[Any] = []
        self.error: BaseException | None = None
        self.scheduler: object = None

    def to(self, device: Any = None, dtype: Any = None) -> None:
        self.at.append(torch.device(device))

    def __call__(
        self, image: Any, generator: Any, num_inference_steps: int, mask: Any = None
    ) -> Any:
        drawn = torch.randn(2, 3, generator=generator)
        if self.error is not None:
            raise self.error
        return drawn


@pytest.fixture(autouse=True)
def offload_device(fake_comfy: Any) -> None:
    fake_comfy.management.unet_offload_device = lambda: OFFLOAD


def mesh(wrapper: Any, pipe: Any, **more: Any) -> torch.Tensor:
    (latents,) = run(
        wrapper, "Hy3DGenerateMesh", pipeline=pipe, image=torch.zeros(1, 4, 4, 3), steps=2,
        **({"seed": 3} | more),
    )  # fmt: skip
    return latents


@pytest.mark.parametrize("mode", ["stream", "per_image", "legacy"])
def test_the_latents_are_upstreams_in_every_mode(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    settings_are(monkeypatch, seed_mode=mode)
    with patched(wrapper, "mesh"):
        for seed in (0, 3, 2**64 - 1):
            expected = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))
            assert torch.equal(mesh(wrapper, Shape(), seed=seed), expected)
            (latents, *_) = run(
                wrapper, "Hy3DGenerateMeshMultiView", pipeline=Shape(), steps=2, seed=seed
            )
            assert torch.equal(latents, expected)


@pytest.mark.parametrize("mode", ["stream", "per_image"])
def test_the_global_state_is_as_before(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    settings_are(monkeypatch, seed_mode=mode)
    state = torch.get_rng_state()
    with patched(wrapper, "mesh"):
        mesh(wrapper, Shape())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("force_offload", "policy", "moved"),
    [(True, "auto", True), (True, "on", True), (True, "off", False), (False, "auto", False)],
)
def test_force_offload_does_what_its_tooltip_says(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, force_offload: bool, policy: str, moved: bool
) -> None:
    settings_are(monkeypatch, offload=policy)
    pipe = Shape()
    with patched(wrapper, "mesh"):
        mesh(wrapper, pipe, force_offload=force_offload)
    assert (pipe.at[-1] == OFFLOAD) is moved


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("node", ["Hy3DGenerateMesh", "Hy3DGenerateMeshMultiView"])
def test_a_failure_takes_the_model_off_the_gpu_and_goes_on_unchanged(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, node: str, error: type[BaseException]
) -> None:
    settings_are(monkeypatch, offload="off")
    pipe = Shape()
    pipe.error = error("in the middle")
    inputs = {"image": torch.zeros(1, 4, 4, 3)} if node == "Hy3DGenerateMesh" else {}
    with patched(wrapper, "mesh"):
        with pytest.raises(error) as caught:
            run(wrapper, node, pipeline=pipe, steps=2, seed=3, **inputs)
        assert caught.value is pipe.error
        assert pipe.at[-1] == OFFLOAD
        pipe.error = None
        run(wrapper, node, pipeline=pipe, steps=2, seed=3, **inputs)


def test_a_clean_up_that_fails_does_not_hide_the_error(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch)

    class Stuck(Shape):
        def to(self, device: Any = None, dtype: Any = None) -> None:
            if torch.device(device) == OFFLOAD:
                raise RuntimeError("HIP error: the GPU has fallen off")

    pipe = Stuck()
    pipe.error = KeyError("the first error")
    with patched(wrapper, "mesh"), pytest.raises(KeyError, match="the first error"):
        mesh(wrapper, pipe)


def test_a_memory_report_that_torch_refuses_does_not_cost_the_mesh(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch)
    with pytest.raises(ValueError, match="Expected a cuda device"):
        mesh(wrapper, Shape())
    with patched(wrapper, "mesh"):
        assert mesh(wrapper, Shape()).shape == (2, 3)
        wrapper.part("nodes").print_memory("cuda:0")  # a device that torch.cuda knows
    assert wrapper.part("nodes").reports == ["cuda:0"]


def test_switched_off_in_the_settings_the_nodes_are_upstreams(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch, patches_off=frozenset({"mesh", "vae-decode"}))
    pipe = Shape()
    with patched(wrapper, "mesh", "vae-decode"), pytest.raises(ValueError, match="cuda device"):
        mesh(wrapper, pipe)
    assert OFFLOAD not in pipe.at


class Vae:
    scale_factor = 2.0

    def __init__(self, error: BaseException | None = None) -> None:
        self.at: list[Any] = []
        self.error = error

    def to(self, device: Any) -> Vae:
        self.at.append(torch.device(device))
        return self

    def __call__(self, latents: torch.Tensor) -> torch.Tensor:
        if self.error is not None:
            raise self.error
        return latents + torch.ones(1, device="cuda")


class Elsewhere(torch.Tensor):
    """Notes where it is sent."""

    sent: list[torch.device]

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:  # type: ignore[override]
        self.sent.append(torch.device(args[0]))
        return self.as_subclass(torch.Tensor)


def test_vae_decode_gets_its_latents_where_the_vae_is(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch)
    latents = torch.arange(4.0).as_subclass(Elsewhere)
    latents.sent = []
    with patched(wrapper, "vae-decode"):
        (out,) = run(wrapper, "Hy3DVAEDecode", vae=Vae(), latents=latents)
    assert latents.sent == [torch.device("cpu")]
    assert torch.equal(out, torch.arange(4.0) / 2 + 1)


def test_vae_decode_says_where_it_is(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings_are(monkeypatch)
    caplog.set_level(logging.INFO, logger="hy3d_rocm")
    with patched(wrapper, "vae-decode"):
        run(wrapper, "Hy3DVAEDecode", vae=Vae(), latents=torch.zeros(4))
    said = [line for line in caplog.messages if line.startswith("[")]
    assert [line.split(" - ")[0].split(" Free")[0] for line in said] == [
        "[Before VAE Load]", "[VAE Decode] Starting",
        "[VAE Decode] VAE device cpu, VAE dtype of its own",
        "[VAE Decode] Attempting CPU decode on cpu", "[VAE Decode] CPU decode SUCCESS",
        "[After VAE Decode]",
    ]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS)
def test_vae_decode_that_fails_takes_the_vae_off_the_gpu(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    settings_are(monkeypatch)
    vae = Vae(error("in the middle"))
    with patched(wrapper, "vae-decode"):
        with pytest.raises(error) as caught:
            run(wrapper, "Hy3DVAEDecode", vae=vae, latents=torch.zeros(4), force_offload=False)
        assert caught.value is vae.error
        assert vae.at[-1] == OFFLOAD
        vae.error = None
        run(wrapper, "Hy3DVAEDecode", vae=vae, latents=torch.zeros(4))


def test_what_is_no_pipeline_is_a_sentence(wrapper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_are(monkeypatch)
    with patched(wrapper, "mesh"), pytest.raises(TypeError, match="cannot be called"):
        mesh(wrapper, SimpleNamespace(main_device="cpu"))


class ShapeOfModules(Shape):
    """As upstream's: `to` moves its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.conditioner = torch.nn.Linear(4, 4), torch.nn.Linear(2, 2)

    def to(self, device: Any = None, dtype: Any = None) -> None:
        super().to(device)
        for module in (self.model, self.conditioner):
            module.to(device)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("node", ["Hy3DGenerateMesh", "Hy3DGenerateMeshMultiView"])
def test_the_models_way_is_shown_in_bytes_and_nothing_of_ours_stays(
    wrapper: Any, fake_comfy: Any, monkeypatch: pytest.MonkeyPatch, node: str, fails: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    settings_are(monkeypatch)
    SimulatedAccelerator().install(monkeypatch)
    fake_comfy.management.get_torch_device = lambda: ACCELERATOR
    fake_comfy.management.unet_offload_device = lambda: "cpu"
    pipe, inputs = ShapeOfModules(), {}
    before = [set(vars(pipe.model)), set(vars(pipe.conditioner))]
    if node == "Hy3DGenerateMesh":
        inputs["image"] = torch.zeros(1, 4, 4, 3)
    pipe.error = RuntimeError("HIP out of memory") if fails else None
    expected = pytest.raises(RuntimeError) if fails else nullcontext()
    with patched(wrapper, "mesh"), caplog.at_level("INFO", "hy3d_rocm"), expected:
        run(wrapper, node, pipeline=pipe, steps=2, seed=3, **inputs)
    assert fake_comfy.bar[:2] == [(80, 80), (24, 24)]  # 4x4 + 4 and 2x2 + 2 floats
    assert [set(vars(pipe.model)), set(vars(pipe.conditioner))] == before
    back = node == "Hy3DGenerateMeshMultiView" and not fails  # upstream itself moves it back
    line = f"{node}: models moved {4 if back else 2} times, {208 if back else 104} B in all"
    assert line in caplog.messages
