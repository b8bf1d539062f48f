"""Small kernels for the tests of launches and of the emulator."""

import triton
import triton.language as tl

MIXED = (
    "flag", "tiny", "short", "plain", "wide", "half", "brain", "single", "double", "byte", "far",
)  # fmt: skip


@triton.jit(do_not_specialize=[*MIXED])
def mixed(
    x, flag: tl.int1, tiny: tl.int8, short: tl.int16, plain, out, wide: tl.int64, half: tl.float16,
    BLOCK: tl.constexpr, brain: tl.bfloat16, single, double: tl.float64, byte: tl.uint8, last,
    far: tl.uint64,
):  # fmt: skip
    """Arguments of every type, none of them in an order that saves padding; each is stored."""
    at = tl.arange(0, BLOCK)
    total = tl.load(x + at).to(tl.float64) + flag + tiny + short + plain + wide + half + brain
    tl.store(out + at, total + single + double + byte + far)
    tl.store(last + at, total)


@triton.jit(do_not_specialize=["n"])
def add(x, y, out, n, BLOCK: tl.constexpr):
    """out = x + y."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n)
    tl.store(out + at, total, mask=at < n)


@triton.jit
def shared(x, out, BM: tl.constexpr):
    """out = x @ x of BM x BM elements: needs LDS."""
    i = tl.arange(0, BM)[:, None] * BM + tl.arange(0, BM)[None, :]
    tl.store(out + i, tl.dot(tl.load(x + i), tl.load(x + i)))
