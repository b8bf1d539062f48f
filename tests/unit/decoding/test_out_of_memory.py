"""Memory that runs out anywhere in a decode: a few trials of tests/long/check_decode_oom.py."""

from __future__ import annotations

import random

import how_much
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from check_decode_oom import trials  # noqa: E402
from decode_oom import OWN, Faults, Job, core  # noqa: E402

CASES = [
    Job("image", "decode", "streamed", "torch"),
    Job("ltx_causal", "decode", "streamed", "native" if core is not None else "torch"),
    Job(OWN, "decode", "whole", "torch"),
]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("job", CASES, ids=lambda job: job.name)
def test_memory_that_runs_out_anywhere_leaves_the_result_or_a_sentence(job: Job) -> None:
    """Replay: check_decode_oom.py --only JOB --number N, as the message has them."""
    job.prepare()
    every = trials(job, 1)
    for number in random.Random(11).sample(range(len(every)), how_much.of(2, 4)):
        try:
            job.trial(number, every[number])
        except Exception as error:
            raise AssertionError(f"{job.name}, number {number}: {every[number]}") from error


def test_three_failures_of_a_step_end_the_only_way_with_the_sentence() -> None:
    job = Job("ltx_causal", "decode", "streamed", "torch")
    job.prepare()
    assert job.steps > 12
    assert job.trial(0, Faults(onward=4)) == "ended"
    assert job.trial(2, Faults(onward=0)) == "ended"
    assert job.trial(1, Faults(steps=(4, 5))) == "same way"
