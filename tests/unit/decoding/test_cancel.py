"""A cancel ends a decode within one step, in the middle of a C convolution, and while it plans."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import tiny_latents, tiny_vae  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.conv import functional  # noqa: E402
from hy3d_rocm.decoding.executor import decode  # noqa: E402
from hy3d_rocm.decoding.memory.steps import StepWorkspace  # noqa: E402
from hy3d_rocm.decoding.report import DecodeCancelled  # noqa: E402
from hy3d_rocm.decoding.stages import native_flag  # noqa: E402


class Holder:
    """What a host may give as `cancel`: it says whether, and has a flag of the C core's."""

    def __init__(self) -> None:
        self.flag = _native.CancelFlag()

    @property
    def requested(self) -> bool:
        return bool(self.flag.requested)


def test_the_c_cores_flag_is_found_in_what_was_given() -> None:
    holder = Holder()
    assert native_flag(holder) is holder.flag
    assert native_flag(holder.flag) is holder.flag
    assert native_flag(None) is None
    assert native_flag(lambda: True) is None


@pytest.mark.skipif(not _native.available, reason="the C core is not built")
def test_a_convolution_of_the_c_core_is_cut_short_and_no_other_way_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holder, calls = Holder(), []

    def watched(real: Any) -> Any:
        def convolve(*given: Any, **more: Any) -> Any:
            calls.append(more["cancel"])
            if len(calls) == 3:
                holder.flag.request()  # as a thread would while it computes
            return real(*given, **more)

        return convolve

    for name in ("conv3d", "fused_conv3d"):  # the router's and the decode's own backend's
        monkeypatch.setattr(functional, name, watched(getattr(functional, name)))
    vae = tiny_vae("hunyuan")
    z = tiny_latents(vae, 3, 4, 4)
    with pytest.raises(DecodeCancelled):
        decode(vae, z, strategy="cpu", cancel=holder)
    assert len(calls) == 3
    assert calls[0] is holder.flag


def test_a_cancel_while_it_plans_ends_it_before_the_next_step_is_priced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holder, priced, price = Holder(), [], StepWorkspace.__call__

    def counted(self: Any, step: Any, *more: Any) -> Any:
        priced.append(step)
        holder.flag.request()
        return price(self, step, *more)

    monkeypatch.setattr(StepWorkspace, "__call__", counted)
    vae = tiny_vae("wan")
    with pytest.raises(DecodeCancelled):
        decode(vae, tiny_latents(vae, 3, 4, 4), budget="1MB", cancel=holder)
    assert len(priced) == 1
