// The curve: allocated, reserved and used memory over the events or over time, with the kinds stacked below the allocated
// line. Each column of pixels shows the extremes of its events, so that no peak is lost however many events there are.

const [LEFT, RIGHT, TOP, BOTTOM, HEIGHT] = [64, 14, 44, 24, 360];
const NEAR_CAPACITY = 0.5; // share of the device's memory from which its line is drawn
const FEWEST = 8; // events that can be zoomed to
const FEWEST_LETTERS = 5; // of a name that is cut
const chart = { from: 0, to: 1, byTime: false };

const endOf = ({ events, clock }) => (chart.byTime ? clock.times.at(-1) : events);
const placeOf = (history, event) => (chart.byTime ? timeOf(history, event) : event);
/** Returns the first event at or after a place on the axis; the number of events behind the last one. */
const firstFrom = ({ events, clock }, place) => (chart.byTime ? Math.min(events, clock.begin + lowerBound(clock.times, place)) : Math.min(events, Math.max(0, Math.ceil(place))));
const eventAt = (history, place) => Math.min(history.events - 1, firstFrom(history, place));

/** Returns the first event of each of `count` columns between two places, and the event behind the last. */
const edgesOf = (history, from, to, count) => Int32Array.from({ length: count + 1 }, (_, at) => firstFrom(history, from + ((to - from) * at) / count));

/** Returns the lowest and highest value of each column, and the event of the highest. An empty column has the value before it. */
function extremes(values, edges) {
  const count = edges.length - 1;
  const found = { low: new Float64Array(count), high: new Float64Array(count), event: new Int32Array(count) };
  for (let column = 0; column < count; column++) {
    const first = Math.max(0, edges[column + 1] > edges[column] ? edges[column] : edges[column] - 1);
    const last = Math.max(first + 1, edges[column + 1]);
    let [low, high, event] = [Infinity, -Infinity, first];
    for (let at = first; at < last; at++) {
      const value = values[at];
      if (value < low) low = value;
      if (value > high) [high, event] = [value, at];
    }
    [found.low[column], found.high[column], found.event[column]] = [low, high, event];
  }
  return found;
}

/** Returns the bytes of each kind after each of some ascending events: kind number -> list. */
function kindsAt({ blocks, sites }, events) {
  const kinds = sites.map(({ kind }) => KINDS.get(kind)?.order); // a site that requested nothing has no kind
  const found = DATA.kinds.map(() => new Float64Array(events.length));
  const [first, last] = [events[0], events.at(-1)];
  const placeOfEvent = new Int32Array(last - first + 1); // the first of the events at or after one
  for (let event = first, place = 0; event <= last; event++) {
    while (events[place] < event) place++;
    placeOfEvent[event - first] = place;
  }
  for (let at = 0; at < blocks.begin.length; at++) {
    const [begin, freed] = [blocks.begin[at], blocks.freed[at]];
    if (freed <= first || begin > last) continue;
    const held = found[kinds[blocks.site[at]]];
    held[begin <= first ? 0 : placeOfEvent[begin - first]] += blocks.nbytes[at];
    if (freed <= last) held[placeOfEvent[freed - first]] -= blocks.nbytes[at];
  }
  return found.map(addUp);
}

const areaOfChart = (width, top) => areaOf([LEFT, TOP, width - RIGHT, HEIGHT - BOTTOM], [chart.from, chart.to], top);

/** Returns the highest value of the axis, and the device's memory if that is near. */
function topOf(history, other) {
  const used = Math.max(history.mostUsed, other?.mostUsed ?? 0);
  const capacity = DATA.runs[history.run].ranks.find(({ rank }) => rank === history.rank)?.device_total_bytes;
  const isNear = capacity && used > NEAR_CAPACITY * capacity;
  return [Math.max(used, isNear ? capacity : 0) * 1.05 || 1, isNear ? capacity : null];
}

