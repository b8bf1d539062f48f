"""What was found of VAEs before: a second decode need not wait for that (0.1 s)."""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass
from typing import Any


@dataclass
class Seen:
    """Of a VAE in one state (changes.py), about its decode or its encode. facts: of the family,
    whose layers fit. proven: whether the VAE does what they say; None: nobody asked."""

    state: Any
    facts: Any = None
    proven: bool | None = None


_seen: weakref.WeakKeyDictionary[Any, dict[bool, Seen]] = weakref.WeakKeyDictionary()


def record(vae: Any, state: Any, encode: bool) -> Seen:
    """What is known of the VAE in this state, to be written in; of another state nothing is."""
    made = Seen(state)
    with contextlib.suppress(TypeError):  # no weak references
        known = _seen.setdefault(vae, {})
        if encode not in known or known[encode].state != state:
            known[encode] = made
        return known[encode]
    return made
