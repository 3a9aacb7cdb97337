// Charts of the shown points: lines along sequence length or batch, clouds for other pairs of quantities.

const hidden = new Set();
const cards = [];
// Axes with lines: name, the value that all points of a line share, and how this value is written.
const LINES = {
  "seq_len.tokens": ["sequence length, tokens", microOf, (micro) => `batch ${number(micro)}`],
  "batch.micro": ["micro batch, samples per GPU", tokensOf, (tokens) => `${WHOLE.format(tokens)} tokens`],
};
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
  const card = { x, y, plot: null, width: 0 };
  const title = h("h3", {});
  const place = h("div", { className: "plot", role: "img" });
  const tip = h("div", { className: "tip", hidden: true });
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
    card.plot?.destroy();
    tip.hidden = true;
    card.plot = count ? plot(card, groups, place, tip) : (place.replaceChildren("No point shown has both values."), null);
  };
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

/** Makes the data from which uPlot draws the axes; drawGroups draws the groups, which differ in their x. */
const frameOf = (groups) => {
  const places = groups.flatMap((group) => group.rows.map((row) => row.x)).sort((a, b) => a - b);
  return [places, places.map(() => null)];
};

/** Width in pixels of the numbers beside an axis. */
const widthOf = (_, numbers) => Math.max(56, 12 + 7 * Math.max(0, ...(numbers ?? []).map((each) => each.length)));

function plot(card, groups, place, tip) {
  const ink = getComputedStyle(document.body).color;
  const faint = getComputedStyle(byId("chart-grid")).borderTopColor;
  const most = (pick) => Math.max(...groups.flatMap((group) => [...group.rows, ...(pick === "x" ? group.ooms : [])].map((row) => Math.max(row[pick], pick === "y" ? row.high ?? 0 : 0))));
  const right = most("x") * 1.04 || 1;
  const axis = (key, extra) => ({
    label: withUnit(AXES[key]), stroke: ink, grid: { stroke: faint, width: 1 }, ticks: { stroke: faint, size: 4 }, labelSize: 20, labelGap: 0, font: "12px system-ui", labelFont: "12px system-ui",
    values: (_, splits) => splits.map((value) => (value === null ? "" : number(value, 6))), ...extra,
  });
  const options = {
    width: Math.max(260, place.clientWidth), height: 290, legend: { show: false },
    cursor: { points: { show: false }, drag: { x: true, y: false } },
    scales: { x: { time: false, range: (_, low, high) => (card.zoomed ? [low, high] : [0, right]) }, y: { range: [0, most("y") * 1.08 || 1] } },
    axes: [axis(card.x, { size: 30 }), axis(card.y, { size: widthOf })],
    series: [{}, { points: { show: false } }],
    hooks: { drawClear: [(u) => drawBands(u, groups)], draw: [(u) => drawGroups(u, groups, card.x in LINES), (u) => drawMarks(u, groups, card)] },
  };
  card.zoomed = false;
  const made = new uPlot(options, frameOf(groups), place);
  made.over.addEventListener("mousedown", () => (card.zoomed = true));
  made.over.addEventListener("dblclick", () => {
    card.zoomed = false;
    made.setScale("x", { min: 0, max: right });
  });
  listen(made, groups, card, tip);
  return made;
}

/** Draws lines with dots, or only dots. */
function drawGroups(u, groups, areLines) {
  const { ctx } = u;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
  ctx.clip();
  ctx.lineWidth = 1.75 * ratio;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.font = `${11 * ratio}px system-ui`;
  for (const { configuration, rows, mark } of groups) {
    const places = rows.map((row) => [u.valToPos(row.x, "x", true), u.valToPos(row.y, "y", true)]);
    ctx.strokeStyle = ctx.fillStyle = colorOf(configuration);
    if (areLines) {
      ctx.setLineDash(DASHES[configuration.dash].map((length) => length * ratio));
      ctx.beginPath();
      places.forEach(([x, y], at) => ctx[at ? "lineTo" : "moveTo"](x, y));
      ctx.stroke();
    }
    if (mark) {
      const every = Math.ceil(rows.length / MOST_MARKS);
      places.forEach(([x, y], at) => at % every === 0 && ctx.fillText(mark, x, y));
      continue;
    }
    if (areLines && rows.length > 60) continue;
    ctx.setLineDash([]);
    ctx.beginPath();
    for (const [x, y] of places) {
      ctx.moveTo(x, y);
      ctx.arc(x, y, (rows.length > 200 ? 2 : 3) * ratio, 0, 2 * Math.PI);
    }
    ctx.fill();
  }
  ctx.restore();
}

