"""Pictures of the example workflows and help pages, in a real browser with the real front end.

    python tests/comfyui/screenshots.py --comfyui DIR --wrapper DIR --front-end DIR
        [--python PYTHON] [--browser chromium] [--only WORKFLOW] [--help-pages DIR]
        [--out docs/images/workflows] [--thumbnails example_workflows] [--folder /ComfyUI]

DIR of --front-end is the folder "static" of the package comfyui-frontend-package. Each workflow is
opened as a user does it, run (but for those of upstream's nodes, which need real models) and
photographed; the demo's VAE stands in for HunyuanVideo's. Checked are: no unknown node, nothing
that overlaps, sizes as saved, advanced inputs folded, lines of tables unbroken, pictures large
enough to be read, no error, no line about this pack in the browser's console, and that a model
that is missing is offered. Needs aiohttp and Pillow, which ComfyUI brings. Exit code 1 if a check
failed.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from browser.page import Page, PageError  # noqa: E402
from comfy_harness.layout import copy_pack, make_base  # noqa: E402
from comfy_harness.report import Report  # noqa: E402
from comfy_harness.server import Server  # noqa: E402

PACK = HERE.parents[1]
OURS = "hy3d-rocm"
NOT_RUN = ("delight_and_multiview", "split_a_batch_over_two_nodes")
SIZE = (2300, 1500)  # of the window; workflows are smaller
ORIGIN = (120, 120)  # where a workflow's corner is put: clear of the front end's bars
MARGIN = 8
SCALE = 0.8
HELP_BOX = (SIZE[0] - 1300, 0, 1300, 1100)  # the node and, at the right, the panel
COLOURS = 256  # of the palette; files with all colours are three times as large
RUN_S = 480
LARGEST_BYTES = 150_000
LEAST_SCALE = 0.6  # of our pictures in a node at 100 %: letters of 13 pixels
# What a thumbnail shows: nodes by id. The template browser shows squares.
THUMBNAILS = {
    "ask_the_doctor": (1,),
    "capture_a_latent_for_an_issue": (3,),
    "decode_within_a_budget": (6,),
    "delight_and_multiview": (8, 9, 10),
    "encode_and_decode_within_a_budget": (5,),
    "free_memory_and_status": (5,),
    "plan_memory_before_a_decode": (3,),
    "protect_a_vae_for_other_nodes": (3,),
    "split_a_batch_over_two_nodes": (5, 6),
    "tune_a_vae_for_this_card": (3,),
    "validate_the_strategies_of_a_decode": (5,),
}
THUMBNAIL = 400  # pixels, of both sides
MODEL, LACKING = "hunyuan_video_vae_bf16.safetensors", "there_is_no_such_vae.safetensors"
SETTINGS = {
    "Comfy.Locale": "en",
    "Comfy.Minimap.Visible": False,
    "Comfy.TutorialCompleted": True,
    "Comfy.InstalledVersion": "99.0.0",
    "Comfy.Workflow.ShowMissingModelsWarning": False,
    "Comfy.Workflow.ShowMissingNodesWarning": True,
    "Comfy.Graph.CanvasInfo": False,
    "Comfy.Validation.Workflows": True,
}
UP = "window.app && app.graph && app.extensionManager && document.querySelector('canvas')"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, text in (
        ("--comfyui", "a checkout of ComfyUI"),
        ("--wrapper", "one of ComfyUI-Hunyuan3DWrapper"),
        ("--front-end", "the folder static of comfyui-frontend-package"),
    ):
        parser.add_argument(name, type=Path, required=True, metavar="DIR", help=text)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--browser", default="chromium")
    parser.add_argument("--only", action="append", metavar="WORKFLOW", help="may be repeated")
    parser.add_argument("--out", type=Path, default=PACK / "docs" / "images" / "workflows")
    text = "also a picture NAME.jpg of each for the template browser"
    parser.add_argument("--thumbnails", type=Path, metavar="DIR", help=text)
    text = "with Nodes 2.0, which gives nodes sizes of its own, in place of the classic canvas"
    parser.add_argument("--nodes-2", action="store_true", help=text)
    folder = "ComfyUI's base directory while this runs, which must be new: some reports name it"
    parser.add_argument("--folder", type=Path, metavar="DIR", help=folder)
    parser.add_argument("--help-pages", type=Path, metavar="DIR", help="also open these, to DIR")
    return parser.parse_args()


class PictureServer(Server):
    """Without what the harness puts into the environment, which reports would show."""

    def _environment(self) -> dict[str, str]:
        kept = super()._environment().items()
        return {k: v for k, v in kept if k != "PYTHONPATH" and not k.startswith("HY3D_HARNESS")}


def make_folders(given: argparse.Namespace, work: Path) -> Path:
    """A base directory with the front end, upstream's pack, a copy of ours and the demo's VAE."""
    packs = {
        "demo-vae": HERE / "demo_vae",
        "ComfyUI-Hunyuan3DWrapper": given.wrapper.resolve(),
    }
    base = make_base(work, packs, ())
    copy_pack(PACK, base / "custom_nodes" / OURS)
    shutil.rmtree(base / "web")
    (base / "web").symlink_to(given.front_end.resolve())
    shutil.copy(given.comfyui / "input" / "example.png", base / "input")
    (base / "input" / "3d").mkdir()
    (base / "input" / "3d" / "mesh.glb").touch()  # is listed; nothing is loaded
    settings = {**SETTINGS, "Comfy.VueNodes.Enabled": given.nodes_2}
    (base / "user" / "default" / "comfy.settings.json").write_text(json.dumps(settings))
    return base


async def open_front_end(page: Page, port: int) -> None:
    await page.call("Page.navigate", url=f"http://127.0.0.1:{port}/")
    await page.wait(UP, 180, "for the front end to start")
    await asyncio.sleep(3)


async def show(page: Page, name: str) -> tuple[tuple[float, float, float, float], list[float]]:
    """Opens a workflow from the templates' list; where it lies in the window, and its corner in the
    canvas's own pixels."""
    await page.run(f"""(async () => {{
        const answer = await fetch('/api/workflow_templates/{OURS}/{name}.json');
        await app.loadGraphData(await answer.json());
    }})()""")
    await asyncio.sleep(2)
    box = await page.run(f"""(() => {{
        const boxes = [
            ...app.graph._groups.map(g => [...g.pos, ...g.size]),
            ...app.graph._nodes.map(n => [n.pos[0], n.pos[1] - 30, n.size[0], n.size[1] + 30])];
        const left = Math.min(...boxes.map(b => b[0])), top = Math.min(...boxes.map(b => b[1]));
        const right = Math.max(...boxes.map(b => b[0] + b[2]));
        const bottom = Math.max(...boxes.map(b => b[1] + b[3]));
        const view = app.canvas.ds;
        view.scale = {SCALE};
        const place = app.canvas.canvas.getBoundingClientRect();
        view.offset[0] = ({ORIGIN[0]} - place.left) / {SCALE} - left;
        view.offset[1] = ({ORIGIN[1]} - place.top) / {SCALE} - top;
        app.canvas.setDirty(true, true);
        return [right - left, bottom - top, left, top];
    }})()""")
    width, height = (side * SCALE + 2 * MARGIN for side in box[:2])
    return (ORIGIN[0] - MARGIN, ORIGIN[1] - MARGIN, width, height), box[2:]


