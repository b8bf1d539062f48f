"""Parameters in the type and place that is computed in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor


class ModuleWeights:
    """Weights over plain modules: converted on first use, the same tensor ever after.

    A parameter that already has the type and the device is used as it is; the modules are only
    read. device "meta" gives shapes alone.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device | str) -> None:
        self.dtype = dtype
        self.device = torch.device(device)
        # The module is kept with the tensor: its id stays taken for as long as it is a key.
        self._known: dict[tuple[int, str], tuple[Any, Tensor | None]] = {}

    def of(self, module: Any, name: str) -> Tensor | None:
        """`module`'s parameter or buffer `name`; None where it has none (a plain number as a
        stand-in for one, as Wan's RMS_norm has it for its bias, counts as none only if it is 0)."""
        key = (id(module), name)
        if key not in self._known:
            self._known[key] = (module, self._converted(module, name))
        return self._known[key][1]

    def _converted(self, module: Any, name: str) -> Tensor | None:
        found = getattr(module, name, None)
        if found is None or (isinstance(found, (int, float)) and found == 0):
            return None
        if not isinstance(found, torch.Tensor):
            raise TypeError(
                f"{type(module).__name__}.{name} is a {type(found).__name__}: a parameter or "
                "buffer was expected; this VAE can only be decoded whole"
            )
        dtype = self.dtype if found.is_floating_point() else found.dtype
        if self.device.type == "meta":
            return torch.empty(found.shape, dtype=dtype, device="meta")
        return found.detach().to(device=self.device, dtype=dtype)
