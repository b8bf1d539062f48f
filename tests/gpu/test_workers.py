"""A second GPU's process decodes with this one.

    python -m pytest tests/gpu/test_workers.py

Skipped where PyTorch sees fewer than two CUDA or HIP devices.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import relative_error, tiny_vae  # noqa: E402
from program_doubles import family_of, source_of  # noqa: E402

from hy3d_rocm import _native  # noqa: E402
from hy3d_rocm.decoding.device_names import further_devices, parse_devices  # noqa: E402
from hy3d_rocm.decoding.executor import decode, encode  # noqa: E402
from hy3d_rocm.decoding.workers import Workers  # noqa: E402

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here"),
    pytest.mark.skipif(not _native.available, reason="programs need the C core"),
]
# Of what only the order of GroupNorm's sums makes other, as tests/unit/decoding/test_shared_run.py
# has it on the CPU.
BOUND = 64 * torch.finfo(torch.float32).eps


@pytest.fixture(scope="module")
def pair() -> Any:
    """Two cards, on which products are float32's and not TF32's: the others do as this process."""
    kept = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    own = torch.device("cuda", 0)
    found = further_devices(parse_devices("0,1"), own)
    which = Workers(own, found)
    which.silent_seconds = 5.0
    yield which
    which.close()
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = kept


def shared(pair: Workers, family: Any, latents: Any, **more: Any) -> tuple[Any, Any]:
    groups = []

    def work(group: Any) -> Any:
        groups.append(group)
        return decode(family, latents, strategy="streamed", group=group, **more)

    return pair.share(family, latents, {"strategy": "streamed"}, work), groups[0]


@pytest.mark.parametrize("kind", ["wan", "hunyuan", "ltx", "image"])
def test_two_cards_make_the_frames_of_one(pair: Workers, kind: str) -> None:
    family = family_of(kind, tiny_vae(kind).to("cuda:0"))
    latents = source_of(family, False, 1 if family.is_image else 3, 16, 8)
    wanted = decode(family, latents, strategy="streamed")
    frames, group = shared(pair, family, latents)
    assert group is not None
    assert group.sent_bytes > 0
    assert relative_error(frames, wanted) < BOUND


@pytest.mark.parametrize("kind", ["wan", "hunyuan", "image"])
def test_two_cards_make_the_latents_of_one(pair: Workers, kind: str) -> None:
    family = family_of(kind, tiny_vae(kind).to("cuda:0"))
    pixels = source_of(family, True, 1 if family.is_image else 9, 8, 4)
    wanted = encode(family, pixels, strategy="streamed")
    groups = []

    def work(group: Any) -> Any:
        groups.append(group)
        return encode(family, pixels, strategy="streamed", group=group)

    latents = pair.share(family, pixels, {"strategy": "streamed"}, work, encode=True)
    assert groups[0] is not None
    assert groups[0].sent_bytes > 0
    assert relative_error(latents, wanted) < BOUND


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_card_ends_in_the_decode_of_one(
    pair: Workers, how: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    family = family_of("wan", tiny_vae("wan").to("cuda:0"))
    latents = source_of(family, False, 9, 32, 16)
    wanted = decode(family, latents, strategy="streamed")
    shared(pair, family, latents)
    living = [worker.process.pid for worker in pair._workers]

    def strike(done: int, *_: Any) -> None:
        if done == 3 and living:
            os.kill(living.pop(), how)

    began = time.monotonic()
    frames, _ = shared(pair, family, latents, progress=strike)
    assert time.monotonic() - began < 60
    assert relative_error(frames, wanted) < BOUND
    assert "cuda:1: it" in caplog.text
    frames, group = shared(pair, family, latents)
    assert group is not None
    assert relative_error(frames, wanted) < BOUND
