"""The nodes that decode and encode; the one that gives VAE objects for other nodes, whose decode
and encode are protected or run under a budget; and those around a decode: what it got, as the files
of `hy3d-rocm capture`, and how good its strategies are, each held against the exact frames.

A protected VAE is a shallow copy of the VAE of a class of its own: the same model, patcher and
weights, other methods. The VAE that came in keeps its own.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from functools import partial, wraps
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import comfy.utils
import torch
from comfy_api.v0_0_2 import io, ui
from PIL import Image

from hy3d_rocm import capture
from hy3d_rocm.comfy import memory, picture, reports, vaes
from hy3d_rocm.comfy.decode import decode_latent, encode_pixels, latents_of, run_own_code, run_vae
from hy3d_rocm.comfy.nodes.common import Node, asked, text_and_picture
from hy3d_rocm.comfy.reports import report_text
from hy3d_rocm.comfy.running import Asked, Watcher, current_device
from hy3d_rocm.conv.protection import protect
from hy3d_rocm.decoding.checks import STRATEGIES, check_choice
from hy3d_rocm.decoding.families.proof import CALL_ERRORS
from hy3d_rocm.decoding.memory.budget import parse_budget
from hy3d_rocm.decoding.planning.planner import DoesNotFitError
from hy3d_rocm.decoding.precision import PRECISIONS, name_of
from hy3d_rocm.decoding.report import DecodeCancelled, DecodeOptions
from hy3d_rocm.decoding.stages import stage_of
from hy3d_rocm.tools import validate
from hy3d_rocm.tools.runs import Listener, Subject
from hy3d_rocm.units import brief, size_text

logger = logging.getLogger("hy3d_rocm")

MODES = ("protect", "full")
COMPARED = tuple(name for name in STRATEGIES if name != "auto")
_TICKS = 1000  # of the bar, for each decode of a comparison
# What other nodes call; a VAE has some of them.
METHODS = ("decode", "decode_tiled", "encode", "encode_tiled")
Wishes = tuple[str, str, str]  # budget, strategy, precision
_MARK = "_hy3d_rocm_guards"


class Hy3DRocmVAEDecode(Node):
    """VAEDecode that finishes: under a memory budget, through failing convolutions."""

    @classmethod
    def execute(cls, samples: Any, vae: Any, **inputs: Any) -> io.NodeOutput:
        return io.NodeOutput(*decode_latent(vae, samples, asked(inputs, "VAE Decode (ROCm)")))


class Hy3DRocmVAEEncode(Node):
    """VAEEncode that finishes: under a memory budget, through failing convolutions."""

    @classmethod
    def execute(cls, pixels: Any, vae: Any, **inputs: Any) -> io.NodeOutput:
        return io.NodeOutput(*encode_pixels(vae, pixels, asked(inputs, "VAE Encode (ROCm)")))


class Hy3DRocmProtectVAE(Node):
    """A VAE for other nodes, whose decode and encode finish."""

    @classmethod
    def execute(cls, **inputs: Any) -> io.NodeOutput:
        return io.NodeOutput(*guard(**inputs))


def guard(
    vae: Any, mode: str, budget: str = "auto", strategy: str = "auto", precision: str = "auto"
) -> tuple[Any, str]:
    """A VAE as the module's text says, and a report. ValueError or TypeError (sentences) for a
    mode or budget that is none, and for what is no VAE.

    mode: "protect" or "full". A VAE that is guarded already is guarded anew, not twice.
    """
    check_choice("mode", mode, MODES)
    check_choice("strategy", strategy, STRATEGIES)
    check_choice("precision", precision, PRECISIONS)
    parse_budget(budget.strip() or None)
    source = getattr(vae, _MARK, vae)
    found = [name for name in METHODS if callable(getattr(source, name, None))]
    if not found:
        raise TypeError(
            f"vae is a {type(source).__name__} without {', '.join(METHODS)}: connect a VAE loader"
        )
    is_full = mode == "full" and vaes.is_managed(source)
    # How it decodes and encodes then; None: as its own code does.
    wishes = (budget.strip() or "auto", strategy, precision) if is_full else None
    methods = {name: _method(source, name, wishes) for name in found}
    made = copy.copy(source)  # shallow: a module's tables of parameters and modules are the same
    if made is source:
        raise TypeError(f"a {type(source).__name__} can't be copied, so it can't be protected")
    made.__class__ = type(f"Protected{type(source).__name__}", (type(source),), methods)
    object.__setattr__(made, _MARK, source)
    return made, _report(source, mode, found, wishes)


def _method(source: Any, name: str, wishes: Wishes | None) -> Callable[..., Any]:
    """`name` of the guarded class. Options that only the VAE's own code knows leave it to that."""
    own = getattr(type(source), name)

    @wraps(own)
    def protected(self: Any, *given: Any, **more: Any) -> Any:
        first = next(iter((*given, *more.values())), None)
        encodes = name.startswith("encode")
        stage = stage_of(encodes)
        before = "VAE Load" if vaes.is_managed(source) else stage
        with memory.stage_lines(before, stage):
            work = partial(own, self, *given, **more)
            return run_own_code(f"Protect VAE: {name}", source, work, first, encodes)

    # The tiled methods keep their tiles: somebody has chosen them.
    if wishes is None or name not in ("decode", "encode"):
        return protected
    encode, (budget, strategy, precision) = name == "encode", wishes
    possible = "auto" if encode and strategy == "tiled" else strategy  # an encode has no tiles

    @wraps(own)
    def full(self: Any, first: Any, *given: Any, **more: Any) -> Any:
        if not isinstance(first, torch.Tensor) or more.get("vae_options"):
            return protected(self, first, *given, **more)

        def as_before(tensor: torch.Tensor) -> Any:
            return own(self, tensor, *given, **more)

        try:
            made, report = run_vae(
                source, first, own=as_before, encode=encode, budget=budget, strategy=possible,
                precision=precision, who=f"Protect VAE: {name}",
            )  # fmt: skip
        except DoesNotFitError as error:
            raise ValueError(f"Protect VAE: {error}") from error
        text = report_text(report, first, made, encode)
        reports.remember(f"Protect VAE: {name}, {text}")
        return made

    return full


