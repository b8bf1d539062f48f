"""decode() into sinks: the same frames as in a tensor, of one making, from where wanted."""

from __future__ import annotations

import weakref
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
pytest.importorskip("diffusers")
pytest.importorskip("av")

executor = pytest.importorskip("hy3d_rocm.decoding.executor")
if not hasattr(executor, "decode_into"):
    pytest.skip("this executor gives whole tensors only", allow_module_level=True)

from decode_doubles import tiny_latents, tiny_vae  # noqa: E402
from sink_doubles import TensorSink  # noqa: E402

from hy3d_rocm.decoding import DecodeOptions  # noqa: E402
from hy3d_rocm.decoding.planning.jobs import Job  # noqa: E402
from hy3d_rocm.decoding.report import DecodeCancelled  # noqa: E402
from hy3d_rocm.frames import video  # noqa: E402
from hy3d_rocm.frames.sinks import MemmapSink, sink_for  # noqa: E402


class Recording(TensorSink):
    """Remembers what was told and given; may begin with some frames already there."""

    def __init__(self, there: int = 0) -> None:
        super().__init__()
        self.there = there
        self.plans: list[Any] = []
        self.given: list[tuple[int, int]] = []
        self.ends: list[str] = []
        self.fail_at: int | None = None

    def begin(self, shape: Any, dtype: Any, plan: Any = None) -> None:
        super().begin(shape, dtype, plan)
        self.plans.append(plan)
        self._next = [self.there] * shape[0]

    def put(self, sample: int, first: int, frames: Any, *more: Any) -> None:
        if self.fail_at is not None and first >= self.fail_at:
            self.fail_at = None
            raise RuntimeError("miopenStatusUnknownError")
        self.given.append((sample, first))
        super().put(sample, first, frames, *more)

    def finish(self) -> Any:
        self.ends.append("finish")
        return super().finish()

    def abort(self) -> None:
        self.ends.append("abort")

    @property
    def buffer(self) -> Any:
        return None

    @property
    def folder(self) -> Path:
        return Path("/tmp")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [("wan", "whole"), ("wan", "streamed"), ("wan", "cpu"), ("hunyuan", "streamed"),
     ("hunyuan", "tiled")],
)  # fmt: skip
def test_a_sink_gets_the_frames_that_decode_gives(tmp_path: Path, kind: str, strategy: str) -> None:
    vae = tiny_vae(kind)
    z = torch.cat([tiny_latents(vae, 2, 2, 3, seed=n) for n in range(2)])
    frames, _ = executor.decode_with_report(vae, z, strategy=strategy)
    for sink in (Recording(), MemmapSink(tmp_path / "a.npy")):
        result, report = executor.decode_into(sink, vae, z, strategy=strategy)
        if isinstance(result, Path):
            result = torch.from_numpy(np.load(result))
        assert torch.equal(result, frames)
        assert report.strategy == strategy
    path = tmp_path / "a.mp4"
    executor.decode_into(sink_for(path, fps=Fraction(24)), vae, z[:1], strategy=strategy)
    assert video.count_frames(path) == frames.shape[2]


def test_a_decode_that_goes_on_gives_the_rest_and_takes_the_same_way() -> None:
    vae = tiny_vae("wan")
    z = tiny_latents(vae, 6, 2, 2)
    first = Recording()
    whole, _ = executor.decode_into(first, vae, z, strategy="streamed")
    rest = Recording(there=11)
    made, _ = executor.decode_into(rest, vae, z, strategy="auto", resume_key=first.plans[0])
    assert rest.plans == first.plans
    assert torch.equal(made[:, :, 11:], whole[:, :, 11:])


