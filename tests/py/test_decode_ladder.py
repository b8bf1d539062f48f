"""What comes next where a way of decoding failed: it always ends, and always needs less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import tiny_latents, tiny_vae  # noqa: E402

from hy3d_rocm.decode import execution  # noqa: E402
from hy3d_rocm.decode.counter import Counter  # noqa: E402
from hy3d_rocm.decode.execution import Execution, make_report  # noqa: E402
from hy3d_rocm.decode.failures import CONVOLUTION, OUT_OF_MEMORY, Failure  # noqa: E402
from hy3d_rocm.decode.families import family_for  # noqa: E402
from hy3d_rocm.decode.memory.budget import Budget  # noqa: E402
from hy3d_rocm.decode.placing import Placing  # noqa: E402
from hy3d_rocm.decode.planning.planner import Need, Way, choose  # noqa: E402
from hy3d_rocm.decode.planning.ways import Job, WayOptions, torch_backend  # noqa: E402

GB = 1 << 30
WAYS = (
    Way("streamed", "layer by layer", {"engine": "layers"}, spills=True),
    Way("whole"),
    Way("tiled", "in 4 tiles", {"engine": "tiles", "level": 2}),
    Way("tiled", "in 16 tiles", {"engine": "tiles", "level": 4}),
    Way("cpu", "layer by layer", {"engine": "layers", "host": True}),
)


def price(way: Way) -> Need:
    """Of a made-up GPU decode: what is not resident lies on the host."""
    if way.strategy == "cpu":
        return Need(0, 20 * GB)
    if way.strategy == "streamed":
        resident = 9 * GB if way.resident_bytes is None else way.resident_bytes
        return Need(1 * GB + resident, 9 * GB - resident)
    sizes = {"whole": 12 * GB, "in 4 tiles": 2 * GB, "in 16 tiles": GB // 2}
    return Need(sizes[way.what or way.strategy])


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Execution]:
    def plan(job: Any, budget: Budget, strategy: str, options: Any, wanted: Any) -> Any:
        return choose(filter(wanted, WAYS), budget, strategy, price)

    monkeypatch.setattr(execution, "plan_job", plan)

    def make(strategy: str = "auto", host: int = 64 * GB) -> Execution:
        vae = tiny_vae("hunyuan")
        z = tiny_latents(vae, 1, 2, 2)
        device = torch.device("cuda", 0)
        family = family_for(vae)
        job = Job(family, tuple(z.shape), device, z.dtype, z.dtype, torch_backend)
        budget = Budget(10 * GB + GB // 4, host, False, "given")
        return Execution(
            job, z, budget, strategy, WayOptions(), make_report(job, z, budget),
            Counter(None, None), Placing(job.out_shape, z.dtype, None, None),
        )  # fmt: skip

    return make


def steps(run: Execution, failure: Failure) -> list[tuple[str, Need]]:
    """The ways taken if each ends in `failure`, until nothing is left."""
    run._choose()
    taken = []
    for _ in range(60):
        assert run.plan is not None
        taken.append((run.plan.way.name, run.plan.need))
        try:
            run._step_down(failure)
        except (MemoryError, RuntimeError):
            return taken
    raise AssertionError(f"no end: {[name for name, _ in taken]}")


@pytest.mark.parametrize("strategy", ["auto", "streamed"])
def test_memory_that_is_never_there_ends_after_ever_smaller_ways(
    made: Callable[..., Execution], strategy: str
) -> None:
    taken = steps(made(strategy), Failure(OUT_OF_MEMORY, "no memory"))
    needs = [need.device_bytes for _, need in taken if need.device_bytes]
    assert needs == sorted(needs, reverse=True)
    assert len({name for name, _ in taken}) == len(taken)
    if strategy == "auto":
        assert taken[-1][0].startswith("cpu")
        assert any(name.startswith("tiled") for name, _ in taken)


def test_memory_that_is_short_is_first_met_by_spilling_more(
    made: Callable[..., Execution],
) -> None:
    taken = [name for name, _ in steps(made(), Failure(OUT_OF_MEMORY, "no memory"))]
    assert [name.split()[0] for name in taken[:3]] == ["streamed"] * 3
    assert "resident" in taken[1]


def test_host_memory_that_no_plan_counted_ends_too(made: Callable[..., Execution]) -> None:
    run = made("whole", host=30 * GB)
    run.budget = Budget(20 * GB, 30 * GB, False, "given")
    taken = steps(run, Failure(OUT_OF_MEMORY, "host", on_host=True))
    assert [name for name, _ in taken] == ["whole"]


def test_a_convolution_that_always_fails_tries_each_way_once(
    made: Callable[..., Execution],
) -> None:
    taken = [name for name, _ in steps(made(), Failure(CONVOLUTION, "miopen"))]
    assert len(taken) == len(set(taken))
    assert [name.split()[0] for name in taken] == ["streamed", "tiled", "tiled", "cpu"]


def test_host_memory_that_is_short_does_not_make_more_be_spilled(
    made: Callable[..., Execution],
) -> None:
    run = made(host=30 * GB)
    taken = steps(run, Failure(OUT_OF_MEMORY, "host", on_host=True))
    assert run.budget.device_bytes == 10 * GB + GB // 4
    hosts = [need.host_bytes for name, need in taken if name.startswith("streamed")]
    assert hosts == sorted(hosts, reverse=True)
