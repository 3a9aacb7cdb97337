// Table of any number of rows, sorted by any column and shown one page at a time.

const collator = new Intl.Collator("en", { numeric: true });

/**
 * Makes a sortable table. `columns`: name and unit of each; `value(row, index)`: a cell's value for sorting;
 * `show(row, index)`: a cell's content if it is not only the value; `lead(row)`: a first cell that does not sort.
 */
function sortingTable({ id, name, columns, value, show, lead, decorate, pageSize }) {
  const state = { rows: [], sort: null, descending: false, first: 0 };
  const element = h("table", { id });
  const place = h("span", { role: "status" });
  const turn = (step) => () => {
    state.first += step * pageSize;
    draw();
  };
  const [before, after] = [["Previous", -1], ["Next", 1]].map(([text, step]) => h("button", { type: "button", onclick: turn(step) }, text));
  const pager = h("div", { className: "pager" }, before, after, place);

  /** Sorts the rows; unknown values come last in both directions. */
  function sorted() {
    if (state.sort === null) return state.rows;
    const direction = state.descending ? -1 : 1;
    return state.rows.toSorted((a, b) => {
      const [x, y] = [value(a, state.sort) ?? null, value(b, state.sort) ?? null];
      if (x === null || y === null) return (x === null) - (y === null);
      return direction * (typeof x === "number" && typeof y === "number" ? x - y : collator.compare(String(x), String(y)));
    });
  }

  function sortBy(index) {
    state.descending = state.sort === index && !state.descending;
    state.sort = index;
    state.first = 0;
    draw();
    element.querySelectorAll("thead button")[index].focus();
  }

  function head(column, index) {
    const isSorted = state.sort === index;
    const arrow = isSorted ? (state.descending ? " \u25bc" : " \u25b2") : "";
    const order = isSorted ? (state.descending ? "descending" : "ascending") : "none";
    const button = h("button", { type: "button", onclick: () => sortBy(index) }, headOf(column) + arrow);
    return h("th", { scope: "col", className: column.unit === "text" ? "" : "number", "aria-sort": order }, button);
  }

  function line(row) {
    const cells = columns.map(({ unit }, index) => h("td", { className: unit === "text" ? "" : "number" }, show?.(row, index) ?? bare(unit, value(row, index))));
    const made = h("tr", {}, lead ? h("td", { className: "look" }, ...lead(row)) : null, ...cells);
    decorate?.(made, row);
    return made;
  }

  function draw() {
    const last = Math.min(state.first + pageSize, state.rows.length);
    element.replaceChildren(
      h("thead", {}, h("tr", {}, lead ? h("th", { scope: "col" }, "point") : null, ...columns.map(head))),
      h("tbody", {}, ...sorted().slice(state.first, last).map(line)),
    );
    pager.hidden = state.rows.length <= pageSize;
    place.textContent = `${WHOLE.format(state.first + 1)} to ${WHOLE.format(last)} of ${WHOLE.format(state.rows.length)}`;
    before.disabled = state.first === 0;
    after.disabled = last === state.rows.length;
  }

  return {
    element: h("div", {}, h("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": name }, element), pager),
    draw,
    update(rows) {
      state.rows = rows;
      state.first = 0;
      draw();
    },
  };
}

const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);

/** Makes a table with a search field: shown rows contain all words in the field. */
function findingTable(id, name, { columns, rows }, pageSize) {
  const made = sortingTable({ id, name, columns, value: (row, index) => row[index], pageSize });
  const texts = new Map(rows.map((row) => [row, row.join(" ").toLowerCase()]));
  const search = h("input", { type: "search", size: 30, placeholder: "words, all of which must occur", oninput: () => {
    const words = wordsOf(search.value);
    made.update(rows.filter((row) => words.every((word) => texts.get(row).includes(word))));
  } });
  made.update(rows);
  return h("div", { className: "finding" }, rows.length > pageSize ? h("label", {}, "find ", search) : null, made.element);
}
