"""The patches of the loaders and of what says "cuda" itself, on stand-ins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import patches_doubles
import pytest
import torch
from patches_doubles import InterruptAsBase, patched, run, settings_are

fake_comfy, wrapper = patches_doubles.fake_comfy, patches_doubles.wrapper

LOADERS = ["DownloadAndLoadHy3DDelightModel", "DownloadAndLoadHy3DPaintModel"]
GB = 2**30


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, wrapper: Any) -> list[Any]:
    """The offload scopes that were opened; the offload package has tests of its own."""
    from hy3d_rocm import offload

    seen: list[Any] = []

    @contextmanager
    def scope(
        policy: str, device: Any, memory: Any, progress: Any = None, room: Any = None
    ) -> Iterator[None]:
        seen.append((policy, torch.device(device), memory(), progress))
        yield

    monkeypatch.setattr(offload, "offload_scope", scope)
    return seen


class Loaded:
    """A pipeline on the stand-in's disk."""

    error: BaseException | None = None

    def to(self, device: Any) -> Loaded:
        return self

    def enable_model_cpu_offload(self, gpu_id: int | None = None, device: Any = None) -> None:
        if self.error is not None:
            raise self.error


def load(wrapper: Any, node: str, pipe: Any = None, **more: Any) -> Any:
    table = wrapper.part("hy3dgen.texgen.hunyuanpaint.pipeline").loaded
    table["m"] = pipe = pipe or Loaded()
    (out,) = run(wrapper, node, model="m", **more)
    assert out is pipe
    return out


@pytest.mark.parametrize("node", LOADERS)
@pytest.mark.parametrize(
    ("given", "policy"), [({}, "on"), ({"offload": "setting"}, "on"), ({"offload": "off"}, "off")]
)
def test_the_nodes_own_input_goes_before_the_settings(
    wrapper: Any, opened: list[Any], monkeypatch: pytest.MonkeyPatch, node: str,
    given: dict[str, str], policy: str,
) -> None:  # fmt: skip
    settings_are(monkeypatch, offload="on")
    with patched(wrapper, "loaders"):
        load(wrapper, node, **given)
    assert [entry[:2] for entry in opened] == [(policy, torch.device("cpu"))]


@pytest.mark.parametrize("node", LOADERS)
def test_switched_off_in_the_settings_no_scope_is_opened(
    wrapper: Any, opened: list[Any], monkeypatch: pytest.MonkeyPatch, node: str
) -> None:
    settings_are(monkeypatch, patches_off=frozenset({"loaders"}))
    with patched(wrapper, "loaders"):
        load(wrapper, node, offload="on")
    assert opened == []


def test_an_error_of_a_loader_goes_on_unchanged(
    wrapper: Any, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch)
    pipe = Loaded()
    pipe.error = InterruptAsBase("cancelled")
    with patched(wrapper, "loaders"), pytest.raises(InterruptAsBase) as caught:
        load(wrapper, LOADERS[0], pipe)
    assert caught.value is pipe.error


