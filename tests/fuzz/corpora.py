"""Corpora as one file each: "hy3dfuzz", then four bytes of length, lowest first, and the input.

python tests/fuzz/corpora.py unpack tests/fuzz/corpus/conv3d.bin FOLDER
python tests/fuzz/corpora.py pack FOLDER tests/fuzz/corpus/conv3d.bin [--limit BYTES]
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

HEAD = b"hy3dfuzz"
LIMIT = 300_000  # bytes of a packed corpus


def read(path: Path) -> list[bytes]:
    """The inputs of a packed corpus."""
    content = path.read_bytes()
    if not content.startswith(HEAD):
        raise ValueError(f"{path} is no corpus: it does not begin with {HEAD!r}")
    inputs, at = [], len(HEAD)
    while at < len(content):
        size = int.from_bytes(content[at : at + 4], "little")
        inputs.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    if at != len(content):
        raise ValueError(f"{path} ends within an input")
    return inputs


def write(path: Path, inputs: Iterable[bytes], limit: int = LIMIT) -> int:
    """Packs inputs, the shortest first, as many as fit; returns how many."""
    packed, count = bytearray(HEAD), 0
    for content in sorted(set(inputs), key=lambda item: (len(item), item)):
        if len(packed) + 4 + len(content) > limit:
            break
        packed += len(content).to_bytes(4, "little") + content
        count += 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed)
    return count


def unpack(path: Path, folder: Path) -> int:
    """A file for each input, as libFuzzer reads and names them; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs = read(path) if path.exists() else []
    for content in inputs:
        (folder / hashlib.sha1(content, usedforsecurity=False).hexdigest()).write_bytes(content)
    return len(inputs)


def pack(folder: Path, path: Path, limit: int = LIMIT) -> int:
    return write(path, (item.read_bytes() for item in folder.iterdir()), limit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["pack", "unpack"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--limit", type=int, default=LIMIT, help="bytes of a packed corpus")
    options = parser.parse_args()
    if options.what == "unpack":
        count = unpack(options.source, options.target)
    else:
        count = pack(options.source, options.target, options.limit)
    print(f"{count} inputs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
