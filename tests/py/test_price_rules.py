"""What a way is priced at, from given predictions."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace as Thing
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from planning_jobs import CARD, CPU, F32, MB, family, job  # noqa: E402

from hy3d_rocm.decode.engines import own_tiles  # noqa: E402
from hy3d_rocm.decode.memory.predict import Prediction  # noqa: E402
from hy3d_rocm.decode.planning import compiled, prices  # noqa: E402
from hy3d_rocm.decode.planning.jobs import Job  # noqa: E402
from hy3d_rocm.decode.planning.planner import Need, Way  # noqa: E402


class Figures(prices.Prices):
    """Prices of which the prediction is given."""

    def __init__(self, made: Job, found: Any) -> None:
        super().__init__(made)
        self.found = found
        self.asked: list[tuple[Way, int]] = []

    def _of(self, way: Way, frames: int) -> Prediction:
        self.asked.append((way, frames))
        if isinstance(self.found, Exception):
            raise self.found
        return self.found(frames) if callable(self.found) else self.found


GUESS = Prediction(1000 * MB, 200 * MB, 1100 * MB, 5, 7)
TILED = Way("tiled", parameters={"engine": "tiles"})


@pytest.mark.parametrize(
    ("device", "way", "need"),
    [
        (CARD, Way("whole"), Need(1050 * MB, 200 * MB, 5)),
        (CARD, TILED, Need(1106 * MB, 200 * MB, 5)),
        (CPU, Way("whole"), Need(1155 * MB, 0, 5)),
        (CPU, TILED, Need(1155 * MB, 0, 5)),
        (CARD, Way("cpu"), Need(0, 1155 * MB, 5)),
    ],
)
def test_a_price_is_the_prediction_with_its_allowance_where_it_counts(
    device: Any, way: Way, need: Need
) -> None:
    assert Figures(job(device), GUESS)(way) == need


def test_what_can_not_be_predicted_is_an_error_where_layers_are_known() -> None:
    with pytest.raises(ValueError, match=r"^why$"):
        Figures(job(), ValueError("why"))(Way("whole"))


def opaque(device: Any, **changes: Any) -> Job:
    made = family(is_opaque=True, out_shape=lambda s: (s[0], 3, 10, 20, 30))
    return job(device, **{"family": made, "shape": (2, 16, 9, 16, 16), **changes})


def test_of_an_opaque_vae_the_least_is_its_frames() -> None:
    one = 3 * 10 * 20 * 30
    why = ValueError("why")
    half = {"result_dtype": torch.float16}
    whole = Way("whole")
    assert Figures(opaque(CARD, **half), why)(whole) == Need(4 * one, 2 * 2 * one, unknown="why")
    assert Figures(opaque(CARD, keeps_result=False), why)(whole) == Need(4 * one, unknown="why")
    assert Figures(opaque(CPU, **half), why)(whole) == Need(2 * 2 * one + 4 * one, unknown="why")
    single = {"shape": (1, 16, 9, 16, 16)}
    assert Figures(opaque(CPU, **half, **single), why)(whole) == Need(4 * one, unknown="why")
    double = {"result_dtype": torch.float64, **single}
    assert Figures(opaque(CPU, **double), why)(whole) == Need(8 * one, unknown="why")


def test_of_opaque_tiles_the_least_is_one_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Thing(factors=(4, 8, 8), decoded_size=lambda axis: (2, 3, 5)[axis], grains=[1] * 6)
    made = opaque(CARD)
    made.family.facts = Thing(frames=lambda latents: 4 * latents + 1)
    asked: list[Any] = []
    monkeypatch.setattr(prices, "plan_own_tiles", lambda *given: asked.append(given) or plan)
    way = Way("tiled", parameters={"engine": own_tiles.ENGINE})
    tile = 3 * 9 * 3 * 5 * 64 * 4
    result = 2 * 3 * 10 * 20 * 30 * 4
    assert Figures(made, ValueError("why"))(way) == Need(tile, result, unknown="why")
    on_host = replace(made, device=CPU, shape=(1, 16, 9, 16, 16))
    assert Figures(on_host, ValueError("why"))(way) == Need(result // 2 + tile, unknown="why")
    assert asked == [(made.family, made.shape, way.parameters),
                     (made.family, on_host.shape, way.parameters)]  # fmt: skip
    assert Figures(made, GUESS).grains(way) == 6


def test_grains_are_counted_by_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Figures(job(), GUESS)
    assert found.grains(Way("whole")) == 1
    for chunk, grains in ((1, 9), (2, 5), (9, 1), (10, 1)):
        assert found.grains(Way("s", parameters={"engine": "chunks", "chunk": chunk})) == grains
    layers = Way("s", parameters={"engine": "layers"})
    assert found.grains(layers) == 7
    assert Figures(job(), ValueError("why")).grains(layers) == 0
    monkeypatch.setattr(prices, "tile_plan", lambda job, parameters: (job, parameters))
    monkeypatch.setattr(prices, "steps", lambda plan, frames: (plan, frames))
    assert found.grains(TILED) == ((found.job, TILED.parameters), 9)


def test_a_long_video_is_priced_by_the_line_through_two_shorter_ones() -> None:
    def of(frames: int) -> Prediction:
        return Prediction(100 * frames, 10 * frames, 109 * frames, 7 * frames, frames)

    def priced(frames: int, chunk: int) -> tuple[Prediction, list[int]]:
        made = Figures(job(shape=(1, 16, frames, 16, 16)), of)
        way = Way("streamed", parameters={"engine": "chunks", "chunk": chunk})
        return made.predicted(way), [asked for _, asked in made.asked]

    assert priced(6, 1) == (of(6), [6])
    assert priced(7, 1) == (of(7), [4, 6])
    assert priced(40, 2) == (of(40), [8, 12])
    whole = Figures(job(shape=(1, 16, 99, 16, 16)), of)
    assert whole.predicted(Way("whole")) == of(99)


def test_a_line_never_falls_and_is_rounded() -> None:
    a, b = Prediction(10, 20, 30, 40, 50), Prediction(5, 23, 33, 43, 53)
    assert prices._line(a, b, 1.5) == Prediction(10, 24, 34, 44, 54)
    assert prices._line(a, b, 0.0) == a


def test_more_bytes_are_on_the_device_and_in_the_sum() -> None:
    assert prices._with(GUESS, 3) == replace(
        GUESS, device_bytes=1000 * MB + 3, both_bytes=1100 * MB + 3
    )


def test_a_host_that_casts_or_parks_weights_is_said() -> None:
    prices._check_host(Thing(), F32)
    prices._check_host(Thing(host=Thing(dtype=F32, runs_own_code=True)), F32)
    with pytest.raises(ValueError, match="computes in the type that its host casts weights to"):
        prices._check_host(Thing(host=Thing(dtype=F32, runs_own_code=True)), torch.float16)
    with pytest.raises(ValueError, match=r"^the VAE's weights are not on cuda:0$"):
        prices._check_host(Thing(host=Thing(dtype=F32, runs_own_code=False, device=CARD)), F32)


def tile(height: int, width: int, first: int = 0) -> Any:
    return Thing(in_start=(0, first, 0), in_stop=(1, first + height, width))


def test_the_tiles_that_decide_are_those_that_no_other_contains() -> None:
    tiles = [tile(4, 4), tile(4, 4, 3), tile(4, 5), tile(3, 5), tile(3, 6), tile(5, 2)]
    assert [prices._size(t) for t in tiles][1] == (4, 4)
    on_gpu = prices._deciding(tiles, False)
    assert [prices._size(t) for t in on_gpu] == [(4, 5), (3, 6), (5, 2)]
    on_cpu = prices._deciding(tiles, True)
    assert [prices._size(t) for t in on_cpu] == [(4, 5), (3, 6), (5, 2)]
    low = [tile(4, 5), tile(3, 5), tile(3, 4)]
    assert [prices._size(t) for t in prices._deciding(low, False)] == [(4, 5)]
    assert [prices._size(t) for t in prices._deciding(low, True)] == [(4, 5), (3, 5)]
    twice = [tile(4, 4), tile(4, 4, 3)]
    assert prices._deciding(twice, False) == twice[:1]


@pytest.mark.parametrize(
    ("nbytes", "taken"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (2**20 + 1, 2**21)]
)
def test_a_spilled_slice_takes_a_power_of_two(nbytes: int, taken: int) -> None:
    mover = prices._CountedMover()
    assert mover.host_bytes(nbytes) == taken
    if nbytes:
        sent = torch.empty((nbytes, 2), dtype=torch.uint8, device="meta")[:, 0].t()
        parked, done = mover.send(sent)
        back, _ = mover.bring(parked)
        assert (back.shape, back.dtype, back.device.type) == (sent.shape, sent.dtype, "meta")
        assert parked[0].nbytes == taken
        assert type(done).__name__ == "Done"


def test_a_strategy_that_is_not_known_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"^strategy is 'x': give one of 'auto', 'whole', 'streamed', 'tiled', 'cpu'$",
    ):
        compiled.plan_job(job(), Thing(), "x")


def test_the_places_of_weights_are_told_once() -> None:
    decoder = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1, device="meta"))
    assert prices._places(Thing(decoder=decoder)) == ("cpu", "meta")
