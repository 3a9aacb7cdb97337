// Charts on a canvas: its size and colours, the area between its axes, and round numbers along them.

/** Fits a canvas to its place and returns its context in CSS pixels, with its width. */
function contextOf(canvas, height) {
  const width = canvas.parentElement.clientWidth;
  [canvas.width, canvas.height] = [Math.round(width * devicePixelRatio), Math.round(height * devicePixelRatio)];
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(devicePixelRatio, devicePixelRatio);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  return [context, width];
}

const probe = h("span", { hidden: true });
document.body.append(probe);

/** Returns a colour of the style (--name) in the current theme. */
function ink(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** Makes the area of a canvas between four sides, for values from `from` to `to` along x and from 0 to `most` along y. */
function areaOf([left, top, right, bottom], [from, to], most) {
  return {
    left, top, right, bottom, from, to, most,
    x: (value) => left + ((value - from) / (to - from)) * (right - left),
    y: (value) => bottom - (value / most) * (bottom - top),
    place: (x) => from + ((x - left) / (right - left)) * (to - from),
  };
}

/** Begins a path through points. */
function pathThrough(context, points) {
  context.beginPath();
  for (const [x, y] of points) context.lineTo(x, y);
}

function drawPath(context, ...points) {
  pathThrough(context, points);
  context.stroke();
}

/** Draws a line across an area at each value, and writes the value on its left. */
function drawRows(context, area, values, text) {
  context.fillStyle = ink("ink");
  context.strokeStyle = ink("line");
  context.lineWidth = 1;
  context.textAlign = "right";
  for (const value of values) {
    const y = area.y(value);
    drawPath(context, [area.left, y], [area.right, y]);
    context.fillText(text(value), area.left - 6, y);
  }
}

/** Returns about `count` round numbers between two. */
function ticks(from, to, count) {
  const rough = (to - from) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const first = Math.ceil(from / step);
  return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, at) => (first + at) * step);
}
