"""Heads that torch's fused kernels are not trusted with on AMD cards."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = pytest.importorskip("torch.nn.functional")

import hy3d_rocm  # noqa: E402
from hy3d_rocm.conv import attention  # noqa: E402
from hy3d_rocm.decoding import faults  # noqa: E402
from hy3d_rocm.decoding.backends.attention import weigh  # noqa: E402
from hy3d_rocm.decoding.memory.workspace import OperatorWorkspace  # noqa: E402


def operands(*size: int, dtype: Any = torch.float32) -> list[Any]:
    rng = torch.Generator().manual_seed(3)
    return [torch.randn(size, generator=rng).to(dtype) for _ in range(3)]


@pytest.fixture
def untrusted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As if the CPU were an AMD card; how many queries each product had."""
    rows: list[int] = []
    math = torch._scaled_dot_product_attention_math

    def counted(q: Any, *rest: Any, **more: Any) -> Any:
        rows.append(q.shape[-2])
        return math(q, *rest, **more)

    monkeypatch.setattr(attention, "trusts", lambda _, size: size <= attention.LARGEST_TRUSTED)
    monkeypatch.setattr(torch, "_scaled_dot_product_attention_math", counted)
    return rows


@pytest.mark.parametrize(
    ("device", "size", "hip", "expected"),
    [("cuda", 257, "7.1", False), ("cuda", 256, "7.1", True), ("cuda", 512, None, True),
     ("cpu", 512, "7.1", True), ("meta", 512, "7.1", True)],
)  # fmt: skip
def test_only_large_heads_on_rocm_are_not_left_to_torch(
    monkeypatch: pytest.MonkeyPatch, device: str, size: int, hip: str | None, expected: bool
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    assert attention.trusts(device, size) is expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_some_queries_at_a_time_give_what_torch_gives(
    monkeypatch: pytest.MonkeyPatch, untrusted: list[int], dtype: Any, scale: float | None
) -> None:
    q, k, v = operands(2, 3, 50, 320, dtype=dtype)
    wide = max(4, q.element_size())
    monkeypatch.setattr(attention, "SCORE_BYTES", 2 * 3 * 50 * wide * 7)  # of seven queries
    made = attention.by_products(q, k, v, scale)
    assert untrusted == [7] * 7 + [1]
    assert made.dtype is dtype
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), scale=scale)
    # A score's roundings: of its products, of both operands' scaling. Then an exponential's, those
    # of sums over the keys, and of the result.
    unit = 2**-53 if dtype is torch.float64 else 2**-24
    sizes = (q.double().abs() @ k.double().abs().mT).max() * (scale or 320**-0.5)
    off = torch.expm1(2 * (320 + 8) * unit * sizes) + 4 * (50 + 8) * unit + torch.finfo(dtype).eps
    assert (made.double() - expected).abs().max() <= off * v.double().abs().max()


def test_protect_keeps_large_heads_from_the_fused_kernels(untrusted: list[int]) -> None:
    large, small = operands(1, 1, 20, 512), operands(1, 1, 20, 256)
    with hy3d_rocm.protect():
        made = F.scaled_dot_product_attention(*large)
        F.scaled_dot_product_attention(*small)
    assert untrusted == [20]
    torch.testing.assert_close(made, F.scaled_dot_product_attention(*large))


def test_a_pipeline_behind_the_proxy_is_kept_from_them(
    monkeypatch: pytest.MonkeyPatch, untrusted: list[int]
) -> None:
    """A diffusers pipeline decodes by its VAE, whose one attention has a head of 512."""
    large = operands(1, 1, 20, 512)

    class Pipeline:
        device = torch.device("cpu")

        def __call__(self, **_: Any) -> Any:
            return F.scaled_dot_product_attention(*large)

    hy3d_rocm.PipelineProxy(Pipeline())()
    assert untrusted == []  # this torch is no ROCm build
    monkeypatch.setattr(torch.version, "hip", "7.1")
    made = hy3d_rocm.PipelineProxy(Pipeline())()
    assert untrusted == [20]
    torch.testing.assert_close(made, F.scaled_dot_product_attention(*large))


def test_a_vaes_own_code_is_kept_from_them_too(untrusted: list[int]) -> None:
    large = operands(1, 1, 20, 512)
    with faults.LayerByLayer(lambda: None):
        F.scaled_dot_product_attention(query=large[0], key=large[1], value=large[2])
    assert untrusted == [20]


def test_a_decodes_attention_is_kept_from_them(untrusted: list[int]) -> None:
    q, k, v = operands(1, 2, 20, 512)
    target = torch.empty(2, 20, 512)
    weigh(q, k, v, target)
    assert untrusted == [20]
    torch.testing.assert_close(target[None], F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize(
    "more", [{"is_causal": True}, {"attn_mask": torch.ones(20, 20, dtype=torch.bool).tril()}]
)
def test_masks_go_to_torchs_products_and_no_fused_kernel(
    untrusted: list[int], more: dict[str, Any]
) -> None:
    seen = []

    def function(*args: Any, **kwargs: Any) -> Any:
        cuda: Any = torch.backends.cuda
        seen.append((cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled()))
        return F.scaled_dot_product_attention(*args, **kwargs)

    large = operands(1, 1, 20, 512)
    made = attention.call(function, tuple(large), more)
    assert seen == [(False, False)]
    torch.testing.assert_close(made, F.scaled_dot_product_attention(*large, **more))


def test_what_autograd_wants_again_is_recorded(untrusted: list[int]) -> None:
    q, k, v = operands(1, 1, 20, 512)
    with torch.enable_grad():
        q.requires_grad_()
        attention.call(F.scaled_dot_product_attention, (q, k, v), {}).sum().backward()
    assert untrusted == []
    assert q.grad is not None


def test_the_bytes_that_are_planned_hold_scores_and_copies(
    monkeypatch: pytest.MonkeyPatch, untrusted: list[int]
) -> None:
    q, k, v = operands(1, 2, 100, 512, dtype=torch.bfloat16)
    monkeypatch.setattr(attention, "SCORE_BYTES", 2 * 100 * 4 * 10)  # of ten queries
    scores, copies = 2 * 10 * 100 * 4, 3 * (10 + 100) * 2 * 512 * 4
    rules = OperatorWorkspace(torch.device("cpu"))
    assert rules.attention(q, k, v, None) == 2 * scores + copies + q.nbytes
    assert rules.composes(torch.bfloat16, 512)