async def execute(page: Page, server: Server) -> str:
    """Queues what is open, by the front end, and waits; "success" or what became of it."""
    before = set(server.ask("/history"))
    await page.run("app.queuePrompt(0, 1)")
    for _ in range(RUN_S * 2):
        await asyncio.sleep(0.5)
        await page.run("1")  # events are taken in
        for entry in (v for k, v in server.ask("/history").items() if k not in before):
            status = entry["status"]
            failed = [m[1] for m in status["messages"] if "error" in m[0]]
            return str(status["status_str"]) + "".join(str(f)[:600] for f in failed)
    return "did not end in time"


STATE = """(() => {
    const nodes = app.graph._nodes.map(n => ({
        type: n.type, title: n.title, known: n.type in LiteGraph.registered_node_types,
        errors: !!n.has_errors, box: [n.pos[0], n.pos[1] - 30, n.pos[0] + n.size[0],
                                      n.pos[1] + n.size[1]],
        id: Number(n.id), size: [...n.size],
        advanced: (n.widgets || []).filter(w => w.options?.advanced && n.isWidgetVisible(w))
            .map(w => w.name),
        pictures: (n.imgs || []).map(i => [i.naturalWidth, i.naturalHeight])}));
    return {nodes, dialogs: document.querySelectorAll('.p-dialog').length};
})()"""

