// Who holds what: a tree of kind, module and line, at one moment, between two, or in two histories side by side.

const opened = new Set(["used", "used/reserved", "used/reserved/requested"]);
const MOST_ROWS = 60; // parts of a node that have rows of their own

/** Makes a node. Each of `sizes` belongs to a column; the parts are kept by name until they are sorted. */
const node = (name, width) => ({ name, sizes: Array(width).fill(0), parts: new Map() });

function addTo(tree, path, column, bytes) {
  tree.sizes[column] += bytes;
  for (const name of path) {
    if (!tree.parts.has(name)) tree.parts.set(name, node(name, tree.sizes.length));
    tree = tree.parts.get(name);
    tree.sizes[column] += bytes;
  }
}

/** Adds the memory after an event to a column. `requested`: the bytes of each site. */
function addMoment(tree, column, history, event, requested = heldBySite(history, event)) {
  const segments = segmentsAt(history, event);
  const inRequested = ["reserved", "requested"];
  requested.forEach((bytes, site) => {
    const { kind, modules, line } = history.sites[site];
    if (bytes) addTo(tree, [...inRequested, kind, modules, line], column, bytes);
  });
  slackAt(history, event, segments).forEach((bytes, at) => bytes && addTo(tree, ["reserved", "slack of the allocator", SLACK[at]], column, bytes));
  const outside = outsideAt(history, event);
  addShares(tree, ["outside the allocator"], column, outside.shares);
  if (outside.unexplained) addTo(tree, ["unexplained"], column, outside.unexplained);
}

function addShares(tree, path, column, shares) {
  for (const { name, bytes, parts } of shares) {
    if (parts.length) addShares(tree, [...path, name], column, parts);
    else addTo(tree, [...path, name], column, bytes);
  }
}

function addChanges(tree, column, history, bySite) {
  bySite.forEach((bytes, site) => {
    const { kind, modules, line } = history.sites[site];
    if (bytes) addTo(tree, ["reserved", "requested", kind, modules, line], column, bytes);
  });
}

/** Returns the tree and its columns for what is chosen. */
function treeOf({ history, event, from, other, otherEvent }) {
  if (from !== null) {
    const tree = node("used", 4);
    const [added, freed] = changedBySite(history, from, event);
    addMoment(tree, 0, history, from);
    addChanges(tree, 1, history, freed);
    addChanges(tree, 2, history, added);
    addMoment(tree, 3, history, event);
    for (const each of [tree, tree.parts.get("reserved")]) if (each) each.sizes[1] = each.sizes[2] = null;
    return { tree, columns: ["at the beginning", "freed by the end", "added by the end", "at the end"], write: [gib, changed, changed, gib] };
  }
  if (other) {
    const tree = node("used", 2);
    addMoment(tree, 0, history, event);
    if (otherEvent !== null) addMoment(tree, 1, other, otherEvent);
    return { tree, columns: [history.name, other.name, "difference"], write: [gib, gib, (_, sizes) => signed(sizes[1] - sizes[0])] };
  }
  const tree = node("used", 1);
  addMoment(tree, 0, history, event);
  return { tree, columns: ["GiB", "of used"], write: [gib, (_, sizes) => perCent(sizes[0] / tree.sizes[0])] };
}

const gib = (bytes) => (bytes === null ? "" : THREE_DIGITS.format(bytes / 2 ** 30));
const changed = (bytes) => (bytes ? gib(bytes) : "");
const signed = (bytes) => (bytes ? `${bytes > 0 ? "+" : "\u2212"}${gib(Math.abs(bytes))}` : "=");

const weight = ({ sizes }) => Math.max(...sizes.map(Math.abs));
const sortedParts = ({ parts }) => [...parts.values()].sort((a, b) => weight(b) - weight(a));

function showTree(chosen) {
  const { tree, columns, write } = treeOf(chosen);
  const unit = columns[0] === "GiB" ? "" : ", GiB";
  const head = h("tr", {}, h("th", { scope: "col" }, "memory of the device"), ...columns.map((name) => h("th", { scope: "col", className: "number" }, `${name}${unit}`)), h("th", { className: "share", "aria-hidden": "true" }));
  const body = h("tbody");
  const draw = () => body.replaceChildren(...rowsOf(tree, write, weight(tree) || 1, draw));
  draw();
  byId("tree").replaceChildren(h("thead", {}, head), body);
}

function rowsOf(tree, write, whole, redraw, path = tree.name, level = 0, kind = null) {
  const isOpen = opened.has(path);
  const swatch = KINDS.has(tree.name) && level === 3;
  const own = swatch ? tree.name : kind;
  const rows = [rowOf(tree, write, whole, redraw, path, level, own, swatch)];
  if (!isOpen) return rows;
  const parts = sortedParts(tree);
  for (const part of parts.slice(0, MOST_ROWS)) rows.push(...rowsOf(part, write, whole, redraw, `${path}/${part.name}`, level + 1, own));
  const rest = parts.slice(MOST_ROWS);
  if (rest.length) {
    const sizes = tree.sizes.map((_, column) => rest.reduce((sum, part) => sum + part.sizes[column], 0));
    rows.push(rowOf({ name: `${WHOLE.format(rest.length)} smaller`, sizes, parts: new Map() }, write, whole, redraw, "", level + 1, own, false));
  }
  return rows;
}

function rowOf(tree, write, whole, redraw, path, level, kind, swatch) {
  const isOpen = opened.has(path);
  const toggle = () => {
    if (!opened.delete(path)) opened.add(path);
    redraw();
    [...byId("tree").querySelectorAll("button")].find((each) => each.dataset.path === path)?.focus();
  };
  const mark = swatch ? h("span", { className: "swatch" }) : null;
  if (mark) mark.style.background = colorOfKind(tree.name);
  const label = tree.parts.size ? h("button", { type: "button", className: "open", onclick: toggle, "aria-expanded": String(isOpen) }, mark, tree.name) : h("span", { className: "leaf" }, mark, tree.name);
  label.dataset.path = path;
  const name = h("td", {}, label);
  name.style.paddingLeft = `${0.4 + 1.1 * level}rem`;
  const bar = h("span", { className: "bar" });
  bar.style.width = `${(100 * Math.max(0, tree.sizes.at(-1))) / whole}%`;
  if (kind) bar.style.background = colorOfKind(kind);
  const cells = write.map((text, column) => h("td", { className: "number" }, text(tree.sizes[column] ?? null, tree.sizes)));
  const row = h("tr", {}, name, ...cells, h("td", { className: "share", "aria-hidden": "true" }, bar));
  row.dataset.bytes = tree.sizes.map((bytes) => bytes ?? "").join(" ");
  row.dataset.path = path;
  return row;
}
