"""Without the core the order of tiers is a fixed one, and as safe."""

from __future__ import annotations

import random

from hy3d_rocm import _core
from hy3d_rocm._fallback import route as twin

SETTING = (0, 0, 1, True, True, True, 0.0)  # auto on an AMD GPU, whose library is on
ON_CPU = (0, 0, 0, False, False, True, 0.0)
TWIN = 6  # reason: another tier of the order calls the same; the twin leaves both


def usual() -> list[tuple[float, ...]]:
    return [(tier, 0, 0, False, True, -1.0, 1.0, 0.0) for tier in range(7)]


def test_the_fixed_order() -> None:
    assert twin.route(SETTING, usual())[0] == (2, 4, 3, 6)
    assert twin.route(ON_CPU, usual())[0] == (0, 1, 2, 3, 6, 4, 5)
    cuda = (*SETTING[:4], False, *SETTING[5:])
    assert twin.route(cuda, usual())[0][0] == 0
    pinned = (3, 4, *SETTING[2:])
    assert twin.route(pinned, usual())[0] == (4, 2, 3, 6)


def test_it_takes_and_leaves_out_what_the_core_does() -> None:
    seed = random.SystemRandom().randrange(2**32)
    pick = random.Random(seed)
    for _ in range(3000):
        setting = (
            pick.randrange(4), pick.randrange(7), pick.choice((0, 1, 3)), pick.random() < 0.8,
            pick.random() < 0.5, pick.random() < 0.7, 0.0,
        )  # fmt: skip
        candidates = [
            (tier, pick.randrange(8), pick.choice((0, 0, 1, 2)), pick.random() < 0.2,
             pick.random() < 0.8, -1.0, 1.0, 0.0)
            for tier in range(7)
        ]  # fmt: skip
        core, plain = _core.route(setting, candidates), twin.route(setting, candidates)
        same = tuple(0 if why == TWIN else why for why in core[1])
        # A search that takes long is left out with other words.
        assert tuple(4 if why == 5 else why for why in same) == plain[1], f"seed {seed}"
        assert set(core[0]) <= set(plain[0]), f"seed {seed}"
        assert set(plain[6]) <= set(core[6]), f"seed {seed}"


def test_what_would_be_first_had_nothing_failed_is_told() -> None:
    """A call that goes another way than that counts as recovered."""
    assert twin.route(ON_CPU, usual())[3] == 0
    one, both = usual(), usual()
    one[0] = both[0] = (0, 5, 2, *usual()[0][3:])  # a record of what failed
    both[1] = (1, 0, 1, *usual()[1][3:])
    for candidates in (one, both):
        order, preferred = twin.route(ON_CPU, candidates)[0::3][:2]
        assert (order[0], preferred) == (1 if candidates is one else 2, 0)
        assert _core.route(ON_CPU, candidates)[3] == 0
    banned = [(0, 5, 0, *usual()[0][3:]), *usual()[1:]]
    assert twin.route(ON_CPU, banned)[3] == 1  # by another process: it is not first here


def test_nothing_is_estimated() -> None:
    rates = twin.Rates()
    rates.learn(0, (0, 1.0, 1.0, 1.0, 1.0, 1, 1, 1), 1.0)
    assert rates.seconds(0, (0, 1.0, 1.0, 1.0, 1.0, 1, 1, 1)) is None
