"""What all patches have in common: fingerprints, inputs, contract checks, being taken back."""

from __future__ import annotations

import threading
from typing import Any

import patches_doubles
import pytest
import torch
from patches_doubles import patched, run, settings_are

fake_comfy, wrapper = patches_doubles.fake_comfy, patches_doubles.wrapper

SEEDED = [
    "Hy3DDelightImage", "Hy3DSampleMultiView", "Hy3DGenerateMesh", "Hy3DGenerateMeshMultiView",
]  # fmt: skip
LOADERS = ["DownloadAndLoadHy3DDelightModel", "DownloadAndLoadHy3DPaintModel"]
RENDERS = ["Hy3DRenderMultiView", "Hy3DRenderSingleView", "Hy3DRenderMultiViewDepth"]
ALL = [*SEEDED, *LOADERS, *RENDERS, "Hy3DVAEDecode"]
OWN_INPUT = dict.fromkeys(SEEDED, "seed_mode") | dict.fromkeys(LOADERS, "offload")


def attributes(wrapper: Any) -> dict[str, dict[str, Any]]:
    return {node: dict(vars(wrapper.part(node))) for node in ALL}


def test_every_spec_has_the_name_that_settings_know(wrapper: Any) -> None:
    from hy3d_rocm.comfy.patches.hunyuan3d import SPECS
    from hy3d_rocm.diagnose.env.choices import HUNYUAN3D_PATCHES

    assert tuple(spec.name for spec in SPECS) == HUNYUAN3D_PATCHES


def test_taken_back_nothing_is_left(wrapper: Any) -> None:
    before = attributes(wrapper)
    renderer = wrapper.part("hy3dgen.texgen.differentiable_renderer.mesh_render").MeshRender
    init, report = renderer.__init__, wrapper.part("nodes").print_memory
    with patched(wrapper):
        assert attributes(wrapper) != before
    assert attributes(wrapper) == before
    assert renderer.__init__ is init
    assert wrapper.part("nodes").print_memory is report


def test_the_specs_expect_what_they_have_patched_themselves(wrapper: Any) -> None:
    from hy3d_rocm.comfy.patches.hunyuan3d import SPECS

    with patched(wrapper):
        assert [spec.expects(wrapper) for spec in SPECS] == [None] * len(SPECS)


@pytest.mark.parametrize("node", ALL)
def test_inputs_of_ours_come_last_and_the_others_are_as_they_were(wrapper: Any, node: str) -> None:
    before = wrapper.part(node).INPUT_TYPES()
    with patched(wrapper):
        after = wrapper.part(node).INPUT_TYPES()
    own = OWN_INPUT.get(node)
    names = [*before["required"], *before.get("optional", {}), *([own] if own else [])]
    assert [name for part in after.values() for name in part] == names
    if own:
        choices, options = after["optional"].pop(own)
        assert options["default"] == choices[0] == "setting"
    assert after == before


def test_inputs_that_upstream_shares_between_calls_are_not_written_to(wrapper: Any) -> None:
    node, shared = wrapper.part("Hy3DDelightImage"), {"required": {"seed": ("INT", {})}}
    node.INPUT_TYPES = classmethod(lambda cls: shared)
    with patched(wrapper, "delight"):
        assert list(node.INPUT_TYPES()["optional"]) == ["seed_mode"]
    assert shared == {"required": {"seed": ("INT", {})}}


@pytest.mark.parametrize("node", ALL)
def test_the_fingerprint_changes_with_the_settings_that_count_and_with_no_other(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, node: str
) -> None:
    own = OWN_INPUT.get(node)
    spec = next(
        name for name, nodes in {
            "delight": SEEDED[:1], "multiview": SEEDED[1:2], "mesh": SEEDED[2:],
            "loaders": LOADERS, "render": RENDERS, "vae-decode": ["Hy3DVAEDecode"],
        }.items() if node in nodes
    )  # fmt: skip

    def answer(given: dict[str, Any], **values: Any) -> Any:
        settings_are(monkeypatch, **values)
        return wrapper.part(node).IS_CHANGED(seed=3, **given)

    with patched(wrapper):
        base = answer({})
        assert answer({}) == base
        assert (answer({}, seed_mode="legacy") != base) is (own == "seed_mode")
        assert (answer({}, offload="on") != base) is (own == "offload")
        assert answer({}, patches_off=frozenset({spec})) != base
        other = "mesh" if spec != "mesh" else "render"
        assert answer({}, patches_off=frozenset({other})) == base
        if own:
            assert answer({own: "setting"}) == base
            assert answer({own: None}) == base  # a linked input, whose value is not known yet
            said = answer({own: "off" if own == "offload" else "stream"})
            other_settings = {"seed_mode": "legacy", "offload": "on"}
            assert answer({own: "off" if own == "offload" else "stream"}, **other_settings) == said


