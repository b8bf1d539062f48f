"""What a pipeline is made of: its modules, their tensors, and the offload hooks on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Mode = Literal["resident", "model", "sequential"]


def unwrap(pipeline: Any) -> Any:
    """The pipeline behind a PipelineProxy; anything else as it is."""
    return getattr(pipeline, "__dict__", {}).get("_hy3d_pipeline", pipeline)


def components_of(pipeline: Any) -> dict[str, torch.nn.Module]:
    """Modules of a pipeline by name, in its order; each module once.

    diffusers says them itself (`components`). Hunyuan's shape pipeline has plain attributes
    (`model`, `conditioner`, sometimes `vae`). A module alone is its own only component. A
    pipeline whose `components` raises is looked at attribute by attribute.
    """
    from torch import nn

    pipeline = unwrap(pipeline)
    if isinstance(pipeline, nn.Module):
        return {type(pipeline).__name__: pipeline}
    found = _said(pipeline)
    if not any(isinstance(value, nn.Module) for value in found.values()):
        found = getattr(pipeline, "__dict__", {})
    modules: dict[str, nn.Module] = {}
    for name, value in found.items():
        if isinstance(value, nn.Module) and not any(value is known for known in modules.values()):
            modules[str(name)] = value
    return modules


def _said(pipeline: Any) -> Mapping[Any, Any]:
    try:
        found = pipeline.components
    # A strange pipeline's property may raise anything; the attributes then serve.
    except Exception:  # noqa: BLE001
        return {}
    return found if isinstance(found, Mapping) else {}


def tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and buffers of a module, the real tensors where there are any.

    Shared ones come as often as they are met; tell them apart with memory_key(). Under sequential
    offload a module's tensors are on "meta" and the hook's map has the real ones; what it does
    not have in memory (a file on disk) comes as the meta tensor, whose shape is right. Tensors
    that a quantised parameter keeps beside its data (bitsandbytes' `quant_state`, `SCB`) come too.
    """
    for part in module.modules():
        stored = _stored_weights(part)
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
            if tensor is None:
                continue
            real = stored.get(name) if tensor.is_meta else None
            yield from _inner(tensor if real is None else real)


def _stored_weights(part: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights that accelerate's AlignDevicesHook on `part` keeps in memory, by local name."""
    import torch

    weights: dict[str, torch.Tensor] = {}
    for hook in flat_hooks(part):
        kept = getattr(hook, "weights_map", None)
        source, prefix = getattr(kept, "dataset", kept), getattr(kept, "prefix", "")
        if not isinstance(source, dict):  # an OffloadedWeightsLoader would read from disk
            continue
        for name in [*part._parameters, *part._buffers]:
            value = source.get(f"{prefix}{name}")
            if isinstance(value, torch.Tensor):
                weights[name] = value
    return weights


def _inner(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor consists of: itself, or a quantised one's parts."""
    import torch

    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:  # a wrapper subclass (torchao): its own shape and dtype are a façade
        for name in flatten()[0]:
            yield from _inner(getattr(tensor, name))
        return
    yield tensor
    state = getattr(tensor, "quant_state", None)
    while state is not None:
        yield from (v for v in getattr(state, "__dict__", {}).values() if torch.is_tensor(v))
        state = getattr(state, "state2", None)
    for name in ("CB", "SCB"):
        part = getattr(tensor, name, None)
        if torch.is_tensor(part):
            yield part


def memory_key(tensor: torch.Tensor) -> object:
    """Equal for two tensors that are one piece of memory, seen in the same way.

    Two different views of one storage differ: a move to another device copies each of them.
    """
    if tensor.is_meta or tensor.numel() == 0:
        return id(tensor)
    try:
        address = tensor.data_ptr()
    except (RuntimeError, NotImplementedError):  # a subclass without storage
        return id(tensor)
    return tensor.device, address, tensor.dtype, tensor.shape, tensor.stride()


def size_bytes(tensor: torch.Tensor) -> int:
    """Bytes that the tensor takes once it is moved: elements times their size."""
    return tensor.numel() * tensor.element_size()


def bytes_on(modules: Mapping[str, torch.nn.Module], device: torch.device) -> int:
    """Bytes of the modules' tensors that are on `device` now; shared ones once."""
    return sum(size_bytes(t) for t in distinct_tensors(modules.values()) if is_on(t, device))


def count_components(pipeline: Any) -> dict[str, int]:
    """Bytes of each component's weights; a shared tensor counts where it is met first."""
    # A key is an address or an id: its tensor stays alive, so that no other can get the same.
    seen: dict[object, torch.Tensor] = {}
    counts: dict[str, int] = {}
    for name, module in components_of(pipeline).items():
        counts[name] = 0
        for tensor in tensors_of(module):
            if (key := memory_key(tensor)) not in seen:
                seen[key] = tensor
                counts[name] += size_bytes(tensor)
    return counts


def distinct_tensors(modules: Iterable[torch.nn.Module]) -> list[torch.Tensor]:
    """The modules' tensors, each piece of memory once."""
    found: dict[object, torch.Tensor] = {}
    for module in modules:
        for tensor in tensors_of(module):
            found.setdefault(memory_key(tensor), tensor)
    return list(found.values())


def is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether the tensor is on `device`; "cuda" without a number is the current one."""
    return device_of(tensor) == indexed(device)


def device_of(tensor: torch.Tensor) -> torch.device:
    """Where the tensor is."""
    return tensor.device


def is_accelerator(device: torch.device) -> bool:
    """Whether there is a difference between lying there and in main memory."""
    return device.type != "cpu"


def empty_cache(device: torch.device) -> None:
    """Has torch's allocator give back what it holds unused on a GPU."""
    import torch

    if device.type == "cuda" and torch.cuda.is_available():
        torch.cuda.empty_cache()


def indexed(device: torch.device | str) -> torch.device:
    """`device` with its number: "cuda" is the current CUDA (or HIP) device."""
    import torch

    found = torch.device(device)
    index: int | None = found.index  # torch's stubs leave the None out
    if found.type == "cuda" and index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return found


def flat_hooks(module: torch.nn.Module) -> Iterator[Any]:
    """accelerate's hooks on this very module, those inside a SequentialHook one by one."""
    waiting = [getattr(module, "_hf_hook", None)]
    while waiting:
        hook = waiting.pop(0)
        if hook is None:
            continue
        inner = getattr(hook, "hooks", None)
        if isinstance(inner, (list, tuple)):
            waiting.extend(inner)
        else:
            yield hook


def is_kind(hook: Any, name: str) -> bool:
    """Whether a hook is of accelerate's class `name`, told by name: accelerate stays unimported."""
    return any(base.__name__ == name for base in type(hook).__mro__)


def current_mode(pipeline: Any) -> Mode:
    """How the pipeline's weights are placed now.

    "model": whole components move (enable_model_cpu_offload). "sequential": each layer's weights
    move (enable_sequential_cpu_offload). "resident": no hook moves anything.
    """
    mode: Mode = "resident"
    for module in components_of(pipeline).values():
        for part in module.modules():
            for hook in flat_hooks(part):
                if is_kind(hook, "AlignDevicesHook") and getattr(hook, "offload", True):
                    return "sequential"
                if is_kind(hook, "CpuOffload"):
                    mode = "model"
    return mode


def compiled_components(pipeline: Any) -> list[str]:
    """Names of the components that torch.compile wraps, whole or in part."""
    return [
        name
        for name, module in components_of(pipeline).items()
        if any(
            "_orig_mod" in part._modules or getattr(part, "_compiled_call_impl", None) is not None
            for part in module.modules()
        )
    ]
