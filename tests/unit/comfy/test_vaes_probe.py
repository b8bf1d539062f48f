"""What our nodes ask a VAE before they decode with it: neither counted nor the end of a budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from comfy_doubles import Comfy, comfy, door, execute  # noqa: E402
from comfy_vae_doubles import ManagedVae  # noqa: E402
from decode_doubles import relative_error, tiny_latents, tiny_vae  # noqa: E402
from decode_originals import wan_original  # noqa: E402

__all__ = ["comfy", "door", "execute"]  # fixtures

Execute = Callable[..., Any]
ASKED = {"budget": "300MB", "strategy": "streamed", "precision": "auto"}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def nothing_loaded(comfy: Comfy) -> None:
    comfy.management.load_models_gpu = lambda models, **_: None


@pytest.fixture
def vae() -> ManagedVae:
    return ManagedVae(wan_original(tiny_vae("wan")))


@pytest.fixture
def latents() -> Any:
    return tiny_latents(tiny_vae("wan"), 2, 3, 4)


def by_node(execute: Execute, vae: Any, z: Any, **changes: Any) -> tuple[Any, str]:
    asked = {"samples": {"samples": z}, "vae": vae, **ASKED, **changes}
    values = execute("Hy3DRocmVAEDecode", **asked).values
    return values[0], values[1]


def convolutions(report: str) -> list[list[str]]:
    """Rows of a report's table, without what time it took."""
    rows = [line.split("  ") for line in report.splitlines() if line.startswith("conv")]
    return [[c.strip() for c in row if c.strip()][:5] for row in rows]


def test_the_table_has_the_decodes_convolutions_the_first_time_as_well(
    execute: Execute, vae: Any, latents: Any
) -> None:
    first, second = (convolutions(by_node(execute, vae, latents)[1]) for _ in range(2))
    assert first == second
    assert sum(int(row[-1]) for row in first) >= 25, first
    # The latent's two frames of 3x4 and one more before them; the probe's are 2x2.
    assert ["conv3d", "1x4x4x3x4 -> 16", "f32", "cpu, fused", "1"] in first
    assert not [row for row in first if "x2x2 ->" in row[1]]


def test_memory_that_is_short_for_a_moment_only_delays_the_question(
    execute: Execute, vae: Any, latents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import vaes

    proven, calls = vaes.proof.proven, []

    def short_once(family: Any, encode: bool) -> bool:
        calls.append(family)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("HIP out of memory")
        return proven(family, encode)

    monkeypatch.setattr(vaes.proof, "proven", short_once)
    report = by_node(execute, vae, latents)[1]
    assert len(calls) == 2
    assert "streamed in chunks" in report
    assert "budget: 300.00 MB as given" in report


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("HIP out of memory"), MemoryError("no")])
def test_memory_that_is_short_for_the_question_leaves_the_budget_on(
    error: Exception, execute: Execute, vae: Any, latents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.comfy import vaes

    def short(family: Any, encode: bool) -> bool:
        raise error

    monkeypatch.setattr(vaes.proof, "proven", short)
    images, report = by_node(execute, vae, latents, strategy="auto")
    assert vae.calls == []  # ComfyUI's own decode knows no budget
    assert "budget: 300.00 MB as given" in report
    assert "memory was short when this Wan VAE was asked what it does" in report
    with torch.no_grad():
        wanted = vae.first_stage_model.decode(latents)
    assert relative_error(images * 2 - 1, wanted[0].movedim(0, -1).clamp(-1, 1)) <= 1e-5
    monkeypatch.undo()
    assert "streamed in chunks" in by_node(execute, vae, latents)[1]


def test_a_change_between_two_decodes_is_seen_by_the_node(
    execute: Execute, vae: Any, latents: Any
) -> None:
    before = by_node(execute, vae, latents)[0]
    conv = vae.first_stage_model.decoder.head[2]
    conv.register_forward_hook(lambda m, args, made: made * -1)
    images, report = by_node(execute, vae, latents, strategy="auto")
    assert "was changed, decoder.head.2 has a hook around its forward()" in report
    assert "budget: 300.00 MB as given" in report
    with torch.no_grad():
        wanted = vae.first_stage_model.decode(latents)[0].movedim(0, -1).clamp(-1, 1)
    assert relative_error(images * 2 - 1, wanted) <= 1e-5 < relative_error(before * 2 - 1, wanted)
