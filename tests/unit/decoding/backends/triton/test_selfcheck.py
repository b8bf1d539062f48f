"""First results of the fused kernels, checked. tests/long/check_fused.py runs the check on each of
its layers, as the kernels make them; here torch's operators stand for the kernels."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from typing import Any

import check_fused
import fused_cases
import pytest
import torch
from decode_doubles import tiny_latents, tiny_vae

from hy3d_rocm.conv.triton import launch as tier
from hy3d_rocm.conv.triton import work
from hy3d_rocm.decoding import faults
from hy3d_rocm.decoding.backends.statistics import channel_moments
from hy3d_rocm.decoding.backends.torch_ops import TorchBackend
from hy3d_rocm.decoding.backends.triton import backend as fused
from hy3d_rocm.decoding.backends.triton import selfcheck
from hy3d_rocm.decoding.backends.triton.selfcheck import Samples, WrongKernelError
from hy3d_rocm.decoding.executor import decode_with_report
from hy3d_rocm.decoding.layers import Moments
from hy3d_rocm.decoding.report import DecodeOptions

SEED, COUNT = 11, 60


@pytest.fixture(autouse=True)
def nothing_distrusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "_distrusted", {})


def computed(index: int) -> tuple[Samples, torch.Tensor, Any, Any, Any]:
    """A random layer in float32, its result by torch, and what the check is given."""
    case = check_fused.random_case(SEED, index)
    case = dataclasses.replace(case, dtype="float32", into=None)
    made = check_fused.build(case, SEED, real=True)
    layer, affine, add = made["layer"], made["affine"], made["add"]
    source = check_fused.pieces_of(case, made["x"], made["frames"])
    if layer.norm is not None and layer.norm.kind == "frame":  # made before the kernels read it
        layer = dataclasses.replace(layer, norm=None)
    factors = affine
    if affine is None and layer.norm is not None:
        backend = fused.TritonBackend(check_fused.Plain(), "cpu", fused.Target("gfx1100", 4))
        factors = backend._affine(layer.norm, case.channels)
    samples = Samples(
        layer, source, made["frames"], made["size"], factors, layer.shuffle is not None, add
    )
    result, _ = TorchBackend(check_fused.Plain()).convolve(
        layer, source, made["frames"], affine=affine, add=add
    )
    return samples, result, layer.module.weight, layer.module.bias, channel_moments(result)


def test_sound_results_pass() -> None:
    for index in range(COUNT):
        samples, result, weight, bias, moments = computed(index)
        samples.check(result, weight, bias, uses_tf32=False, moments=moments)


@pytest.mark.parametrize("fault", ["one channel", "a frame of zeros", "scaled", "nan", "shifted"])
def test_wrong_results_are_found(fault: str) -> None:
    found = tried = 0
    for index in range(COUNT):
        samples, result, weight, bias, _ = computed(index)
        if float(result.abs().amax()) < 0.1 or (fault == "shifted" and result.shape[4] < 2):
            continue
        tried += 1
        wrong = result.clone()
        if fault == "one channel":  # those that are looked at are drawn
            wrong[:, int(samples.frames[0].channels[0, 0])] += 1
        elif fault == "a frame of zeros":
            wrong[:, :, -1] = 0
        elif fault == "scaled":
            wrong *= 1.01
        elif fault == "nan":
            wrong[:, :, 0] = float("nan")
        else:
            wrong = wrong.roll(1, 4)
        with contextlib.suppress(WrongKernelError):
            samples.check(wrong, weight, bias, uses_tf32=False, moments=None)
            found -= 1
        found += 1
    # Values may be equal, or zeros, where a fault shows nothing.
    assert found >= 0.9 * tried > 30


def test_wrong_moments_are_found() -> None:
    for index in range(COUNT):
        samples, result, weight, bias, moments = computed(index)
        most = result.abs().amax()
        for mean, deviations in ((most, 0), (0, 1 + moments.count * most**2)):
            wrong = Moments(
                moments.count, torch.stack((moments.mean + mean, moments.deviations + deviations))
            )
            with pytest.raises(WrongKernelError, match="mean or variance"):
                samples.check(result, weight, bias, uses_tf32=False, moments=wrong)


def test_attention_is_checked() -> None:
    for index in range(24):
        case = fused_cases.random_attention(SEED, index)
        q, room, ranges, (exact, _) = fused_cases.attended(case, SEED)
        result = exact.to(q.dtype)
        selfcheck.check_attention(q, room, result, ranges)
        for wrong in (result * 3 + 1, result.flip(2) + 1, torch.full_like(result, float("nan"))):
            with pytest.raises(WrongKernelError, match="outputs are wrong; one is"):
                selfcheck.check_attention(q, room, wrong, ranges)


def test_factors_of_group_norms_are_checked() -> None:
    for index in range(24):
        norm, moments, dtype = fused_cases.random_norm(SEED, index)
        weights = check_fused.Plain()
        sound = TorchBackend(weights).factors(norm, moments, dtype)
        selfcheck.check_factors(sound, norm, moments, weights)
        for number, by in itertools.product(range(2), (1 + 2.0**-8, -1.0, float("nan"))):
            wrong = [one.clone() for one in sound]
            at = int(wrong[number].abs().argmax())
            wrong[number][at] = (wrong[number][at] + 1e-3) * by
            with pytest.raises(WrongKernelError, match="1 of"):
                selfcheck.check_factors((wrong[0], wrong[1]), norm, moments, weights)


def test_an_input_that_is_not_finite_is_no_kernels_fault() -> None:
    samples, result, weight, bias, moments = computed(0)
    for tensor in samples.source.tensors:
        tensor.fill_(float("inf"))
    samples.check(torch.full_like(result, float("nan")), weight, bias, False, moments)


def test_what_goes_wrong_in_a_check_ends_no_decode(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "hy3d_rocm")
    with selfcheck.safely():
        raise torch.OutOfMemoryError("HIP out of memory")
    assert "was not checked: OutOfMemoryError" in caplog.text
    with pytest.raises(WrongKernelError), selfcheck.safely():
        raise WrongKernelError("3 of 48 outputs are wrong")


def test_a_decode_begins_again_without_the_kernels(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vae = tiny_vae("wan")
    z = tiny_latents(vae, 3, 6, 5)
    options = DecodeOptions(backend="torch")
    want, _ = decode_with_report(vae, z, strategy="streamed", options=options)
    calls = []

    def wrong(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise WrongKernelError("96 of 96 outputs are wrong")
        return kept(self, *args, **kwargs)

    kept = TorchBackend.convolve
    monkeypatch.setattr(TorchBackend, "convolve", wrong)
    frames, report = decode_with_report(vae, z, strategy="streamed", options=options)
    assert torch.equal(frames, want)
    assert [event["event"] for event in report.events] == [faults.WRONG_KERNEL]
    assert "starting again" in caplog.text
    assert "by PyTorch's operators" in caplog.text
    assert selfcheck.why_not(torch.device("cpu")) is not None


def test_what_gave_wrong_numbers_is_not_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier, "architecture", lambda device: "gfx1100")
    monkeypatch.setattr(tier, "kernel_problem", lambda: None)
    device = torch.device("cuda", 1)
    assert fused.refusal(device, torch.bfloat16) is None
    selfcheck.distrust(device, "3 of 96 outputs are wrong")
    assert "wrong numbers here (3 of 96" in str(fused.refusal(device, torch.bfloat16))
    assert fused.refusal(torch.device("cuda", 0), torch.bfloat16) is None


def test_a_kernel_is_checked_for_each_type() -> None:
    backend = fused.TritonBackend(check_fused.Plain(), "cpu", work.Target("gfx1100", 96))
    out = work.last_strides(64, (64, 64))
    pieces = (work.Piece(3, out, True),)
    job = work.Job("f16", 64, 64, (3, 3, 3), (64, 64), pieces, 0, 3, (0, 1))
    part = fused.Part(work.Work(job, backend.target(), out), None, None, None)
    half, brain = (backend._new_kernels(dtype, [part]) for dtype in (torch.float16, torch.bfloat16))
    assert half
    assert not half & brain
