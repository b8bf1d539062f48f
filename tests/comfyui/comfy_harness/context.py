"""What every scenario is given: the core under test, the packs, and a way to start a server."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comfy_harness import graphs
from comfy_harness.layout import make_base
from comfy_harness.report import Report
from comfy_harness.server import HARNESS, Line, Server

UPSTREAM = "ComfyUI-Hunyuan3DWrapper"
# kijai's packs for video, by the option of run.py that names a checkout.
VIDEO_PACKS = {
    "framepack": "ComfyUI-FramePackWrapper",
    "wan": "ComfyUI-WanVideoWrapper",
    "hunyuanvideo": "ComfyUI-HunyuanVideoWrapper",
}
OURS = "hy3d-rocm"
PATCHED = {"HY3D_ROCM_PATCH": "on"}
Baseline = dict[str, list[str]]


@dataclass
class Context:
    core: Path
    wrapper: Path
    pack: Path
    python: str
    work: Path
    models: Path
    report: Report
    device: str = "cpu"
    site: tuple[Path, ...] = ()
    wheels: Path | None = None  # a folder with the wheel of this commit
    # Checkouts of VIDEO_PACKS, as far as they were given.
    video: Mapping[str, Path] = field(default_factory=dict)
    cpu_noise: list[str] | None = None
    # What upstream alone makes with a pipeline placed in some way, by "stage kind".
    alone: dict[str, list[str]] = field(default_factory=dict)
    _baseline: Baseline | None = None
    _runs: int = field(default=0)
    _video_models: Path | None = None

    @contextmanager
    def server(
        self,
        ours: Path | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        packs: Mapping[str, Path] | None = None,
        base: Path | None = None,
        rasterizer: bool = False,
        cpu: bool = False,
        flags: Sequence[str] = (),
    ) -> Iterator[Server]:
        """ComfyUI with upstream, the test nodes and, if given, our pack; `packs` replaces these.

        base: one that `new_base` made and the caller has changed; it stays. Others are removed,
        but not after an error: then the log stays to be read.
        cpu: ComfyUI computes on the CPU though there is a GPU; pipelines may be on the GPU.
        """
        if packs is None:
            packs = {UPSTREAM: self.wrapper, **({} if ours is None else {OURS: ours})}
        at = self.new_base(packs) if base is None else base
        modules = ((HARNESS / "stand_ins",) if rasterizer else ()) + self.site
        flags = (("--cpu",) if cpu or self.device == "cpu" else ()) + tuple(flags)
        environ = {"HY3D_HARNESS_DEVICE": self.device, **(environ or {})}
        with Server(self.core, at, self.python, environ, modules, flags) as server:
            yield server
        if base is None:
            (self.work / "logs").mkdir(exist_ok=True)
            shutil.copy(server.log, self.work / "logs" / f"{at.name}.log")
            shutil.rmtree(at)

    @contextmanager
    def patched(self, **more: Any) -> Iterator[Server]:
        """ComfyUI with upstream and our pack, patched; nothing of ours may warn in its log."""
        with self.server(self.pack, PATCHED, **more) as server:
            yield server
            self.quiet(server)

    def new_base(self, packs: Mapping[str, Path]) -> Path:
        self._runs += 1
        packs = {"harness-nodes": HARNESS / "nodes", **packs}
        models = (self.models, *(() if self._video_models is None else (self._video_models,)))
        return make_base(self.work / f"{self.core.name}-{self._runs}", packs, models)

    def video_packs(self, *names: str) -> dict[str, Path]:
        """The named ones of VIDEO_PACKS by their folder's name; from now on every base directory
        has tiny video models. KeyError where run.py was not given a checkout."""
        packs = {VIDEO_PACKS[name]: self.video[name] for name in names}
        if self._video_models is None:
            self._video_models = self._make_video_models()
        return packs

    def _make_video_models(self) -> Path:
        at = self.work / f"video-models-{self.core.name}"
        command = [self.python, str(HARNESS / "tiny_video.py"), str(at), str(self.core)]
        if "framepack" in self.video:
            command.append(str(self.video["framepack"]))
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, self.site))}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False, env=environ
        )
        if done.returncode:
            raise RuntimeError(f"the tiny video models were not made:\n{done.stderr[-3000:]}")
        return at

    def shelf(self) -> Path:
        """Where HarnessShelf keeps what this core made."""
        return self.work / f"shelf-{self.core.name}"

    def our_lines(self, server: Server) -> list[Line]:
        """What our pack logged or warned of, and what ComfyUI logged about it."""
        roots = [str(self.pack / "hy3d_rocm"), OURS]
        return [line for line in server.lines() if line.is_ours(roots)]

    def quiet(self, server: Server, allowed: str | None = None) -> None:
        """Checks that nothing of ours warned or failed in this server's log; lines with the
        text `allowed` are not counted."""
        bad = [line for line in self.our_lines(server) if line.is_bad]
        bad = [line for line in bad if allowed is None or allowed not in line.message]
        self.report.check("0 warnings and errors of the pack in the log", not bad, bad)

    def baseline(self) -> Baseline:
        """Hashes of upstream's own pictures, made once for each core without our pack."""
        if self._baseline is None:
            with self.server() as server:
                self._baseline = measure_baseline(server, self.device)
        return self._baseline


def measure_baseline(server: Server, device: str = "cpu") -> Baseline:
    """Upstream unpatched; on a CPU its multiview literal "cuda" is read as the CPU by a test-only
    stand-in. The shape stage is looked at on the CPU only."""
    found: Baseline = {}
    paint = graphs.harness_pipe("paint", "cuda means cpu" if device == "cpu" else "plain")
    for count in graphs.BATCHES:
        prompts = {
            f"delight {count}": graphs.delight(graphs.harness_pipe("delight"), count),
            f"multiview {count}": graphs.multiview(paint, count),
        }
        for name, prompt in prompts.items():
            found[name] = expect(server, name, prompt)
    alike = graphs.delight(graphs.harness_pipe("delight"), 3, alike=True)
    found["delight alike"] = expect(server, "delight alike", alike)
    if device != "cpu":
        return found
    found["mesh"] = expect(server, "mesh", graphs.mesh())
    found["mesh multiview"] = expect(server, "mesh multiview", graphs.mesh_multiview())
    return found


def expect(server: Server, name: str, prompt: graphs.Prompt) -> list[str]:
    """The hashes of a prompt that has to succeed for anything else to make sense."""
    result = server.run(prompt)
    items = result.items()
    if not result.ok or items is None:
        raise RuntimeError(f"the baseline of {name} does not run: {result.seen()}")
    return items
