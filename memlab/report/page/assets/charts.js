// Charts of the shown points: lines along sequence length or batch, clouds for other pairs of quantities.

const hidden = new Set();
const cards = [];
// Axes with lines: name, the value that all points of a line share, and how this value is written.
const LINES = {
  "seq_len.tokens": ["sequence length, tokens", microOf, (micro) => `batch ${number(micro)}`],
  "batch.micro": ["micro batch, samples per GPU", tokensOf, (tokens) => `${WHOLE.format(tokens)} tokens`],
};
const [HEIGHT, TITLE] = [290, 24]; // of a chart, and of the name of its y axis, in pixels
const DRAGGED = 3; // pixels from which a press is a drag
const NEAR = 40; // pixels between the pointer and a point that responds
const MOST_DRAWN = 2000; // most points of a chart; more would hide each other
const MOST_NAMED = 40; // most configurations in the legend
const MOST_MARKS = 60; // most marks on a line
const MARKS = [..."\u25cf\u25a0\u25b2\u25c6\u25bc\u2605\u25cb\u25a1\u25b3\u25c7\u25bd\u2606"]; // one for each batch, or length, of the lines of a chart
const DASHES = { solid: [], dashed: [7, 4], dotted: [2, 3], dashdot: [8, 3, 2, 3] };

/** Possible axes: key -> name, unit, value of a point. */
function axesOfData() {
  const found = {
    "seq_len.tokens": { name: LINES["seq_len.tokens"][0], unit: "number", value: tokensOf },
    "batch.micro": { name: LINES["batch.micro"][0], unit: "number", value: microOf },
    forward: { name: "tokens of one forward", unit: "number", value: (point) => microOf(point) * tokensOf(point) },
  };
  for (const [key, { name, unit }] of Object.entries(QUANTITIES)) {
    if (!key.includes(".")) found[key] = { name, unit, value: (point) => comparableOf(point, key) };
  }
  return found;
}

const AXES = axesOfData();

const scaled = (unit, value) => (value !== null && unit === "bytes" ? value / 2 ** 30 : value);

/** The charts show one subject (model and GPUs) at a time: memory of two subjects must not share an axis. */
const subjects = [...new Set(POINTS.map((point) => point.subject))];
let chosenSubject = null;

const charted = { subject: null, points: [] };

/** Draws the charts of the chosen subject or, if the filters remove all its points, of the subject with most points. */
function chart() {
  const counts = new Map();
  for (const { subject } of state.shown) counts.set(subject, (counts.get(subject) ?? 0) + 1);
  const most = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a))[0] ?? subjects[0];
  charted.subject = counts.has(chosenSubject) ? chosenSubject : most;
  charted.points = state.shown.filter((point) => point.subject === charted.subject);
  if (byId("subject")) byId("subject").value = charted.subject;
  showLegend();
  cards.forEach((card) => card.draw());
}

function makeCharts() {
  if (subjects.length > 1) makeSubjects();
  const reserved = "peak_reserved_bytes";
  const wanted = [
    ["seq_len.tokens", reserved], ["batch.micro", reserved],
    ["seq_len.tokens", DATA.held], ["batch.micro", DATA.held],
    ["seq_len.tokens", "tokens_per_second"], ["batch.micro", "tokens_per_second"],
    [DATA.held, reserved], [reserved, "tokens_per_second"], ["batch.micro", "usd_per_million_tokens"],
  ];
  const varies = (key) => AXES[key] && new Set(POINTS.map(AXES[key].value).filter((value) => value !== null)).size > 1;
  const useful = wanted.filter(([x, y]) => varies(x) && varies(y));
  for (const [x, y] of useful.length ? useful : [["forward", reserved]].filter(([, key]) => AXES[key])) byId("chart-grid").append(makeCard(x, y));
  chart();
  for (const event of ["filterchange", "themechange"]) document.addEventListener(event, chart);
  new ResizeObserver(() => cards.forEach((card) => card.draw())).observe(byId("chart-grid"));
}

