// Helpers that write a page's data: elements with text, and numbers with units.

const DATA = JSON.parse(document.getElementById("data").textContent);
const DASH = "\u2013";

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
// They round as Python does, so that the page and the terminal show the same figures.
const formatter = (options) => new Intl.NumberFormat("en-US", { roundingMode: "halfEven", ...options });
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
