// Folds the inputs that hy3d_rocm/comfy/nodes marks as advanced on ComfyUI's classic canvas, which
// knows the mark and shows them all the same. (Nodes 2.0 folds them by itself.)
import { app } from "../../scripts/app.js";

const OURS = "Hy3DRocm";
const ROW = 20; // of a widget, before the gap of 4 that the canvas adds
const WORDS = {
  en: ["Show advanced inputs", "Hide advanced inputs"],
  zh: ["显示高级输入", "隐藏高级输入"],
};

const setting = (id) => app.extensionManager?.setting?.get?.(id);

const foldsHere = () =>
  !setting("Comfy.VueNodes.Enabled") && !setting("Comfy.Node.AlwaysShowAdvancedWidgets");

const isLinked = (node, widget) =>
  node.inputs?.some((input) => input.widget?.name === widget.name && input.link != null);

// `isHidden` decides beside whoever else hides the widget. The front end of 2025-10 gives hidden
// widgets their room all the same, so they get a height of nothing.
const hideWhile = (node, widget, isHidden) => {
  let hidden = widget.hidden ?? false;
  Object.defineProperty(widget, "hidden", {
    configurable: true,
    enumerable: true,
    get: () => hidden || isHidden(),
    set: (value) => { hidden = value; },
  });
  if (!node.getLayoutWidgets) widget.computeSize = () => [0, widget.hidden ? -4 : ROW];
};

const toggle = (node) => {
  const before = node.computeSize()[1];
  node.showAdvanced = !node.showAdvanced;
  const after = node.computeSize()[1];
  node.setSize([node.size[0], Math.max(after, node.size[1] + after - before)]);
  node.setDirtyCanvas(true, true);
};

const addButton = (node) => {
  const options = { serialize: false, canvasOnly: true };
  const button = node.addWidget("button", "advanced", null, () => toggle(node), options);
  button.serialize = false;
  Object.defineProperty(button, "label", {
    configurable: true,
    get: () => {
      const [show, hide] = String(setting("Comfy.Locale")).startsWith("zh") ? WORDS.zh : WORDS.en;
      return node.showAdvanced ? hide : show;
    },
    set: () => {},
  });
  hideWhile(node, button, () => !foldsHere());
};

app.registerExtension({
  name: "hy3d_rocm.advanced",
  nodeCreated(node) {
    if (!node.comfyClass?.startsWith(OURS)) return;
    const advanced = (node.widgets ?? []).filter((widget) => widget.options?.advanced);
    if (!advanced.length) return;
    for (const widget of advanced) {
      hideWhile(node, widget,
        () => foldsHere() && !node.showAdvanced && !isLinked(node, widget));
    }
    addButton(node);
    node.setSize([node.size[0], node.computeSize()[1]]);
  },
});