function makeSubjects() {
  const select = h("select", { id: "subject", onchange: () => {
    chosenSubject = select.value;
    chart();
  } }, ...subjects.toSorted(collator.compare).map((value) => h("option", { value }, value)));
  byId("legend").before(h("label", { className: "subject" }, "model and GPUs ", select));
}

/** Shows the configurations of the charted points; a click hides or shows one. */
function showLegend() {
  const places = [...new Set(charted.points.map((point) => point.configuration))];
  const more = places.length - MOST_NAMED;
  byId("legend").replaceChildren(
    ...places.slice(0, MOST_NAMED).map((index) => {
      const configuration = DATA.configurations[index];
      const swatch = h("span", { className: "swatch" });
      swatch.style.background = colorOf(configuration);
      const button = h("button", { type: "button", title: configuration.words, "aria-pressed": String(!hidden.has(index)), onclick: () => {
        (hidden.has(index) ? hidden.delete(index) : hidden.add(index));
        button.setAttribute("aria-pressed", String(!hidden.has(index)));
        cards.forEach((card) => card.draw());
      } }, swatch, configuration.label);
      return button;
    }),
    more > 0 ? `and ${WHOLE.format(more)} more configurations: the filters below choose among them` : "",
  );
}

function makeCard(x, y) {
  const select = (chosen, change) => {
    const options = Object.keys(AXES).map((key) => h("option", { value: key, selected: key === chosen }, AXES[key].name));
    return h("select", { onchange: (event) => (change(event.target.value), card.draw()) }, ...options);
  };
  const [tip, chosen] = ["tip", "chosen"].map((className) => h("div", { className, hidden: true }));
  const card = { x, y, tip, chosen, canvas: h("canvas") };
  const title = h("h3", {});
  const place = h("div", { className: "plot", role: "img" });
  const thin = h("span", {});
  const key = h("div", { className: "key" });
  const controls = h("div", { className: "axes" }, h("label", {}, "y ", select(y, (key) => (card.y = key))), h("label", {}, "x ", select(x, (key) => (card.x = key))), thin);
  const element = h("article", { className: "card" }, title, controls, key, h("div", { className: "plot-frame" }, place, tip));
  card.draw = () => {
    const all = groupsOf(card.x, card.y);
    const groups = thinned(all);
    title.textContent = `${AXES[card.y].name} over ${AXES[card.x].name.split(",")[0]}`;
    const [count, drawn] = [all, groups].map((each) => each.reduce((sum, group) => sum + group.rows.length, 0));
    place.setAttribute("aria-label", `${title.textContent}: ${count} points; the table below has the numbers`);
    key.replaceChildren(...keyOf(groups, card.x));
    key.hidden = !key.childElementCount;
    thin.textContent = drawn < count ? `${WHOLE.format(drawn)} of ${WHOLE.format(count)} points are drawn` : "";
    place.replaceChildren(...(count ? [card.canvas, chosen] : ["No point shown has both values."]));
    tip.hidden = true;
    if (count) plot(card, groups, null);
  };
  listen(card);
  cards.push(card);
  return element;
}

/** Groups the points into lines or clouds, each in the order of x. */
function groupsOf(x, y) {
  const groups = new Map();
  for (const point of charted.points) {
    const [at, value] = [AXES[x].value(point), AXES[y].value(point)];
    const oom = point.status === "gpu_oom" && x in LINES;
    const fit = point.status === "ok" && value !== null;
    if (at === null || !(fit || oom) || hidden.has(point.configuration)) continue;
    const other = LINES[x]?.[1](point);
    const name = `${point.configuration} ${other}`;
    if (!groups.has(name)) groups.set(name, { configuration: DATA.configurations[point.configuration], other, rows: [], ooms: [] });
    const ranks = x in LINES ? ranksOf(point, y) : null;
    const row = { point, x: scaled(AXES[x].unit, at), y: scaled(AXES[y].unit, ranks ? ranks[1] : value) };
    if (ranks) [row.low, row.high] = [scaled("bytes", ranks[0]), scaled("bytes", ranks[2])];
    if (oom) groups.get(name).ooms.push(row);
    else groups.get(name).rows.push(row);
  }
  const found = [...groups.values()];
  found.forEach((group) => group.rows.sort((a, b) => a.x - b.x));
  const lines = found.filter((group) => group.rows.length + group.ooms.length > 1);
  if (!(x in LINES)) return found;
  const drawn = lines.length ? lines : found; // drop single points if there are lines: they belong to lines along the other axis
  const others = [...new Set(drawn.map((group) => group.other))].sort((a, b) => a - b);
  if (others.length > 1) drawn.forEach((group) => (group.mark = MARKS[others.indexOf(group.other) % MARKS.length]));
  return drawn;
}

