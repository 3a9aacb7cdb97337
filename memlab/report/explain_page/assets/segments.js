// Segments of the allocator at the chosen moment, to scale, and the blocks that keep free memory from going back.

const [BAR, GAP] = [17, 4]; // height of a row of segments, and the space below it, in pixels
const ROWS_TO_FILL = 14;
const KEEPERS = 8; // rows of the table
let tape = null;

function showSegments({ history, event }) {
  const segments = segmentsAt(history, event).toSorted((a, b) => b.size - a.size || a.address - b.address);
  drawTape(history, event, segments);
  showKeepers(history, event, segments);
}

/** Lays the segments out in rows, as text is: a segment that is wider than a row goes on in the next one. */
function layOut(segments, width) {
  const reserved = segments.reduce((sum, each) => sum + each.size, 0);
  const scale = reserved / (ROWS_TO_FILL * width) || 1; // bytes of a pixel
  let at = 0;
  const places = segments.map((segment) => {
    const pixels = Math.max(2, segment.size / scale);
    const left = width - (at % width);
    if (pixels > left && pixels <= width) at += left;
    const place = at;
    at += pixels + 2;
    return { segment, place, scale: segment.size / pixels, pixels };
  });
  return { places, rows: Math.ceil(at / width) || 1, width };
}

function drawTape(history, event, segments) {
  const canvas = byId("tape").children[0];
  const { places, rows, width } = layOut(segments, Math.max(100, byId("tape").clientWidth));
  const [context] = contextOf(canvas, rows * (BAR + GAP));
  const { blocks } = history;
  tape = { history, event, places, width };
  const paint = (from, to, fill) => {
    for (let row = Math.floor(from / width); row * width < to; row++) {
      const [left, right] = [Math.max(from, row * width) - row * width, Math.min(to, (row + 1) * width) - row * width];
      fill(left, row * (BAR + GAP), right - left, from >= row * width, to <= (row + 1) * width);
    }
  };
  const [free, edge] = [ink("raised"), ink("soft")];
  for (const { segment, place, scale, pixels } of places) {
    context.fillStyle = free;
    paint(place, place + pixels, (x, y, wide) => context.fillRect(x, y, wide, BAR));
    for (const block of segment.blocks) {
      const from = place + (blocks.address[block] - segment.address) / scale;
      context.fillStyle = blocks.freed[block] > event ? colorOfKind(history.sites[blocks.site[block]].kind) : edge;
      context.globalAlpha = blocks.freed[block] > event ? 1 : 0.4;
      paint(from, from + Math.max(0.6, blocks.size[block] / scale), (x, y, wide) => context.fillRect(x, y, wide, BAR));
    }
    context.globalAlpha = 1;
    context.strokeStyle = edge;
    context.lineWidth = 1;
    paint(place, place + pixels, (x, y, wide, begins, ends) => outline(context, x + 0.5, y + 0.5, Math.max(1, wide - 1), begins, ends));
  }
}

/** Draws the edges of a bar; a bar that goes on in another row is open there. */
function outline(context, x, y, wide, begins, ends) {
  context.beginPath();
  for (const [from, to, isClosed] of [[[x, y], [x + wide, y], true], [[x, y + BAR - 1], [x + wide, y + BAR - 1], true], [[x, y], [x, y + BAR - 1], begins], [[x + wide, y], [x + wide, y + BAR - 1], ends]]) {
    if (!isClosed) continue;
    context.moveTo(...from);
    context.lineTo(...to);
  }
  context.stroke();
}

/** Names what holds a block, and where. */
function holderOf(history, block) {
  const site = history.sites[history.blocks.site[block]];
  return `${size(history.blocks.nbytes[block])} of ${[site.kind, site.module].filter(Boolean).join(", ")}`;
}

/** Names the line that requested a block, and the time in which it is held. */
function lifeOf(history, block) {
  const { blocks, sites, parts } = history;
  const { line, userLine } = sites[blocks.site[block]];
  const until = blocks.freed[block] < history.events ? `until ${partName(partAt({ parts }, blocks.freed[block]))}` : "to the end";
  return `${[line, userLine].filter(Boolean).join(", ")}, from ${partName(partAt({ parts }, blocks.begin[block]))} ${until}`;
}

