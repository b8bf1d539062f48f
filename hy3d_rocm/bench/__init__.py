"""`hy3d-rocm bench`: the delight pipeline and a video decode, measured on the machine at hand.

Each bench prints a table and ends in a recommendation that is computed from it. See docs/bench.md.
"""
