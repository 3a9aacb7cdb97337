// Table of the points, filtered by words and options.

const PAGE = 100;
const MOST_OPTIONS = 60; // a column with more options gets no filter: search it with words
const state = { words: [], options: {}, shown: POINTS };

const haystacks = POINTS.map((point) =>
  [point.id, point.path, DATA.configurations[point.configuration].words, point.status, point.source, ...COLUMNS.map(({ values }) => values[point.index])].join(" ").toLowerCase(),
);

const pointsTable = sortingTable({
  id: "table",
  name: "Table of points",
  columns: COLUMNS,
  value: (point, index) => (boundOf(point, COLUMNS[index].key) ? null : COLUMNS[index].values[point.index]),
  show: showCell,
  lead: leadOf,
  decorate: (line, point) => {
    line.dataset.index = String(point.index);
    markLine(line);
  },
  pageSize: PAGE,
});

function makeTable() {
  byId("point-table").append(pointsTable.element);
  const search = h("input", { type: "search", id: "search", size: 30, placeholder: "words, all of which must occur", oninput: () => {
    state.words = wordsOf(search.value);
    refresh();
  } });
  const selects = COLUMNS.filter((column) => column.unit === "text").map((column) => {
    const values = [...new Set(column.values.map((value) => value ?? ""))].map(String).sort(collator.compare);
    if (values.length < 2 || values.length > MOST_OPTIONS) return null;
    const select = h("select", { name: column.key, onchange: () => {
      state.options[column.key] = select.value;
      refresh();
    } }, h("option", { value: "*" }, "all"), ...values.map((value) => h("option", { value }, value || DASH)));
    return h("label", {}, `${column.name} `, select);
  });
  const form = byId("filters");
  form.append(h("label", {}, "find ", search), ...selects.filter(Boolean), h("button", { type: "reset" }, "Clear"));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    state.words = [];
    state.options = {};
    refresh();
  });
  document.addEventListener("pickchange", () => byId("table").querySelectorAll("tbody tr").forEach(markLine));
  document.addEventListener("themechange", pointsTable.draw);
  refresh();
}

/** Writes what is more than a value: a status, and how a step time is known. */
function showCell(point, index) {
  const { key, unit, values } = COLUMNS[index];
  if (key === "status") return statusMark(point);
  return QUANTITIES[key]?.bound ? asKnown(point, key, bare(unit, values[point.index])) : null;
}

/** Applies the filters to the table and the charts. */
function refresh() {
  const options = Object.entries(state.options).filter(([, wanted]) => wanted !== "*");
  state.shown = POINTS.filter(
    (point) =>
      state.words.every((word) => haystacks[point.index].includes(word)) &&
      options.every(([key, wanted]) => String(cell(point, key) ?? "") === wanted),
  );
  pointsTable.update(state.shown);
  byId("count").textContent = `${WHOLE.format(state.shown.length)} of ${WHOLE.format(POINTS.length)} points; memory is the largest rank's`;
  document.dispatchEvent(new Event("filterchange"));
}

function leadOf(point) {
  const details = h("button", { type: "button", onclick: () => showDetails(point), "aria-label": `Details of ${point.id}` }, "Details");
  const compare = h("button", { type: "button", className: "pick", onclick: () => pick(point), "aria-label": `Compare ${point.id}` }, "Compare");
  const doubts = [point.incomplete, point.doubts].filter(Boolean).join("; ");
  const swatch = h("span", { className: "swatch", title: point.label });
  swatch.style.background = colorOf(DATA.configurations[point.configuration]);
  return [swatch, details, compare, doubts ? h("span", { title: doubts }, " !") : ""];
}

function markLine(line) {
  const place = picked.indexOf(POINTS[Number(line.dataset.index)]);
  line.classList.toggle("picked", place >= 0);
  const button = line.querySelector(".pick");
  button.textContent = place >= 0 ? `Compare ${"AB"[place]}` : "Compare";
  button.setAttribute("aria-pressed", String(place >= 0));
}
