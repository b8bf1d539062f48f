"""decode() on the CPU by the C convolution: chosen, refused, planned and cancelled."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

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
from hy3d_rocm.decode.engines.layerwise import LayerEngine  # noqa: E402
from hy3d_rocm.decode.engines.weights import ModuleWeights  # noqa: E402
from hy3d_rocm.decode.executor import decode_with_report  # noqa: E402
from hy3d_rocm.decode.families import family_for  # noqa: E402
from hy3d_rocm.decode.native.backend import NativeBackend  # noqa: E402
from hy3d_rocm.decode.report import DecodeCancelled, DecodeOptions  # noqa: E402

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not _native.available, reason="the C core is not built here")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> FusedConv3d:
    found = FusedConv3d()
    monkeypatch.setattr(functional, "fused_conv3d", found, raising=False)
    return found


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_kinds_decode_by_it_is_the_unsplit_decode(kind: str, double: FusedConv3d) -> None:
    vae = tiny_vae(kind)
    family = family_for(vae, timestep=TIMESTEP.get(kind))
    for frames in (1,) if kind.startswith("image") else (1, 2, 5):
        z = tiny_latents(vae, frames, 3, 4, seed=frames)
        got, report = decode_with_report(family, z, "1GB")
        assert report.strategy == "streamed", report.reason
        assert report.delegated == {}
        assert double.calls > 0
        # 1e-5 as in test_families_decode; few positions a group multiply roundings there.
        bound = 1e-4 if kind in IN_FLOAT64 else 1e-5
        assert relative_error(got, unsplit(vae, z, TIMESTEP.get(kind))) <= bound, (kind, frames)


@pytest.mark.parametrize("kind", ["hunyuan", "wan"])
def test_any_slices_of_a_video_give_it(kind: str, double: FusedConv3d) -> None:
    vae = tiny_vae(kind)
    z = tiny_latents(vae, 3, 3, 4)
    expected = unsplit(vae, z)
    for slice_bytes in (1, 5000, 1 << 40):
        backend = NativeBackend(ModuleWeights(torch.float32, CPU))
        engine = LayerEngine(backend, CPU, slice_bytes, on_pressure=lambda: None)
        handle = family_for(vae).decode(engine, engine.enter(z))
        got = torch.cat([frames.clone() for _, frames in engine.leave(handle)], 2)
        assert relative_error(got, expected) <= 1e-4


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
