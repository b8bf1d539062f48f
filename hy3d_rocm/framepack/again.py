"""What one section changes that must be put back before it is run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_TEACACHE = ("enable_teacache", "num_steps", "rel_l1_thresh")


def restorer(arguments: Mapping[str, Any]) -> Callable[[], None]:
    """Puts back what a call of `sample_hunyuan` with these arguments changes: the state of its
    generator, from which the noise is drawn, and TeaCache's memory of the last steps.

    What TeaCache was told (initialize_teacache, just before the call) is told again.
    """
    generator: Any = arguments.get("generator")
    state = generator.get_state() if generator is not None else None
    transformer = arguments.get("transformer")

    def restore() -> None:
        if state is not None:
            generator.set_state(state)
        initialize = getattr(transformer, "initialize_teacache", None)
        if initialize is None:
            return
        held = vars(transformer)
        told = {name: held[name] for name in _TEACACHE if name in held}
        if told:
            initialize(**told)

    return restore
