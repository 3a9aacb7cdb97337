// Charts of the points that are shown: lines along sequence length or batch, clouds for any other two figures.

const hidden = new Set();
const cards = [];
const LINES = { "seq_len.tokens": ["sequence length, tokens", microOf, "batch "], "batch.micro": ["micro batch, samples per GPU", tokensOf, ""] };
const NEAR = 40; // pixels from which a point answers the pointer
const DASHES = { solid: [], dashed: [7, 4], dotted: [2, 3], dashdot: [8, 3, 2, 3] };

/** What can be on an axis: key -> name, unit, value of a point. */
function axesOfData() {
  const found = {
    "seq_len.tokens": { name: LINES["seq_len.tokens"][0], unit: "number", value: tokensOf },
    "batch.micro": { name: LINES["batch.micro"][0], unit: "number", value: microOf },
    forward: { name: "tokens of one forward", unit: "number", value: (point) => point.forward },
  };
  for (const [key, { name, unit }] of Object.entries(DATA.figures)) {
    if (!key.includes(".")) found[key] = { name, unit, value: (point) => point.figures?.[key]?.[0] ?? null };
  }
  return found;
}

const AXES = axesOfData();

const scaled = (unit, value) => (value !== null && unit === "bytes" ? value / 2 ** 30 : value);

function makeCharts() {
  makeLegend();
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
  drawAll();
  for (const event of ["filterchange", "themechange"]) document.addEventListener(event, drawAll);
  new ResizeObserver(drawAll).observe(byId("chart-grid"));
}

const drawAll = () => cards.forEach((card) => card.draw());

function makeLegend() {
  byId("legend").replaceChildren(
    ...DATA.configurations.map((configuration, index) => {
      const swatch = h("span", { className: "swatch" });
      const button = h("button", { type: "button", "aria-pressed": "true", onclick: () => {
        (hidden.has(index) ? hidden.delete(index) : hidden.add(index));
        button.setAttribute("aria-pressed", String(!hidden.has(index)));
        drawAll();
      } }, swatch, configuration.label);
      const paint = () => (swatch.style.background = colorOf(configuration));
      paint();
      document.addEventListener("themechange", paint);
      return button;
    }),
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
  const controls = h("div", { className: "axes" }, h("label", {}, "y ", select(y, (key) => (card.y = key))), h("label", {}, "x ", select(x, (key) => (card.x = key))));
  const element = h("article", { className: "card" }, title, controls, h("div", { className: "plot-frame" }, place, tip));
  card.draw = () => {
    const groups = groupsOf(card.x, card.y);
    title.textContent = `${AXES[card.y].name} over ${AXES[card.x].name.split(",")[0]}`;
    const count = groups.reduce((sum, group) => sum + group.rows.length, 0);
    place.setAttribute("aria-label", `${title.textContent}: ${count} points; the table below has the numbers`);
    card.plot?.destroy();
    tip.hidden = true;
    card.plot = count ? plot(card, groups, place, tip) : (place.replaceChildren("No point that is shown has both figures."), null);
  };
  cards.push(card);
  return element;
}

/** The points of each line or cloud, in the order of x. */
function groupsOf(x, y) {
  const groups = new Map();
  for (const point of state.shown) {
    const [at, value] = [AXES[x].value(point), AXES[y].value(point)];
    const oom = point.status === "gpu_oom" && x in LINES;
    const fit = point.status === "ok" && value !== null;
    if (at === null || !(fit || oom) || hidden.has(point.configuration)) continue;
    const [, other, word] = LINES[x] ?? [];
    const part = other ? ` ${word}${number(other(point))}${word ? "" : " tokens"}` : "";
    const name = `${point.configuration}${part}`;
    if (!groups.has(name)) groups.set(name, { configuration: DATA.configurations[point.configuration], part, rows: [], ooms: [] });
    const ranks = x in LINES ? point.ranks?.[y] : undefined;
    const row = { point, x: scaled(AXES[x].unit, at), y: scaled(AXES[y].unit, ranks ? ranks[1] : value) };
    if (ranks) [row.low, row.high] = [scaled("bytes", ranks[0]), scaled("bytes", ranks[2])];
    if (oom) groups.get(name).ooms.push(row);
    else groups.get(name).rows.push(row);
  }
  const found = [...groups.values()];
  found.forEach((group) => group.rows.sort((a, b) => a.x - b.x));
  const lines = found.filter((group) => group.rows.length + group.ooms.length > 1);
  return x in LINES && lines.length ? lines : found; // a lone point among lines belongs to the other axis
}

/** uPlot wants one x for all series: every row gets a place of its own. */
function aligned(groups) {
  const rows = groups.flatMap((group, series) => group.rows.map((row) => ({ ...row, series }))).sort((a, b) => a.x - b.x);
  return [rows.map((row) => row.x), ...groups.map((_, series) => rows.map((row) => (row.series === series ? row.y : null)))];
}

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
    axes: [axis(card.x, { size: 30 }), axis(card.y, { size: 56 })],
    series: [{}, ...groups.map((group) => series(group, card.x in LINES))],
    hooks: { drawClear: [(u) => drawBands(u, groups)], draw: [(u) => drawMarks(u, groups, card)] },
  };
  card.zoomed = false;
  const made = new uPlot(options, aligned(groups), place);
  made.over.addEventListener("mousedown", () => (card.zoomed = true));
  made.over.addEventListener("dblclick", () => {
    card.zoomed = false;
    made.setScale("x", { min: 0, max: right });
  });
  listen(made, groups, card, tip);
  return made;
}

function series(group, line) {
  const color = colorOf(group.configuration);
  const dots = { show: !line || group.rows.length <= 60, size: group.rows.length > 200 ? 4 : 6, fill: color, stroke: color };
  return { stroke: color, width: 1.75, dash: DASHES[group.configuration.dash], spanGaps: true, points: dots, ...(line ? {} : { paths: () => null }) };
}

/** From the lowest to the highest rank. */
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

/** A cross at the top for an out-of-memory; the line of equality between two sizes; the front of memory and speed. */
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

/** The nearest point tells itself; a click opens it. */
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
