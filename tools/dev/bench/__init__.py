"""Benches of kernels beside their peers: `python -m tools.dev.bench conv|gpu|raster` in a checkout.

conv: the C convolution beside oneDNN; gpu: the router's tiers beside MIOpen or cuDNN; raster: the C
rasteriser beside what else draws on a CPU. docs/bench.md explains their figures.
"""
