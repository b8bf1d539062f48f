"""What ranks agree on before they decode (together.py); the group is a double."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from decode_doubles import tiny_vae

from hy3d_rocm.conv.triton.configs import Config, Measured
from hy3d_rocm.decoding import group, together
from hy3d_rocm.decoding.families import family_for
from hy3d_rocm.decoding.memory.budget import Budget
from hy3d_rocm.decoding.planning.jobs import Job, fused_backend, torch_backend
from hy3d_rocm.units import MB


class Told:
    """A group of two whose ranks say one after the other what they say, and then hear it."""

    def __init__(self, rank: int, values: list[Any]) -> None:
        self.rank, self.size, self.values = rank, 2, values

    def meet(self, about: str, error: Any = None, values: Any = None) -> list[Any]:
        if len(self.values) < self.size:
            self.values.append(values)
            raise InterruptedError
        return self.values


def test_ranks_of_one_memory_agree_on_one_budget_where_one_of_them_was_given_bytes() -> None:
    family = family_for(tiny_vae("wan"))
    job = Job(family, (1, 4, 1, 4, 4), torch.device("cpu"), torch.float32, torch.float32,
              torch_backend)  # fmt: skip
    budgets = [(Budget(300 * MB, 300 * MB, True, "as given"), True),
               (Budget(500 * MB, 500 * MB, True, "what is free"), False)]  # fmt: skip
    values: list[Any] = []
    found = []
    for rank in (0, 1, 0, 1):  # first all say theirs
        try:
            group: Any = Told(rank, values)
            found.append(together.agree(group, job, *budgets[rank], {}, None)[1].device_bytes)
        except InterruptedError:
            continue
    assert found == [250 * MB, 250 * MB]


@pytest.mark.parametrize("seconds", [(1.0, 1.0), (1.0, 2.0), (1.0, None)])
def test_ranks_whose_tiles_were_measured_otherwise_go_by_the_guess(
    seconds: tuple[float, float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a step takes depends on its tile, and all have to plan alike."""
    job = Job(family_for(tiny_vae("wan")), (1, 4, 1, 4, 4), torch.device("cuda", 0),
              torch.float16, torch.float16, fused_backend)  # fmt: skip
    budget = Budget(300 * MB, 300 * MB, False, "as given")
    monkeypatch.setattr(together, "_name_of", lambda device: "a card")
    values: list[Any] = []
    found = []
    for rank in (0, 1, 0, 1):
        rate = seconds[rank]
        tiles = {("f16", 96, 288, 9): (Config(64, 64, 32, 4, 2, rate=rate or 0.0),)}
        told = None if rate is None else Measured(tiles)
        monkeypatch.setattr(together.launch, "measured", lambda device, told=told: told)
        try:
            group: Any = Told(rank, values)
            found.append(
                together.agree(group, job, budget, True, {}, None)[0].make_backend.is_tuned
            )
        except InterruptedError:
            continue
    assert found == [seconds[0] == seconds[1]] * 2


def test_variables_are_set_where_nobody_has_and_over_torchruns_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, *others = group.VARIABLES
    for name in ("TORCHELASTIC_RUN_ID", *group.VARIABLES):
        monkeypatch.setenv(name, "")  # which is put back at the end
        monkeypatch.delenv(name)
    group.set_variables()
    assert {name: os.environ[name] for name in group.VARIABLES} == group.VARIABLES
    monkeypatch.setenv(first, "1")
    monkeypatch.setenv(others[0], "7")
    group.set_variables()
    assert (os.environ[first], os.environ[others[0]]) == ("1", "7")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    group.set_variables()
    assert (os.environ[first], os.environ[others[0]]) == (group.VARIABLES[first], "7")
    monkeypatch.setenv(first, "3")
    group.set_variables()
    assert os.environ[first] == "3"