/** Draws all but the chosen moment. */
function drawChart({ history, other }) {
  const start = performance.now();
  const canvas = byId("chart").children[0];
  const [context, width] = contextOf(canvas, HEIGHT);
  const [top, capacity] = topOf(history, other);
  const area = areaOfChart(width, top);
  const columns = Math.max(1, Math.floor(area.right - area.left));
  const edges = edgesOf(history, chart.from, chart.to, columns);
  const allocated = extremes(history.allocated, edges);
  context.clearRect(0, 0, width, HEIGHT);
  drawBands(context, area, history);
  drawAxes(context, area, width);
  const tops = drawStacks(context, area, history, allocated);
  chart.drawn = { columns, allocated, tops, bytesAt: (y) => ((area.bottom - y) / (area.bottom - area.top)) * top };
  drawLine(context, area, extremes(history.used, edges), ink("used"), [2, 2]);
  drawLine(context, area, extremes(history.reserved, edges), ink("reserved"), []);
  drawLine(context, area, allocated, ink("allocated"), []);
  if (other) drawOther(context, area, history, other, edges);
  if (capacity) drawCapacity(context, area, capacity);
  drawPeak(context, area, width, history);
  performance.measure("draw", { start });
}

/** Draws the kinds upon each other, with thin gaps between. Returns kind number -> top of its layer in each column. */
function drawStacks(context, area, history, allocated) {
  let below = new Float64Array(allocated.event.length);
  const points = (sizes) => Array.from(sizes, (bytes, column) => [area.left + column, area.y(bytes)]);
  const tops = kindsAt(history, allocated.event).map((held, order) => {
    const above = below.map((bytes, column) => bytes + held[column]);
    if (above.some((bytes, column) => bytes > below[column])) {
      context.fillStyle = colorOf(DATA.kinds[order]);
      pathThrough(context, [...points(above), ...points(below).reverse()]);
      context.fill();
    }
    return (below = above);
  });
  context.strokeStyle = ink("paper");
  context.lineWidth = 0.5;
  for (const top of tops) drawPath(context, ...points(top));
  return tops;
}

/** Draws a line through the extremes of each column. */
function drawLine(context, area, { low, high }, color, dash) {
  context.strokeStyle = color;
  context.lineWidth = 1.5;
  context.setLineDash(dash);
  context.beginPath();
  for (let column = 0; column < low.length; column++) {
    if (Number.isNaN(low[column])) continue;
    const begins = column === 0 || Number.isNaN(low[column - 1]);
    context[begins ? "moveTo" : "lineTo"](area.left + column, area.y(low[column]));
    if (high[column] > low[column]) context.lineTo(area.left + column, area.y(high[column]));
  }
  context.stroke();
  context.setLineDash([]);
}

/** Draws the lines of the other history, part by part of the run. */
function drawOther(context, area, history, other, edges) {
  const at = (edge) => (edge < history.events ? sameMoment({ ...history, peak: -1 }, edge, other) : null);
  const places = Array.from(edges, at);
  for (const [values, color] of [[other.reserved, ink("reserved")], [other.allocated, ink("allocated")]]) {
    const count = edges.length - 1;
    const found = { low: new Float64Array(count).fill(NaN), high: new Float64Array(count).fill(NaN) };
    for (let column = 0; column < count; column++) {
      const [first, next] = [places[column], places[column + 1]];
      if (first === null) continue;
      const ends = next !== null && next > first ? next : first + 1;
      const { low, high } = extremes(values, Int32Array.of(first, Math.min(ends, other.events)));
      [found.low[column], found.high[column]] = [low[0], high[0]];
    }
    drawLine(context, area, found, color, [5, 4]);
  }
}

