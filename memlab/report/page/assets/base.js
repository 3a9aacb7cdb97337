// The data, and the two ways in which anything gets onto the page: text in elements, and numbers with units.

const DATA = JSON.parse(document.getElementById("data").textContent);
const POINTS = DATA.points;
const DASH = "\u2013";

POINTS.forEach((point, index) => {
  point.index = index;
  point.label = DATA.configurations[point.configuration].label;
});

const byId = (id) => document.getElementById(id);

/** An element with properties and children. Strings become text, never markup. */
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

/** Some significant digits, and never fewer than the whole part has. */
const number = (value, digits = 4) =>
  value.toLocaleString("en-US", Math.abs(value) >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: digits });

const UNITS = { bytes: "GiB", usd: "USD", seconds: "s", rate: "", number: "", share: "", text: "" };

const WRITE = {
  bytes: (value) => `${(value / 2 ** 30).toLocaleString("en-US", { minimumFractionDigits: 3, maximumFractionDigits: 3 })} GiB`,
  usd: (value) => `$${number(value)}`,
  rate: (value) => `${number(value)}/s`,
  seconds: (value) => `${number(value)} s`,
  share: (value) => `${value > 0 ? "+" : value < 0 ? "-" : ""}${Math.abs(100 * value).toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} %`,
  number: (value) => number(value, 7),
  text: (value) => String(value),
};

/** A value with its unit; a dash where there is none. */
const write = (unit, value) => (value === null || value === undefined ? DASH : WRITE[unit](value));

/** A configuration value as in JSON, but texts without quotes. */
const plain = (value) => (value === undefined || value === null ? DASH : typeof value === "string" ? value : JSON.stringify(value));

const pooled = (numbers) => Object.fromEntries(Object.entries(numbers ?? {}).map(([key, at]) => [key, DATA.pool[at]]));
const configOf = (point) => pooled(point.config);
const deepspeedOf = (point) => pooled(point.deepspeed);
const choicesOf = (point) => DATA.pool[point.choices];
const environmentOf = (point) => DATA.pool[point.environment];

const columnAt = Object.fromEntries(DATA.columns.map((column, index) => [column.key, index]));
const cell = (point, key) => point.cells[columnAt[key]];
const microOf = (point) => cell(point, "batch.micro");
const tokensOf = (point) => cell(point, "seq_len.tokens");

/** The name of a figure with the unit that its numbers are in. */
const withUnit = ({ name, unit }) => (UNITS[unit] ? `${name}, ${UNITS[unit]}` : name);

const pointName = (point) => `${point.label}, batch ${number(microOf(point))} x ${number(tokensOf(point))} token${tokensOf(point) === 1 ? "" : "s"}`;

/** Nested objects as one, keys joined by dots. */
function flatten(values, prefix = "") {
  const flat = new Map();
  for (const [key, value] of Object.entries(values)) {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) {
      for (const [inner, found] of flatten(value, `${prefix}${key}.`)) flat.set(inner, found);
    } else flat.set(prefix + key, value);
  }
  return flat;
}

/** A table from a head and rows of texts or elements; the first `left` columns are text, the others figures. */
function table(caption, head, rows, left = 1) {
  const line = (cells, tag) =>
    h("tr", {}, ...cells.map((content, at) => h(tag, { className: at < left ? "" : "figure", ...(tag === "th" ? { scope: "col" } : {}) }, content)));
  return h(
    "table",
    {},
    caption ? h("caption", {}, caption) : null,
    h("thead", {}, line(head, "th")),
    h("tbody", {}, ...rows.map((cells) => line(cells, "td"))),
  );
}