def test_what_comfyui_would_unload_counts_as_free_and_never_beyond_the_total(
    wrapper: Any, fake_comfy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import memory

    gpu = torch.device("cuda", 0)

    def entry(device: torch.device, count: int, model: object = object()) -> Any:
        return SimpleNamespace(device=device, model=model, model_loaded_memory=lambda: count)

    monkeypatch.setattr(memory, "free_and_total", lambda device: (4 * GB, 16 * GB))
    fake_comfy.management.current_loaded_models += [
        entry(gpu, 3 * GB), entry(torch.device("cpu"), 50 * GB), entry(gpu, 50 * GB, None),
    ]  # fmt: skip
    assert memory.counted_free(gpu) == (7 * GB, 16 * GB)
    fake_comfy.management.current_loaded_models.append(entry(gpu, 30 * GB))
    assert memory.counted_free(gpu) == (16 * GB, 16 * GB)


def test_transfers_move_the_bar_in_bytes_and_end_in_one_line(
    wrapper: Any, fake_comfy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from hy3d_rocm.comfy.patches.common import Transfers

    transfers = Transfers("Loader", bar=True)
    transfers(1 * GB, 2 * GB, "unet to cuda:0")
    transfers(2 * GB, 2 * GB, "unet to cuda:0")
    with caplog.at_level("INFO", "hy3d_rocm"):
        transfers.__exit__()
        Transfers("Loader").__exit__()  # nothing moved, nothing said
    assert fake_comfy.bar == [(1 * GB, 2 * GB), (2 * GB, 2 * GB)]
    assert [r.getMessage() for r in caplog.records] == [
        "Loader: models moved 1 times, 2.0 GB in all"
    ]


def test_a_text_on_the_node_needs_a_server_and_never_costs_the_run(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from hy3d_rocm.comfy.patches.common import show_text

    show_text("nobody listens")
    sent: list[tuple[str, str]] = []
    server = SimpleNamespace(send_progress_text=lambda text, node: sent.append((text, node)))
    context = SimpleNamespace(get_executing_context=lambda: SimpleNamespace(node_id="12"))
    monkeypatch.setitem(
        sys.modules, "server", SimpleNamespace(PromptServer=SimpleNamespace(instance=server))
    )
    monkeypatch.setitem(sys.modules, "comfy_execution.utils", context)
    show_text("unet to cuda:0: 1.0 GB of 2.0 GB")
    assert sent == [("unet to cuda:0: 1.0 GB of 2.0 GB", "12")]
    server.send_progress_text = None
    show_text("a server that cannot")


def renderer(wrapper: Any) -> Any:
    return wrapper.part("hy3dgen.texgen.differentiable_renderer.mesh_render").MeshRender


def test_a_renderer_is_made_on_comfyuis_device_unless_a_device_is_given(
    wrapper: Any, fake_comfy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch)
    fake_comfy.management.get_torch_device = lambda: torch.device("cuda", 1)
    with patched(wrapper, "render"):
        made = renderer(wrapper)
        assert made().device == made(8).device == torch.device("cuda", 1)
        assert made(device="cpu").device == made(8, "cpu").device == "cpu"
        assert made(device="cuda").device == "cuda"
        with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
            made(size=3)
        settings_are(monkeypatch, patches_off=frozenset({"render"}))
        assert made().device == "cuda"
    assert made().device == "cuda"


def test_a_renderer_that_is_asked_for_its_mesh_keeps_its_own_coordinates(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch)
    with patched(wrapper, "render"):
        made = renderer(wrapper)()
        before = made.vtx_pos.clone()
        assert made.get_mesh().tolist() == [[0, -1, 2], [-3, -4, 5]]
        assert torch.equal(made.vtx_pos, before)
        settings_are(monkeypatch, patches_off=frozenset({"render"}))
        made.get_mesh()
        assert not torch.equal(made.vtx_pos, before)  # upstream's own way
    assert made.get_mesh().tolist() == before.tolist()


def test_a_mesh_that_is_given_to_a_renderer_keeps_its_own_coordinates(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch)
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    with patched(wrapper, "render"):
        made = renderer(wrapper)()
        made.set_mesh(given)
        made.set_mesh(vtx_pos=given)
        assert given.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert made.vtx_pos.tolist() == [[0, -1, 2], [-3, -4, 5]]
        settings_are(monkeypatch, patches_off=frozenset({"render"}))
        made.set_mesh(given)
        assert given.tolist() == [[0, -1, 2], [-3, -4, 5]]  # upstream's own way


@pytest.mark.parametrize(
    "node", ["Hy3DRenderMultiView", "Hy3DRenderSingleView", "Hy3DRenderMultiViewDepth"]
)
def test_literal_cuda_in_the_render_nodes_means_comfyuis_device(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, node: str
) -> None:
    settings_are(monkeypatch)
    with patched(wrapper, "render"):
        picture, made = run(wrapper, node, trimesh=[1, 2], render_size=4)
    assert torch.equal(picture, torch.tensor([2.0, 3.0]))
    assert made.device == torch.device("cpu")


def test_nodes_that_upstream_may_have_are_wrapped_too_and_may_be_missing(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch)
    table = wrapper.part("nodes").NODE_CLASS_MAPPINGS
    bake = table["Hy3DBakeFromMultiview"]
    with patched(wrapper, "render"):
        (out,) = bake().process(torch.ones(2), renderer(wrapper)())
        assert torch.equal(out, torch.full((2,), 2.0))
        (out,) = table["Hy3DNvdiffrastRenderer"]().render(torch.ones(2))
        assert torch.equal(out, torch.full((2,), 2.0))
    del wrapper.parts["Hy3DBakeFromMultiview"]
    process = bake.process
    with patched(wrapper, "render"):
        assert bake.process is process