function drawBands(context, area, { parts, ...history }) {
  const visible = parts.filter(({ phase, begin, end }) => phase && area.x(placeOf(history, end - 1)) > area.left && area.x(placeOf(history, begin)) < area.right);
  const clip = (x) => Math.min(area.right, Math.max(area.left, x));
  const box = (begin, end) => [clip(area.x(placeOf(history, begin))), clip(area.x(end < history.events ? placeOf(history, end) : endOf(history)))];
  visible.forEach(({ phase, begin, end }, order) => {
    const [left, right] = box(begin, end);
    context.fillStyle = ink(order % 2 ? "band" : "line");
    context.globalAlpha = 0.5;
    context.fillRect(left, 22, right - left, 18);
    context.globalAlpha = 0.15;
    if (order % 2) context.fillRect(left, area.top, right - left, area.bottom - area.top);
    context.globalAlpha = 1;
    label(context, phase, left, right, 31);
  });
  for (const step of new Set(visible.map(({ step }) => step))) {
    const own = visible.filter((part) => part.step === step);
    const [left, right] = box(own[0].begin, own.at(-1).end);
    context.fillStyle = ink("soft");
    context.fillRect(left, 2, 1, area.bottom - 2);
    label(context, step === null ? "outside the steps" : `step ${step}`, left, right, 11);
  }
}

/** Writes a text between two places: as much of it as has room, nothing if that is no more than a few letters. */
function label(context, text, left, right, y) {
  context.fillStyle = ink("ink");
  context.textAlign = "left";
  const fits = (part) => context.measureText(part).width < right - left - 8;
  let shown = text;
  while (shown.length > FEWEST_LETTERS && !fits(shown)) shown = `${shown.replace("\u2026", "").slice(0, -1)}\u2026`;
  if (fits(shown)) context.fillText(shown, left + 5, y);
}

function drawAxes(context, area, width) {
  const values = ticks(0, area.most / 2 ** 30, 6).map((value) => value * 2 ** 30);
  drawRows(context, area, values, (bytes) => SIGNIFICANT.get(4).format(bytes / 2 ** 30));
  context.fillText("GiB", area.left - 6, area.top - 12);
  context.textAlign = "center";
  for (const place of ticks(chart.from, chart.to, Math.max(2, Math.floor(width / 180)))) {
    const text = chart.byTime ? `${SIGNIFICANT.get(6).format(place / 1e3)} ms` : `event ${WHOLE.format(place)}`;
    const half = context.measureText(text).width / 2;
    if (area.x(place) - half > area.left && area.x(place) + half < width) context.fillText(text, area.x(place), area.bottom + 14);
  }
}

function drawCapacity(context, area, capacity) {
  const y = area.y(capacity);
  context.strokeStyle = context.fillStyle = ink("bad");
  context.setLineDash([2, 3]);
  drawPath(context, [area.left, y], [area.right, y]);
  context.setLineDash([]);
  context.textAlign = "right";
  context.fillText(`memory of the device, ${size(capacity)}`, area.right - 4, y + 10);
}

function drawPeak(context, area, width, history) {
  const [x, y] = [area.x(placeOf(history, history.peak)), area.y(history.allocated[history.peak])];
  if (x < area.left || x > area.right) return;
  context.fillStyle = ink("ink");
  pathThrough(context, [[x, y - 2], [x - 6, y - 12], [x + 6, y - 12]]);
  context.fill();
  const text = `peak ${size(history.allocated[history.peak])}`;
  const isLeft = x > width / 2;
  context.textAlign = isLeft ? "right" : "left";
  const room = context.measureText(text).width + 8;
  context.fillStyle = ink("paper");
  context.globalAlpha = 0.8;
  context.fillRect(isLeft ? x - 10 - room : x + 6, y - 17, room, 16);
  context.globalAlpha = 1;
  context.fillStyle = ink("ink");
  context.fillText(text, isLeft ? x - 10 : x + 10, y - 9);
}

/** Draws the chosen moment or interval over the chart. */
function drawMoment({ history, event, from }) {
  const [context, width] = contextOf(byId("chart").children[1], HEIGHT);
  const area = areaOfChart(width, 1);
  const clip = (x) => Math.min(area.right, Math.max(area.left, x));
  const at = area.x(placeOf(history, event));
  if (from !== null) {
    const [left, right] = [area.x(placeOf(history, from)), at].map(clip);
    context.fillStyle = ink("link");
    context.globalAlpha = 0.18;
    context.fillRect(left, area.top, right - left, area.bottom - area.top);
    context.globalAlpha = 1;
  }
  context.strokeStyle = ink("link");
  context.lineWidth = 2;
  for (const x of from === null ? [at] : [at, area.x(placeOf(history, from))]) {
    if (x < area.left || x > area.right) continue;
    drawPath(context, [x, area.top - 4], [x, area.bottom]);
  }
}