# Lines with columns (two blanks inside) that are wider than their box.
WRAPPED = """(() => {
    const found = [], pen = document.createElement('canvas').getContext('2d');
    for (const box of document.querySelectorAll('textarea')) {
        const style = getComputedStyle(box);
        pen.font = `${style.fontSize} ${style.fontFamily}`;
        const room = box.clientWidth - parseFloat(style.paddingLeft)
            - parseFloat(style.paddingRight);
        found.push(...box.value.split('\\n').filter(line => /\\S {2,}.*\\S {2,}\\S/.test(line)
            && pen.measureText(line).width > room));
    }
    return found;
})()"""


def overlapping(nodes: list[dict[str, Any]]) -> list[str]:
    found = []
    for i, one in enumerate(nodes):
        for other in nodes[i + 1 :]:
            a, b = one["box"], other["box"]
            if not (a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]):
                found.append(f"{one['title']} / {other['title']}")
    return found


def too_small(nodes: list[dict[str, Any]]) -> list[str]:
    """Pictures of our nodes that a node shows with letters too small, or that are too tall."""
    found = []
    for node in nodes:
        is_ours = node["type"].startswith("Hy3DRocm") or node["title"] == "Memory over time"
        for width, height in node["pictures"] if is_ours else ():
            scale = min(node["size"][0] / width, node["size"][1] / height)
            if scale < LEAST_SCALE or height > width:
                found.append(f"{node['title']}: {width}x{height} at {scale:.2f}")
    return found


def smaller(png: bytes) -> bytes:
    """With a palette, so that pages load quickly."""
    from PIL import Image

    made = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        flat = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        flat.save(made, format="PNG", optimize=True)
    return made.getvalue()


def thumbnail(png: bytes, nodes: list[dict[str, Any]], corner: list[float], name: str) -> Any:
    """The nodes of THUMBNAILS in a square, out of a workflow's picture. nodes: id and box (left,
    top, right, bottom) each; corner: the workflow's, in the canvas's own pixels."""
    from PIL import Image

    boxes = [node["box"] for node in nodes if node["id"] in THUMBNAILS[name]]
    low = [min(box[i] for box in boxes) for i in (0, 1)]
    high = [max(box[i] for box in boxes) for i in (2, 3)]
    half = max(high[0] - low[0], high[1] - low[1]) / 2 + 12
    middle = [(low[i] + high[i]) / 2 - corner[i] for i in (0, 1)]
    side = round(2 * half * SCALE)
    with Image.open(io.BytesIO(png)) as image:
        # Moved into the picture as far as that goes: beyond it there is nothing to show.
        left, top = (
            max(0, min(round((m - half) * SCALE + MARGIN), length - side))
            for m, length in zip(middle, image.size, strict=True)
        )
        part = image.convert("RGB").crop((left, top, left + side, top + side))
        return part.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)


async def offers_a_missing_model(page: Page, report: Report) -> None:
    """A workflow whose VAE is not there, opened with the warning on as it is by default."""
    setting = "app.extensionManager.setting.set('Comfy.Workflow.ShowMissingModelsWarning', %s)"
    await page.run(setting % "true")
    await page.run(f"""(async () => {{
        const answer = await fetch('/api/workflow_templates/{OURS}/tune_a_vae_for_this_card.json');
        const text = (await answer.text()).replaceAll('{MODEL}', '{LACKING}');
        await app.loadGraphData(JSON.parse(text));
    }})()""")
    told = f"document.body.innerText.includes('{LACKING}')"
    try:
        await page.wait(told, 20, "to name the missing model")
    except PageError as error:
        report.failed("a missing model is offered", error)
    else:
        report.check("a missing model is offered", True)


