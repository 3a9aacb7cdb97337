// The page's data: points, their quantities and their configurations.

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
  Object.entries(DATA.quantities).map(([key, { name, unit, bound, ...columns }]) => [key, { name, unit, bound, ...decodedAll(columns) }]),
);
const COLUMNS = DATA.columns.map((column) => ({ ...column, values: column.values ? decoded(column.values) : QUANTITIES[column.key].values }));

const POINTS = Array.from({ length: DATA.count }, (_, index) => {
  const point = { index, ...Object.fromEntries(Object.entries(OF_POINTS).map(([key, column]) => [key, column[index]])) };
  point.path = [point.folder, point.name ?? point.id].filter(Boolean).join("/");
  point.label = DATA.configurations[point.configuration].label;
  point.subject = DATA.configurations[point.configuration].subject;
  return point;
});

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

/** "at least" or "at most" where the value of a point is only a bound, which is not compared with any other. */
const boundOf = (point, key) => (point.bound && QUANTITIES[key]?.bound) || null;
const comparableOf = (point, key) => (boundOf(point, key) ? null : quantityOf(point, key));

/** Writes how a quantity of a point is known, with its text: "at least 0.400 s", "0.350 s \u00b1 23 %". */
function asKnown(point, key, text) {
  if (text === DASH || !QUANTITIES[key]?.bound) return text;
  return boundOf(point, key) ? `${boundOf(point, key)} ${text}` : point.error ? `${text} \u00b1 ${WHOLE.format(100 * point.error)} %` : text;
}

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