const STRIP = 46;

/** Returns the highest allocated memory of each column of the strip. Keeps the last answer: a zoom does not change it. */
function highOfStrip(history, columns) {
  const key = `${columns} ${chart.byTime}`;
  if (history.strip?.key !== key) history.strip = { key, ...extremes(history.allocated, edgesOf(history, 0, endOf(history), columns)) };
  return history.strip.high;
}

/** Draws the whole run in the strip, with the part that the chart shows. */
function drawOverview({ history }) {
  const [context, width] = contextOf(byId("overview"), STRIP);
  const columns = Math.max(1, Math.floor(width - LEFT - RIGHT));
  const high = highOfStrip(history, columns);
  const most = high.reduce((a, b) => Math.max(a, b), 1);
  context.fillStyle = ink("allocated");
  high.forEach((bytes, column) => context.fillRect(LEFT + column, STRIP - (bytes / most) * STRIP, 1, (bytes / most) * STRIP));
  const [left, right] = [chart.from, chart.to].map((place) => LEFT + (place / endOf(history)) * columns);
  context.fillStyle = ink("paper");
  context.globalAlpha = 0.7;
  context.fillRect(LEFT, 0, left - LEFT, STRIP);
  context.fillRect(right, 0, LEFT + columns - right, STRIP);
  context.globalAlpha = 1;
  context.strokeStyle = ink("link");
  context.strokeRect(left, 1, Math.max(2, right - left), STRIP - 2);
}

const HOST_HEIGHT = 90;

/** Draws the tensors on the host, which a prediction knows, below the chart and on the same axis. */
function drawHost({ history }) {
  const [note, canvas] = byId("host-curve").children;
  byId("host-curve").hidden = !history.host;
  if (!history.host) return;
  const { event, pageable, pinned } = history.host;
  const both = sumOf(pageable, pinned);
  const most = both.reduce((a, b) => Math.max(a, b), 1);
  const [context, width] = contextOf(canvas, HOST_HEIGHT);
  const columns = Math.max(1, Math.floor(width - LEFT - RIGHT));
  const edges = edgesOf(history, chart.from, chart.to, columns);
  const floor = HOST_HEIGHT - 8;
  const y = (bytes) => floor - (bytes / most) * (floor - 8);
  drawHostAxis(context, width, most, y);
  const [pinnedInk, pageableInk] = [ink("pinned"), ink("pageable")]; // once: a look-up takes longer than a column
  let shown = 0;
  for (let column = 0; column < columns; column++) {
    const at = lowerBound(event, edges[column] + 1) - 1;
    if (at < 0) continue;
    shown = Math.max(shown, both[at]);
    context.fillStyle = pinnedInk;
    context.fillRect(LEFT + column, y(pinned[at]), 1, floor - y(pinned[at]));
    context.fillStyle = pageableInk;
    context.fillRect(LEFT + column, y(both[at]), 1, y(pinned[at]) - y(both[at]));
  }
  const key = (name) => {
    const swatch = h("span", { className: "swatch" });
    swatch.style.background = `var(--${name})`;
    return swatch;
  };
  canvas.hidden = !shown;
  const here = shown ? `${size(shown)} in the part above` : "none in the part above";
  note.replaceChildren("Tensors on the host: ", key("pinned"), "page-locked, ", key("pageable"), `pageable; up to ${size(most)}, ${here}.`);
}