def test_frames_made_without_a_library_are_gone_on_with_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No file has frames of both."""
    monkeypatch.setattr(Job, "asks_library", lambda job, variant: True)
    vae, options = tiny_vae("wan"), DecodeOptions(backend="torch")
    z, first = tiny_latents(vae, 6, 2, 2), Recording()
    first.fail_at = 11
    whole, report = executor.decode_into(first, vae, z, strategy="streamed", options=options)
    assert [event["without"] for event in report.events] == ["cuDNN"]
    assert first.plans[1] == {**first.plans[0], "without": "library"}
    rest = Recording(there=11)
    made, _ = executor.decode_into(rest, vae, z, options=options, resume_key=first.plans[1])
    assert rest.plans == first.plans[1:]
    assert torch.equal(made[:, :, 11:], whole[:, :, 11:])


def test_a_way_that_cannot_be_had_any_more_is_told() -> None:
    vae = tiny_vae("wan")
    z = tiny_latents(vae, 3, 2, 2)
    plan = {"strategy": "streamed", "parameters": {"engine": "of another version"},
            "dtype": "float32"}  # fmt: skip
    with pytest.raises(ValueError):
        executor.decode_into(Recording(), vae, z, resume_key=plan)


def test_frames_of_another_strategy_than_asked_for_are_not_gone_on_with() -> None:
    vae = tiny_vae("wan")
    z = tiny_latents(vae, 6, 2, 2)
    first = Recording()
    executor.decode_into(first, vae, z, strategy="streamed")
    with pytest.raises(ValueError, match=r"can't go on so \(the strategy 'tiled' was asked for\)"):
        executor.decode_into(Recording(11), vae, z, strategy="tiled", resume_key=first.plans[0])


def test_a_decode_that_goes_on_and_fails_begins_anew_in_another_way() -> None:
    vae = tiny_vae("wan")
    z = tiny_latents(vae, 6, 2, 2)
    first = Recording()
    options = DecodeOptions(backend="torch")
    executor.decode_into(first, vae, z, strategy="streamed", options=options)
    rest = Recording(there=11)
    rest.fail_at = 0
    _, report = executor.decode_into(rest, vae, z, options=options, resume_key=first.plans[0])
    assert [e["event"] for e in report.events] == ["a convolution that failed"]
    assert rest.plans[0] == first.plans[0]
    assert len(rest.plans) == 2
    assert rest.plans[1] != rest.plans[0]


def test_a_failure_begins_anew_in_another_way_and_all_frames_are_of_that() -> None:
    vae = tiny_vae("wan")
    z = tiny_latents(vae, 5, 2, 2)
    sink = Recording()
    sink.fail_at = 0
    options = DecodeOptions(backend="torch")  # by the C convolution auto begins with streamed
    result, report = executor.decode_into(sink, vae, z, options=options)
    assert [e["event"] for e in report.events] == ["a convolution that failed"]
    assert [plan["strategy"] for plan in sink.plans] == ["whole", "streamed"]
    assert sink.ends == ["finish"]
    again = executor.decode_with_report(vae, z, strategy="streamed", options=options)[0]
    assert torch.equal(result, again)


def test_frames_that_were_placed_are_gone_before_the_next_are_made() -> None:
    placed: list[Any] = []
    alive: list[bool] = []

    class Watching(TensorSink):
        def put(self, sample: int, first: int, frames: Any) -> None:
            placed.append(weakref.ref(frames))
            super().put(sample, first, frames)

    vae = tiny_vae("wan")
    executor.decode_into(
        Watching(), vae, tiny_latents(vae, 9, 2, 2), strategy="streamed",
        progress=lambda *step: alive.extend(frames() is not None for frames in placed),
    )  # fmt: skip
    assert len(placed) > 2
    assert not any(alive)


def test_a_cancelled_decode_aborts_its_sink() -> None:
    vae = tiny_vae("wan")
    sink = Recording()
    with pytest.raises(DecodeCancelled):
        executor.decode_into(
            sink, vae, tiny_latents(vae, 17, 2, 2), strategy="streamed",
            cancel=lambda: len(sink.given) >= 2,
        )  # fmt: skip
    assert sink.ends == ["abort"]
