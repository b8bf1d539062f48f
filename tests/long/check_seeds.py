"""Seeds: every mode and function against its definition, and the global random states untouched.

    python tests/long/check_seeds.py [--count 10000] [--jobs N] [--first 0]

Needs no checkout (check_seed_modes.py is the one for the real pipeline classes). For each seed:

    seed_image                            the C core's are those of the twin in Python, and of the
                                          definition written out here a third time
    make_generator                        stream, per_image and legacy: seeds, states and numbers of
                                          torch.Generator().manual_seed(the derived seed); a split
                                          batch has the states of the whole one
    PipelineProxy                         the loop and the multiview call of upstream's nodes on a
                                          small pipeline: legacy as upstream, stream's first picture
                                          upstream's and then one stream, per_image by number
                                          however the batch is split
    torch's, NumPy's and Python's global generators, and an accelerator's by a double: the same
    states, compared word by word, before and after each call that promises it

Prints one line a claim and the sums; exit status 1 with the numbers of the first seeds that failed
(`--first NUMBER --count 1` replays one).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

import numpy as np  # noqa: E402
import torch  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm._fallback import seed as twin  # noqa: E402
from hy3d_rocm.pipeline import PipelineProxy  # noqa: E402
from hy3d_rocm.seed import make_generator  # noqa: E402

TOP = 2**64 - 1
EDGES = (0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, TOP - 1, TOP)
COUNT = 3  # pictures of a batch


def seed_number(number: int) -> int:
    """The edges first, then seeds of 64, 32 and 6 bits in turns; the same for a number always."""
    if number < len(EDGES):
        return EDGES[number]
    return random.Random(number).getrandbits((64, 32, 6)[number % 3])


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x32-10, written from the paper: ten rounds, the key bumped between them."""
    x, k = list(counter), list(key)
    for turn in range(10):
        if turn:
            k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
        high0, low0 = divmod(0xD2511F53 * x[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * x[2], 2**32)
        x = [high1 ^ x[1] ^ k[0], low1, high0 ^ x[3] ^ k[1], low0]
    return x


def derived(seed: int, index: int) -> int:
    """The definition: number 0 is the seed; the others are two words of a block of Philox."""
    if index == 0:
        return seed
    words = philox([index % 2**32, index >> 32, ord("I"), 0], [seed % 2**32, seed >> 32])
    return words[0] + (words[1] << 32)


class Accelerator:
    """Stands for torch.cuda: one device in use, whose state is a tensor of this process."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(77)
        self.default_generators = (self.generator,)

    def states(self) -> list[torch.Tensor]:
        return [self.generator.get_state()]

    def put(self, states: list[torch.Tensor]) -> None:
        self.generator.set_state(states[0])

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        new: dict[str, Any] = {
            "is_initialized": lambda: True,
            "get_rng_state_all": self.states,
            "set_rng_state_all": self.put,
            "manual_seed_all": lambda seed: self.generator.manual_seed(seed),
            "default_generators": self.default_generators,
        }
        old = {name: getattr(torch.cuda, name) for name in new}
        for name, value in new.items():
            setattr(torch.cuda, name, value)
        try:
            yield
        finally:
            for name, value in old.items():
                setattr(torch.cuda, name, value)


DEVICE = Accelerator()


def global_words() -> list[Any]:
    """Every global state, as bytes and numbers."""
    kind, words, place, has, left = np.random.get_state()
    return [
        torch.get_rng_state().numpy().tobytes(), random.getstate(), DEVICE.states()[0].tolist(),
        kind, words.tobytes(), place, has, left, torch.default_generator.initial_seed(),
    ]  # fmt: skip


class TouchedError(AssertionError):
    pass


@contextlib.contextmanager
def untouched(what: str) -> Iterator[None]:
    before = global_words()
    yield
    if global_words() != before:
        raise TouchedError(what)


def states(made: Any) -> list[bytes]:
    many = made if isinstance(made, list) else [made]
    return [one.get_state().numpy().tobytes() for one in many]


def seeded(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def core_is_its_twin(seed: int, rng: random.Random) -> bool:
    indices = [0, 1, 2, TOP, 2**32, rng.getrandbits(64), rng.getrandbits(20)]
    words = [rng.getrandbits(32) for _ in range(6)]
    blocks = [seed % 2**32, seed >> 32, *words]
    with untouched("the C core"):
        good = all(
            _native.seed_image(seed, i) == twin.seed_image(seed, i) == derived(seed, i)
            for i in indices
        )
        return good and list(twin.philox4x32(blocks[:4], blocks[4:6])) == philox(
            blocks[:4], blocks[4:6]
        )


def generators(seed: int, rng: random.Random) -> bool:
    first = rng.getrandbits(40)
    with untouched("make_generator"):
        stream = make_generator(seed)
        legacy = make_generator(seed, mode="legacy", count=COUNT)
        whole = make_generator(seed, mode="per_image", count=COUNT, first_index=first)
        parts = [
            *make_generator(seed, mode="per_image", count=1, first_index=first),  # type: ignore[misc]
            *make_generator(seed, mode="per_image", count=COUNT - 1, first_index=first + 1),  # type: ignore[misc]
        ]
        wanted = seeded(*(derived(seed, first + i) for i in range(COUNT)))
        good = (
            states(stream) == states(seeded(seed))
            and states(legacy) == states(seeded(*[seed] * COUNT))
            and states(whole) == states(parts) == states(wanted)
        )
        drawn = torch.randn(40, generator=stream)  # type: ignore[arg-type]
        return good and torch.equal(drawn, torch.randn(40, generator=seeded(seed)[0]))


class Pipeline:
    """Draws as the delight and the multiview pipelines do: latents and steps by generator, and,
    where it encodes, from the global state."""

    device = torch.device("cpu")

    def encode_images(self, images: torch.Tensor) -> torch.Tensor:
        return torch.randn(images.shape)

    def __call__(
        self, image: Any = None, generator: Any = None, num_in_batch: int | None = None
    ) -> torch.Tensor:
        if num_in_batch is None:
            return torch.stack([draw((4,), generator), draw((4,), generator)])
        maps = self.encode_images(images=torch.zeros(1, num_in_batch, 2, 1, 1)).reshape(-1, 2)
        noise = [draw((num_in_batch, 3), generator) for _ in range(2)]
        return torch.cat([maps, *noise], dim=1)


def draw(shape: tuple[int, ...], generator: Any) -> torch.Tensor:
    """As diffusers' randn_tensor: a list of generators makes one row each."""
    if not isinstance(generator, list):
        return torch.randn(shape, generator=generator)
    if len(generator) == 1:
        return torch.randn(shape, generator=generator[0])
    return torch.cat([torch.randn((1, *shape[1:]), generator=one) for one in generator])


def loop(pipeline: Any, seed: int, count: int = COUNT) -> torch.Tensor:
    """Hy3DDelightImage: reseeds the global generator once a picture."""
    return torch.stack([pipeline(generator=torch.manual_seed(seed)) for _ in range(count)])


def views(pipeline: Any, seed: int, count: int = COUNT) -> torch.Tensor:
    """Hy3DSampleMultiView: the global generator reseeded, then one of its own."""
    torch.manual_seed(seed)
    generator = torch.Generator(device=pipeline.device).manual_seed(seed)
    return pipeline(generator=generator, num_in_batch=count)  # type: ignore[no-any-return]


def one_stream(seed: int) -> torch.Tensor:
    generator = seeded(seed)[0]
    return torch.stack([Pipeline()(generator=generator) for _ in range(COUNT)])


def by_number(seed: int, first: int) -> torch.Tensor:
    made = seeded(*(derived(seed, first + i) for i in range(COUNT)))
    return torch.stack([Pipeline()(generator=one) for one in made])


def proxy_loop(seed: int, rng: random.Random) -> bool:
    pipeline, first = Pipeline(), rng.randrange(1000)
    upstream = loop(pipeline, seed)
    legacy = loop(PipelineProxy(pipeline, seed_mode="legacy"), seed)
    proxy = PipelineProxy(pipeline)
    with untouched("a batch of stream"), proxy.batch():
        stream = loop(proxy, seed)
    numbered = PipelineProxy(pipeline, seed_mode="per_image")
    with untouched("a batch of per_image"):
        with numbered.batch(first):
            whole = loop(numbered, seed)
        with numbered.batch(first):
            one = loop(numbered, seed, 1)
        with numbered.batch(first + 1):
            rest = loop(numbered, seed, COUNT - 1)
    return (
        torch.equal(legacy, upstream)
        and torch.equal(stream, one_stream(seed))
        and torch.equal(stream[0], upstream[0])
        and torch.equal(whole, by_number(seed, first))
        and torch.equal(torch.cat([one, rest]), whole)
    )


def proxy_calls(seed: int, rng: random.Random) -> bool:
    """A call that brings a generator of its own leaves the global states alone."""
    proxy = PipelineProxy(Pipeline())
    private = seeded(seed)[0]
    with untouched("a call with a generator of its own"):
        made = proxy(generator=private)
    return torch.equal(made, Pipeline()(generator=seeded(seed)[0]))


def proxy_views(seed: int, rng: random.Random) -> bool:
    pipeline = Pipeline()
    upstream = views(pipeline, seed)
    made = {}
    for mode in ("legacy", "stream", "per_image"):
        proxy = PipelineProxy(pipeline, seed_mode=mode)  # type: ignore[arg-type]
        if mode == "legacy":
            made[mode] = views(proxy, seed)
            continue
        with untouched(f"a batch of views in {mode}"), proxy.batch():
            made[mode] = views(proxy, seed)
    again = views(PipelineProxy(pipeline, seed_mode="per_image"), seed)
    rows = {row.numpy().tobytes() for row in made["per_image"]}
    return (
        torch.equal(made["legacy"], upstream)
        and torch.equal(made["stream"], upstream)
        and torch.equal(made["per_image"], again)
        and len(rows) == COUNT
    )


CLAIMS: dict[str, Callable[[int, random.Random], bool]] = {
    "seed_image: core, twin and definition": core_is_its_twin,
    "make_generator: all modes as defined, split batches too": generators,
    "PipelineProxy, a loop: legacy, stream, per_image as defined": proxy_loop,
    "PipelineProxy, one call with its own generator": proxy_calls,
    "PipelineProxy, views: legacy and stream upstream's, per_image its own": proxy_views,
}


def tally(numbers: range) -> dict[str, list[str]]:
    """By claim the numbers of the seeds that failed it, with what was touched."""
    torch.set_num_threads(1)
    failed: dict[str, list[str]] = {claim: [] for claim in CLAIMS}
    with DEVICE.in_use():
        for number in numbers:
            seed = seed_number(number)
            for claim, holds in CLAIMS.items():
                try:
                    good, why = holds(seed, random.Random(number)), ""
                except TouchedError as error:
                    good, why = False, f" (global states touched: {error})"
                if not good:
                    failed[claim].append(f"{number}{why}")
    return failed


def in_children(options: argparse.Namespace, jobs: int) -> dict[str, list[str]]:
    """Every jobs-th seed in a process each."""
    command = [sys.executable, __file__, "--child", "--jobs", str(jobs)]
    children = [
        subprocess.Popen(
            [*command, "--first", str(options.first + k), "--count", str(options.count - k)],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for k in range(jobs)
    ]  # fmt: skip
    failed: dict[str, list[str]] = {claim: [] for claim in CLAIMS}
    for child in children:
        said = child.communicate()[0]
        if child.returncode != 0:
            raise SystemExit(f"a child ended with status {child.returncode}")
        for claim, numbers in json.loads(said.splitlines()[-1]).items():
            failed[claim] += numbers
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not _native.available:
        parser.error(f"there is no C core to compare with: {_native.missing}")
    if options.child:
        end = options.first + options.count
        print(json.dumps(tally(range(options.first, end, options.jobs))))
        return 0
    began = time.monotonic()
    failed = in_children(options, max(1, min(options.jobs, options.count)))
    for claim, numbers in failed.items():
        held = options.count - len(numbers)
        print(
            "FAILED" if numbers else "ok    ", f"{claim}: {held} of {options.count}", *numbers[:5]
        )
    wrong = sum(map(len, failed.values()))
    print(
        f"seeds: {options.count} seeds, {len(CLAIMS) * options.count} claims, {wrong} failed, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
