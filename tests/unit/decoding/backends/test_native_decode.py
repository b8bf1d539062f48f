"""decode() on the CPU by the C convolution: chosen, refused, planned and cancelled."""

from __future__ import annotations

import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import how_much  # noqa: E402
from decode_doubles import (  # noqa: E402
    EVERY_KIND,
    IN_FLOAT64,
    TIMESTEP,
    relative_error,
    tiny_latents,
    tiny_vae,
    unsplit,
)
from native_doubles import FusedConv3d  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.conv import functional  # noqa: E402
from hy3d_rocm.decoding.executor import decode, decode_with_report  # noqa: E402
from hy3d_rocm.decoding.families import family_for  # noqa: E402
from hy3d_rocm.decoding.layers import Conv  # noqa: E402
from hy3d_rocm.decoding.memory.budget import Budget  # noqa: E402
from hy3d_rocm.decoding.planning.compiled import Compiled  # noqa: E402
from hy3d_rocm.decoding.planning.jobs import Job, host_backend  # noqa: E402
from hy3d_rocm.decoding.report import DecodeCancelled, DecodeOptions  # noqa: E402
from hy3d_rocm.tools.loading import make_vae  # noqa: E402

CPU = torch.device("cpu")
pytestmark = [
    pytest.mark.skipif(not _native.available, reason="the C core is not built here"),
    pytest.mark.usefixtures("one_thread", "no_gradients"),
]


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> FusedConv3d:
    found = FusedConv3d()
    monkeypatch.setattr(functional, "fused_conv3d", found, raising=False)
    return found


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_kinds_decode_by_it_is_the_unsplit_decode(kind: str, double: FusedConv3d) -> None:
    vae = tiny_vae(kind)
    family = family_for(vae, timestep=TIMESTEP.get(kind))
    few = (1, 5) if kind in ("wan", "ltx") else (3,)  # 5: a chunk and a rest
    for frames in (1,) if kind.startswith("image") else how_much.of(few, (1, 2, 3, 5)):
        z = tiny_latents(vae, frames, 3, 4, seed=frames)
        got, report = decode_with_report(family, z, "1GB")
        assert report.strategy == "streamed", report.reason
        assert report.delegated == {}
        assert double.calls > 0
        # 1e-5 as in test_families_decode; few positions a group multiply roundings there.
        bound = 1e-4 if kind in IN_FLOAT64 else 1e-5
        assert relative_error(got, unsplit(vae, z, TIMESTEP.get(kind))) <= bound, (kind, frames)