function drawHostAxis(context, width, most, y) {
  context.textAlign = "right";
  context.strokeStyle = ink("line");
  context.fillStyle = ink("ink");
  context.lineWidth = 1;
  for (const bytes of [0, most]) {
    context.fillText(size(bytes), LEFT - 6, y(bytes));
    context.strokeRect(LEFT, Math.round(y(bytes)) + 0.5, width - LEFT - RIGHT, 0);
  }
}

/** Shows a part of the axis, all of it if that part is empty; keeps it inside the run and not too narrow. */
function zoomTo(history, from, to) {
  const end = endOf(history);
  if (to <= from) [from, to] = [0, end];
  const fewest = Math.min(end, chart.byTime ? end / 1e4 : FEWEST);
  const span = Math.min(end, Math.max(fewest, to - from));
  chart.from = Math.min(end - span, Math.max(0, (from + to - span) / 2));
  chart.to = chart.from + span;
}

function zoomBy(history, factor, place = placeOf(history, chosen.event)) {
  zoomTo(history, place - (place - chart.from) * factor, place + (chart.to - place) * factor);
}

/** Shows the step of an event, or its part of the run outside the steps. */
function zoomToStep(history, event) {
  const part = partAt(history, event);
  const own = part.step === null ? [part] : history.parts.filter(({ step }) => step === part.step);
  const end = own.at(-1).end;
  zoomTo(history, placeOf(history, own[0].begin), end < history.events ? placeOf(history, end) : endOf(history));
}

/** Returns the column of pixels below the pointer. */
function columnBelow(pointer) {
  const x = Math.floor(pointer.clientX - byId("chart").getBoundingClientRect().left - LEFT);
  return Math.min(chart.drawn.columns - 1, Math.max(0, x));
}

/** Returns the event below the pointer: the highest one of the column of pixels. */
const eventBelow = (pointer) => chart.drawn.allocated.event[columnBelow(pointer)];

/** Returns the kind whose layer is below the pointer, with its bytes; null outside the layers. */
function kindBelow(pointer) {
  const { tops, bytesAt } = chart.drawn;
  const column = columnBelow(pointer);
  const bytes = bytesAt(pointer.clientY - byId("chart").getBoundingClientRect().top);
  const order = bytes < 0 ? -1 : tops.findIndex((top) => bytes < top[column]);
  return order < 0 ? null : { kind: DATA.kinds[order], bytes: tops[order][column] - (tops[order - 1]?.[column] ?? 0) };
}

const DRAGGED = 4; // pixels from which a press is a drag

/** Calls `change` with the chosen event, and the one at which a drag began or null. */
function listenToChart(change, zoomed) {
  const place = byId("chart");
  const tip = place.querySelector(".tip");
  let pressed = null;
  place.addEventListener("pointerdown", (pointer) => {
    if (pointer.button) return;
    pressed = { x: pointer.clientX, event: eventBelow(pointer) };
    place.setPointerCapture?.(pointer.pointerId);
  });
  place.addEventListener("pointermove", (pointer) => {
    showTipAt(tip, pointer, eventBelow(pointer));
    if (pressed && Math.abs(pointer.clientX - pressed.x) > DRAGGED) soon(() => pressed && select(pressed.event, eventBelow(pointer)));
  });
  place.addEventListener("pointerup", (pointer) => {
    if (!pressed) return;
    const began = pressed;
    pressed = null;
    if (Math.abs(pointer.clientX - began.x) > DRAGGED) select(began.event, eventBelow(pointer));
    else change(began.event, null);
  });
  place.addEventListener("pointercancel", () => (pressed = null));
  place.addEventListener("pointerleave", () => (tip.hidden = true));
  place.addEventListener("dblclick", () => {
    zoomTo(chosen.history, 0, endOf(chosen.history));
    zoomed();
  });
  place.addEventListener("wheel", (wheel) => {
    if (!wheel.deltaY || wheel.ctrlKey) return;
    wheel.preventDefault();
    const at = areaOfChart(place.clientWidth, 1).place(wheel.clientX - place.getBoundingClientRect().left);
    zoomBy(chosen.history, wheel.deltaY > 0 ? 1.25 : 0.8, at);
    soon(zoomed);
  }, { passive: false });
  place.addEventListener("keydown", (key) => onKey(key, change, zoomed));
  listenToOverview(zoomed);

  function select(first, second) {
    if (first === second) change(first, null);
    else change(Math.max(first, second), Math.min(first, second));
  }
}