def _report(source: Any, mode: str, found: list[str], wishes: Wishes | None) -> str:
    inner = getattr(source, "first_stage_model", source)
    lines = [
        f"{type(inner).__name__}: {', '.join(found)} run with failing convolutions caught and "
        "computed in another way"
    ]
    if wishes is not None:
        budget, strategy, precision = wishes
        lines.append(
            f"within a budget ({budget}), strategy {strategy}, precision {precision}: decode and "
            "encode; the tiled ones keep their tiles"
        )
    elif mode == "full":
        lines.append(
            "no budget: this is no VAE of ComfyUI's own, and its decode takes other arguments; "
            "VAE Decode (ROCm, bounded memory) decodes it within one"
        )
    return "\n".join(lines)


class Hy3DRocmCaptureLatent(Node):
    """Writes the files of `hy3d-rocm capture`, and passes the latents on."""

    @classmethod
    def execute(cls, samples: Any, vae: Any, folder: str, frames: Any = None) -> io.NodeOutput:
        path, said = capture_latent(samples, vae, frames, folder)
        return io.NodeOutput(samples, str(path), said, ui=ui.PreviewText(said))


class Hy3DRocmValidateDecode(Node):
    """`hy3d-rocm validate` on a LATENT: PSNR, SSIM, seams, flicker and a heat map."""

    @classmethod
    def execute(
        cls, samples: Any, vae: Any, budget: str, share: float, statistic_passes: int,
        **switches: bool,
    ) -> io.NodeOutput:  # fmt: skip
        chosen = [name for name in COMPARED if switches[name]]
        image, table = validate_decode(vae, samples, chosen, budget, share, statistic_passes)
        return io.NodeOutput(image, table, ui=text_and_picture(table, image))


