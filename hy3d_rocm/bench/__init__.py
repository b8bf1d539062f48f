"""`hy3d-rocm bench`: the advice of a tuning guide, measured on the machine it is given for.

Each bench measures the delight pipeline (StableDiffusionInstructPix2PixPipeline), prints a table
and ends in a recommendation that is computed from the table. See docs/bench.md.
"""
