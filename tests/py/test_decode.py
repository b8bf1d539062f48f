"""decode(): exact where it says so, within its budget, and whole again after every failure."""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from hy3d_rocm import decode  # noqa: E402
from hy3d_rocm.decode import DecodeCancelled, DecodeOptions, decode_with_report  # noqa: E402
from hy3d_rocm.decode.footprint import Footprint  # noqa: E402
from hy3d_rocm.decode.ladder import Ladder  # noqa: E402
from hy3d_rocm.decode.norms import NormPass, Statistics  # noqa: E402
from hy3d_rocm.decode.plan import BudgetTooSmallError  # noqa: E402
from hy3d_rocm.decode.runner import TiledRun  # noqa: E402
from hy3d_rocm.decode.vaes import Carry, VideoVae, adapter_for  # noqa: E402

CPU = torch.device("cpu")
FLAGS = ("use_framewise_decoding", "use_tiling", "use_slicing")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Layers this small only wait for a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_hunyuan() -> Any:
    from diffusers import AutoencoderKLHunyuanVideo

    torch.manual_seed(0)
    vae = AutoencoderKLHunyuanVideo(
        block_out_channels=(8, 8, 16, 16), norm_num_groups=4, layers_per_block=1
    ).eval()
    for module in vae.modules():
        if isinstance(module, torch.nn.GroupNorm):
            torch.nn.init.normal_(module.weight, 1.0, 0.3)
            torch.nn.init.normal_(module.bias, 0.0, 0.3)
    return vae


def make_wan(**changes: Any) -> Any:
    from diffusers import AutoencoderKLWan

    torch.manual_seed(0)
    shape = {"base_dim": 8, "z_dim": 16, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1}
    return AutoencoderKLWan(**(shape | changes)).eval()


@pytest.fixture(scope="module")
def hunyuan() -> Any:
    return make_hunyuan()


@pytest.fixture(scope="module")
def wan() -> Any:
    return make_wan()