@pytest.mark.parametrize("kind", [classmethod, staticmethod])
def test_upstreams_own_is_changed_is_asked_and_combined(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    settings_are(monkeypatch)
    answers: list[Any] = [1]
    asked: list[dict[str, Any]] = []

    def theirs(*args: Any, **inputs: Any) -> Any:
        asked.append(inputs)
        return answers[-1]

    wrapper.part("Hy3DDelightImage").IS_CHANGED = kind(theirs)
    with patched(wrapper, "delight"):
        first = wrapper.part("Hy3DDelightImage").IS_CHANGED(seed=3, seed_mode="setting")
        assert wrapper.part("Hy3DDelightImage").IS_CHANGED(seed=3) == first
        answers.append(2)
        assert wrapper.part("Hy3DDelightImage").IS_CHANGED(seed=3) != first
        settings_are(monkeypatch, seed_mode="legacy")
        answers.append(1)
        assert wrapper.part("Hy3DDelightImage").IS_CHANGED(seed=3) != first
    assert asked == [{"seed": 3}] * 4
    assert wrapper.part("Hy3DDelightImage").IS_CHANGED(seed=3) == 1


def rename_parameter(wrapper: Any) -> None:
    def process(self: Any, delight_pipe: Any, picture: Any, width: int, height: int, steps: int,
                seed: int) -> Any:  # fmt: skip
        return torch.manual_seed(seed)

    wrapper.part("Hy3DDelightImage").process = process


def cure(wrapper: Any) -> None:
    def process(self: Any, delight_pipe: Any, image: Any, width: int, height: int, steps: int,
                seed: int) -> Any:  # fmt: skip
        return delight_pipe(image)

    wrapper.part("Hy3DDelightImage").process = process


def take_our_name(wrapper: Any) -> None:
    node = wrapper.part("Hy3DDelightImage")
    node.INPUT_TYPES = classmethod(
        lambda cls: {"required": {}, "optional": {"seed_mode": ("INT", {})}}
    )


def make_async(wrapper: Any) -> None:
    async def is_changed(cls: Any, **inputs: Any) -> int:
        return 1

    wrapper.part("Hy3DDelightImage").IS_CHANGED = classmethod(is_changed)


def cure_renderer(wrapper: Any) -> None:
    renderer = wrapper.part("hy3dgen.texgen.differentiable_renderer.mesh_render").MeshRender
    renderer.__init__.__defaults__ = (4, None)


def lose_renderer(wrapper: Any) -> None:
    del wrapper.part("hy3dgen.texgen.differentiable_renderer.mesh_render").MeshRender


def other_loader(wrapper: Any) -> None:
    wrapper.part(LOADERS[1]).loadmodel = lambda self, model, compile_args=None: (model,)


@pytest.mark.parametrize(
    ("change", "name", "sentence"),
    [
        (rename_parameter, "delight", "no parameter image"),
        (cure, "delight", "no use of manual_seed"),
        (take_our_name, "delight", "an input seed_mode of its own"),
        (make_async, "delight", "IS_CHANGED is asynchronous"),
        (cure_renderer, "render", "default None for device"),
        (lose_renderer, "render", "mesh_render has no MeshRender"),
        (other_loader, "loaders", "no use of enable_model_cpu_offload"),
    ],
)
def test_a_changed_upstream_is_said_in_a_sentence(
    wrapper: Any, change: Any, name: str, sentence: str
) -> None:
    from hy3d_rocm.comfy.patches.hunyuan3d import SPECS

    change(wrapper)
    said = {spec.name: spec.expects(wrapper) for spec in SPECS}
    assert sentence in (said.pop(name) or "")
    assert set(said.values()) == {None}  # the others go on


def test_missing_arguments_are_upstreams_own_error(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch)
    with patched(wrapper), pytest.raises(TypeError, match=r"process\(\) missing .* 'delight_pipe'"):
        run(wrapper, "Hy3DDelightImage", seed=3)


def test_wrapped_nodes_may_run_in_many_threads_and_in_themselves(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(monkeypatch)
    results: list[Any] = []

    class Vae:
        scale_factor = 1.0

        def __init__(self, depth: int) -> None:
            self.depth = depth

        def to(self, device: Any) -> None:
            pass

        def __call__(self, latents: torch.Tensor) -> torch.Tensor:
            if not self.depth:
                return latents + torch.ones(1, device="cuda")
            inner = run(wrapper, "Hy3DVAEDecode", vae=Vae(self.depth - 1), latents=latents)[0]
            return inner + torch.ones(1, device="cuda")

    def work() -> None:
        for _ in range(5):
            results.append(run(wrapper, "Hy3DVAEDecode", vae=Vae(2), latents=torch.zeros(2))[0])

    with patched(wrapper, "vae-decode"):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert len(results) == 20
    assert all(torch.equal(result, torch.full((2,), 3.0)) for result in results)
