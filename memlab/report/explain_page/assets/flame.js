// Flame graph of what is held at the chosen moment: the whole on top, its parts below, widths to scale.

const ORDERS = {
  module: ["by module", ({ module, modules, kind, line }) => [...modules.split(/\.(?!\*)/), kind, line, ...(module === modules || !module ? [] : [module])]],
  line: ["by line", ({ userLine, line, modules, kind }) => [userLine || "no line of the script known", line, modules, kind]],
};
const MOSTLY = 0.9; // share of a part from which on it has the colour of a kind
const FOLDERS = /^\S*\/(?=[^/\s]+:\d)/; // of the file of a line: a box is rarely wide enough for them
const LEAST = 0.0015; // share of the width below which a part is not drawn
const ROW = 22;
let flameOrder = "module";
let flameZoom = [];

function makeFlame(redraw) {
  const buttons = Object.entries(ORDERS).map(([key, [name]]) => h("button", { type: "button", value: key, onclick: () => {
    flameOrder = key;
    flameZoom = [];
    redraw();
  } }, name));
  byId("flame-controls").append(...buttons);
}

/** Returns the tree of the requested bytes; each node knows the bytes of its kinds. */
function flameTree(history, event) {
  const root = flameNode("requested");
  heldBySite(history, event).forEach((bytes, site) => {
    if (!bytes) return;
    const { kind } = history.sites[site];
    let at = root;
    for (const name of [null, ...ORDERS[flameOrder][1](history.sites[site])]) {
      if (name !== null) {
        if (!at.parts.has(name)) at.parts.set(name, flameNode(name));
        at = at.parts.get(name);
      }
      at.bytes += bytes;
      at.kinds.set(kind, (at.kinds.get(kind) ?? 0) + bytes);
    }
  });
  return root;
}

const flameNode = (name) => ({ name, bytes: 0, kinds: new Map(), parts: new Map() });

function showFlame({ history, event }) {
  for (const button of byId("flame-controls").children) button.setAttribute("aria-pressed", String(button.value === flameOrder));
  const whole = flameTree(history, event);
  let root = whole;
  const path = [];
  for (const name of flameZoom) {
    if (!root.parts.has(name)) break; // at this moment the part is not there
    root = root.parts.get(name);
    path.push(name);
  }
  byId("flame-path").replaceChildren(
    `${path.length ? path.join(" \u203a ") : "All requested memory"}: ${size(root.bytes)}${root === whole ? "" : ` of ${size(whole.bytes)}`}. `,
    path.length ? h("button", { type: "button", onclick: () => {
      flameZoom = path.slice(0, -1);
      showFlame({ history, event });
    } }, "One level up") : "Click a part to enlarge it.",
  );
  const drawn = [];
  const deepest = draw(root, 0, 1, 0, path);
  byId("flames").style.height = `${(deepest + 1) * ROW}px`;
  byId("flames").replaceChildren(...drawn);

  function draw(part, left, width, depth, names) {
    drawn.push(box(part, left, width, depth, names));
    let deepest = depth;
    for (const child of [...part.parts.values()].sort((a, b) => b.bytes - a.bytes)) {
      const share = (width * child.bytes) / part.bytes;
      if (share < LEAST) break;
      deepest = Math.max(deepest, draw(child, left, share, depth + 1, [...names, child.name]));
      left += share;
    }
    return deepest;
  }

  function box(part, left, width, depth, names) {
    const share = `${part.name}: ${size(part.bytes)}, ${perCent(part.bytes / whole.bytes)}`;
    const kinds = [...part.kinds].sort((a, b) => b[1] - a[1]);
    const told = `${share}\n${kinds.slice(0, 4).map(([kind, bytes]) => `${kind} ${size(bytes)}`).join("\n")}`;
    const element = h("button", { type: "button", title: told, "aria-label": share, tabIndex: width < 0.02 ? -1 : 0, onclick: () => {
      flameZoom = names;
      showFlame({ history, event });
    } }, width > 0.02 ? part.name.replace(FOLDERS, "") : "");
    Object.assign(element.style, { left: `${100 * left}%`, width: `${100 * width}%`, top: `${depth * ROW}px` });
    const [kind, most] = kinds[0] ?? [null, 0];
    element.style.setProperty("--kind", most > MOSTLY * part.bytes ? colorOfKind(kind) : "var(--soft)");
    return element;
  }
}
