"""Real values within the proven bound: a share of tests/long/real_conv3d.py."""

from __future__ import annotations

import real_conv3d
import torch

SEED, COUNT = 11, 32


def test_real_values_use_a_part_of_the_proven_bound_in_every_type_and_accuracy() -> None:
    threads = torch.get_num_threads()
    result = real_conv3d.run_chunk(SEED, range(COUNT))
    torch.set_num_threads(threads)
    rows = result["rows"]
    assert not result["failed"], f"seed {SEED}: " + "\n".join(result["failed"])
    assert sum(row[0] for row in rows.values()) == COUNT
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        # An error of 0 would say that values, sums or the oracle are not what they should be.
        assert 0 < rows[f"{dtype} exact"][1] <= 1, rows
        assert rows[f"{dtype} exact"][2] > 0, rows
    assert sum(row[0] for name, row in rows.items() if " fast " in name) == COUNT // 4


def test_a_result_that_is_off_by_a_little_more_than_the_bound_is_told() -> None:
    import numpy as np

    exact, bound = np.array([1.0, 2.0, 0.0]), np.array([0.5, 0.25, 0.0])
    assert real_conv3d.share(exact, exact, bound) == 0.0
    assert real_conv3d.share(exact + np.array([0.25, 0, 0]), exact, bound) == 0.5
    assert real_conv3d.share(exact + np.array([0, 0.26, 0]), exact, bound) > 1
    assert real_conv3d.share(exact + np.array([0, 0, 1e-30]), exact, bound) > 1
    assert real_conv3d.share(exact * np.nan, exact, bound) > 1


def test_limbs_put_float64_together_again() -> None:
    values = torch.rand(1000, dtype=torch.float64) * 2 - 1
    low, middle, high = real_conv3d.limbs(values)
    assert bool(((low + middle * 2.0**18 + high * 2.0**36) * 2.0**-53 == values).all())
    assert max(float(part.abs().max()) for part in (low, middle, high)) < 2**18
