"""Triton's interpreter made fit for checking: addresses watched, bf16 mended, memory poisoned.

To be used in a process of its own that was started with TRITON_INTERPRET=1. Of Triton 3.6 it mends:

- a dot of bf16 multiplies the 16-bit patterns as if they were integers;
- f32 becomes bf16 by cutting, where GPUs round to the nearest, ties to even;
- `range` over a run-time value fails with NumPy 2.4 (a one-element array is no index any more).
"""

from __future__ import annotations

from typing import Any

from tools.dev.gfx import host


class Addresses:
    """The memory that the running kernel was given: [first, last) of each tensor."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.checked = 0

    def give(self, *tensors: Any) -> None:
        """Tensors of one launch. A view's range ends with its last element."""
        self.ranges = []
        for tensor in tensors:
            if hasattr(tensor, "data_ptr") and tensor.numel():
                first, size = host.reach(tensor)
                self.ranges.append((first, first + size))

    def check(self, pointers: Any, mask: Any, what: str) -> None:
        import numpy

        wanted = pointers.data[numpy.broadcast_to(mask.data.astype(bool), pointers.data.shape)]
        size = pointers.get_element_ty().primitive_bitwidth // 8
        inside = numpy.zeros(wanted.shape, dtype=bool)
        for first, last in self.ranges:
            inside |= (wanted >= first) & (wanted + size <= last)
        self.checked += wanted.size
        if not inside.all():
            raise IndexError(f"{int((~inside).sum())} of {wanted.size} {what} outside any tensor")


def _bf16_as_f32(handle: Any, language: Any) -> Any:
    import numpy

    if handle.dtype.scalar != language.bfloat16:
        return handle.data
    return (handle.data.astype(numpy.uint32) << 16).view(numpy.float32)


def _f32_as_bf16(values: Any) -> Any:
    """Bits of the nearest bf16, ties to even; NaN stays NaN."""
    import numpy

    bits = numpy.ascontiguousarray(values, dtype=numpy.float32).view(numpy.uint32)
    even = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    return numpy.where(numpy.isnan(values), 0x7FC0, even).astype(numpy.uint16)


def prepare_interpreter() -> Addresses:
    """Mends the interpreter, watches each address, and makes NaN of what torch allocates."""
    import numpy
    import triton.language as language
    from triton.runtime import interpreter

    from hy3d_rocm.conv.triton import jit

    addresses = Addresses()
    builder = interpreter.InterpreterBuilder
    load, store, cast = builder.create_masked_load, builder.create_masked_store, builder.cast_impl
    handle, before = interpreter.TensorHandle, interpreter._patch_lang_tensor
    launch = jit.launch

    def masked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        addresses.check(pointers, mask, "reads")
        return load(self, pointers, mask, *rest)

    def masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        addresses.check(pointers, mask, "writes")
        return store(self, pointers, value, mask, *rest)

    def dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        left, right = _bf16_as_f32(a, language), _bf16_as_f32(b, language)
        total = numpy.matmul(left, right, dtype=d.data.dtype) + d.data
        return handle(total, d.dtype.scalar)

    def cast_impl(self: Any, source: Any, dtype: Any) -> Any:
        if source.dtype.scalar == language.float32 and dtype.scalar == language.bfloat16:
            return handle(_f32_as_bf16(source.data), dtype.scalar)
        return cast(self, source, dtype)

    def give(item: Any, operands: Any) -> Any:
        addresses.give(*(operands.tensors[operands.names.index(name)] for name, _ in item.operands))
        return launch(item, operands)

    def patch_tensor(tensor: Any, scope: Any) -> None:
        before(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    builder.create_masked_load, builder.create_masked_store = masked_load, masked_store
    builder.create_dot = dot
    builder.cast_impl = cast_impl
    jit.launch = give
    interpreter._patch_lang_tensor = patch_tensor
    # Results need not come back from anywhere, and copying untouched gigabytes would touch them.
    interpreter.GridExecutor._restore_args_dev = lambda *_: None
    host.prepare_torch(host.Changes())
    return addresses


def convolve(p: Any, x: Any, weight: Any, out: Any, config: Any, arch: str = "gfx1100") -> None:
    """out = x * weight, by the launches of one compute unit."""
    from hy3d_rocm.conv.triton import launch, plan, steps, work

    lies, target = plan.Layout.of(x, out, weight), work.Target(arch, 1, tile=config)
    made = steps.make_steps(p, lies, launch._NAMES[out.dtype], False, target)
    launch._carry_out(made, x, weight, None, out)
