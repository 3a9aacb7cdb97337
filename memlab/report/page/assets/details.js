// Dialog with all data of one point.

const PHASE_PARTS = [
  ["end_allocated_bytes", "stays", "allocated at the end of the phase"],
  ["peak_allocated_bytes", "peak", "allocated at its peak only"],
  ["peak_reserved_bytes", "slack", "reserved beyond that"],
];

function showDetails(point) {
  const dialog = byId("details");
  const close = h("button", { type: "button", className: "close", onclick: () => dialog.close() }, "Close");
  const compare = h("button", { type: "button", onclick: () => (dialog.close(), pick(point)) }, "Compare");
  dialog.replaceChildren(
    h("div", { className: "dialog-head" }, h("h2", { id: "details-title" }, pointName(point)), compare, close),
    h("p", {}, h("code", {}, point.id), " ", statusMark(point)),
    h("p", { className: "hint" }, point.path),
    point.explained ? h("p", {}, "Who holds its memory at every moment: ", h("code", {}, `memlab explain ${point.path} --page memory.html`)) : "",
    point.ran_out ? h("p", {}, "What held the memory when it ran out: ", h("code", {}, `memlab explain ${point.path}`)) : "",
    ...[point.reason, point.incomplete, point.doubts].filter(Boolean).map((text) => h("p", { className: "care" }, text)),
    ...[quantitiesBlock(point), phasesBlock(point)].filter(Boolean),
    block("Options", keyTable(choicesOf(point)), true),
    block("Configuration", keyTable(configOf(point)), false),
    deepspeedBlock(point),
    block("Environment", keyTable(environmentOf(point)), false),
    ...logsOf(point).map(([name, text]) => block(`End of ${name}`, h("pre", { tabIndex: 0 }, text), false)),
  );
  dialog.showModal();
  close.focus();
}

const statusMark = (point) => h("span", { className: point.status === "ok" ? "status" : "status bad" }, point.status);

function block(title, content, open) {
  return h("details", { open }, h("summary", {}, title), content);
}

function keyTable(values) {
  const rows = [...flatten(values)].map(([key, value]) => [h("code", {}, key), plain(value)]);
  return rows.length ? table("", ["key", "value"], rows, 2) : h("p", {}, "not kept");
}

function quantitiesBlock(point) {
  const rows = Object.entries(QUANTITIES)
    .filter(([key]) => !key.includes(".") && quantityOf(point, key) !== null)
    .map(([key, { name, unit }]) => {
      const ranks = ranksOf(point, key);
      return [name, asKnown(point, key, write(unit, quantityOf(point, key))), ranks ? `${write(unit, ranks[0])} to ${write(unit, ranks[2])}` : DASH, write(unit, noiseOf(point, key))];
    });
  for (const [key, column] of Object.entries(TIMING)) {
    const value = column[point.index];
    if (value !== null) rows.push([`time: ${key.replace(/_s$/, "")}`, write("seconds", value), DASH, DASH]);
  }
  return rows.length ? block("Quantities", table("", ["quantity (largest rank)", "value", "lowest to highest rank", "noise"], rows), true) : null;
}

/** Sizes of PHASE_PARTS in a phase of a point. */
const sizesOf = (point, phase) => PHASE_PARTS.map(([key]) => (key === "end_allocated_bytes" ? ENDS[phase][point.index] : quantityOf(point, `${phase}.${key}`)));

function phasesBlock(point) {
  const phases = Object.keys(ENDS).map((name) => [name, sizesOf(point, name)]).filter(([, sizes]) => sizes.some((size) => size !== null));
  if (!phases.length) return null;
  const most = Math.max(...phases.flatMap(([, sizes]) => sizes));
  const rows = phases.map(([name, sizes]) => {
    const bar = h("div", { className: "bar", role: "presentation" });
    let below = 0;
    PHASE_PARTS.forEach(([, className], at) => {
      const part = h("span", { className });
      part.style.width = `${(100 * Math.max(0, (sizes[at] ?? 0) - below)) / (most || 1)}%`;
      below = Math.max(below, sizes[at] ?? 0);
      bar.append(part);
    });
    return [name.replaceAll("_", " "), bar, ...sizes.map((size) => write("bytes", size))];
  });
  const head = ["phase", "", "at its end", "allocated peak", "reserved peak"];
  const legend = h("p", { className: "hint" }, ...PHASE_PARTS.flatMap(([, className, text]) => [h("span", { className: `swatch ${className}` }), ` ${text}  `]));
  return block("Memory by phase, highest rank", h("div", {}, table("", head, rows, 2), legend), true);
}

function deepspeedBlock(point) {
  const values = deepspeedOf(point);
  if (!Object.keys(values).length) return block("DeepSpeed JSON", h("p", {}, "not kept"), false);
  const text = JSON.stringify(values, null, 2);
  const shown = h("pre", { tabIndex: 0, className: "json" }, text);
  const copy = h("button", { type: "button", className: "copy", onclick: () => copyText(text, shown, copy) }, "Copy");
  return block("DeepSpeed JSON", h("div", { className: "with-copy" }, copy, shown), false);
}

/** Copies text to the clipboard. If the browser refuses, selects the text so that the reader can copy it. */
async function copyText(text, shown, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(shown);
    button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
  }
}
