"""A plain matrix product: what tests of compile.py and isa.py compile, apart from the product."""

import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, m, n, k, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)[:, None].to(tl.int64)
    j = tl.program_id(1) * BN + tl.arange(0, BN)[None, :].to(tl.int64)
    r = tl.arange(0, BK).to(tl.int64)
    total = tl.zeros((BM, BN), tl.float32)
    for s in range(0, k, BK):
        ra, rb = (s + r)[None, :], (s + r)[:, None]
        x = tl.load(a + i * sa + ra, mask=(i < m) & (ra < k), other=0.0)
        y = tl.load(b + rb * sb + j, mask=(rb < k) & (j < n), other=0.0)
        total = tl.dot(x, y, total, input_precision="ieee")
    tl.store(c + i * sc + j, total, mask=(i < m) & (j < n))


@triton.jit
def unknown_name(a, BM: tl.constexpr):
    tl.store(a + tl.arange(0, BM), no_such_value)  # noqa: F821 - the error that is tested
