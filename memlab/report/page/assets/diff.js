// Differences between two points and their effects, as in `memlab diff`.

const picked = [];
const MOST_OFFERED = 200; // most points in a picker: more are too many to scroll through

/** Picks a point for the comparison. A third point replaces the older one; picking a point again removes it. */
function pick(point) {
  const at = picked.indexOf(point);
  if (at >= 0) picked.splice(at, 1);
  else picked.push(point);
  if (picked.length > 2) picked.shift();
  showDiff();
  document.dispatchEvent(new Event("pickchange"));
}

function makePicker() {
  const choose = (place) => (event) => {
    if (event.target.value === "") return;
    picked[place] = POINTS[Number(event.target.value)];
    if (picked[0]) showDiff();
    else picked.length = 0;
    document.dispatchEvent(new Event("pickchange"));
  };
  const selects = ["A", "B"].map((name, place) => h("select", { id: `pick-${name.toLowerCase()}`, onchange: choose(place) }));
  const swap = h("button", { type: "button", onclick: () => (picked.reverse(), showDiff(), document.dispatchEvent(new Event("pickchange"))) }, "Swap");
  byId("picker").append(h("label", {}, "A ", selects[0]), h("label", {}, "B ", selects[1]), swap);
  const fill = () => selects.forEach((select, place) => fillPicker(select, picked[place]));
  for (const event of ["pickchange", "filterchange"]) document.addEventListener(event, fill);
  fill();
}

/** Fills a picker with the first points that pass the filters, and the picked point. */
function fillPicker(select, point) {
  const offered = state.shown.slice(0, MOST_OFFERED);
  if (point && !offered.includes(point)) offered.unshift(point);
  select.replaceChildren(
    h("option", { value: "" }, "choose a point"),
    ...offered.map((each) => h("option", { value: String(each.index) }, `${pointName(each)} (${each.status})`)),
  );
  select.value = point ? String(point.index) : "";
}

function showDiff() {
  const place = byId("diff");
  if (picked.length < 2) {
    place.replaceChildren(h("p", { className: "hint" }, picked.length ? "Choose a second point." : "Choose two points here or in the table."));
    return;
  }
  const [a, b] = picked;
  const parts = [
    ["Options", changes(new Map(Object.entries(choicesOf(a))), new Map(Object.entries(choicesOf(b))))],
    ["Values", configChanges(a, b)],
    ["DeepSpeed JSON", changes(flatten(deepspeedOf(a)), flatten(deepspeedOf(b)))],
    ["Environment", environmentChanges(a, b)],
  ].filter(([, rows]) => rows.length);
  place.replaceChildren(
    ...warnings(a, b).map((text) => h("p", { className: "care" }, text)),
    effectTable(a, b),
    ...(parts.length ? [] : [h("p", {}, "Nothing differs in the configuration.")]),
    ...parts.map(([title, rows]) => table(title, ["key", "A", "B"], rows.map(([key, x, y]) => [h("code", {}, key), plain(x), plain(y)]), 3)),
  );
}

/** Lists the keys whose values differ, with both values. */
function changes(a, b) {
  const keys = [...new Set([...a.keys(), ...b.keys()])];
  return keys.filter((key) => JSON.stringify(a.get(key)) !== JSON.stringify(b.get(key))).map((key) => [key, a.get(key), b.get(key)]);
}

const ofRepeats = (key) => DATA.repeats.includes(key) || DATA.repeats.includes(key.split(".")[0]);
const configChanges = (a, b) => changes(flatten(configOf(a)), flatten(configOf(b))).filter(([key]) => !ofRepeats(key));
/** Environment values that both points have, that differ, and that could change a quantity. */
const environmentChanges = (a, b) => changes(flatten(causesOf(a)), flatten(causesOf(b))).filter(([, x, y]) => x !== undefined && y !== undefined);

/** Lists reasons why a difference may have several causes, then points with partial quantities. */
function warnings(a, b) {
  const axes = [...new Set(configChanges(a, b).map(([key]) => key.split(".")[0]))];
  const found = [];
  if (axes.length > 1) found.push(`${axes.length} axes differ (${axes.join(", ")}): their effects cannot be separated. Compare runs that differ in one.`);
  const versions = environmentChanges(a, b);
  if (versions.length) {
    const told = versions.map(([key, x, y]) => `${key}: ${plain(x)} / ${plain(y)}`).join("; ");
    found.push(`The environments differ (${told}): they may cause part of the difference.`);
  }
  for (const point of [a, b]) {
    if (point.status === "does_not_last") found.push(`${point.id} does not last: its memory grows with each step.`);
    else if (point.status !== "ok") found.push(`${point.id} ended as ${point.status} (${point.reason ?? "no reason given"}): its values are partial or absent.`);
    if (point.incomplete) found.push(`${point.id} is incomplete: ${point.incomplete}.`);
  }
  return found;
}

/** Whether this value is large enough as the base of a relative change. */
const isBase = (unit, value) => Math.abs(value) >= (unit === "bytes" ? DATA.small : Number.MIN_VALUE);

/** Makes a table of all quantities of both points: absolute and relative difference, and whether it exceeds the noise. */
function effectTable(a, b) {
  const known = Object.entries(QUANTITIES).filter(([key]) => quantityOf(a, key) !== null || quantityOf(b, key) !== null);
  const rows = known.map(([key, { name, unit }]) => {
    const [x, y] = [quantityOf(a, key), quantityOf(b, key)];
    const cells = [name, asKnown(a, key, write(unit, x)), asKnown(b, key, write(unit, y))];
    if (boundOf(a, key) || boundOf(b, key)) return [...cells, "not known", DASH, DASH];
    if (x === null || y === null) return [...cells, DASH, DASH, DASH];
    const difference = y - x;
    const sign = difference < 0 ? "-" : "+";
    const noises = [noiseOf(a, key), noiseOf(b, key)].filter((noise) => noise !== null);
    const noise = noises.length ? Math.max(...noises) : null;
    const within = noise !== null && Math.abs(difference) <= noise;
    const verdict = noise === null ? "unknown" : `${write(unit, noise)}${within ? " (within it)" : ""}`;
    return [...cells, sign + write(unit, Math.abs(difference)), isBase(unit, x) ? write("share", difference / x) : DASH, verdict];
  });
  const head = ["quantity (largest rank)", "A", "B", "B - A", "%", "noise"];
  const names = h("p", {}, h("strong", {}, "A "), pointName(a), h("br"), h("strong", {}, "B "), pointName(b));
  return h("div", { className: "scroll" }, names, rows.length ? table("Effect", head, rows) : h("p", {}, "Neither point has values."));
}