def capture_latent(samples: Any, vae: Any, frames: Any, folder: str) -> tuple[Path, str]:
    """The path of the capture's JSON, and lines for the node.

    frames: an IMAGE (N, H, W, C) that was decoded from the latents, or None; stored with 8 bits a
    channel, with counts of what is not finite. Nothing is decoded, and the VAE is not moved.
    ValueError, in a sentence, for no LATENT, a folder outside of ComfyUI's, or too much to send.
    """
    target = output_folder(folder)
    latents = latents_of(samples)
    facts = capture.facts_of(_described(vae), latents, None)
    facts["outcome"] = "captured"  # by the node: no decode was begun
    facts["comfyui"] = _of_comfyui(samples, vae)
    stored = None
    if frames is not None:
        facts["frames"] = _told(frames)
        stored = _as_bytes(frames)
    try:
        path = capture.write_capture(target, latents, facts, stored)
    except OSError as error:
        raise ValueError(
            f"folder {brief(folder)} can't be written to: {error.strerror or error}; give a name "
            'such as "hy3d_rocm"'
        ) from error
    return path, "\n".join(_lines(path, facts))


def output_folder(folder: str) -> Path:
    """`folder` in ComfyUI's output directory; ValueError, in a sentence, where it leads out."""
    root = _root()
    try:
        target = (root / folder.strip()).resolve()
        target.exists()  # a name that is too long for the drive is told here
    except (OSError, ValueError, RuntimeError) as error:  # NUL bytes, links in a circle
        raise ValueError(
            f'folder {brief(folder)} is no name of a folder ({error}); give one such as "hy3d_rocm"'
        ) from None
    if not target.is_relative_to(root):
        raise ValueError(
            f"folder {brief(folder)} leads out of ComfyUI's output directory; give a name such as "
            '"hy3d_rocm"'
        )
    return target


def _root() -> Path:
    import folder_paths

    return Path(folder_paths.get_output_directory()).resolve()


def _described(vae: Any) -> Any:
    """The VAE's family, or as much as facts_of() asks for where its layers are not known."""
    try:
        return vaes.family_of(vae)
    except CALL_ERRORS:
        inner = getattr(vae, "first_stage_model", vae)
        return SimpleNamespace(
            vae=inner,
            name=type(inner).__name__,
            dtype=getattr(vae, "vae_dtype", getattr(inner, "dtype", "")),
            device=getattr(vae, "device", getattr(inner, "device", "")),
        )


def _of_comfyui(samples: dict[str, Any], vae: Any) -> dict[str, Any]:
    """What only ComfyUI knows: its version, what else is in the LATENT, whether it manages the
    VAE, and whether patches (LoRAs) lie on the weights, which the fingerprint does not see."""
    try:
        from comfyui_version import __version__ as version
    except ImportError:
        version = ""
    patcher = getattr(vae, "patcher", None)
    return {
        "version": version,
        "latent_keys": sorted(str(key) for key in samples),
        "is_managed": vaes.is_managed(vae),
        "patched_weights": len(getattr(patcher, "patches", None) or ()),
    }


def _told(frames: torch.Tensor) -> dict[str, Any]:
    """Facts of the frames as they came, which 8 bits can't tell any more."""
    finite = frames.isfinite()
    count = int(finite.sum())
    return {
        "shape": list(frames.shape),
        "dtype": name_of(frames.dtype),
        "nan": int(frames.isnan().sum()),
        "infinite": int(frames.isinf().sum()),
        "least": float(frames[finite].min()) if count else None,
        "most": float(frames[finite].max()) if count else None,
    }


def _as_bytes(frames: torch.Tensor) -> torch.Tensor:
    """0..255, rounded, frame by frame; NaN is 0."""
    made = torch.empty(frames.shape, dtype=torch.uint8, device="cpu")
    for number, frame in enumerate(frames):
        clean = frame.detach().to("cpu", torch.float32).nan_to_num(0.0, 1.0, 0.0)
        made[number] = clean.clamp_(0.0, 1.0).mul_(255.0).round_().to(torch.uint8)
    return made


def _lines(path: Path, facts: dict[str, Any]) -> list[str]:
    root = _root()
    tensors = path.with_name(facts["file"])
    source, vae = facts["source"], facts["vae"]
    shown = [
        f"output/{path.relative_to(root).as_posix()}",
        f"output/{tensors.relative_to(root).as_posix()} ({size_text(tensors.stat().st_size, 2)})",
        f"latents {tuple(source['shape'])} {source['dtype']}",
        f"{vae['class']} ({vae['family']}) {vae['dtype']}, weights {vae['fingerprint'][:12]}...",
    ]
    frames = facts.get("frames")
    if frames is not None:
        odd = f", {frames['nan']} NaN, {frames['infinite']} infinite"
        shown.append(f"frames {tuple(frames['shape'])}{odd}")
    return [*shown, "No weights, names or paths are inside: both files can be sent."]


