"""What oneDNN keeps of each shape of a convolution that it has computed: memory that stays.

    python tests/bench/measure_generated_code.py --dtype bfloat16 --channels 32

Each shape is computed once; the process's memory, after the heap gave back what it can, is printed
above what it was after the first shape. decoding/memory/workspace.py plans with the largest of the
figures a shape (CODE_BYTES) and with where they end (CODE_LIMIT). On a CPU whose oneDNN has no
bfloat16 there is nothing to measure in that type.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
from pathlib import Path

import torch

SHOWN = (10, 50, 100, 200, 300, 350, 400, 500, 700, 1000, 1200, 1500)


def resident_kb() -> int:
    """Memory of this process, KB."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


def main() -> None:
    """Prints a line for each of SHOWN."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    dtype, channels = getattr(torch, asked.dtype), asked.channels
    weight = torch.randn(channels, channels, 3, 3, 3).to(dtype)

    def compute(rows: int, columns: int) -> None:
        x = torch.zeros(1, channels, 3, rows, columns, dtype=dtype)
        ones = (1, 1, 1)
        torch.ops.aten.mkldnn_convolution(x, weight, None, ones, ones, ones, 1)

    compute(4, 4)
    before = resident_kb()
    shapes = [(rows, columns) for rows in range(5, 45) for columns in range(5, 45)]
    for count, (rows, columns) in enumerate(shapes[: SHOWN[-1]], 1):
        compute(rows, columns)
        if count in SHOWN:
            kept = resident_kb() - before
            print(f"{count:5} shapes  {kept / 1024:7.1f} MB  {kept / count:6.1f} KB each")


if __name__ == "__main__":
    main()
