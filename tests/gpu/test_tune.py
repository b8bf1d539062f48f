"""Tiles of the fused kernels measured on a real GPU.

    python -m pytest tests/gpu/test_tune.py

Skipped where PyTorch sees no CUDA or HIP device, or the kernels can't run there.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import tiny_latents, tiny_vae  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.conv.triton import configs, launch  # noqa: E402
from hy3d_rocm.conv.verdict_store.store import Store  # noqa: E402
from hy3d_rocm.decoding import decode_with_report  # noqa: E402
from hy3d_rocm.decoding.backends.triton import backend  # noqa: E402
from hy3d_rocm.decoding.layers import ModuleWeights  # noqa: E402
from hy3d_rocm.tools.loading import bare_vae  # noqa: E402
from hy3d_rocm.tune import fused, session  # noqa: E402

GPU = torch.device("cuda", 0)
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device here"),
    pytest.mark.skipif(not _native.available, reason="programs need the C core"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store.open(":memory:")
    for module in (launch, fused):
        monkeypatch.setattr(module, "store", lambda: store)
    monkeypatch.setattr(launch, "_measured", {})
    return store


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("vae", ["wan21", "hunyuan"])
def test_every_tile_of_every_layer_is_measured_and_none_is_wrong(
    vae: str, dtype: torch.dtype, known: Store
) -> None:
    if backend.refusal(GPU, dtype) is not None:
        pytest.skip(f"no fused kernels for {dtype} here")
    latent = (1, 16, 2, 20, 20)
    job, plan = session.plan_decode(torch.nn.Module.to(bare_vae(vae), dtype), latent, dtype, GPU)
    assert plan is not None
    layers, said = fused.layers_of(job, plan), list[str]()
    outcome = fused.measure_layers(layers, GPU, said.append, limit_s=500.0)
    assert not outcome.wrong
    assert outcome.layers == len(layers) == len(said)
    assert 0 < outcome.best_s <= outcome.guessed_s
    for layer in layers:
        records = known.records(launch.fused_key(layer.kind, GPU))
        verdicts = {str(tile): records[str(tile)].verdict for tile in layer.tiles}
        assert set(verdicts.values()) == {"ok"}, verdicts


def test_a_decode_goes_by_what_was_measured(known: Store) -> None:
    if backend.refusal(GPU, torch.float16) is not None:
        pytest.skip("no fused kernels for float16 here")
    vae = tiny_vae("wan").to(GPU, torch.float16)
    z = tiny_latents(vae, 3, 8, 8).to(GPU, torch.float16)
    plain, _ = decode_with_report(vae, z, strategy="streamed")
    job, plan = session.plan_decode(vae, tuple(z.shape), torch.float16, GPU)
    assert plan is not None
    fused.tune_decode(job, plan, print, limit_s=500.0)
    target = backend.TritonBackend(ModuleWeights(torch.float16, GPU), GPU).target()
    assert target.measured is launch.measured(GPU) is not None
    kinds = {layer.kind for layer in fused.layers_of(job, plan)}
    assert set(target.measured.tiles) == kinds
    assert all(
        set(tiles) <= set(configs.offered(target.arch, "f16"))
        for tiles in target.measured.tiles.values()
    )
    tuned, _ = decode_with_report(vae, z, strategy="streamed")
    # Both are float32 sums, rounded to float16 behind each of some thirty layers.
    assert (tuned.float() - plain.float()).abs().max() <= 2**-8 * plain.float().abs().max()