/** Names the batch, or the length, that each mark of a chart's lines stands for. */
function keyOf(groups, x) {
  const marks = new Map(groups.filter((group) => group.mark).map((group) => [group.other, group.mark]));
  return [...marks].sort(([a], [b]) => a - b).map(([other, mark]) => h("span", {}, `${mark} ${LINES[x][2](other)}`));
}

/** Thins out groups with more than MOST_DRAWN points in all: every n-th point of each, with its first and last. */
function thinned(groups) {
  const step = Math.ceil(groups.reduce((sum, group) => sum + group.rows.length, 0) / MOST_DRAWN);
  if (step <= 1) return groups;
  return groups.map((group) => ({ ...group, rows: group.rows.filter((_, at) => at % step === 0 || at === group.rows.length - 1) }));
}

/** Draws a chart in its place, and notes its area and its rows for the pointer. `zoom`: ends of the x axis; null: all. */
function plot(card, groups, zoom) {
  const most = (pick) => Math.max(...groups.flatMap((group) => [...group.rows, ...(pick === "x" ? group.ooms : [])].map((row) => Math.max(row[pick], pick === "y" ? row.high ?? 0 : 0))));
  const [context, width] = contextOf(card.canvas, HEIGHT);
  const top = most("y") * 1.08 || 1;
  const values = ticks(0, top, 7);
  const text = (value) => number(value, 6);
  const left = TITLE + Math.max(36, 12 + 7 * Math.max(...values.map((value) => text(value).length)));
  const area = areaOf([left, 8, width - 16, HEIGHT - 50], zoom ?? [0, most("x") * 1.04 || 1], top);
  Object.assign(card, { area, groups, near: null });
  card.tip.hidden = true;
  drawRows(context, area, values, text);
  context.textAlign = "center";
  for (const value of ticks(area.from, area.to, Math.max(2, Math.floor(width / 60)))) {
    drawPath(context, [area.x(value), area.top], [area.x(value), area.bottom]);
    context.fillText(text(value), area.x(value), area.bottom + 14);
  }
  context.fillText(withUnit(AXES[card.x]), (area.left + area.right) / 2, HEIGHT - 10);
  context.save();
  context.rotate(-Math.PI / 2);
  context.fillText(withUnit(AXES[card.y]), -(area.top + area.bottom) / 2, TITLE / 2);
  context.restore();
  context.beginPath();
  context.rect(area.left, area.top, area.right - area.left, area.bottom - area.top);
  context.clip();
  drawBands(context, area, groups);
  drawGroups(context, area, groups, card.x in LINES);
  drawMarks(context, area, groups, card);
}

const placeOf = (area, row) => [area.x(row.x), area.y(row.y)];

/** Draws lines with dots, or only dots. */
function drawGroups(context, area, groups, areLines) {
  context.lineWidth = 1.75;
  context.font = "11px system-ui";
  for (const { configuration, rows, mark } of groups) {
    const places = rows.map((row) => placeOf(area, row));
    context.strokeStyle = context.fillStyle = colorOf(configuration);
    if (areLines) {
      context.setLineDash(DASHES[configuration.dash]);
      drawPath(context, ...places);
      context.setLineDash([]);
    }
    if (mark) {
      const every = Math.ceil(rows.length / MOST_MARKS);
      places.forEach(([x, y], at) => at % every === 0 && context.fillText(mark, x, y));
      continue;
    }
    if (areLines && rows.length > 60) continue;
    context.beginPath();
    for (const [x, y] of places) {
      context.moveTo(x, y);
      context.arc(x, y, rows.length > 200 ? 2 : 3, 0, 2 * Math.PI);
    }
    context.fill();
  }
}