@pytest.fixture(params=["hunyuan", "wan"])
def vae(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def make_latents(frames: int = 3, height: int = 4, width: int = 4, batch: int = 1) -> Any:
    generator = torch.Generator().manual_seed(frames * 100 + height * 10 + width)
    return torch.randn(batch, 16, frames, height, width, generator=generator)


def unsplit(vae: Any, z: Any) -> Any:
    """diffusers' own decode with its splitting off."""
    kept = {name: getattr(vae, name) for name in FLAGS if hasattr(vae, name)}
    try:
        for name in kept:
            setattr(vae, name, False)
        with torch.no_grad():
            return vae.decode(z).sample
    finally:
        for name, value in kept.items():
            setattr(vae, name, value)


def rounding(reference: Any) -> float:
    """What another order of summing may change: each of about a hundred layers in a row sums up to
    a few thousand products, so 2^12 roundings of the largest value."""
    return 2**12 * torch.finfo(reference.dtype).eps * float(reference.abs().max())


def snapshot(vae: Any) -> dict[str, Any]:
    """Everything of a VAE that a decode might leave changed."""
    state = {name: getattr(vae, name) for name in vars(vae) if not name.startswith("_modules")}
    state["parameters"] = {n: (p.data_ptr(), p.dtype) for n, p in vae.named_parameters()}
    state["hooks"] = [
        (len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for m in vae.modules()
    ]
    return {k: v if isinstance(v, (dict, list)) else repr(v) for k, v in state.items()}


def last_level(vae: Any, z: Any, options: DecodeOptions | None = None) -> int:
    adapter = adapter_for(vae)
    ladder = Ladder(
        adapter, Footprint(adapter, CPU), tuple(z.shape), CPU, options or DecodeOptions()
    )
    return len(ladder.all()) - 1


def test_whole_is_the_vaes_own_decode_bit_for_bit(vae: Any) -> None:
    z = make_latents(3)
    assert torch.equal(decode(vae, z), unsplit(vae, z))
    assert torch.equal(decode(vae, z, strategy="whole"), unsplit(vae, z))


@pytest.mark.parametrize("frames", range(1, 13))
def test_frame_count_is_exact_for_every_length(vae: Any, frames: int) -> None:
    z = make_latents(frames, 2, 2)
    adapter = adapter_for(vae)
    out = run_directly(adapter, z, 2, 2, DecodeOptions(statistic_passes=0))
    assert tuple(out.shape) == (1, 3, (frames - 1) * 4 + 1, 16, 16)
    assert torch.isfinite(out).all()


def run_directly(
    adapter: VideoVae, z: Any, depth: int, chunk: int, options: DecodeOptions, tiles: int = 0
) -> Any:
    """One rung of our choice, whatever the ladder would take; NaN wherever nothing was written."""
    from hy3d_rocm.decode.runner import Counter

    ladder = Ladder(adapter, Footprint(adapter, CPU), tuple(z.shape), CPU, options)
    rung = ladder._price(depth, min(chunk, z.shape[2]), ladder.spatial(depth, tiles))
    out = torch.full(adapter.out_shape(tuple(z.shape)), math.nan)
    with torch.no_grad():
        TiledRun(adapter, rung, z, out, Counter(None, None)).run()
    return out


@pytest.mark.parametrize("depth", range(5))
@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_wan_in_chunks_of_time_is_bit_for_bit_the_whole(wan: Any, depth: int, chunk: int) -> None:
    z = make_latents(5, 3, 4)
    out = run_directly(adapter_for(wan), z, depth, chunk, DecodeOptions())
    assert torch.equal(out, unsplit(wan, z))


@pytest.mark.parametrize("depth", [1, 3])
def test_wan_tiles_with_the_whole_halo_differ_by_rounding_only(wan: Any, depth: int) -> None:
    z = make_latents(2, 2, 24)
    options = DecodeOptions(halo_pixels=None, overlap_pixels=8, min_tile_pixels=8)
    whole = unsplit(wan, z)
    out = run_directly(adapter_for(wan), z, depth, 1, options, tiles=1)
    assert float((out - whole).abs().max()) <= rounding(whole)


def test_residual_wan_with_patches_decodes_too() -> None:
    vae = make_wan(is_residual=True, patch_size=2, out_channels=12, in_channels=12)
    z = make_latents(3, 2, 2)
    whole = unsplit(vae, z)
    assert torch.equal(decode(vae, z, strategy="whole"), whole)
    assert torch.equal(run_directly(adapter_for(vae), z, 2, 1, DecodeOptions()), whole)


@pytest.mark.parametrize("depth", range(5))
def test_hunyuan_streamed_in_time_is_exact_given_the_whole_videos_statistics(
    hunyuan: Any, depth: int
) -> None:
    z = make_latents(5, 3, 4)
    whole = unsplit(hunyuan, z)
    adapter = adapter_for(hunyuan)
    statistics, parts, carry = Statistics(), [], Carry()
    with torch.no_grad():
        grid = adapter.trunk(z, depth)
        gather = NormPass(gather=statistics)
        gather.start(0, grid.shape[-1])
        adapter.head(grid, depth, Carry(), gather, True)
        norms = NormPass(frozen=statistics)
        step = adapter.scale(depth)[0]
        for start, stop in ((0, 1 + step), (1 + step, grid.shape[2])):
            norms.start(0, grid.shape[-1])
            last = stop == grid.shape[2]
            parts.append(adapter.head(grid[:, :, start:stop], depth, carry, norms, last))
    assert float((torch.cat(parts, 2) - whole).abs().max()) <= rounding(whole)


def test_statistic_passes_converge_to_the_whole_decode(hunyuan: Any) -> None:
    """Layer k is exact after k passes, so as many passes as there are norms give the whole decode,
    spatial tiles included where their halo is the receptive field."""
    z = make_latents(2, 2, 16)
    whole = unsplit(hunyuan, z)
    adapter = adapter_for(hunyuan)
    errors = []
    for passes in (0, 1, 9):  # depth 2: two blocks of four norms, and the last one
        options = DecodeOptions(
            statistic_passes=passes, halo_pixels=None, overlap_pixels=8, min_tile_pixels=16
        )
        out = run_directly(adapter, z, 2, 1, options, tiles=1)
        errors.append(float((out - whole).abs().max()))
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] <= rounding(whole)


@pytest.mark.parametrize("inference", [False, True])
def test_grad_state_does_not_matter(vae: Any, inference: bool) -> None:
    z = make_latents(2)
    level = last_level(vae, z)
    options = DecodeOptions(level=level)
    plain, _ = decode_with_report(vae, z, options=options)
    with torch.inference_mode(inference):
        other, _ = decode_with_report(vae, z.clone(), options=options)
        assert torch.is_inference_mode_enabled() is inference
    assert torch.equal(plain, other)
    assert not plain.requires_grad


def test_batch_items_decode_as_if_alone(hunyuan: Any) -> None:
    z = make_latents(2, batch=2)
    options = DecodeOptions(level=last_level(hunyuan, z[:1]))
    both = run_directly(adapter_for(hunyuan), z, 2, 1, options)
    for i in range(2):
        alone = run_directly(adapter_for(hunyuan), z[i : i + 1], 2, 1, options)
        assert torch.equal(both[i : i + 1], alone)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("strategy", ["whole", "tiled"])
def test_the_vae_is_as_before(vae: Any, precision: str, strategy: str) -> None:
    z = make_latents(2)
    before = snapshot(vae)
    out = decode(vae, z, strategy=strategy, precision=precision)
    assert out.dtype == torch.float32
    assert snapshot(vae) == before
    assert float((out - unsplit(vae, z)).abs().max()) < 0.1 or precision != "fp32"


class Boom(BaseException):
    """As ComfyUI's InterruptProcessingException in 0.33."""


def test_an_exception_at_every_grain_passes_through_and_leaves_no_trace(vae: Any) -> None:
    z = make_latents(3)
    before = snapshot(vae)
    options = DecodeOptions(level=last_level(vae, z))
    _, report = decode_with_report(vae, z, options=options)
    for failing in range(1, report.steps + 1):

        def progress(done: int, total: int, step: object, failing: int = failing) -> None:
            if done == failing:
                raise Boom

        with pytest.raises(Boom):
            decode_with_report(vae, z, progress=progress, options=options)
        assert snapshot(vae) == before


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 68719476736 bytes. Error code 12"
        ),
        MemoryError(),
    ],
)
def test_out_of_memory_at_every_grain_ends_in_the_next_rungs_own_result(
    hunyuan: Any, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    z = make_latents(3)
    finer, _ = decode_with_report(hunyuan, z, options=DecodeOptions(level=2))
    first = DecodeOptions(level=1)
    grains = decode_with_report(hunyuan, z, options=first)[1].steps
    for failing in range(grains):
        calls = {"left": failing}
        for name in ("trunk", "head"):
            fail_once(monkeypatch, name, calls, error)
        out, report = decode_with_report(hunyuan, z, options=first)
        monkeypatch.undo()
        assert torch.equal(out, finer)
        assert [e["level"] for e in report.events] == [1]
        assert report.level == 2


def fail_once(
    monkeypatch: pytest.MonkeyPatch, name: str, calls: dict[str, int], error: BaseException
) -> None:
    from hy3d_rocm.decode.hunyuan import HunyuanVae

    real = getattr(HunyuanVae, name)

    def wrapped(self: Any, x: Any, *args: Any) -> Any:
        if x.device.type != "meta":
            calls["left"] -= 1
            if calls["left"] == -1:
                raise error
        return real(self, x, *args)

    monkeypatch.setattr(HunyuanVae, name, wrapped)


def test_out_of_memory_of_the_whole_goes_down_the_ladder_and_says_so(
    hunyuan: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    z = make_latents(3)
    calls = {"left": 0}
    fail_once(monkeypatch, "whole", calls, torch.OutOfMemoryError("HIP out of memory"))
    with caplog.at_level(logging.INFO, "hy3d_rocm"):
        out, report = decode_with_report(hunyuan, z)
    assert report.level == 1
    assert "Out of memory in grain 1 of 1: starting again at level 1" in caplog.text
    monkeypatch.undo()
    assert torch.equal(out, decode_with_report(hunyuan, z, options=DecodeOptions(level=1))[0])


def test_out_of_memory_everywhere_is_a_sentence(
    hunyuan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hy3d_rocm.decode.hunyuan import HunyuanVae

    real = HunyuanVae.trunk

    def always(self: Any, z: Any, depth: int) -> Any:
        if z.device.type == "meta":
            return real(self, z, depth)
        raise torch.OutOfMemoryError("HIP out of memory")

    monkeypatch.setattr(HunyuanVae, "trunk", always)
    with pytest.raises(MemoryError, match="at its finest level"):
        decode(hunyuan, make_latents(2), strategy="tiled")


def test_other_errors_are_not_taken_for_out_of_memory(
    hunyuan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, "whole", {"left": 0}, RuntimeError("shape mismatch"))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        decode(hunyuan, make_latents(2))


@pytest.mark.parametrize("kind", ["callable", "event", "requested", "method"])
def test_cancel_stops_before_the_next_grain(vae: Any, kind: str) -> None:
    event = threading.Event()
    cancels: dict[str, Any] = {
        "callable": event.is_set,
        "event": event,
        "requested": type("Flag", (), {"requested": property(lambda _: event.is_set())})(),
        "method": type("Flag", (), {"requested": lambda _: event.is_set()})(),
    }
    done = []

    def progress(number: int, total: int, step: object) -> None:
        done.append(number)
        event.set()

    z = make_latents(3)
    options = DecodeOptions(level=last_level(vae, z))
    with pytest.raises(DecodeCancelled, match="after 1 of"):
        decode_with_report(vae, z, progress=progress, cancel=cancels[kind], options=options)
    assert done == [1]


def test_progress_counts_every_grain_once(vae: Any) -> None:
    z = make_latents(3)
    seen: list[tuple[int, int, Any]] = []
    options = DecodeOptions(level=last_level(vae, z))
    _, report = decode_with_report(
        vae, z, progress=lambda *step: seen.append(step), options=options
    )
    assert [s[0] for s in seen] == list(range(1, report.steps + 1))
    assert {s[1] for s in seen} == {report.steps}
    covered = {f for s in seen if s[2].kind == "frames" for f in range(*s[2].frames)}
    assert covered == set(range(9))


def test_report_is_json(vae: Any) -> None:
    _, report = decode_with_report(vae, make_latents(2), strategy="tiled")
    again = json.loads(json.dumps(report.as_dict()))
    assert again["strategy"] == "tiled"
    assert again["predicted_peak_bytes"] == report.predicted_peak_bytes
    assert again["out_shape"] == [1, 3, 5, 32, 32]


def test_log_says_where_a_hang_sits(vae: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "hy3d_rocm"):
        decode(vae, make_latents(1))
    for line in (
        "[VAE Decode] Starting - latents shape (1, 16, 1, 4, 4), device cpu",
        "[VAE Decode] VAE device cpu, VAE dtype torch.float32",
        "[VAE Decode] Attempting CPU decode on cpu",
        "[VAE Decode] CPU decode SUCCESS - result device cpu, shape (1, 3, 1, 32, 32)",
    ):
        assert line in caplog.text


@pytest.mark.parametrize(
    ("latents", "kind", "words"),
    [
        ({"samples": torch.zeros(1, 16, 1, 2, 2)}, TypeError, r'pass latent\["samples"\]'),
        ([1, 2], TypeError, "not a list"),
        (torch.zeros(1, 16, 1, 2, 2, dtype=torch.int64), TypeError, "floating point"),
        (torch.zeros(1, 16, 2, 2), ValueError, r"unsqueeze\(2\)"),
        (torch.zeros(1, 4, 1, 2, 2), ValueError, "decodes 16"),
        (torch.zeros(1, 16, 0, 2, 2), ValueError, "nothing to decode"),
        (torch.full((1, 16, 1, 2, 2), math.nan), ValueError, "64 NaN"),
        (torch.full((1, 16, 1, 2, 2), math.inf), ValueError, "64 infinite"),
    ],
)
def test_bad_latents_get_a_sentence(vae: Any, latents: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        decode(vae, latents)


def test_bad_arguments_get_a_sentence(hunyuan: Any) -> None:
    z = make_latents(1)
    with pytest.raises(ValueError, match="strategy is 'fast'"):
        decode(hunyuan, z, strategy="fast")
    with pytest.raises(ValueError, match="precision is 'fp8'"):
        decode(hunyuan, z, precision="fp8")
    with pytest.raises(ValueError, match="budget is '6 parsecs'"):
        decode(hunyuan, z, budget="6 parsecs")
    with pytest.raises(TypeError, match="not Linear"):
        decode(torch.nn.Linear(1, 1), z)
    with pytest.raises(ValueError, match="level is 99"):
        decode_with_report(hunyuan, z, options=DecodeOptions(level=99))
    with pytest.raises(ValueError, match="statistic_passes is -1"):
        DecodeOptions(statistic_passes=-1)


def test_a_refusal_names_the_smallest_budget_and_that_one_is_accepted(vae: Any) -> None:
    z = make_latents(2)
    with pytest.raises(BudgetTooSmallError) as refused:
        decode(vae, z, budget=1)
    out, report = decode_with_report(vae, z, budget=refused.value.smallest, strategy="tiled")
    assert report.predicted_peak_bytes <= refused.value.smallest
    assert torch.isfinite(out).all()
    with pytest.raises(BudgetTooSmallError):
        decode(vae, z, budget=refused.value.smallest - 1, strategy="tiled")


def test_a_larger_budget_never_gives_a_finer_level(vae: Any) -> None:
    z = make_latents(3)
    adapter = adapter_for(vae)
    ladder = Ladder(adapter, Footprint(adapter, CPU), tuple(z.shape), CPU, DecodeOptions())
    peaks = [rung.peak_bytes for rung in ladder.all()]
    tiled = peaks[1:]
    assert tiled
    assert tiled == sorted(set(tiled), reverse=True)
