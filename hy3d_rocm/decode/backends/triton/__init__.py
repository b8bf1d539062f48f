"""The Triton backend: a layer's norm, activation, up-sampling and padding while it reads, its bias,
residual and moments while it writes.

`kernels.py` holds the device code and is the only module here that imports triton at its top;
`work.py` is pure integers; `backend.py` has TritonBackend.
"""
