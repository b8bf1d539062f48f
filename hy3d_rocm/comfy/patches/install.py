"""When upstream is patched, and whether: once all packs are loaded, and again before a prompt for
later ones; where the user says so, else where the GPU is AMD's.

ComfyUI loads packs in an order that nobody promises. Its web application calls `on_startup` after
all of them, its prompt handlers at each POST /prompt, before the prompt is validated: both lead to
`Installation.run`. Nothing here raises into ComfyUI.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from hy3d_rocm.comfy import comfy_server, settings, when_started
from hy3d_rocm.comfy.patches.engine import PatchError, PatchSet
from hy3d_rocm.comfy.patches.upstream import (
    PACKS,
    Pack,
    PatchSpec,
    Place,
    UpstreamError,
    find,
)
from hy3d_rocm.diagnose.env.choices import PATCH_VARIABLE, is_off, read_patch_choice

logger = logging.getLogger("hy3d_rocm")

_AMD_NAME = re.compile(r"\b(amd|radeon|zluda)\b", re.IGNORECASE)


def should_patch(environ: Mapping[str, str] = os.environ) -> tuple[bool, str]:
    """Whether to patch, and the reason as the rest of a sentence ("there is no AMD GPU here ...").

    HY3D_ROCM=off comes first, then HY3D_ROCM_PATCH. torch is asked only for "auto".
    """
    if is_off(environ, "HY3D_ROCM"):
        return False, "HY3D_ROCM=off"
    choice = read_patch_choice(environ)
    if choice.problem is not None:
        return False, f"{PATCH_VARIABLE}={environ.get(PATCH_VARIABLE, '')} is not understood"
    if choice.mode == "on":
        return True, f"{PATCH_VARIABLE}=on"
    if choice.mode == "off":
        return False, (
            f"{PATCH_VARIABLE}=off switches its corrections off; set it to auto or on and restart "
            "ComfyUI to have them"
        )
    found, reason = amd_gpu()
    return found, reason if found else f"{reason}; {PATCH_VARIABLE}=on patches it all the same"


def amd_gpu() -> tuple[bool, str]:
    """Whether torch computes on an AMD GPU, through ROCm or ZLUDA, and what was found.

    Never raises: what cannot be asked counts as no.
    """
    import torch

    names, hip = _gpu_names(torch.cuda), torch.version.hip
    if hip and names:
        return True, f"AMD GPU: {names[0]} (ROCm {hip})"
    for name in names:
        if _AMD_NAME.search(name):
            return True, f"AMD GPU: {name}"
    if hip:
        return False, f"there is no GPU here that torch (ROCm {hip}) can use"
    return False, f"there is no AMD GPU here ({', '.join(names) or 'torch sees no GPU'})"


def _gpu_names(cuda: Any) -> list[str]:
    """Names of the GPUs that torch sees; one that has no name to tell is "GPU <number>"."""
    try:
        count = cuda.device_count() if cuda.is_available() else 0
    except Exception:  # noqa: BLE001  (a driver that cannot be asked is a GPU that cannot be used)
        return []
    names = []
    for index in range(count):
        try:
            names.append(str(cuda.get_device_name(index)))
        except Exception:  # noqa: BLE001
            names.append(f"GPU {index}")
    return names


# On the server, not in this module: a reload of this package must find what it did before.
_MARK = "_hy3d_rocm_patches"


def install_patches(
    environ: Mapping[str, str] = os.environ, packs: Sequence[Pack] = PACKS
) -> Installation | None:
    """Have upstream patched when ComfyUI is ready: hook into its server, once. None (and nothing
    done) where there is none. Called once the nodes are made."""
    server = comfy_server()
    if server is None:
        logger.debug("hy3d_rocm: there is no ComfyUI server here; nothing will be patched")
        return None
    before = getattr(server, _MARK, None)
    if isinstance(before, Installation) and before.packs == tuple(packs):
        return before
    if before is not None:
        before.uninstall()
    installation = Installation(packs, environ)
    installation.hook(server)
    return installation


def installed() -> Installation | None:
    """What `install` has hooked into the server; `lines` of it is what was said."""
    found = getattr(comfy_server(), _MARK, None)
    return found if isinstance(found, Installation) else None


class _Copy:
    """One loaded copy of somebody's code and what was done to it."""

    def __init__(self, pack: Pack, upstream: Place) -> None:
        self.pack = pack
        self.upstream = upstream
        self.specs: tuple[PatchSpec, ...] = ()
        self.wanted: tuple[str, ...] | None = None  # names, as of the last time; None: never looked
        self.sets: list[PatchSet] = []

    def names_wanted(self) -> tuple[str, ...]:
        """What the settings do not switch off."""
        off = settings.current().patches_off
        return tuple(one.name for one in self.specs if one.name not in off and one.wanted())

    def revert(self) -> tuple[str, ...]:
        """Last first, as they were applied one on the other."""
        left = [name for patches in reversed(self.sets) for name in patches.revert()]
        self.sets.clear()
        return tuple(left)