/** Draws a band from the lowest to the highest rank. */
function drawBands(context, area, groups) {
  context.globalAlpha = 0.18;
  for (const group of groups) {
    const rows = group.rows.filter((row) => row.low !== undefined);
    const ends = [...rows.map(({ x, low }) => ({ x, y: low })), ...rows.toReversed().map(({ x, high }) => ({ x, y: high }))];
    context.fillStyle = colorOf(group.configuration);
    pathThrough(context, ends.map((row) => placeOf(area, row)));
    context.fill();
  }
  context.globalAlpha = 1;
}

/** Draws a cross for each out-of-memory, the line of equality of two sizes, and the front of memory and speed. */
function drawMarks(context, area, groups, card) {
  context.font = "bold 15px system-ui";
  for (const group of groups) {
    context.fillStyle = colorOf(group.configuration);
    for (const row of group.ooms) context.fillText("\u2715", area.x(row.x), area.top + 9);
  }
  context.strokeStyle = ink("ink");
  context.globalAlpha = 0.6;
  context.lineWidth = 1;
  drawPath(context, ...pathOf(area, groups, card).map((row) => placeOf(area, row)));
}

function pathOf(area, groups, card) {
  if (AXES[card.x].unit === "bytes" && AXES[card.y].unit === "bytes") {
    const end = Math.min(area.to, area.most);
    return [{ x: 0, y: 0 }, { x: end, y: end }];
  }
  if (AXES[card.x].unit !== "bytes" || AXES[card.y].unit !== "rate") return [];
  const path = [];
  for (const row of groups.flatMap((group) => group.rows).sort((a, b) => a.x - b.x || b.y - a.y)) {
    const best = path.at(-1)?.y ?? 0;
    if (row.y > best) path.push(...(path.length ? [{ x: row.x, y: best }] : []), row);
  }
  return path;
}

/** Describes the point nearest to the pointer; a click opens its details, a drag zooms, a double click zooms out. */
function listen(card) {
  const { canvas, chosen, tip } = card;
  let pressed = null;
  canvas.addEventListener("mousedown", (event) => (pressed = event.offsetX));
  canvas.addEventListener("mousemove", (event) => {
    if (!event.buttons) pressed = null;
    showNear(card, event);
    chosen.hidden = pressed === null;
    chosen.style.left = `${Math.min(pressed, event.offsetX)}px`;
    chosen.style.width = `${Math.abs(pressed - event.offsetX)}px`;
  });
  canvas.addEventListener("mouseleave", () => (tip.hidden = chosen.hidden = true));
  canvas.addEventListener("click", (event) => {
    chosen.hidden = true;
    const { area, near } = card;
    const ends = [pressed ?? event.offsetX, event.offsetX].map((x) => area.place(Math.min(area.right, Math.max(area.left, x)))).sort((a, b) => a - b);
    if (Math.abs(event.offsetX - pressed) >= DRAGGED && ends[1] > ends[0]) plot(card, card.groups, ends);
    else if (near) showDetails(near.point);
  });
  canvas.addEventListener("dblclick", () => plot(card, card.groups, null));
}

function showNear(card, { offsetX, offsetY }) {
  const { area, groups, canvas, tip } = card;
  let least = NEAR;
  card.near = null;
  for (const row of groups.flatMap((group) => group.rows)) {
    const found = Math.hypot(area.x(row.x) - offsetX, area.y(row.y) - offsetY);
    if (found < least) [card.near, least] = [row, found];
  }
  tip.hidden = card.near === null;
  canvas.style.cursor = card.near ? "pointer" : "crosshair";
  if (!card.near) return;
  const line = (key) => h("div", {}, `${AXES[key].name}: ${write(AXES[key].unit, AXES[key].value(card.near.point))}`);
  tip.replaceChildren(h("strong", {}, pointName(card.near.point)), line(card.x), line(card.y));
  const [x, y] = placeOf(area, card.near);
  tip.style.top = `${y + 12}px`;
  tip.style.left = `${Math.min(x, Math.max(0, canvas.clientWidth - tip.offsetWidth - 4))}px`;
}
