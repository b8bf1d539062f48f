"""A VAE that somebody changed in place computes what its modules now compute, never what they did.

Each way of changing it, before the first decode and between two: "streamed" is refused in a
sentence, and what "auto" and "tiled" give is what the VAE's own code makes.
"""

from __future__ import annotations

import functools
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import torch.nn.functional as F  # noqa: E402
from decode_doubles import relative_error, tiny_latents, tiny_pixels, tiny_vae  # noqa: E402
from decode_originals import latent_diffusion_original, wan_original  # noqa: E402
from torch import nn  # noqa: E402

from hy3d_rocm.decode.executor import decode, decode_with_report, encode  # noqa: E402
from hy3d_rocm.decode.families import changes, family_for  # noqa: E402
from hy3d_rocm.decode.report import DecodeOptions  # noqa: E402

Undo = Callable[[], object]
ChangeIt = Callable[[Any], "Undo | None"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Layers this small only wait for a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def convolution(vae: Any) -> Any:
    """The last convolution before the middle block's first sum, without the module that pads."""
    module = vae.decoder.mid_block.resnets[0].conv2
    return getattr(module, "conv", module)


def resnet(vae: Any) -> Any:
    return vae.decoder.mid_block.resnets[0]


# Ways to change a VAE. What comes back, if anything, takes the change back.


def forward_hook(vae: Any) -> None:
    convolution(vae).register_forward_hook(lambda m, args, made: made * -3)


def forward_hook_with_kwargs(vae: Any) -> None:
    convolution(vae).register_forward_hook(lambda m, a, k, made: made * -3, with_kwargs=True)


def hook_that_is_always_called(vae: Any) -> None:
    resnet(vae).register_forward_hook(lambda m, args, made: made * -3, always_call=True)


def forward_pre_hook(vae: Any) -> None:
    convolution(vae).register_forward_pre_hook(lambda m, args: (args[0] * -3, *args[1:]))


def hook_of_the_whole_decoder(vae: Any) -> None:
    vae.decoder.register_forward_hook(lambda m, args, made: made * 0.5)


def hook_of_every_module(vae: Any) -> Undo:
    kind = type(convolution(vae))

    def tenth(module: Any, args: Any, made: Any) -> Any:
        return made * -3 if isinstance(module, kind) else made

    return nn.modules.module.register_module_forward_hook(tenth).remove


def pre_hook_of_every_module(vae: Any) -> Undo:
    def tenth(module: Any, args: Any) -> Any:
        return (args[0] * -3,) if isinstance(module, nn.SiLU) else None

    return nn.modules.module.register_module_forward_pre_hook(tenth).remove


def own_forward(vae: Any) -> None:
    module = convolution(vae)
    before = module.forward
    module.forward = lambda *args, **more: before(*args, **more) * -3


def own_forward_as_a_method(vae: Any) -> None:
    block = resnet(vae)

    def forward(self: Any, x: Any, *args: Any, **more: Any) -> Any:
        return type(self).forward(self, x, *args, **more) * -3

    block.forward = types.MethodType(forward, block)


def forward_of_another_module(vae: Any) -> None:
    """The right function, bound to other weights."""
    first, second = vae.decoder.mid_block.resnets
    first.forward = second.forward


def own_call_impl(vae: Any) -> None:
    block = resnet(vae)
    before = block._call_impl
    block._call_impl = lambda *args, **more: before(*args, **more) * -3


def compiled_into_something_else(vae: Any) -> None:
    block = resnet(vae)
    before = block._call_impl
    block._compiled_call_impl = lambda *args, **more: before(*args, **more) * -3


def subclassed_convolution(vae: Any) -> None:
    module = convolution(vae)

    class Half(type(module)):  # type: ignore[misc]
        def forward(self, *args: Any, **more: Any) -> Any:
            return super().forward(*args, **more) * -3

    module.__class__ = Half


def subclass_that_shrinks_large_pictures(vae: Any) -> None:
    """Which no small latent can tell."""
    module = convolution(vae)

    class Half(type(module)):  # type: ignore[misc]
        def forward(self, x: Any, *args: Any, **more: Any) -> Any:
            made = super().forward(x, *args, **more)
            return made * -3 if x.shape[-1] > 3 else made

    module.__class__ = Half


def subclassed_silu(vae: Any) -> None:
    class Softer(nn.SiLU):
        def forward(self, x: Any) -> Any:
            return super().forward(x) * -3

    resnet(vae).nonlinearity = Softer()


def subclassed_norm(vae: Any) -> None:
    norm = resnet(vae).norm1

    class Softer(type(norm)):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return super().forward(x) * -3

    norm.__class__ = Softer


def seamless_tiling(vae: Any) -> None:
    """As the web UIs' patch: every convolution wraps around in width."""

    def wrapped(self: Any, x: Any, weight: Any, bias: Any) -> Any:
        width = weight.shape[-1] // 2
        if width and not self.padding[-1]:  # padded by whoever holds it
            x = x[..., width:-width] if x.shape[-1] > 2 * width else x
        more = [width, width] + [n for p in reversed(self.padding[:-1]) for n in (p, p)]
        x = F.pad(F.pad(x, [width, width] + [0] * (2 * x.ndim - 6), mode="circular"),
                  [0, 0, *more[2:]])  # fmt: skip
        call = F.conv2d if weight.ndim == 4 else F.conv3d
        return call(x, weight, bias, self.stride, 0, self.dilation, self.groups)

    for module in vae.modules():
        if isinstance(module, (nn.Conv2d, nn.Conv3d)) and set(module.stride) == {1}:
            module._conv_forward = types.MethodType(wrapped, module)


def circular_padding_mode(vae: Any) -> None:
    """Where a convolution pads by itself; where another does, it is to no effect."""
    for module in vae.modules():
        if isinstance(module, (nn.Conv2d, nn.Conv3d)):
            module.padding_mode = "circular"


def conv_forward_of_the_class(vae: Any) -> Undo:
    kind = nn.Conv2d if convolution(vae).weight.ndim == 4 else nn.Conv3d
    before = kind._conv_forward
    kind._conv_forward = lambda self, x, w, b: before(self, x, w, b) * -3  # type: ignore[method-assign]
    return functools.partial(setattr, kind, "_conv_forward", before)


def forward_of_another_class(vae: Any) -> Undo:
    """A function of torch's own, in the wrong place."""
    before = nn.SiLU.forward
    nn.SiLU.forward = nn.Tanh.forward  # type: ignore[method-assign, assignment]
    return functools.partial(setattr, nn.SiLU, "forward", before)


def code_of_a_function(vae: Any) -> Undo:
    """The same function object, another code."""

    def forward(self: Any, input: Any) -> Any:  # noqa: A002
        return input * -3

    before = nn.SiLU.forward.__code__
    nn.SiLU.forward.__code__ = forward.__code__
    return functools.partial(setattr, nn.SiLU.forward, "__code__", before)


def call_of_every_module(vae: Any) -> Undo:
    before = nn.Module._call_impl

    def call(self: Any, *args: Any, **more: Any) -> Any:
        made = before(self, *args, **more)
        return made * -3 if isinstance(self, nn.SiLU) else made

    nn.Module._call_impl = call
    return functools.partial(setattr, nn.Module, "_call_impl", before)


def call_that_the_class_did_not_have(vae: Any) -> Undo:
    kind = type(resnet(vae))
    kind.__call__ = lambda self, *args, **more: nn.Module.__call__(self, *args, **more) * -3
    return functools.partial(delattr, kind, "__call__")


def block_forward_of_the_class(vae: Any) -> Undo:
    kind = type(resnet(vae))
    before = kind.forward

    @functools.wraps(before)
    def forward(self: Any, *args: Any, **more: Any) -> Any:
        return before(self, *args, **more) * -3

    kind.forward = forward
    return functools.partial(setattr, kind, "forward", before)


def decode_of_the_class(vae: Any) -> Undo:
    kind = type(vae)
    before = kind.decode

    @functools.wraps(before)
    def darker(self: Any, *args: Any, **more: Any) -> Any:
        made = before(self, *args, **more)
        made.sample = made.sample * -3
        return made

    kind.decode = darker
    return functools.partial(setattr, kind, "decode", before)


def private_decode_of_the_class(vae: Any) -> Undo:
    kind = type(vae)
    before = kind._decode

    def darker(self: Any, *args: Any, **more: Any) -> Any:
        made = before(self, *args, **more)
        if isinstance(made, tuple):
            return (made[0] * -3, *made[1:])
        made.sample = made.sample * -3
        return made

    kind._decode = darker
    return functools.partial(setattr, kind, "_decode", before)


def decode_of_the_instance(vae: Any) -> None:
    before = vae.decode

    def darker(*args: Any, **more: Any) -> Any:
        made = before(*args, **more)
        made.sample = made.sample * -3
        return made

    vae.decode = darker


def weight_norm(vae: Any) -> None:
    module = nn.utils.weight_norm(convolution(vae))
    with torch.no_grad():
        module.weight_g.mul_(-3)


def parametrised(vae: Any) -> None:
    class Tenth(nn.Module):
        def forward(self, weight: Any) -> Any:
            return weight * -3

    nn.utils.parametrize.register_parametrization(convolution(vae), "weight", Tenth())


def spectral_norm(vae: Any) -> None:
    nn.utils.spectral_norm(convolution(vae))


def attention_linear(vae: Any) -> Any:
    attention = vae.decoder.mid_block.attentions[0]
    return attention, next(n for n in ("to_v", "to_qkv") if hasattr(attention, n))


def adapted_attention(vae: Any) -> None:
    """A layer with a low-rank addition, whose `weight` is the layer's as PEFT has it."""
    attention, name = attention_linear(vae)

    class Adapted(nn.Module):
        def __init__(self, base: Any) -> None:
            super().__init__()
            self._base = [base]  # so that no parameter tells

        weight = property(lambda self: self._base[0].weight)
        bias = property(lambda self: self._base[0].bias)

        def forward(self, x: Any) -> Any:
            return self._base[0](x) + 2 * x.repeat(1, *[1] * (x.ndim - 1)).mean()

    setattr(attention, name, Adapted(getattr(attention, name)))


def subclassed_tensor(vae: Any) -> None:
    """As quantised weights: what the values mean the tensor's class says."""

    class Quantised(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), more: Any = None) -> Any:
            plain = [a.as_subclass(torch.Tensor) if isinstance(a, cls) else a for a in args]
            if func in (F.conv3d, F.conv2d, torch.conv3d, torch.conv2d):
                plain[1] = plain[1] * -3
            return func(*plain, **(more or {}))

    module = convolution(vae)
    weight = module.weight.detach().as_subclass(Quantised)
    del module.weight
    module.register_buffer("weight", weight)


