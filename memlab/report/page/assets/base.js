// The page data, and helpers that write it: elements with text, and numbers with units.

const DATA = JSON.parse(document.getElementById("data").textContent);
const DASH = "\u2013";

/** Decodes a column to a list, from any of the three forms of encoding.py. */
function decoded(column) {
  if (Array.isArray(column)) return column;
  return column.at ? column.at.map((place) => column.of[place]) : Array(DATA.count).fill(column.all);
}

const decodedAll = (columns) => Object.fromEntries(Object.entries(columns).map(([key, column]) => [key, decoded(column)]));

const OF_POINTS = decodedAll(DATA.points);
const CONFIG = decodedAll(DATA.config);
const DEEPSPEED = decodedAll(DATA.deepspeed);
const TIMING = decodedAll(DATA.timing);
const ENDS = decodedAll(DATA.ends);
const QUANTITIES = Object.fromEntries(
  Object.entries(DATA.quantities).map(([key, { name, unit, ...columns }]) => [key, { name, unit, ...decodedAll(columns) }]),
);
const COLUMNS = DATA.columns.map((column) => ({ ...column, values: column.values ? decoded(column.values) : QUANTITIES[column.key].values }));

const POINTS = Array.from({ length: DATA.count }, (_, index) => {
  const point = { index, ...Object.fromEntries(Object.entries(OF_POINTS).map(([key, column]) => [key, column[index]])) };
  point.path = [point.folder, point.name ?? point.id].filter(Boolean).join("/");
  point.label = DATA.configurations[point.configuration].label;
  point.subject = DATA.configurations[point.configuration].subject;
  return point;
});

const byId = (id) => document.getElementById(id);

/** Makes an element with properties and children. Strings become text, never markup. */
function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Formatters are made once: making one for each number would take most of the time of a large page.
const formatter = (options) => new Intl.NumberFormat("en-US", options);
const WHOLE = formatter({ maximumFractionDigits: 0 });
const SIGNIFICANT = new Map([4, 6, 7].map((digits) => [digits, formatter({ maximumSignificantDigits: digits })]));
const [ONE_DIGIT, THREE_DIGITS] = [1, 3].map((digits) => formatter({ minimumFractionDigits: digits, maximumFractionDigits: digits }));
const THREE_SIGNIFICANT = formatter({ minimumSignificantDigits: 3, maximumSignificantDigits: 3 });

/** Writes a number with `digits` significant digits, from 1000 on as a whole number. */
const number = (value, digits = 4) => (Math.abs(value) >= 1000 ? WHOLE : SIGNIFICANT.get(digits)).format(value);

const UNITS = { bytes: "GiB", usd: "USD", seconds: "s", rate: "", number: "", share: "", ratio: "", text: "" };

/** Writes a positive time with three significant digits, in s, ms or µs. */
function time(seconds) {
  const [unit, size] = seconds >= 0.1 ? ["s", 1] : seconds >= 1e-4 ? ["ms", 1e-3] : ["µs", 1e-6];
  const value = seconds / size;
  return `${(value >= 100 ? WHOLE : THREE_SIGNIFICANT).format(value)} ${unit}`;
}

const perCent = (value) => `${(Math.abs(value) < 1 ? ONE_DIGIT : WHOLE).format(Math.abs(100 * value))} %`;

const WRITE = {
  bytes: (value) => `${THREE_DIGITS.format(value / 2 ** 30)} GiB`,
  usd: (value) => `$${number(value)}`,
  rate: (value) => `${number(value)}/s`,
  seconds: time,
  share: (value) => `${value > 0 ? "+" : value < 0 ? "-" : ""}${perCent(value)}`,
  ratio: perCent,
  number: (value) => number(value, 7),
  text: (value) => String(value),
};

/** Writes a value with its unit; a dash without a value. */
const write = (unit, value) => (value === null || value === undefined ? DASH : WRITE[unit](value));

/** Writes a value without its unit, below a head that names the unit. Times keep theirs: s, ms or µs. */
const bare = (unit, value) => (unit === "text" ? write(unit, value) : write(unit, value).replace(/^\$| GiB$|\/s$/g, ""));

/** Writes a configuration value as JSON, but texts without quotes. */
const plain = (value) => (value === undefined || value === null ? DASH : typeof value === "string" ? value : JSON.stringify(value));

const sharedOf = (columns, point) =>
  Object.fromEntries(Object.entries(columns).filter(([, column]) => column[point.index] !== null).map(([key, column]) => [key, DATA.shared[column[point.index]]]));
const configOf = (point) => sharedOf(CONFIG, point);
const deepspeedOf = (point) => sharedOf(DEEPSPEED, point);
const choicesOf = (point) => DATA.shared[point.choices];
const environmentOf = (point) => DATA.shared[point.environment];
const causesOf = (point) => DATA.shared[point.causes];
const logsOf = (point) => Object.entries(DATA.logs[point.index] ?? {}).map(([name, place]) => [name, DATA.shared[place]]);

/** Value of a quantity of a point, and its noise; null if the point has none. */
const quantityOf = (point, key) => QUANTITIES[key]?.values[point.index] ?? null;
const noiseOf = (point, key) => QUANTITIES[key]?.noise?.[point.index] ?? null;

/** Lowest, mean and highest rank of a quantity; null if unknown or all equal. */
function ranksOf(point, key) {
  const { min, mean, values } = QUANTITIES[key] ?? {};
  return min && min[point.index] !== null ? [min[point.index], mean[point.index], values[point.index]] : null;
}

const columnOf = Object.fromEntries(COLUMNS.map((column) => [column.key, column]));
const cell = (point, key) => columnOf[key].values[point.index];
const microOf = (point) => cell(point, "batch.micro");
const tokensOf = (point) => cell(point, "seq_len.tokens");

/** Name of a quantity with the unit of its numbers. */
const withUnit = ({ name, unit }) => (UNITS[unit] ? `${name}, ${UNITS[unit]}` : name);

/** Head of a table column: its cells are written by `bare`. */
const headOf = (column) => (column.unit === "seconds" ? column.name : withUnit(column));

const pointName = (point) => `${point.label}, batch ${number(microOf(point))} x ${number(tokensOf(point))} token${tokensOf(point) === 1 ? "" : "s"}`;

/** Flattens nested objects to a map; keys are joined by dots. */
function flatten(values, prefix = "") {
  const flat = new Map();
  for (const [key, value] of Object.entries(values)) {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) {
      for (const [inner, found] of flatten(value, `${prefix}${key}.`)) flat.set(inner, found);
    } else flat.set(prefix + key, value);
  }
  return flat;
}

/** Makes a table from a head and rows of texts or elements; the first `left` columns are text, the others quantities. */
function table(caption, head, rows, left = 1) {
  const line = (cells, tag) =>
    h("tr", {}, ...cells.map((content, at) => h(tag, { className: at < left ? "" : "number", ...(tag === "th" ? { scope: "col" } : {}) }, content)));
  return h(
    "table",
    {},
    caption ? h("caption", {}, caption) : null,
    h("thead", {}, line(head, "th")),
    h("tbody", {}, ...rows.map((cells) => line(cells, "td"))),
  );
}
