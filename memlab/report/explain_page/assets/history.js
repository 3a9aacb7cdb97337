// A rank's history: intervals of blocks and segments, unpacked, and what holds at any event. An event is within an
// interval from its begin to before its end, so each answer is one pass over the intervals.

const SLACK = [
  "could go back to the device (torch.cuda.empty_cache)",
  "holes: free, in segments that hold other blocks",
  "rounding of blocks in use",
  "freed, but a side stream may still use it",
];
const SITE = ["kind", "module", "modules", "line", "userLine", "function", "shape"];

/** Unpacks a column of packing.py: byte planes, compressed. */
async function unpack({ planes, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const rows = new Uint8Array(await new Response(stream).arrayBuffer());
  const values = new Float64Array(rows.length / planes);
  for (let plane = 0, weight = 1; plane < planes; plane++, weight *= 256) {
    const from = plane * values.length;
    for (let at = 0; at < values.length; at++) values[at] += weight * rows[from + at];
  }
  return values;
}

async function unpackAll(columns) {
  return Object.fromEntries(await Promise.all(Object.entries(columns).map(async ([name, column]) => [name, await unpack(column)])));
}

/** Adds up in place: each value becomes the sum of all up to it. */
function addUp(values) {
  for (let at = 1; at < values.length; at++) values[at] += values[at - 1];
  return values;
}

const sumOf = (first, second) => first.map((value, at) => value + second[at]);

const loaded = new Map();

/** Unpacks a history of the page's data, once. */
function historyOf(place) {
  if (!loaded.has(place)) loaded.set(place, load(DATA.histories[place], place));
  return loaded.get(place);
}

async function load(data, place) {
  const [blocks, segments, times, host] = await Promise.all([
    unpackAll(data.blocks), unpackAll(data.segments), data.clock && unpack(data.clock.times), data.host && unpackAll(data.host),
  ]);
  addUp(blocks.begin);
  addUp(segments.begin);
  if (host) addUp(host.event);
  blocks.freed = sumOf(blocks.begin, blocks.events_held);
  blocks.reusable = sumOf(blocks.freed, blocks.events_waiting);
  segments.end = sumOf(segments.begin, segments.events_held);
  const sites = data.sites.map((row) => Object.fromEntries(SITE.map((name, at) => [name, data.strings[row[at]]])));
  const history = { ...data, place, blocks, segments, host, sites, clock: times && { begin: data.clock.begin, times: addUp(times) } };
  history.parts = data.parts.map(([phase, step, begin, end]) => ({ phase, step, begin, end }));
  history.allocated = curve(data.events, blocks.begin, blocks.freed, blocks.size);
  history.reserved = curve(data.events, segments.begin, segments.end, segments.size);
  history.name = `${DATA.runs[data.run].name}, rank ${data.rank}`;
  history.outside.forEach((each) => {
    each.bytes = each.shares.reduce((sum, { bytes }) => sum + bytes, 0);
    each.unexplained = each.driver === null ? 0 : each.driver - history.reserved[each.event] - each.bytes;
  });
  history.used = usedOf(history);
  history.mostUsed = history.used.reduce((a, b) => Math.max(a, b), 0);
  return history;
}

/** Returns the sum of the sizes of the intervals around each event. */
function curve(events, begins, ends, sizes) {
  const changes = new Float64Array(events + 1);
  for (let at = 0; at < sizes.length; at++) {
    changes[begins[at]] += sizes[at];
    changes[ends[at]] -= sizes[at];
  }
  return addUp(changes).subarray(0, events);
}

/** Returns the memory of the device after each event. */
function usedOf({ reserved, outside }) {
  const used = Float64Array.from(reserved);
  outside.forEach(({ event, bytes, unexplained }, at) => {
    const end = outside[at + 1]?.event ?? used.length;
    for (let each = event; each < end; each++) used[each] += bytes + unexplained;
  });
  return used;
}

/** Returns the first place in an ascending list whose value is not below the given one. */
function lowerBound(values, value) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Returns the bytes that each site holds after an event. */
function heldBySite({ blocks, sites }, event) {
  const held = new Float64Array(sites.length);
  const count = lowerBound(blocks.begin, event + 1);
  for (let at = 0; at < count; at++) if (blocks.freed[at] > event) held[blocks.site[at]] += blocks.nbytes[at];
  return held;
}

/** Returns the bytes that each site requested and freed between two events, without what lived in between alone. */
function changedBySite({ blocks, sites }, from, to) {
  const [added, freed] = [new Float64Array(sites.length), new Float64Array(sites.length)];
  const count = lowerBound(blocks.begin, to + 1);
  for (let at = 0; at < count; at++) {
    const [before, after] = [blocks.begin[at] <= from && blocks.freed[at] > from, blocks.freed[at] > to];
    if (after && !before) added[blocks.site[at]] += blocks.nbytes[at];
    else if (before && !after) freed[blocks.site[at]] += blocks.nbytes[at];
  }
  return [added, freed];
}

/** Returns the segments after an event by address, each with its blocks in use. Keeps the last answer. */
function segmentsAt(history, event) {
  if (history.segmentsOf?.event !== event) history.segmentsOf = { event, found: findSegments(history, event) };
  return history.segmentsOf.found;
}

/** Finds the segments after an event. Mapped pages side by side are one segment. */
function findSegments({ blocks, segments }, event) {
  const found = [];
  for (let at = 0; at < segments.begin.length && segments.begin[at] <= event; at++) {
    if (segments.end[at] > event) {
      const [address, size, base, page] = [segments.address[at], segments.size[at], segments.base[at], segments.page[at]];
      found.push({ address, size, base, page, blocks: [], inUse: 0 });
    }
  }
  found.sort((a, b) => a.address - b.address);
  const merged = [];
  for (const segment of found) {
    const last = merged.at(-1);
    if (last?.page && last.base === segment.base && last.address + last.size === segment.address) last.size += segment.size;
    else merged.push(segment);
  }
  const alive = [];
  const count = lowerBound(blocks.begin, event + 1);
  for (let at = 0; at < count; at++) if (blocks.reusable[at] > event) alive.push(at);
  alive.sort((a, b) => blocks.address[a] - blocks.address[b]);
  let at = 0;
  for (const block of alive) {
    while (merged[at].address + merged[at].size <= blocks.address[block]) at++;
    merged[at].blocks.push(block);
    merged[at].inUse += blocks.size[block];
  }
  for (const segment of merged) {
    segment.free = segment.size - segment.inUse;
    segment.releasable = segment.page ? wholePages(segment, blocks) : segment.blocks.length ? 0 : segment.size;
    segment.holes = segment.free - segment.releasable;
  }
  return merged;
}

/** Returns the bytes of the free whole pages of an expandable segment. */
function wholePages({ address, size, base, page, blocks: inUse }, blocks) {
  let [free, start] = [0, address];
  for (const [begin, end] of [...inUse.map((block) => [blocks.address[block], blocks.address[block] + blocks.size[block]]), [address + size, 0]]) {
    const [first, last] = [Math.ceil((start - base) / page), Math.floor((begin - base) / page)];
    free += Math.max(0, last - first) * page;
    start = end;
  }
  return free;
}

/** Returns the slack after an event, in the order of SLACK. */
function slackAt({ blocks }, event, segments) {
  const slack = [0, 0, 0, 0];
  for (const segment of segments) {
    slack[0] += segment.releasable;
    slack[1] += segment.holes;
    for (const block of segment.blocks) {
      if (blocks.freed[block] > event) slack[2] += blocks.size[block] - blocks.nbytes[block];
      else slack[3] += blocks.size[block];
    }
  }
  return slack;
}

/** Returns what lies outside the allocator after an event. */
const outsideAt = ({ outside }, event) => outside.findLast((each) => each.event <= event);

const partAt = ({ parts }, event) => parts.find(({ begin, end }) => begin <= event && event < end);

/** Returns the microsecond at which an event happened: one before the clock begins has the first time. */
const timeOf = ({ clock: { begin, times } }, event) => times[Math.min(times.length - 1, Math.max(0, event - begin))];

/** Names the part of the run that an event belongs to. */
function partName(part) {
  const phase = part?.phase || "between phases";
  return part?.step ? `${phase}, step ${part.step}` : phase;
}

/** Returns the event of another history at the same share of the same part of the run; null if it lacks that part. */
function sameMoment(history, event, other) {
  if (event === history.peak) return other.peak;
  const part = partAt(history, event);
  const same = (each) => each.phase === part.phase && each.step === part.step;
  const number = history.parts.filter(same).indexOf(part);
  const match = other.parts.filter(same)[number];
  if (!match) return null;
  const share = (event - part.begin) / (part.end - part.begin);
  return match.begin + Math.floor(share * (match.end - match.begin));
}

const SIZES = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "bytes"]];

/** Writes a size in the unit that suits it. */
function size(bytes) {
  const [unit, name] = SIZES.find(([each]) => Math.abs(bytes) >= each) ?? SIZES.at(-1);
  return `${SIGNIFICANT.get(4).format(bytes / unit)} ${name}`;
}

const KINDS = new Map(DATA.kinds.map((kind, order) => [kind.name, { ...kind, order }]));
const colorOfKind = (name) => colorOf(KINDS.get(name));
