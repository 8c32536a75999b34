"use strict";

// Reading the arrays: the counterpart of packing.py.

async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// {times, inner, values}: entry k of the time t is values[k * times + t].
function unpack(reference, bytes) {
  const [times, ...rest] = reference.shape;
  const inner = rest.reduce((product, size) => product * size, 1);
  const size = times * inner, { table, at, bits, low, step } = reference;
  let values;
  if (table) {
    const index = at === undefined ? () => 0 : (i) => bytes[at + i];
    values = Float64Array.from({ length: size }, (_, i) => table[index(i)]);
  } else if (bits === 32) {
    values = new Float32Array(bytes.slice(at, at + 4 * size).buffer);
  } else {
    values = new Float64Array(size);
    for (let k = 0; k < inner; k++) {
      for (let t = 0, level = 0; t < times; t++) {
        const i = k * times + t;
        level = (level + bytes[at + i] + (bits === 16 ? bytes[at + size + i] << 8 : 0)) % 2 ** bits;
        values[i] = low + step * level;
      }
    }
  }
  return { times, inner, count: rest[0] || 1, values };
}

const at = (array, t, k) => array.values[k * array.times + Math.min(t, array.times - 1)];

// Every reference below `tree` becomes an array.
function unpackAll(tree, bytes) {
  if (Array.isArray(tree)) return tree.map((part) => unpackAll(part, bytes));
  if (tree === null || typeof tree !== "object") return tree;
  if (tree.shape && (tree.table || tree.bits)) return unpack(tree, bytes);
  const parts = Object.entries(tree).map(([name, part]) => [name, unpackAll(part, bytes)]);
  return Object.fromEntries(parts);
}

// Small things.

const byId = (id) => document.getElementById(id);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
let palette = {}; // of the present colour scheme
const style = getComputedStyle(document.body);
const color = (role) => (palette[role] ??= style.getPropertyValue("--" + role).trim());
const agentRole = (index) => "agent" + (index % 8);

function number(value, digits = 2) {
  const text = Math.abs(value) >= 1e5 ? value.toExponential(1) : value.toFixed(digits);
  return (/^-[0.]+$/.test(text) ? text.slice(1) : text).replace("-", "\u2212");
}

function element(parent, tag, className = "", text = "") {
  const made = parent.appendChild(document.createElement(tag));
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

// A canvas of as many pixels as the screen has; [context, width, height] in CSS pixels.
function prepared(canvas) {
  const ratio = window.devicePixelRatio || 1, { clientWidth, clientHeight } = canvas;
  const width = Math.round(clientWidth * ratio), height = Math.round(clientHeight * ratio);
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, clientWidth, clientHeight);
  return [context, clientWidth, clientHeight];
}

// The stage: shapes in the world's coordinates, between two states where the time is.

const JUMP = 0.15; // of the picture: whoever moves farther in a step was put there
const PLACES = { circles: "center", rectangles: "center", lines: "start", text: "position" };

function paintShapes(canvas, drawing, time) {
  const [context, width, height] = prepared(canvas), state = Math.floor(time);
  const [left, bottom, right, top] = [0, 1, 2, 3].map((k) => moved(drawing.bounds, time, k));
  const view = {
    scale: width / (right - left),
    upright: top > bottom,
    x: (value) => ((value - left) / (right - left)) * width,
    y: (value) => ((top - value) / (top - bottom)) * height,
  };
  for (const group of drawing.shapes) {
    const { arrays } = group, place = arrays[PLACES[group.kind]];
    const count = Math.max(...Object.values(arrays).map((array) => array.count));
    context.globalAlpha = group.opacity;
    for (let i = 0; i < count; i++) {
      const index = (name) => i % arrays[name].count;
      if (!at(arrays.visible, state, index("visible"))) continue;
      const step = (axis) => {
        const k = (i % place.count) * 2 + axis;
        return Math.abs(at(place, state + 1, k) - at(place, state, k));
      };
      const when = Math.max(step(0), step(1)) > JUMP * Math.abs(right - left) ? state : time;
      const which = (name) => (arrays[name] ? at(arrays[name], state, index(name)) : i);
      const fill = color(group.colors[which("color_index") % group.colors.length]);
      context.fillStyle = context.strokeStyle = fill;
      context.beginPath();
      PAINT[group.kind](context, view, group, {
        one: (name) => moved(arrays[name], when, index(name)),
        two: (name) => [0, 1].map((axis) => moved(arrays[name], when, index(name) * 2 + axis)),
        which,
      });
    }
  }
  context.globalAlpha = 1;
}

// Entry k at a time between two states.
function moved(array, time, k) {
  const state = Math.floor(time), here = at(array, state, k);
  return time === state ? here : here + (time - state) * (at(array, state + 1, k) - here);
}

