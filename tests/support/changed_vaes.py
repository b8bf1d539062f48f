"""Ways to change a VAE of decode_doubles in place, and ways that leave what it computes as it is.

What a way gives back, if anything, takes the change back.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Undo = Callable[[], object]
ChangeIt = Callable[[Any], "Undo | None"]


def convolution(vae: Any) -> Any:
    """The last convolution before the middle block's first sum, without the module that pads."""
    module = vae.decoder.mid_block.resnets[0].conv2
    return getattr(module, "conv", module)


def resnet(vae: Any) -> Any:
    return vae.decoder.mid_block.resnets[0]


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
