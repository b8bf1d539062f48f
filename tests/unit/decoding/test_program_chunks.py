"""Programs in chunks: what they hold does not grow with the video, and a rest goes on exactly."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import how_much  # noqa: E402
from decode_doubles import relative_error, tiny_latents, tiny_vae  # noqa: E402
from live_storages import LiveStorages  # noqa: E402
from plain_engine import PlainEngine  # noqa: E402
from program_doubles import (  # noqa: E402
    CPU,
    carried_out,
    compiled,
    family_of,
    graph_of,
    marked,
    parameters_of,
    torch_backend,
)
from small_decoders import decoders, latent  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decoding.graph import record  # noqa: E402
from hy3d_rocm.decoding.run import Run  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not _native.available, reason="programs need the C core"),
    pytest.mark.usefixtures("one_thread", "no_gradients"),
]
DECODERS = decoders()


def peak_of(graph: Any, x: Any, program: Any) -> int:
    """Bytes that live at most, with frames dropped as they come."""
    with LiveStorages([x, *parameters_of(graph)], CPU) as live:
        run = Run(graph, torch_backend(), CPU, x.dtype)
        for _, frames in run.section(program, 0, lambda r: x[:, :, slice(*r)]):
            del frames
        del run
    assert live.live == 0, "something outlives the run"
    return live.peak


@pytest.mark.parametrize("kind", ["wan", "ltx", "ltx causal", "encoder", "encoder ahead"])
def test_memory_does_not_grow_with_the_video(kind: str) -> None:
    peaks, stated = set(), set()
    for frames in (12, 40):
        x = latent(frames)
        graph = graph_of(DECODERS[kind], x)
        program = compiled(graph, x, chunk=2).program
        assert program.candidate["order"] == "chunks"
        peaks.add(peak_of(graph, x, program))
        stated.add(program.candidate["device_bytes"])
    assert len(peaks) == len(stated) == 1


def test_smaller_chunks_take_less_memory() -> None:
    x = latent(12, 8, 8)
    graph = graph_of(DECODERS["wan"], x)
    one, four = (peak_of(graph, x, compiled(graph, x, chunk=n).program) for n in (1, 4))
    assert one < 0.5 * four


def test_a_prefix_by_layers_goes_on_in_chunks() -> None:
    """A GroupNorm and attention at the front, then chunks, which hold a few frames at a time."""
    x = latent(40)
    wan, mark = DECODERS["wan"], marked(x.shape[1])
    graph = graph_of(lambda e, x: wan(e, mark(e, x)), x)
    schedule = compiled(graph, x, compiles_all=1, slice_bytes=2000)
    found = {c["order"]: c["device_bytes"] for c in schedule.candidates}
    assert found["prefix"] < found["layers"]
    program = schedule.program
    while program.candidate["order"] != "prefix":
        assert program.fallback(3, "no kernel") == "begin again"
        program = schedule.program
    expected = wan(PlainEngine(), x)
    assert relative_error(carried_out(graph, x, program), expected) <= 1e-5


# Going on


def decoded_from(family: Any, z: Any, chunk: int, start: int) -> Any:
    """All frames of the latents from `start` on, as executor.py makes them."""
    z = z[:, :, start:]
    graph = record(family)
    return carried_out(graph, z, compiled(graph, z, chunk=chunk).program)


def start_of(family: Any, chunk: int, wanted: int) -> int:
    """The latent where a decode in chunks goes on."""
    graph = record(family)
    z = torch.empty(1, family.latent_channels, 1, 2, 2)
    return int(compiled(graph, z, chunk=chunk).program.start(wanted))


def latents_before(family: Any) -> int:
    """How many latents before a frame's own one its decode depends on."""
    return 999 - start_of(family, 1, 999 * family.factor[0] + 1)


@pytest.mark.parametrize(
    ("kind", "chunk"), [*how_much.of((), (("wan", 2),)), ("wan22", 3), ("ltx_causal", 1)]
)
def test_frames_from_the_middle_are_those_of_a_decode_from_the_start(kind: str, chunk: int) -> None:
    family = family_of(kind, tiny_vae(kind))
    past = latents_before(family)
    z = tiny_latents(family.vae, past + how_much.of(5, 7), 1, 2)
    whole = decoded_from(family, z, chunk, 0)
    time = family.factor[0]
    last = whole.shape[2] - 1
    wanteds = (last, (past + 2) * time + 1, (past + 3) * time)
    for wanted in wanteds[: how_much.of(2, 3)]:
        start = start_of(family, chunk, wanted)
        assert start % chunk == 0
        rest = decoded_from(family, z, chunk, start)
        assert torch.equal(rest[:, :, wanted - start * time :], whole[:, :, wanted:])
    assert start_of(family, chunk, last) > 0, "nothing was saved"


@pytest.mark.parametrize("kind", ["wan", "wan22", "ltx_causal"])
def test_no_frame_depends_on_more_than_is_said(kind: str) -> None:
    """A NaN in one latent reaches every frame that depends on it, whatever the weights are."""
    family = family_of(kind, tiny_vae(kind))
    past = latents_before(family)
    z = tiny_latents(family.vae, past + 6, 1, 1)
    z[:, :, 2] = float("nan")
    frames = family.decode(PlainEngine(), z)
    hit = torch.isnan(frames).any(dim=1).any(dim=-1).any(dim=-1)[0].nonzero().flatten()
    own = (int(hit.max()) - 1) // family.factor[0] + 1
    assert own - 2 <= past, "a frame depends on a latent further back"
    assert past - (own - 2) <= 3, "far more would be decoded again than is needed"


@pytest.mark.parametrize("kind", ["hunyuan", "hunyuan15"])
def test_norms_and_attention_over_the_video_start_from_its_beginning(kind: str) -> None:
    family = family_of(kind, tiny_vae(kind))
    assert start_of(family, 1, 1000) == 0