def attention_processor(vae: Any) -> None:
    class Processor:
        def __call__(self, attn: Any, x: Any, *args: Any, **more: Any) -> Any:
            return x * -3

    vae.decoder.mid_block.attentions[0].set_processor(Processor())


def another_dropout(vae: Any) -> None:
    """What is nothing in an unchanged VAE, and so is no layer."""
    resnet(vae).dropout = nn.Softplus()


def appended_module(vae: Any) -> None:
    """Behind the last that is looked for."""
    for module in vae.decoder.modules():
        if type(module) is nn.Sequential and len(module) == 2:
            module.append(nn.ReLU())


def up_sampling_mode(vae: Any) -> None:
    for module in vae.decoder.modules():
        if isinstance(module, nn.Upsample):
            module.mode = "bilinear"


def dropout_while_training(vae: Any) -> None:
    vae.train()
    for module in vae.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.9


def padding_function(vae: Any) -> Undo:
    """A function of torch's that every module calls, replaced."""
    before = F.pad

    def wraps_around(x: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
        return before(x, pad, "constant", 3.0)

    F.pad = wraps_around
    return functools.partial(setattr, F, "pad", before)


def attention_function_that_is_another(vae: Any) -> Undo:
    before = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = lambda q, k, v, *args, **more: v  # type: ignore[assignment]
    return functools.partial(setattr, F, "scaled_dot_product_attention", before)


EVERYWHERE: tuple[ChangeIt, ...] = (
    forward_hook, forward_hook_with_kwargs, hook_that_is_always_called, forward_pre_hook,
    hook_of_the_whole_decoder, hook_of_every_module, pre_hook_of_every_module, own_forward,
    own_forward_as_a_method, own_call_impl,
    compiled_into_something_else, subclassed_convolution, subclass_that_shrinks_large_pictures,
    subclassed_silu, subclassed_norm, conv_forward_of_the_class, forward_of_another_class,
    code_of_a_function, call_of_every_module, call_that_the_class_did_not_have,
    block_forward_of_the_class, decode_of_the_class, private_decode_of_the_class,
    decode_of_the_instance, weight_norm, parametrised, spectral_norm, subclassed_tensor,
)  # fmt: skip
SOMEWHERE: dict[ChangeIt, tuple[str, ...]] = {
    forward_of_another_module: ("hunyuan", "image"),
    attention_function_that_is_another: ("hunyuan", "image"),
    seamless_tiling: ("image", "wan"),
    circular_padding_mode: ("image",),
    adapted_attention: ("hunyuan", "image"),
    attention_processor: ("hunyuan", "image"),
    another_dropout: ("hunyuan", "wan", "image"),
    appended_module: ("wan", "wan22"),
    up_sampling_mode: ("wan", "wan22"),
    dropout_while_training: ("hunyuan", "wan", "image"),
    padding_function: ("wan", "hunyuan"),
}
# The families' own code is asked in many small decodes, which take a second or so of Wan's.
CASES = [(kind, change) for change in EVERYWHERE for kind in ("hunyuan", "image", "ltx")]
CASES += [
    (kind, change)
    for kind in ("hunyuan15", "wan", "wan22")
    for change in (forward_hook, own_forward, subclassed_convolution, block_forward_of_the_class)
]
CASES += [(kind, change) for change, kinds in SOMEWHERE.items() for kind in kinds]
RANDOM = (dropout_while_training,)


class Opaque:
    """A VAE of which nothing but decode() can be known."""

    def __init__(self, vae: Any) -> None:
        self.decode = lambda z: vae.decode(z)
        self.decoder_of = vae  # where the parameters are


def plain(vae: Any, z: Any) -> Any:
    """The VAE's own unsplit decode."""
    image = z.shape[2] == 1
    with torch.no_grad():
        torch.manual_seed(3)
        made = vae.decode(z[:, :, 0] if image else z)
        made = getattr(made, "sample", made)
    return made.unsqueeze(2) if image else made


def latents(kind: str, vae: Any) -> Any:
    return tiny_latents(vae, 1 if kind == "image" else 3, 3, 4)


@pytest.mark.parametrize("when", ["first", "second"])
@pytest.mark.parametrize(("kind", "change"), CASES, ids=lambda p: getattr(p, "__name__", p))
def test_a_change_is_never_ignored(kind: str, change: ChangeIt, when: str) -> None:
    vae = tiny_vae(kind)
    z = latents(kind, tiny_vae(kind))
    unchanged = plain(vae, z)
    if when == "second":
        before = decode(vae, z, strategy="streamed")
        assert relative_error(before, unchanged) <= 1e-4
    undo = change(vae)
    try:
        wanted = plain(vae, z)
        assert relative_error(wanted, unchanged) > 1e-2, "it changes nothing"
        with pytest.raises(ValueError, match='"streamed" .* need a VAE whose layers are known'):
            decode(vae, z, strategy="streamed")
        torch.manual_seed(3)
        got, report = decode_with_report(vae, z)
        assert "Its own code runs" in report.reason
        assert change in RANDOM or torch.equal(got, wanted)
    finally:
        if undo is not None:
            undo()


TILES = DecodeOptions(halo_pixels=16, overlap_pixels=16, min_tile_pixels=16)


@pytest.mark.parametrize("when", ["first", "second"])
@pytest.mark.parametrize(
    "change",
    [forward_hook, own_forward, subclassed_silu, decode_of_the_class, parametrised, seamless_tiling],
)
def test_tiles_of_a_changed_vae_are_tiles_of_its_own_code(change: ChangeIt, when: str) -> None:
    vae = tiny_vae("image")
    z = tiny_latents(vae, 1, 16, 16)
    ignored = None
    if when == "second":
        ignored = decode_with_report(vae, z, strategy="tiled", options=TILES)[0]
    undo = change(vae)
    try:
        got, report = decode_with_report(vae, z, strategy="tiled", options=TILES)
        assert report.strategy == "tiled"
        assert report.estimate_error is None  # nobody can tell
        wanted = decode_with_report(Opaque(vae), z, strategy="tiled", options=TILES)[0]
        assert torch.equal(got, wanted)
        assert ignored is None or relative_error(ignored, wanted) > 1e-2
    finally:
        if undo is not None:
            undo()


# What is as it was is streamed


def accelerate_hook(vae: Any) -> None:
    """As enable_model_cpu_offload() has it, on every module."""
    hooks = pytest.importorskip("accelerate.hooks")
    for module in vae.modules():
        hooks.add_hook_to_module(module, hooks.AlignDevicesHook(execution_device="cpu"))
    hooks.add_hook_to_module(vae, hooks.ModelHook(), append=True)


def accelerate_hook_that_was_removed(vae: Any) -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    accelerate_hook(vae)
    hooks.remove_hook_from_module(vae, recurse=True)


def cpu_offload_with_hook(vae: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    vae.offload = accelerate.cpu_offload_with_hook(vae, execution_device="cpu")[1]


def group_offloading(vae: Any) -> None:
    vae.enable_group_offload(onload_device=torch.device("cpu"), offload_type="leaf_level")


def compiled_in_place(vae: Any) -> None:
    for block in vae.decoder.up_blocks:
        block.compile()


def compiled_decoder(vae: Any) -> None:
    vae.decoder = torch.compile(vae.decoder)


def compiled_decode(vae: Any) -> None:
    vae.decode = torch.compile(vae.decode)


def other_processors(vae: Any) -> None:
    processors = pytest.importorskip("diffusers.models.attention_processor")
    for module in vae.modules():
        if hasattr(module, "set_processor"):
            module.set_processor(processors.AttnProcessor())


def same_attention_from_elsewhere(vae: Any) -> Undo:
    """As programs put their own kernels in the place of torch's attention."""
    before = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = lambda *args, **more: before(*args, **more)  # type: ignore[assignment]
    return functools.partial(setattr, F, "scaled_dot_product_attention", before)


def other_weights(vae: Any) -> None:
    with torch.no_grad():
        for parameter in vae.parameters():
            parameter.mul_(1.1)


def hook_of_the_encoder(vae: Any) -> None:
    vae.encoder.register_forward_hook(lambda m, args, made: made * -3)


def what_a_decode_never_runs(vae: Any) -> None:
    vae.train()
    vae.enable_tiling()
    vae.requires_grad_(True)
    vae.to = lambda *args, **more: vae
    for module in vae.decoder.modules():
        module.register_full_backward_hook(lambda *_: None)
        module.register_state_dict_pre_hook(lambda *_: None)
    vae.decoder.gradient_checkpointing = True


SAME: tuple[ChangeIt, ...] = (
    accelerate_hook, accelerate_hook_that_was_removed, cpu_offload_with_hook, group_offloading,
    compiled_in_place, compiled_decoder, compiled_decode, other_processors,
    same_attention_from_elsewhere, other_weights, hook_of_the_encoder, what_a_decode_never_runs,
)  # fmt: skip


@pytest.mark.parametrize("when", ["first", "second"])
@pytest.mark.parametrize("kind", ["hunyuan", "wan"])
@pytest.mark.parametrize("change", SAME)
def test_what_leaves_the_function_as_it_is_is_streamed(
    kind: str, change: ChangeIt, when: str
) -> None:
    vae, twin = tiny_vae(kind), tiny_vae(kind)
    z = latents(kind, tiny_vae(kind))
    if change is other_weights:
        change(twin)
    wanted = plain(twin, z)
    if when == "second":
        decode(vae, z, strategy="streamed")
    undo = change(vae)
    try:
        got, report = decode_with_report(vae, z, strategy="streamed")
    finally:
        if undo is not None:
            undo()
    assert report.strategy == "streamed"
    assert relative_error(got, wanted) <= 1e-4


@pytest.mark.parametrize("change", [forward_hook, own_forward, block_forward_of_the_class])
def test_a_change_that_is_taken_back_is_forgotten(change: ChangeIt) -> None:
    vae = tiny_vae("image")
    z = latents("image", vae)
    wanted = plain(vae, z)
    undo = change(vae)
    with pytest.raises(ValueError, match="need a VAE whose layers are known"):
        decode(vae, z, strategy="streamed")
    convolution(vae)._forward_hooks.clear()
    vars(convolution(vae)).pop("forward", None)
    if undo is not None:
        undo()
    assert relative_error(decode(vae, z, strategy="streamed"), wanted) <= 1e-4


def test_hooks_of_accelerate_that_do_more_than_move_weights_are_not_passed_by() -> None:
    hooks = pytest.importorskip("accelerate.hooks")

    class Tripled(hooks.ModelHook):  # type: ignore[misc]
        def post_forward(self, module: Any, output: Any) -> Any:
            return output * -3

    for hook in (Tripled(), hooks.SequentialHook(hooks.ModelHook(), Tripled())):
        vae = tiny_vae("image")
        z = latents("image", vae)
        hooks.add_hook_to_module(convolution(vae), hook)
        with pytest.raises(ValueError, match=r"conv2 has a hook of .*around its forward"):
            decode(vae, z, strategy="streamed")
        assert torch.equal(decode(vae, z), plain(vae, z))


# Encodes, VAEs that are only built alike, families that are kept


@pytest.mark.parametrize("when", ["first", "second"])
@pytest.mark.parametrize("kind", ["hunyuan", "image"])
def test_a_changed_encoder_is_not_ignored_either(kind: str, when: str) -> None:
    vae = tiny_vae(kind)
    x = tiny_pixels(1 if kind == "image" else 5, 32, 32)
    if when == "second":
        encode(vae, x, strategy="streamed")
    vae.encoder.mid_block.resnets[0].conv2.register_forward_hook(lambda m, args, made: made * -3)
    with pytest.raises(ValueError, match="need a VAE whose layers are known"):
        encode(vae, x, strategy="streamed")
    with torch.no_grad():
        wanted = vae.encode(x[:, :, 0] if kind == "image" else x).latent_dist.mean
    assert torch.equal(encode(vae, x), wanted.unsqueeze(2) if kind == "image" else wanted)
    assert decode_with_report(vae, latents(kind, vae), strategy="streamed")[1].strategy == "streamed"


def test_a_class_whose_encode_does_otherwise_is_encoded_by_it() -> None:
    vae = tiny_vae("image")

    class Somebodys(type(vae)):  # type: ignore[misc]
        def _encode(self, x: Any) -> Any:
            return super()._encode(x) * 0.5

    vae.__class__ = Somebodys
    x = tiny_pixels(1, 32, 32)
    with pytest.raises(ValueError, match="encodes a small image to other values"):
        encode(vae, x, strategy="streamed")
    with torch.no_grad():
        wanted = vae.encode(x[:, :, 0]).latent_dist.mean.unsqueeze(2)
    assert torch.equal(encode(vae, x), wanted)
    vae.__class__ = type("SomebodysOther", (Somebodys.__base__,), {})
    assert relative_error(encode(vae, x, strategy="streamed"), plain_mean(vae, x)) <= 1e-4


def plain_mean(vae: Any, x: Any) -> Any:
    with torch.no_grad():
        return vae.encode(x[:, :, 0]).latent_dist.mean.unsqueeze(2)


@pytest.mark.parametrize(
    "change", [forward_hook, own_forward, subclassed_convolution, weight_norm, up_sampling_mode]
)
@pytest.mark.parametrize("when", ["first", "second"])
def test_a_vae_in_its_authors_layout_is_looked_at_as_well(change: ChangeIt, when: str) -> None:
    inner = tiny_vae("wan")
    vae = wan_original(inner)
    z = latents("wan", inner)
    if when == "second":
        decode(vae, z, strategy="streamed")
    change(inner)
    with pytest.raises(ValueError, match="need a VAE whose layers are known"):
        decode(vae, z, strategy="streamed")
    assert torch.equal(decode(vae, z), plain(vae, z))


def test_a_family_that_was_made_before_the_change_is_refused() -> None:
    vae = tiny_vae("image")
    z = latents("image", vae)
    family = family_for(vae)
    decode(family, z, strategy="streamed")
    forward_hook(vae)
    with pytest.raises(TypeError, match=r"AutoencoderKL was changed, decoder\..* has a hook"):
        decode(family, z, strategy="streamed")


def test_a_patch_at_the_cast_is_honoured_by_a_host_that_casts_and_by_nobody_else() -> None:
    class Cast(nn.Conv2d):
        """As comfy.ops' layers."""

        comfy_cast_weights = True
        weight_function: list[Any] = []  # noqa: RUF012

        def forward(self, x: Any) -> Any:
            weight = self.weight
            for change in self.weight_function:
                weight = change(weight)
            return self._conv_forward(x, weight, self.bias)

    inner = tiny_vae("image")
    module = inner.decoder.conv_out
    made = Cast(module.in_channels, module.out_channels, 3, padding=1)
    made.load_state_dict(module.state_dict())
    inner.decoder.conv_out = made.requires_grad_(False)
    vae = latent_diffusion_original(inner)

    class Comfys(type(vae)):  # type: ignore[misc]
        def decode(self, z: Any) -> Any:
            return inner.decode(z).sample

    vae.__class__ = Comfys
    z = torch.randn(1, 4, 1, 3, 4)
    assert decode_with_report(vae, z, strategy="streamed")[1].strategy == "streamed"
    made.weight_function = [lambda weight: weight * -3]
    with pytest.raises(ValueError, match=r"patched when they are read \(weight_function\)"):
        decode(vae, z, strategy="streamed")
    assert torch.equal(decode(vae, z), plain(vae, z))
    assert changes.examined(vae, casts=True).change == ""


def test_looking_at_a_vae_takes_no_time_to_speak_of() -> None:
    """HunyuanVideo's at its real width: about 1.5 ms on one core; ten times that may be another's
    load."""
    from diffusers import AutoencoderKLHunyuanVideo

    with torch.device("meta"):
        vae = AutoencoderKLHunyuanVideo()
    first = changes.examined(vae)
    seconds = []
    for _ in range(20):
        began = time.process_time()
        again = changes.examined(vae)
        seconds.append(time.process_time() - began)
    assert again.state == first.state
    assert min(seconds) < 0.015