/** Draws a band from the lowest to the highest rank. */
function drawBands(u, groups) {
  u.ctx.save();
  u.ctx.globalAlpha = 0.18;
  for (const group of groups) {
    const rows = group.rows.filter((row) => row.low !== undefined);
    const corners = [...rows.map((row) => [row.x, row.low]), ...rows.toReversed().map((row) => [row.x, row.high])];
    u.ctx.beginPath();
    corners.forEach(([x, y], at) => u.ctx[at ? "lineTo" : "moveTo"](u.valToPos(x, "x", true), u.valToPos(y, "y", true)));
    u.ctx.fillStyle = colorOf(group.configuration);
    u.ctx.fill();
  }
  u.ctx.restore();
}

/** Draws a cross for each out-of-memory, the line of equality of two sizes, and the front of memory and speed. */
function drawMarks(u, groups, card) {
  const { ctx } = u;
  const at = (x, y) => [u.valToPos(x, "x", true), u.valToPos(y, "y", true)];
  ctx.save();
  ctx.font = `bold ${15 * devicePixelRatio}px system-ui`;
  ctx.textAlign = "center";
  for (const group of groups) {
    ctx.fillStyle = colorOf(group.configuration);
    for (const row of group.ooms) ctx.fillText("\u2715", u.valToPos(row.x, "x", true), u.bbox.top + 13 * devicePixelRatio);
  }
  ctx.strokeStyle = getComputedStyle(document.body).color;
  ctx.globalAlpha = 0.6;
  ctx.lineWidth = devicePixelRatio;
  const path = pathOf(u, groups, card);
  ctx.beginPath();
  path.forEach(([x, y], index) => ctx[index ? "lineTo" : "moveTo"](...at(x, y)));
  ctx.stroke();
  ctx.restore();
}

function pathOf(u, groups, card) {
  if (AXES[card.x].unit === "bytes" && AXES[card.y].unit === "bytes") {
    const end = Math.min(u.scales.x.max, u.scales.y.max);
    return [[0, 0], [end, end]];
  }
  if (AXES[card.x].unit !== "bytes" || AXES[card.y].unit !== "rate") return [];
  const path = [];
  for (const row of groups.flatMap((group) => group.rows).sort((a, b) => a.x - b.x || b.y - a.y)) {
    const best = path.at(-1)?.[1] ?? 0;
    if (row.y > best) path.push(...(path.length ? [[row.x, best]] : []), [row.x, row.y]);
  }
  return path;
}

/** Describes the point nearest to the pointer; a click opens its details. */
function listen(u, groups, card, tip) {
  const rows = groups.flatMap((group) => group.rows);
  let near = null;
  u.over.addEventListener("mousemove", (event) => {
    const { left, top } = u.over.getBoundingClientRect();
    const distance = (row) => Math.hypot(u.valToPos(row.x, "x") - (event.clientX - left), u.valToPos(row.y, "y") - (event.clientY - top));
    let least = NEAR;
    near = null;
    for (const row of rows) {
      const found = distance(row);
      if (found < least) [near, least] = [row, found];
    }
    tip.hidden = near === null;
    u.over.style.cursor = near ? "pointer" : "crosshair";
    if (near) showTip(u, near, card, tip);
  });
  u.over.addEventListener("mouseleave", () => (tip.hidden = true));
  let pressed = 0;
  u.over.addEventListener("mousedown", (event) => (pressed = event.clientX));
  u.over.addEventListener("click", (event) => near && Math.abs(event.clientX - pressed) < 3 && showDetails(near.point));
}

function showTip(u, row, card, tip) {
  const line = (key) => h("div", {}, `${AXES[key].name}: ${write(AXES[key].unit, AXES[key].value(row.point))}`);
  tip.replaceChildren(h("strong", {}, pointName(row.point)), line(card.x), line(card.y));
  const x = u.valToPos(row.x, "x") + u.over.offsetLeft;
  tip.style.top = `${u.valToPos(row.y, "y") + u.over.offsetTop + 12}px`;
  tip.style.left = `${Math.min(x, Math.max(0, u.width - tip.offsetWidth - 4))}px`;
}
