// What is chosen, and the parts of the page that show it. The page opens at the peak, in its step; of a run that ran out of
// memory, at the request that failed.

const chosen = { history: null, other: null, event: 0, from: null, otherEvent: null };

async function show(place, otherPlace) {
  chosen.history = await historyOf(place);
  chosen.other = otherPlace === null ? null : await historyOf(otherPlace);
  if (!chosen.history.clock) chart.byTime = false;
  const event = chosen.history.failed ?? chosen.history.peak;
  zoomToStep(chosen.history, event);
  showControls();
  showRanks(chosen);
  choose(event, null);
  drawCurves();
}

/** Chooses an event, or the interval from an earlier one to it. */
function choose(event, from) {
  const start = performance.now();
  const { history, other } = chosen;
  Object.assign(chosen, { event, from, otherEvent: other && sameMoment(history, event, other) });
  drawMoment(chosen);
  showMoment();
  showTree(chosen);
  showFlame(chosen);
  showSegments(chosen);
  performance.measure("choose", { start });
}

function drawCurves() {
  drawChart(chosen);
  drawMoment(chosen);
  drawOverview(chosen);
  drawHost(chosen);
  showLegend();
}

function showMoment() {
  const { history, other, event, from, otherEvent } = chosen;
  const time = history.clock && event >= history.clock.begin ? `, ${since(history, event)}` : "";
  const at = (each) => `${partName(partAt(history, each))}, event ${WHOLE.format(each)}`;
  const figures = `allocated ${size(history.allocated[event])}, reserved ${size(history.reserved[event])}, used ${size(history.used[event])}`;
  const text = from === null ? `${at(event)}${markOf(history, event)}${time}: ${figures}.` : `From ${at(from)} to ${at(event)}: allocated ${size(history.allocated[from])} \u2192 ${size(history.allocated[event])}.`;
  byId("moment").textContent = text;
  byId("question").textContent = questionOf(history, other, otherEvent, from);
  const slider = byId("chart");
  for (const [name, value] of [["valuemin", 0], ["valuemax", history.events - 1], ["valuenow", event], ["valuetext", text]]) slider.setAttribute(`aria-${name}`, value);
}

const markOf = (history, event) => (event === history.failed ? " (out of memory)" : event === history.peak ? " (the peak)" : "");

function questionOf(history, other, otherEvent, from) {
  if (from !== null) return "Between the two moments. What was requested and freed in between is in neither column.";
  if (!other) return `${history.name}, ${history.source}. GiB.`;
  if (otherEvent === null) return `${other.name} has no such part of the run.`;
  return `${history.name} (${history.source}) and ${other.name} (${other.source}) at the same share of the same phase and step; the peak of one with the peak of the other.`;
}

const since = (history, event) => `${time(timeOf(history, event) / 1e6)} after ${history.source === "predicted" ? "the first work of the step, on the predicted host" : "the first event"}`;

function showControls() {
  const { history, other } = chosen;
  const names = DATA.histories.map(({ run, rank }) => `${DATA.runs[run].name}, rank ${rank}`);
  const select = (id, label, value, options, change) => {
    const element = h("select", { id, onchange: () => change(element.value) }, ...options.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value) }, text)));
    return options.length > 1 ? h("label", {}, `${label} `, element) : null;
  };
  const places = names.map((name, place) => [place, name]);
  const button = (id, text, action) => h("button", { id, type: "button", onclick: () => (action(), drawCurves()) }, text);
  const goTo = (id, text, event) => button(id, text, () => {
    zoomToStep(history, event);
    choose(event, null);
  });
  const steps = [...new Set(history.parts.map(({ step }) => step))].filter((step) => step !== null);
  const firstOf = (step) => history.parts.find((part) => part.step === step).begin;
  byId("controls").replaceChildren(...[
    select("shown", "show", history.place, places, (place) => show(Number(place), other?.place === Number(place) ? null : other?.place ?? null)),
    select("compared", "and compare", other?.place ?? "", [["", "nothing"], ...places.filter(([place]) => place !== history.place)], (place) => show(history.place, place === "" ? null : Number(place))),
    select("step", "zoom to", "", [["", "\u2026"], ...steps.map((step) => [step, `step ${step}`])], (step) => {
      if (step !== "") zoomToStep(history, firstOf(Number(step)));
      drawCurves();
    }),
    button("whole", "Whole run", () => zoomTo(history, 0, endOf(history))),
    goTo("peak", "Peak", history.peak),
    history.failed === null ? null : goTo("failed", "Out of memory", history.failed),
    button("in", "Zoom in", () => zoomBy(history, 0.5)),
    button("out", "Zoom out", () => zoomBy(history, 2)),
    history.clock ? select("axis", "axis", chart.byTime ? "time" : "events", [["events", "events of the allocator"], ["time", history.source === "predicted" ? "time of the host, last step" : "time"]], (axis) => {
      const [from, to] = [eventAt(history, chart.from), eventAt(history, chart.to)];
      chart.byTime = axis === "time";
      zoomTo(history, placeOf(history, from), placeOf(history, to));
      drawCurves();
    }) : null,
  ].filter(Boolean));
}

function showLegend() {
  const { history, other } = chosen;
  const line = (className, text) => h("span", { className: "key" }, h("span", { className: `stroke ${className}` }), text);
  const { tops } = chart.drawn;
  const isDrawn = (_, order) => tops[order].some((bytes, column) => bytes > (tops[order - 1]?.[column] ?? 0));
  const kinds = DATA.kinds.filter(isDrawn).map((kind) => {
    const swatch = h("span", { className: "swatch" });
    swatch.style.background = colorOf(kind);
    return h("span", { className: "key" }, swatch, kind.name);
  });
  byId("legend").replaceChildren(
    line("allocated", "allocated"), line("reserved", "reserved"), line("used", "used"),
    ...(other ? [line("allocated dashed", `allocated, ${other.name}`), line("reserved dashed", `reserved, ${other.name}`)] : []),
    ...kinds,
  );
}

async function begin() {
  byId("title").textContent = DATA.title;
  byId("footer").textContent = `memlab ${DATA.version}. Everything on this page is in this file; it loads nothing.`;
  showAnswer();
  applyTheme();
  makeFlame(() => showFlame(chosen));
  listenToChart(choose, drawCurves);
  listenToTape();
  await show(DATA.shown[0], DATA.shown[1] ?? null);
  document.addEventListener("themechange", () => {
    drawCurves();
    choose(chosen.event, chosen.from);
    showRanks(chosen);
  });
  let width = byId("chart").clientWidth;
  new ResizeObserver(() => {
    if (byId("chart").clientWidth === width) return;
    width = byId("chart").clientWidth;
    drawCurves();
    showSegments(chosen);
  }).observe(byId("chart"));
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

begin();