function showTipAt(tip, pointer, event) {
  const { history } = chosen;
  const box = byId("chart").getBoundingClientRect();
  const below = kindBelow(pointer);
  const swatch = h("span", { className: "swatch" });
  if (below) swatch.style.background = colorOf(below.kind);
  tip.replaceChildren(h("strong", {}, partName(partAt(history, event))), below ? h("div", {}, swatch, `${below.kind.name} ${size(below.bytes)}`) : "", h("div", {}, `allocated ${size(history.allocated[event])}`), h("div", {}, `reserved ${size(history.reserved[event])}`), h("div", {}, `used ${size(history.used[event])}`));
  tip.hidden = false;
  tip.style.left = `${Math.min(pointer.clientX - box.left + 14, box.width - tip.offsetWidth - 4)}px`;
  tip.style.top = `${Math.min(pointer.clientY - box.top + 14, HEIGHT - tip.offsetHeight)}px`;
}

function onKey(key, change, zoomed) {
  const { history, event, from } = chosen;
  const width = Math.max(1, Math.round((eventAt(history, chart.to) - eventAt(history, chart.from)) / 200));
  const parts = history.parts;
  const number = parts.indexOf(partAt(history, event));
  const moves = {
    ArrowLeft: event - (key.altKey ? 1 : width),
    ArrowRight: event + (key.altKey ? 1 : width),
    Home: eventAt(history, chart.from),
    End: eventAt(history, chart.to) - (chart.to < endOf(history) ? 1 : 0),
    PageUp: parts[Math.max(0, number - 1)].begin,
    PageDown: parts[Math.min(parts.length - 1, number + 1)].begin,
    p: history.peak,
    P: history.peak,
    Escape: event,
  };
  const zooms = { "+": 0.5, "=": 0.5, "-": 2 };
  if (key.key in moves) {
    const to = Math.min(history.events - 1, Math.max(0, moves[key.key]));
    const anchor = key.shiftKey && key.key !== "P" ? (from ?? event) : null;
    change(to, anchor === null || anchor >= to ? null : anchor);
    if (placeOf(history, to) < chart.from || placeOf(history, to) > chart.to) {
      zoomToStep(history, to);
      zoomed();
    }
  } else if (key.key in zooms) {
    zoomBy(history, zooms[key.key]);
    zoomed();
  } else return;
  key.preventDefault();
}

function listenToOverview(zoomed) {
  const strip = byId("overview");
  let began = null;
  const placeBelow = (pointer) => {
    const { left, width } = strip.getBoundingClientRect();
    return Math.min(1, Math.max(0, (pointer.clientX - left - LEFT) / (width - LEFT - RIGHT))) * endOf(chosen.history);
  };
  strip.addEventListener("pointerdown", (pointer) => {
    began = { x: pointer.clientX, place: placeBelow(pointer), span: chart.to - chart.from };
    strip.setPointerCapture?.(pointer.pointerId);
  });
  strip.addEventListener("pointermove", (pointer) => began && soon(() => began && show(pointer)));
  strip.addEventListener("pointerup", (pointer) => {
    if (began) show(pointer);
    began = null;
  });

  function show(pointer) {
    const place = placeBelow(pointer);
    const isDrag = Math.abs(pointer.clientX - began.x) > DRAGGED;
    const half = began.span / 2;
    zoomTo(chosen.history, ...(isDrag ? [Math.min(began.place, place), Math.max(began.place, place)] : [place - half, place + half]));
    zoomed();
  }
}

let waiting = null;
/** Runs the last of several tasks when the browser draws next. */
function soon(task) {
  if (waiting === null) requestAnimationFrame(() => {
    const last = waiting;
    waiting = null;
    last();
  });
  waiting = task;
}