class Installation:
    """The hooks in one server and the patches that they have made. Thread-safe."""

    def __init__(self, packs: Sequence[Pack], environ: Mapping[str, str] = os.environ) -> None:
        self.packs = tuple(packs)
        self.lines: list[str] = []
        self._environ = environ
        self._lock = threading.Lock()
        self._ended = False
        self.said_alone = False  # whether the log has been told why nothing is patched
        self._copies: list[_Copy] = []
        self._server: Any = None

    def hook(self, server: Any) -> None:
        """Be called at the server's start and at each prompt; at once if it has started."""
        self._server = server
        setattr(server, _MARK, self)
        server.add_on_prompt_handler(self._on_prompt)
        when_started(server, self.run)

    def _on_prompt(self, request: Any) -> Any:
        self.run()
        return request

    def applied(self) -> dict[str, tuple[str, ...]]:
        """What is in force now: whose code -> names of patches."""
        with self._lock:
            return {
                copy.upstream.name: tuple(patches.label for patches in copy.sets)
                for copy in self._copies
                if copy.sets
            }

    def run(self) -> None:
        """Patch every copy that is loaded and has not been looked at."""
        with self._lock:
            if self._ended:
                return
            try:
                self._look()
            except Exception as error:  # noqa: BLE001  (a prompt must run without us)
                self._say(logging.WARNING, "not all is patched: %s", _in_words(error))

    def uninstall(self) -> tuple[str, ...]:
        """Revert all and leave the server, where a hook is left that does nothing; the names of
        attributes that somebody has wrapped since, which keep a wrapper of ours that does nothing.
        """
        with self._lock:
            self._ended = True
            left = [name for copy in reversed(self._copies) for name in copy.revert()]
            self._copies.clear()
            server, self._server = self._server, None
        if server is not None:
            server.on_prompt_handlers.remove(self._on_prompt)
            delattr(server, _MARK)
        return tuple(left)

    def _look(self) -> None:
        problem = read_patch_choice(self._environ).problem
        if problem is not None:
            self._say(logging.WARNING, "%s", problem)
        mappings = getattr(sys.modules.get("nodes"), "NODE_CLASS_MAPPINGS", {})
        found = [(pack, upstream) for pack in self.packs for upstream in find(pack.name, mappings)]
        gone = [c for c in self._copies if not any(c.upstream.same_as(u) for _, u in found)]
        for copy in gone:  # a pack that was loaded anew left its old classes behind
            self._copies.remove(copy)
            copy.revert()
        alone: list[_Copy] = []
        for pack, upstream in found:
            if any(copy.upstream.same_as(upstream) for copy in self._copies):
                continue
            copy = _Copy(pack, upstream)
            self._copies.append(copy)
            if self._permitted[0]:
                copy.specs = self._specs(copy)
            else:
                alone.append(copy)
        self._leave_alone(alone)
        self._apply_wanted()

    @cached_property
    def _permitted(self) -> tuple[bool, str]:
        """The gate's answer, asked once."""
        return should_patch(self._environ)

    def _leave_alone(self, found: list[_Copy]) -> None:
        """One line for all of them, once. ComfyUI's own code alone is worth none in the log."""
        if not found or self.said_alone:
            return
        self.said_alone = is_told = any(not copy.pack.always_there for copy in found)
        names = ", ".join(dict.fromkeys(copy.upstream.name for copy in found))
        verb = "is" if len(found) == 1 else "are"
        level = logging.INFO if is_told else logging.DEBUG
        self._say(level, "%s %s left alone: %s", names, verb, self._permitted[1])

    def _specs(self, copy: _Copy) -> tuple[PatchSpec, ...]:
        """The patches that the user has not left out; one line for each that was."""
        name = copy.upstream.name
        strange = copy.upstream.strange()
        if strange is not None:
            self._say(logging.WARNING, "%s is left alone: %s", name, strange)
            return ()
        left_out = read_patch_choice(self._environ).left_out
        kept = []
        for spec in copy.pack.specs():
            if spec.name in left_out:
                reason = (
                    f'switched off by "-{spec.name}" in {PATCH_VARIABLE}='
                    f"{self._environ.get(PATCH_VARIABLE, '').strip()}; take that out of the "
                    "variable and restart ComfyUI to have it corrected"
                )
                self._say(logging.INFO, "%s: %s is left alone: %s", name, spec.name, reason)
            else:
                kept.append(spec)
        return tuple(kept)

    def _apply_wanted(self) -> None:
        """Each copy's patches as the settings stand. Where these have changed all are taken back
        and made anew, since copies wrap one another's in the order in which they were found."""
        if any(copy.wanted not in (None, copy.names_wanted()) for copy in self._copies):
            for copy in reversed(self._copies):
                copy.revert()
                copy.wanted = None
        for copy in self._copies:
            if copy.wanted is None:
                copy.wanted = copy.names_wanted()
                self._patch(copy)

    def _patch(self, copy: _Copy) -> None:
        """Apply each spec by itself; one summary line and one line for each that differs."""
        name = copy.upstream.name
        applied = []
        for spec in copy.specs:
            if spec.name not in (copy.wanted or ()):
                continue
            reason = _apply(spec, copy)
            if reason is None:
                applied.append(spec.name)
            else:
                self._say(logging.WARNING, "%s: %s is left alone: %s", name, spec.name, reason)
        if applied:
            self._say(
                logging.INFO, "%s: %s %s (%s=off leaves them alone)",
                name, ", ".join(applied), copy.pack.done, PATCH_VARIABLE,
            )  # fmt: skip

    def _say(self, level: int, text: str, *values: object) -> None:
        line = "hy3d_rocm: " + text % values
        if line not in self.lines:  # what fails at each prompt is said once
            self.lines.append(line)
            logger.log(level, "%s", line)


def _apply(spec: PatchSpec, copy: _Copy) -> str | None:
    """None if the spec is applied, else why it is not; then nothing of it is."""
    patches = PatchSet(spec.name)
    try:
        different = spec.expects(copy.upstream)
        if different is None:
            patches.apply(spec.changes(copy.upstream))
    except Exception as error:  # noqa: BLE001  (the other patches go on)
        return _in_words(error)
    if different is None:
        copy.sets.append(patches)
    return different


def _in_words(error: Exception) -> str:
    """Our own errors are sentences; of others the kind is said too."""
    known = isinstance(error, UpstreamError | PatchError)
    return str(error) if known else f"{type(error).__name__}: {error}"