function showKeepers(history, event, segments) {
  const { blocks } = history;
  const holding = segments.filter((segment) => segment.holes > 0).sort((a, b) => b.holes - a.holes);
  const holes = holding.reduce((sum, segment) => sum + segment.holes, 0);
  const releasable = segments.reduce((sum, segment) => sum + segment.releasable, 0);
  const count = segments.length === 1 ? "One segment holds" : `${WHOLE.format(segments.length)} segments hold`;
  const worst = holding[0];
  const keeper = worst && keepersOf(worst, blocks);
  byId("holes").textContent =
    `${count} ${size(history.reserved[event])}. ${size(releasable)} of it could go back to the device now; ${size(holes)} is free but shares its segments with blocks in use.` +
    (worst ? ` Most is in a segment of ${size(worst.size)}: ${keeper.length === 1 ? "one block keeps" : `${WHOLE.format(keeper.length)} blocks keep`} ${size(worst.holes)} from going back. ${keeper.length === 1 ? "It is" : "The smallest is"} ${holderOf(history, keeper[0])}, ${lifeOf(history, keeper[0])}.` : "");
  const rows = keepersTogether(history, holding).slice(0, KEEPERS).map(({ smallest, segments: held, blocks: count }) => {
    const total = (key) => size(held.reduce((sum, segment) => sum + segment[key], 0));
    const others = count - held.length;
    const named = held.length === 1 ? holderOf(history, smallest) : `${WHOLE.format(held.length)} segments, at the least ${holderOf(history, smallest)}`;
    const more = others ? `, and ${WHOLE.format(others)} larger block${others === 1 ? "" : "s"}` : "";
    return [h("div", {}, `${named}${more}`, h("div", { className: "where" }, lifeOf(history, smallest))), total("holes"), total("inUse"), total("size")];
  });
  const found = table("Free memory that cannot go back", ["kept by: the smallest block of each segment", "free", "in use", "segments"], rows);
  found.id = "keepers";
  found.hidden = !rows.length;
  byId("keepers").replaceWith(found);
}

/** Puts segments together whose smallest blocks are alike: of one kind, module (layers together) and line. Those with the
 * most free memory come first. `blocks`: how many blocks are in use in them. */
function keepersTogether(history, segments) {
  const found = new Map();
  for (const segment of segments) {
    const [smallest] = keepersOf(segment, history.blocks);
    const { kind, modules, line } = history.sites[history.blocks.site[smallest]];
    const key = JSON.stringify([kind, modules, line]);
    const group = found.get(key) ?? { smallest, segments: [], blocks: 0, holes: 0 };
    if (history.blocks.size[smallest] < history.blocks.size[group.smallest]) group.smallest = smallest;
    group.segments.push(segment);
    group.blocks += segment.blocks.length;
    group.holes += segment.holes;
    found.set(key, group);
  }
  return [...found.values()].sort((a, b) => b.holes - a.holes);
}

/** Returns the blocks in use of a segment, the smallest first: the less a block holds, the more it costs. */
const keepersOf = (segment, blocks) => segment.blocks.toSorted((a, b) => blocks.size[a] - blocks.size[b]);

/** Describes the block below the pointer. */
function listenToTape() {
  const place = byId("tape");
  const tip = place.querySelector(".tip");
  place.addEventListener("pointermove", (pointer) => {
    const box = place.getBoundingClientRect();
    const [x, y] = [pointer.clientX - box.left, pointer.clientY - box.top];
    const text = textAt(Math.floor(y / (BAR + GAP)) * tape.width + x);
    tip.hidden = text === null;
    if (text === null) return;
    tip.textContent = text;
    tip.style.left = `${Math.max(0, Math.min(x + 12, box.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${y + 14}px`;
  });
  place.addEventListener("pointerleave", () => (tip.hidden = true));
}

function textAt(at) {
  const { history, event, places } = tape;
  const { blocks } = history;
  const found = places.find(({ place, pixels }) => place <= at && at < place + pixels);
  if (!found) return null;
  const { segment, place, scale } = found;
  const address = segment.address + (at - place) * scale;
  const block = segment.blocks.find((each) => blocks.address[each] <= address && address < blocks.address[each] + Math.max(blocks.size[each], scale));
  const whole = `segment of ${size(segment.size)}, ${size(segment.inUse)} in use`;
  if (block === undefined) return segment.blocks.length ? `free; ${whole}` : `free; ${whole}: it could go back to the device`;
  return `${holderOf(history, block)}, ${lifeOf(history, block)}${blocks.freed[block] > event ? "" : "; freed, but a side stream may still use it"}; ${whole}`;
}
