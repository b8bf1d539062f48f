"""What comes next where a way of decoding failed: it always ends, and always needs less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import tiny_latents, tiny_vae  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decoding.executor import DecodeRequest, Execution, decode_with_report  # noqa: E402
from hy3d_rocm.decoding.families import family_for  # noqa: E402
from hy3d_rocm.decoding.faults import CONVOLUTION, OUT_OF_MEMORY, Failure  # noqa: E402
from hy3d_rocm.decoding.memory.budget import Budget  # noqa: E402
from hy3d_rocm.decoding.planning.jobs import Job, torch_backend  # noqa: E402
from hy3d_rocm.decoding.planning.planner import Need  # noqa: E402
from hy3d_rocm.decoding.precision import Precision  # noqa: E402
from hy3d_rocm.decoding.report import DecodeOptions  # noqa: E402
from hy3d_rocm.decoding.tiled_run import TiledRun  # noqa: E402

MB = 1 << 20
ROOM = 1200 * MB

pytestmark = pytest.mark.skipif(not _native.available, reason="the C core is not built")


def made(strategy: str = "auto", device: int = ROOM, slice_bytes: int = 2 * MB) -> Execution:
    """A decode on a GPU that is not there, which is planned only: 65 frames 256x256 of which all
    that is resident layer by layer takes 1.0 GB."""
    z = torch.empty((1, 4, 17, 32, 32))
    family = family_for(tiny_vae("hunyuan"))
    job = Job(family, tuple(z.shape), torch.device("cuda", 0), z.dtype, z.dtype, torch_backend)
    budget = Budget(device, 4096 * MB, False, "given")
    asked = DecodeRequest(strategy=strategy, options=DecodeOptions(slice_bytes=slice_bytes))
    return Execution(job, z, budget, asked, Precision(z.dtype, "the VAE's own"))


def steps(run: Execution, failure: Failure) -> list[tuple[str, Need]]:
    """The ways taken if each ends in `failure` (on the host where it computes there), until nothing
    is left."""
    run._take(run._chosen())
    taken = []
    for _ in range(200):
        taken.append((run.plan.variant.name, run.plan.need))
        on_host = failure.on_host or run.plan.variant.strategy == "cpu"
        try:
            run._step_down(replace(failure, on_host=on_host))
        except (MemoryError, RuntimeError):
            return taken
    raise AssertionError(f"no end: {[name for name, _ in taken]}")


@pytest.mark.parametrize("strategy", ["auto", "streamed"])
def test_memory_that_is_never_there_ends_after_ever_smaller_ways(strategy: str) -> None:
    taken = steps(made(strategy, slice_bytes=8 * MB), Failure(OUT_OF_MEMORY, "no memory"))
    needs = [need.device_bytes for _, need in taken if need.device_bytes]
    assert needs == sorted(needs, reverse=True)
    assert len({name for name, _ in taken}) == len(taken)
    if strategy == "auto":
        assert taken[-1][0].startswith("cpu")
        assert any(name.startswith("tiled") for name, _ in taken)


def test_memory_that_is_short_is_first_met_by_spilling_more() -> None:
    taken = [name for name, _ in steps(made(), Failure(OUT_OF_MEMORY, "no memory"))]
    assert [name.split()[0] for name in taken[:3]] == ["streamed", "streamed", "tiled"]
    assert "on the device" in taken[1]


def test_host_memory_that_no_plan_counted_ends_too() -> None:
    run = made("whole", device=4096 * MB)
    taken = steps(run, Failure(OUT_OF_MEMORY, "host", on_host=True))
    assert [name for name, _ in taken] == ["whole"]


def test_a_convolution_that_always_fails_tries_each_way_once_and_one_without_the_library() -> None:
    first, *taken = [name for name, _ in steps(made(), Failure(CONVOLUTION, "miopen"))]
    assert first == taken[0]
    assert len(taken) == len(set(taken))
    assert list(dict.fromkeys(n.split()[0] for n in taken)) == ["streamed", "tiled", "cpu"]


def test_host_memory_that_is_short_does_not_make_more_be_spilled() -> None:
    run = made(device=250 * MB)
    taken = steps(run, Failure(OUT_OF_MEMORY, "host", on_host=True))
    assert "on the device" in taken[0][0]
    hosts = [need.host_bytes for name, need in taken if name.startswith("streamed")]
    assert hosts == sorted(set(hosts), reverse=True)


def test_the_error_of_statistics_is_that_of_the_attempt_that_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vae = tiny_vae("hunyuan")
    z = tiny_latents(vae, 1, 8, 8).repeat(2, 1, 1, 1, 1)
    options = DecodeOptions(backend="torch", halo_pixels=0, overlap_pixels=0, min_tile_pixels=16)
    wanted = decode_with_report(vae, z, strategy="tiled", options=options)[1]
    tiles = TiledRun.tiles
    ran: list[int] = []

    def fails_once(self: TiledRun, *args: Any) -> None:
        ran.append(self.sample)
        if len(ran) == 2:
            raise RuntimeError("miopenStatusUnknownError")
        tiles(self, *args)
        if len(ran) == 1:
            self.estimate_error = 9.0

    monkeypatch.setattr(TiledRun, "tiles", fails_once)
    made = decode_with_report(vae, z, strategy="tiled", options=options)[1]
    assert ran == [0, 1, 0, 1]
    assert made.plan["way"] != wanted.plan["way"]
    assert made.estimate_error is not None
    assert made.estimate_error < 1.0