const PAINT = {
  circles(context, { x, y, scale }, { line_width: line }, { one, two }) {
    const [cx, cy] = two("center");
    context.arc(x(cx), y(cy), Math.max(one("radius") * scale, 0), 0, 7);
    context.lineWidth = line * scale;
    if (line) context.stroke();
    else context.fill();
  },
  rectangles(context, { x, y, scale, upright }, { corner }, { one, two }) {
    const [cx, cy] = two("center"), [w, h] = two("size").map((size) => Math.abs(size) * scale);
    context.save();
    context.translate(x(cx), y(cy));
    context.rotate(upright ? -one("angle") : one("angle"));
    context.roundRect(-w / 2, -h / 2, w, h, Math.min(corner * scale, w / 2, h / 2));
    context.fill();
    context.restore();
  },
  lines(context, { x, y, scale }, _, { one, two }) {
    const [sx, sy] = two("start"), [ex, ey] = two("end");
    context.lineWidth = Math.max(one("width") * scale, 1);
    context.lineCap = "round";
    context.moveTo(x(sx), y(sy));
    context.lineTo(x(ex), y(ey));
    context.stroke();
  },
  text(context, { x, y, scale }, { words }, { one, two, which }) {
    const [cx, cy] = two("position");
    context.font = `600 ${one("size") * scale}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(words[which("word_index") % words.length], x(cx), y(cy));
  },
};

function paintFrame(canvas, frames, time) {
  const [context, width, height] = prepared(canvas);
  let last = 0;
  while (last + 1 < frames.steps.length && frames.steps[last + 1] <= time) last++;
  const image = frames.loaded[last];
  context.imageSmoothingEnabled = image.naturalWidth > 120; // smaller ones are made of squares
  if (image.complete && image.naturalWidth) context.drawImage(image, 0, 0, width, height);
}

// Charts: lines {xs, ys, role, thin} up to `now` and pale beyond it, and bars below.

const MARGIN = 44; // pixels left of a chart, for its numbers

function chart(canvas, lines, { span, range, now, bars }) {
  const [context, width, height] = prepared(canvas), [low, high] = range;
  const floor = height - (bars ? 44 : 16), wide = width - MARGIN - 4;
  const x = (value) => MARGIN + ((value - span[0]) / (span[1] - span[0] || 1)) * wide;
  const y = (value) => floor - ((value - low) / (high - low || 1)) * (floor - 8);
  paintLevels(context, range, y, width);
  const draw = (xs, ys, from, to) => {
    context.beginPath();
    for (let i = from; i < to; i++) context.lineTo(x(xs ? xs[i] : i), y(ys[i]));
    context.stroke();
  };
  context.lineJoin = "round";
  for (const { xs, ys, role, thin } of lines) {
    const past = now === undefined ? ys.length : Math.min(now + 1, ys.length);
    context.strokeStyle = color(role);
    context.lineWidth = thin ? 1.3 : 2;
    context.globalAlpha = 0.25;
    if (past < ys.length) draw(xs, ys, Math.max(past - 1, 0), ys.length);
    context.globalAlpha = 1;
    draw(xs, ys, 0, past);
  }
  if (bars) paintBars(context, bars, x, height, now);
  if (now === undefined) return;
  context.fillStyle = color("muted");
  context.fillRect(Math.round(x(now)), 4, 1, height - 4);
}

function paintLevels(context, [low, high], y, width) {
  const zero = low < 0 && high > 0 && Math.min(-low, high) > 0.12 * (high - low);
  const digits = clamp(1 - Math.floor(Math.log10(high - low || 1)), 0, 5);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = color("muted");
  context.strokeStyle = color("rule");
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const level of new Set(zero ? [low, 0, high] : [low, high])) {
    context.beginPath();
    context.moveTo(MARGIN, y(level));
    context.lineTo(width, y(level));
    context.stroke();
    context.fillText(number(level, digits), MARGIN - 6, y(level));
  }
}

// Each agent's rewards, side by side within their step.
function paintBars(context, { rows, largest }, x, height, now) {
  const middle = height - 17, gap = (x(1) - x(0)) / rows.length > 3 ? 1 : 0;
  context.fillStyle = color("muted");
  context.fillText("reward", MARGIN - 6, middle);
  rows.forEach(({ ys, role }, row) => {
    context.fillStyle = color(role);
    ys.forEach((value, t) => {
      const [from, to] = [row, row + 1].map((n) => Math.round(x(t + n / rows.length)));
      const size = (15 * value) / largest;
      context.globalAlpha = now === undefined || t < now ? 0.85 : 0.22;
      const across = Math.max(to - from - gap, 0.6);
      if (value) context.fillRect(from, middle - Math.max(size, 0), across, Math.abs(size));
    });
  });
  context.globalAlpha = 1;
}
