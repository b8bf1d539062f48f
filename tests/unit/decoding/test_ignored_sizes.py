"""A size that means nothing to a decode is said to be ignored: in the report, the log, the node."""

from __future__ import annotations

import logging
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from decode_doubles import tiny_latents, tiny_pixels, tiny_vae  # noqa: E402
from unknown_vaes import ConvNet, latents  # noqa: E402

from hy3d_rocm.decoding import (  # noqa: E402
    DecodeOptions,
    decode_with_report,
    encode_with_report,
)

CHUNKS, SLICES = DecodeOptions(chunk_size=2), DecodeOptions(slice_bytes=1 << 20)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("kind", "strategy", "options", "words"),
    [
        ("hunyuan", "streamed", CHUNKS, "the norms of HunyuanVideo see the whole video"),
        ("hunyuan", "cpu", CHUNKS, "slice_bytes cuts that"),
        ("hunyuan", "whole", CHUNKS, "unsplit decode has no chunks"),
        ("hunyuan", "tiled", CHUNKS, ""),
        ("hunyuan", "streamed", SLICES, ""),
        ("wan", "streamed", CHUNKS, ""),
        ("wan", "tiled", CHUNKS, ""),
        ("wan", "whole", CHUNKS, "unsplit decode has no chunks"),
        ("wan", "streamed", SLICES, "slices are of a decode that goes layer by layer"),
        ("image", "streamed", CHUNKS, "single images"),
        ("image", "tiled", CHUNKS, "single images"),
    ],
)
def test_a_size_without_a_meaning_is_said_and_one_with_a_meaning_is_not(
    kind: str, strategy: str, options: DecodeOptions, words: str, caplog: Any
) -> None:
    vae = tiny_vae(kind)
    z = tiny_latents(vae, 1 if kind == "image" else 2, 4, 4)
    with caplog.at_level(logging.INFO, "hy3d_rocm"):
        _, report = decode_with_report(vae, z, strategy=strategy, options=options)
    said = [r.getMessage() for r in caplog.records if "is ignored" in r.getMessage()]
    assert said == [f"[VAE Decode] {sentence}" for sentence in report.ignored]
    if words:
        (sentence,) = report.ignored
        assert words in sentence
        name = "chunk_size=2" if options is CHUNKS else f"slice_bytes={1 << 20}"
        assert sentence.startswith(f"{name} is ignored: ")
    else:
        assert report.ignored == []


def test_nothing_is_said_where_nothing_was_given() -> None:
    vae = tiny_vae("hunyuan")
    _, report = decode_with_report(vae, tiny_latents(vae, 1, 4, 4), strategy="streamed")
    assert report.ignored == report.as_dict()["ignored"] == []


def test_of_an_encode_as_well() -> None:
    for kind, count in (("hunyuan", 1), ("wan", 0)):
        _, report = encode_with_report(
            tiny_vae(kind), tiny_pixels(5, 16, 16), strategy="streamed", options=CHUNKS
        )
        assert len(report.ignored) == count


@pytest.mark.parametrize(("time", "count"), [("causal", 0), ("both", 1)])
def test_tiles_of_own_code_are_cut_in_time_only_where_that_changes_nothing(
    time: str, count: int
) -> None:
    options = DecodeOptions(chunk_size=2, halo_pixels=12, overlap_pixels=8, min_tile_pixels=16)
    _, report = decode_with_report(ConvNet(time), latents(), strategy="tiled", options=options)
    assert len(report.ignored) == count
    if count:
        assert "later latents change earlier frames of ConvNet" in report.ignored[0]
