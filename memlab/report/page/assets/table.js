// The points as a table: filtered by words and options, sorted by any column, a part of it at a time.

const PAGE = 200;
const collator = new Intl.Collator("en", { numeric: true });
const state = { words: [], options: {}, sort: null, descending: false, limit: PAGE, shown: POINTS };

const haystacks = POINTS.map((point) => [point.id, point.path, point.label, point.status, point.source, ...point.cells].join(" ").toLowerCase());

/** The head of the table names the unit, so the cells leave it out. */
const bare = (unit, value) => (unit === "text" ? write(unit, value) : write(unit, value).replace(/^\$| GiB$| s$|\/s$/g, ""));

function makeFilters() {
  const search = h("input", { type: "search", id: "search", placeholder: "words, all of which must occur", oninput: () => {
    state.words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    refresh();
  } });
  const selects = DATA.columns.filter((column) => column.unit === "text").map((column) => {
    const values = [...new Set(POINTS.map((point) => cell(point, column.key) ?? ""))].map(String).sort(collator.compare);
    if (values.length < 2) return null;
    const select = h("select", { name: column.key, onchange: () => {
      state.options[column.key] = select.value;
      refresh();
    } }, h("option", { value: "*" }, "all"), ...values.map((value) => h("option", { value }, value || DASH)));
    return h("label", {}, `${column.name} `, select);
  });
  const clear = h("button", { type: "reset" }, "Clear");
  const form = byId("filters");
  form.append(h("label", {}, "find ", search), ...selects.filter(Boolean), clear);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    state.words = [];
    state.options = {};
    refresh();
  });
  byId("more").addEventListener("click", () => {
    state.limit = Infinity;
    showRows();
  });
  document.addEventListener("pickchange", markPicked);
  document.addEventListener("themechange", showRows);
}

/** Filter and sort anew, and let the table and the charts follow. */
function refresh() {
  const options = Object.entries(state.options).filter(([, wanted]) => wanted !== "*");
  state.shown = POINTS.filter(
    (point) =>
      state.words.every((word) => haystacks[point.index].includes(word)) &&
      options.every(([key, wanted]) => String(cell(point, key) ?? "") === wanted),
  );
  if (state.sort !== null) sortShown();
  showRows();
  document.dispatchEvent(new Event("filterchange"));
}

/** What is not known comes last, whatever the direction. */
function sortShown() {
  const value = (point) => point.cells[state.sort];
  const direction = state.descending ? -1 : 1;
  state.shown.sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    return direction * (typeof x === "number" && typeof y === "number" ? x - y : collator.compare(String(x), String(y)));
  });
}

function sortBy(index) {
  state.descending = state.sort === index && !state.descending;
  state.sort = index;
  refresh();
  byId("table").querySelectorAll("thead button")[index].focus();
}

function showRows() {
  const head = DATA.columns.map((column, index) => {
    const sorted = state.sort === index;
    const arrow = sorted ? (state.descending ? " \u25bc" : " \u25b2") : "";
    const button = h("button", { type: "button", onclick: () => sortBy(index) }, withUnit(column) + arrow);
    const order = sorted ? (state.descending ? "descending" : "ascending") : "none";
    return h("th", { scope: "col", className: column.unit === "text" ? "" : "figure", "aria-sort": order }, button);
  });
  const rows = state.shown.slice(0, state.limit).map(row);
  byId("table").replaceChildren(h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "point"), ...head)), h("tbody", {}, ...rows));
  byId("count").textContent = `${state.shown.length.toLocaleString("en-US")} of ${POINTS.length.toLocaleString("en-US")} points; memory is the largest rank's`;
  byId("more").hidden = state.shown.length <= state.limit;
  byId("more").textContent = `Show all ${state.shown.length.toLocaleString("en-US")}`;
  markPicked();
}

function row(point) {
  const cells = DATA.columns.map((column, index) => {
    if (column.key === "status") return h("td", {}, statusMark(point));
    return h("td", { className: column.unit === "text" ? "" : "figure" }, bare(column.unit, point.cells[index]));
  });
  const details = h("button", { type: "button", onclick: () => showDetails(point), "aria-label": `Details of ${point.id}` }, "Details");
  const compare = h("button", { type: "button", className: "pick", onclick: () => pick(point), "aria-label": `Compare ${point.id}` }, "Compare");
  const doubtful = point.incomplete || point.doubts ? h("span", { title: [...(point.incomplete ?? []), ...(point.doubts ?? [])].join("; ") }, " !") : null;
  const swatch = h("span", { className: "swatch", title: point.label });
  swatch.style.background = colorOf(DATA.configurations[point.configuration]);
  return h("tr", { "data-index": String(point.index) }, h("td", { className: "look" }, swatch, details, compare, doubtful), ...cells);
}

function markPicked() {
  for (const line of byId("table").querySelectorAll("tbody tr")) {
    const place = picked.indexOf(POINTS[Number(line.dataset.index)]);
    line.classList.toggle("picked", place >= 0);
    const button = line.querySelector(".pick");
    button.textContent = place >= 0 ? `Compare ${"AB"[place]}` : "Compare";
    button.setAttribute("aria-pressed", String(place >= 0));
  }
}
