"""`hy3d-rocm bench`: the delight pipeline, measured on the machine at hand.

Each bench prints a table and ends in a recommendation that is computed from it. See docs/bench.md.
"""


class BenchError(Exception):
    """The bench cannot be run; the text says why and what to do."""