def validate_decode(
    vae: Any,
    samples: Any,
    strategies: Sequence[str],
    budget: str = "auto",
    share: float = 0.25,
    statistic_passes: int = DecodeOptions.statistic_passes,
) -> tuple[torch.Tensor, str]:
    """The heat map as an IMAGE (1, H, W, 3), and the table with its verdicts.

    budget: for all strategies; where "auto", `tiled` gets `share` of what whole takes. ValueError
    or TypeError, in a sentence, for a LATENT or a VAE that can't be compared and where no strategy
    is chosen; RuntimeError where not even the reference can be decoded; ComfyUI's own interrupt.
    """
    chosen = [name for name in COMPARED if name in strategies]
    if not chosen:
        raise ValueError("no strategy is switched on: there is nothing to hold against the exact")
    request = parse_budget(budget.strip() or None)
    options = DecodeOptions(statistic_passes=statistic_passes)
    with Watcher() as watcher, torch.no_grad():

        def look(event: object) -> None:
            if watcher.requested:
                raise DecodeCancelled("cancelled in ComfyUI")

        with protect(on_event=look, cancel=watcher.flag):
            family = vaes.family_of(vae)
            with current_device(vaes.place_of(family)):
                found = validate.validate(
                    _subject(vae, family, latents_of(samples), options, watcher), chosen,
                    share=share, budget=None if request is None else budget, options=options,
                    listener=Bar(1 + len(chosen)), cancel=lambda: watcher.requested,
                )  # fmt: skip
        if found.interrupted:  # the watcher makes ComfyUI's own exception of this
            raise DecodeCancelled("the comparison was cancelled before it ended; queue it again")
    return _picture(found), validate.validation_text(found)


class Bar(Listener):
    """ComfyUI's bar over several decodes; one whose steps can't be counted moves at its end."""

    def __init__(self, decodes: int) -> None:
        self.bar = comfy.utils.ProgressBar(decodes * _TICKS)
        self.total = decodes * _TICKS
        self.begun = -1

    def begin(self, label: str) -> None:
        self.begun += 1
        self._show(0.0)

    def __call__(self, done: int, total: int, step: object, /) -> None:
        self._show(min(done / total, 1.0) if total else 0.0)

    def say(self, text: str) -> None:
        logger.info("Hy3DRocmValidateDecode: %s", text)

    def _show(self, share: float) -> None:
        value = round((max(self.begun, 0) + share) * _TICKS)
        self.bar.update_absolute(min(value, self.total), self.total)


def _subject(
    vae: Any, family: Any, latents: torch.Tensor, options: DecodeOptions, watcher: Watcher
) -> Subject:
    """The VAE's family with its weights in place, and latents as the family takes them."""
    video = vaes.as_video(latents, family)
    if vaes.is_managed(vae):
        vaes.load(vae, family, tuple(video.shape), Asked(None, "auto", "auto", options), watcher)
    if not vaes.is_proven(family):
        raise TypeError(
            f"this {family.name} VAE decodes otherwise than its layers say, so there are no "
            "strategies to compare: it is always left to its own decode"
        )
    place = vaes.place_of(family)
    if family.view is not family.vae:  # LTX draws noise once; all strategies get the same
        video = family.noised(video.to(place, family.dtype))
    inner = getattr(vae, "first_stage_model", vae)
    dtype = name_of(family.dtype)
    text = f"{type(inner).__name__} ({family.name}) on {place} in {dtype}"
    return Subject(family, video.detach().to("cpu"), text, is_random=False)


def _picture(found: validate.Validation) -> torch.Tensor:
    """The heat map; where no strategy ended, the sentences why."""
    drawn = BytesIO()
    if not validate.draw(found, drawn):
        said = [text for _, text in found.verdicts]
        return picture.draw("No strategy ended", [picture.Section("Why", said)])
    drawn.seek(0)
    with Image.open(drawn) as image:
        return picture.as_image(image)