async def photograph(
    page: Page, server: Server, name: str, given: argparse.Namespace, report: Report
) -> None:
    out = given.out
    box, corner = await show(page, name)
    if name not in NOT_RUN:
        result = await execute(page, server)
        report.check(f"{name} runs", result == "success", result)
        await asyncio.sleep(3)
    state = await page.run(STATE)
    unknown = [n["type"] for n in state["nodes"] if not n["known"]]
    wrong = [n["type"] for n in state["nodes"] if n["errors"]]
    report.check(f"{name}: the front end knows every node", not unknown, unknown)
    report.check(f"{name}: no node is marked as wrong", not wrong or name in NOT_RUN, wrong)
    report.check(f"{name}: no dialog", state["dialogs"] == 0, state["dialogs"])
    crossing = overlapping(state["nodes"])
    report.check(f"{name}: no node over another", not crossing, crossing)
    saved = json.loads((PACK / "example_workflows" / f"{name}.json").read_text())
    sizes = {node["id"]: node["size"] for node in saved["nodes"]}
    other = [(n["title"], n["size"]) for n in state["nodes"] if n["size"] != sizes[n["id"]]]
    if not given.nodes_2:
        report.check(f"{name}: every node has the size that is saved", not other, other)
        open_ones = [(n["title"], n["advanced"]) for n in state["nodes"] if n["advanced"]]
        report.check(f"{name}: advanced inputs are folded", not open_ones, open_ones)
    small = too_small(state["nodes"])
    report.check(f"{name}: pictures can be read", not small, small)
    wrapped = await page.run(WRAPPED)
    report.check(f"{name}: no line of a table is wrapped", not wrapped, wrapped)
    whole = await page.picture(box)
    png = smaller(whole)
    report.check(f"{name}: small enough", len(png) < LARGEST_BYTES, len(png))
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.png").write_bytes(png)
    if given.thumbnails:
        made = thumbnail(whole, state["nodes"], corner, name)
        made.save(given.thumbnails / f"{name}.jpg", quality=85, optimize=True)


async def help_pages(page: Page, server: Server, out: Path, report: Report) -> None:
    """Each node's help, opened as a user does it, in both languages."""
    out.mkdir(parents=True, exist_ok=True)
    ours = sorted(k for k in server.ask("/object_info") if k.startswith("Hy3DRocm"))
    for language in ("en", "zh"):
        titles = json.loads((PACK / "locales" / language / "nodeDefs.json").read_text("utf-8"))
        await page.run(f"app.extensionManager.setting.set('Comfy.Locale', '{language}')")
        await asyncio.sleep(1)
        await open_front_end(page, server.port)
        for name in ours:
            try:
                await page.run(_OPEN_HELP % name)
                title = json.dumps(titles[name]["display_name"])
                seen = f"[...document.querySelectorAll('h1')].some(h => h.innerText === {title})"
                await page.wait(seen, 20, "to open the page")
            except PageError as error:
                report.failed(f"help of {name} in {language}", error)
            else:
                report.check(f"help of {name} in {language}", True)
            (out / f"{name}.{language}.png").write_bytes(await page.picture(HELP_BOX))


_OPEN_HELP = """(async () => {
    app.graph.clear();
    const node = LiteGraph.createNode('%s');
    node.pos = [1100, 200];
    app.graph.add(node);
    app.canvas.selectNode(node);
    app.canvas.setDirty(true, true);
    for (let i = 0; i < 40; i++) {
        const button = document.querySelector('[data-testid="info-button"]')
            || [...document.querySelectorAll('button')].find(b => /info/.test(b.innerHTML)
                && b.closest('[class*=toolbox]'));
        if (button) { button.click(); return; }
        await new Promise(r => setTimeout(r, 250));
    }
    throw new Error('no button for the help');
})()"""


async def all_pictures(given: argparse.Namespace, server: Server, report: Report) -> None:
    names = given.only or sorted(p.stem for p in (PACK / "example_workflows").glob("*.json"))
    async with Page(given.browser, *SIZE) as page:
        await open_front_end(page, server.port)
        for name in names:
            await photograph(page, server, name, given, report)
        await offers_a_missing_model(page, report)
        if given.help_pages:
            await help_pages(page, server, given.help_pages, report)
        # The front end looks for docs/NODE/en.md before it takes docs/NODE.md.
        found = [line for line in page.logs if "hy3d" in line.lower() and '"error"' in line]
        ours = [line for line in found if "/en.md" not in line]
        report.check("no error of the pack in the browser's console", not ours, ours[:3])


def main() -> int:
    given = arguments()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="hy3d-pictures-") as temporary:
        folder = given.folder or Path(temporary) / "ComfyUI"
        base = make_folders(given, folder)
        environ = {"HY3D_ROCM_PATCH": "on"}
        with PictureServer(given.comfyui.resolve(), base, given.python, environ) as server:
            asyncio.run(all_pictures(given, server, report))
        shutil.rmtree(folder)
    for failure in report.failures:
        print(f"failed: {failure}")
    print(report.summary())
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