@pytest.mark.parametrize("strategy", ["streamed", "tiled", "cpu"])
@pytest.mark.parametrize("kind", ["ltx", "hunyuan", "wan", "image"])
def test_few_frames_of_python_stand_between_decode_and_a_convolution(
    kind: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of decode() and of what calls the C core counted; of attention and tiles, too."""
    vae, depths, real = tiny_vae(kind), [], _native.conv3d

    def counted(*given: Any, **more: Any) -> Any:
        frame, depth = sys._getframe(1), 1
        while frame.f_code is not decode.__code__:
            assert frame.f_back is not None
            frame, depth = frame.f_back, depth + 1
        depths.append(depth)
        return real(*given, **more)

    monkeypatch.setattr(_native, "conv3d", counted)
    frames = 1 if kind == "image" else 2
    decode(vae, tiny_latents(vae, frames, 3, 4), "1GB", strategy)
    assert len(depths) > 5
    assert max(depths) <= 12


def test_upsampled_layers_are_read_as_they_are_and_in_pairs_as_the_program_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vae, _, _ = make_vae("hunyuan", CPU, scale=0.25)
    z = tiny_latents(vae, 3, 8, 8)
    chosen: dict[int, set[tuple[str, bool]]] = {}
    plans: list[Any] = []
    real_plan, real_conv3d = Compiled.plan, _native.conv3d

    def planned(self: Any) -> Any:
        plans.append(self)
        return real_plan(self)

    def counted(x: Any, weight: Any, *given: Any, **more: Any) -> Any:
        strategy, *rest = real_conv3d(x, weight, *given, **more)
        chosen.setdefault(weight.data_ptr(), set()).add((strategy, more["pairs"] > 0))
        return strategy, *rest

    monkeypatch.setattr(Compiled, "plan", planned)
    monkeypatch.setattr(_native, "conv3d", counted)
    got, _ = decode_with_report(vae, z, "1GB")
    assert relative_error(got, unsplit(vae, z)) <= 1e-5
    compiled, seen = plans[-1], []
    for layer, (number, _) in zip(compiled.graph.layers, compiled.program.prepared(), strict=True):
        if isinstance(layer, Conv) and layer.up != (1, 1, 1):
            name = {5: "winograd-up-6x6", 6: "winograd-up-2x6x6", 7: "winograd-up-4x6x6"}[number]
            seen.append(layer.up)
            assert (number == 7) == (layer.up[0] == 2)
            assert chosen[layer.module.weight.data_ptr()] == {(name, layer.up[0] == 2)}
    assert seen == [(1, 2, 2), (2, 2, 2), (2, 2, 2)]


def test_what_is_asked_for_is_taken(double: FusedConv3d) -> None:
    vae = tiny_vae("hunyuan")
    z = tiny_latents(vae, 2, 3, 4)
    own = unsplit(vae, z)
    whole, report = decode_with_report(vae, z, "1GB", "whole")
    assert torch.equal(whole, own), "whole is the VAE's own code, bit for bit"
    plain, report = decode_with_report(vae, z, "1GB", options=DecodeOptions(backend="torch"))
    assert report.strategy == "whole"
    assert torch.equal(plain, own)
    assert double.calls == 0
    for strategy in ("streamed", "tiled", "cpu"):
        before = double.calls
        options = DecodeOptions(backend="native")
        _, report = decode_with_report(vae, z, "1GB", strategy, options=options)
        assert report.strategy == strategy
        assert double.calls > before, strategy


def test_where_it_is_not_there_torch_decodes_and_asking_for_it_is_refused(
    double: FusedConv3d, monkeypatch: pytest.MonkeyPatch
) -> None:
    vae = tiny_vae("wan")
    z = tiny_latents(vae, 2, 3, 4)
    monkeypatch.setattr(_native, "blas_info", lambda: {"available": False, "error": "gone"})
    got, report = decode_with_report(vae, z, "1GB")
    assert report.strategy == "whole"
    assert torch.equal(got, unsplit(vae, z))
    with pytest.raises(ValueError, match=r'"native" can\'t be taken: .* no BLAS library \(gone\)'):
        decode_with_report(vae, z, "1GB", options=DecodeOptions(backend="native"))
    with pytest.raises(ValueError, match="give one of 'auto', 'torch', 'native'"):
        DecodeOptions(backend="fast")
    assert double.calls == 0


def test_a_float64_vae_is_decoded_by_torch(double: FusedConv3d) -> None:
    vae = tiny_vae("hunyuan").double()
    z = tiny_latents(vae, 1, 3, 4).double()
    got, report = decode_with_report(vae, z, "1GB")
    assert report.strategy == "whole"
    assert torch.equal(got, unsplit(vae, z))
    assert double.calls == 0


def test_the_core_s_cancel_flag_is_given_to_every_convolution(double: FusedConv3d) -> None:
    vae = tiny_vae("hunyuan")
    flag = _native.CancelFlag()

    class Cancel:
        def __init__(self) -> None:
            self.flag = flag
            self.requested = False

    decode_with_report(vae, tiny_latents(vae, 1, 3, 4), "1GB", cancel=Cancel())
    assert double.calls > 0
    assert all(given is flag for given in double.cancels)


def test_a_convolution_cut_short_ends_the_decode_as_cancelled(
    double: FusedConv3d, monkeypatch: pytest.MonkeyPatch
) -> None:
    vae = tiny_vae("hunyuan")
    asked = {"stop": False}

    def cut_short(*args: Any, **kwargs: Any) -> Any:
        asked["stop"] = True
        raise _native.Hy3dError("The convolution was cancelled; out is partly written.")

    monkeypatch.setattr(functional, "fused_conv3d", cut_short)
    with pytest.raises(DecodeCancelled):
        decode_with_report(vae, tiny_latents(vae, 1, 3, 4), "1GB", cancel=lambda: asked["stop"])


def test_a_cancel_is_looked_at_before_every_convolution(double: FusedConv3d) -> None:
    """A chunk of some latent frames takes long on the CPU."""
    vae = tiny_vae("wan")
    z = tiny_latents(vae, 3, 3, 4)
    with pytest.raises(DecodeCancelled):
        decode_with_report(vae, z, "1GB", cancel=lambda: double.calls >= 3)
    assert double.calls == 3


@pytest.mark.parametrize(("kind", "parts"), [("hunyuan", 2), ("wan", 3)])
def test_smaller_budgets_take_smaller_parts_of_it(kind: str, parts: int) -> None:
    """Slices of 512 and 32 MB; chunks of 4, 2 and 1 latents."""
    family = family_for(tiny_vae(kind))
    shape = (1, family.latent_channels, 9, 24, 24)
    job = Job(family, shape, CPU, torch.float32, torch.float32, host_backend)
    everything = Budget(1 << 40, 1 << 40, False, "the test's")
    listed = Compiled(job, everything, "streamed", compiles_all=True).candidates()
    needs = [candidate.need.device_bytes for candidate in listed]
    assert len(needs) == parts
    assert needs == sorted(needs, reverse=True)
    given = DecodeOptions(chunk_size=2, slice_bytes=1 << 20)
    alone = Compiled(job, everything, "streamed", given, compiles_all=True).candidates()
    assert len(alone) == 1, "what is asked for is the only one"


def test_prepared_weights_get_what_the_budget_leaves_and_no_more() -> None:
    from hy3d_rocm.conv import prepared

    made: list[int] = []

    class Prepared:
        pass

    cache = prepared.WeightCache(1000, fingerprint=lambda weight, threads: (id(weight), 0))
    weights = [torch.zeros(4) for _ in range(3)]

    def ask(number: int) -> Any:
        def make() -> Any:
            made.append(number)
            return Prepared()

        return cache.get(weights[number], 1, 300, make)

    assert ask(0) is not None
    with prepared.steady(cache.stats().bytes + 400):
        assert ask(1) is not None
        assert ask(2) is None, "600 are held, 700 are the most"
        assert ask(0) is not None, "what is there is used"
    assert made == [0, 1]
    assert ask(2) is not None, "the scope has ended"


def test_the_planned_peak_holds_with_the_weights_it_prepares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A decode whose budget leaves nothing prepares nothing; its frames are the same."""
    from hy3d_rocm.conv import prepared

    if not hasattr(functional, "fused_conv3d"):
        pytest.skip("the C core with the fused convolution is not built here")
    vae = wide_wan()
    z = tiny_latents(vae, 2, 6, 6)
    caches = []
    frames = []
    for budget in ("2GB", None):
        fresh = prepared.WeightCache(1 << 30)
        monkeypatch.setattr(prepared, "_made", fresh)
        if budget is None:
            budget = str(caches[0][1] + (64 << 10)) + "B"
        got, report = decode_with_report(vae, z, budget, "streamed")
        held = fresh.stats().bytes
        need = report.plan["device_bytes"] - report.plan["prepared_bytes"]
        assert report.predicted_peak_bytes == report.plan["device_bytes"]
        caches.append((held, need))
        frames.append(got)
        assert report.predicted_peak_bytes <= report.budget_bytes
        assert need + held <= report.predicted_peak_bytes
        if held:
            assert held == report.plan["prepared_bytes"], "those of the shapes, not a bound"
            again = decode_with_report(vae, z, budget, "streamed")[1]
            assert again.plan["prepared_bytes"] == 0, "they are there"
    assert caches[0][0] > 0
    assert caches[1][0] == 0
    assert torch.equal(frames[0], frames[1]), "prepared or not is never another result"


def test_torchs_operators_on_the_host_prepare_no_weights_that_were_not_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under protect() the C convolution stands for them, which would keep what it prepares."""
    from hy3d_rocm.conv import prepared

    vae = wide_wan()
    fresh = prepared.WeightCache(1 << 30)
    monkeypatch.setattr(prepared, "_made", fresh)
    options = DecodeOptions(backend="torch", chunk_size=1)
    report = decode_with_report(vae, tiny_latents(vae, 3, 4, 4), "2GB", "cpu", options=options)[1]
    assert report.plan["prepared_bytes"] == 0
    assert fresh.stats().made == 0


def wide_wan() -> Any:
    """Channels enough for weights to be prepared."""
    from diffusers import AutoencoderKLWan

    vae = AutoencoderKLWan(base_dim=32, z_dim=4, dim_mult=[1, 2, 2, 2], num_res_blocks=1)
    return vae.eval().requires_grad_(False)


def wide_vae() -> Any:
    """Channels enough for the fast algorithm."""
    from diffusers import AutoencoderKLHunyuanVideo

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoencoderKLHunyuanVideo(
            latent_channels=4, block_out_channels=(32, 32, 64, 64), norm_num_groups=4,
            layers_per_block=1,
        ).eval().requires_grad_(False)  # fmt: skip


@pytest.mark.skipif(not hasattr(functional, "fused_conv3d"), reason="not built here")
def test_the_cores_decode_is_the_unsplit_decode() -> None:
    """To 80 dB, what the fast algorithm promises; measured 100 to 120."""
    import math

    vae = wide_vae()
    z = tiny_latents(vae, 3, 6, 7)
    want = unsplit(vae, z).double()
    got, report = decode_with_report(vae, z, "2GB")
    assert report.strategy == "streamed"
    assert report.delegated == {}
    error = float((got.double() - want).square().mean())
    span = float(want.max() - want.min())
    assert 10 * math.log10(span * span / error) >= 80
