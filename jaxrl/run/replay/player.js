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
    values = Float64Array.from({ length: size }, (_, i) => table[at === undefined ? 0 : bytes[at + i]]);
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
  return Object.fromEntries(Object.entries(tree).map(([name, part]) => [name, unpackAll(part, bytes)]));
}

// Small things.

const byId = (id) => document.getElementById(id);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
let palette = {};
const color = (role) => (palette[role] ??= getComputedStyle(document.body).getPropertyValue("--" + role).trim());
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

const MAIN = { circles: "center", rectangles: "center", lines: "start", text: "position" };
const JUMP = 0.15; // of the picture: whoever moves farther in a step was put there

function paintShapes(canvas, drawing, time) {
  const [context, width, height] = prepared(canvas);
  const state = Math.floor(time), part = time - state;
  const between = (array, k, share) => {
    const here = at(array, state, k);
    return share ? here + share * (at(array, state + 1, k) - here) : here;
  };
  const [left, bottom, right, top] = [0, 1, 2, 3].map((k) => between(drawing.bounds, k, part));
  const scale = width / (right - left), upright = top > bottom;
  const x = (value) => (value - left) * scale, y = (value) => ((top - value) / (top - bottom)) * height;
  for (const group of drawing.shapes) {
    const { arrays, kind } = group, main = arrays[MAIN[kind]], count = Math.max(...Object.values(arrays).map((a) => a.count));
    context.globalAlpha = group.opacity;
    for (let i = 0; i < count; i++) {
      const k = (array) => i % array.count;
      if (!at(arrays.visible, state, k(arrays.visible))) continue;
      const place = k(main) * 2;
      const jumps = [0, 1].some((axis) =>
        Math.abs(at(main, state + 1, place + axis) - at(main, state, place + axis)) > JUMP * Math.abs(right - left));
      const share = jumps ? 0 : part;
      const one = (name) => between(arrays[name], k(arrays[name]), share);
      const two = (name) => [0, 1].map((axis) => between(arrays[name], k(arrays[name]) * 2 + axis, share));
      const shade = arrays.color_index ? at(arrays.color_index, state, k(arrays.color_index)) : i;
      const fill = color(group.colors[shade % group.colors.length]);
      context.fillStyle = context.strokeStyle = fill;
      context.beginPath();
      if (kind === "circles") {
        const [cx, cy] = two("center");
        context.arc(x(cx), y(cy), Math.max(one("radius") * scale, 0), 0, 7);
        context.lineWidth = group.line_width * scale;
        if (group.line_width) context.stroke(); else context.fill();
      } else if (kind === "rectangles") {
        const [cx, cy] = two("center"), [w, h] = two("size").map((size) => Math.abs(size) * scale);
        context.save();
        context.translate(x(cx), y(cy));
        context.rotate(upright ? -one("angle") : one("angle"));
        context.roundRect(-w / 2, -h / 2, w, h, Math.min(group.corner * scale, w / 2, h / 2));
        context.fill();
        context.restore();
      } else if (kind === "lines") {
        const [sx, sy] = two("start"), [ex, ey] = two("end");
        context.lineWidth = Math.max(one("width") * scale, 1);
        context.lineCap = "round";
        context.moveTo(x(sx), y(sy));
        context.lineTo(x(ex), y(ey));
        context.stroke();
      } else {
        const [cx, cy] = two("position"), chosen = arrays.word_index ? at(arrays.word_index, state, k(arrays.word_index)) : i;
        context.font = `600 ${one("size") * scale}px system-ui, sans-serif`;
        context.textAlign = "center";
        context.textBaseline = "middle";
        context.fillText(group.words[chosen % group.words.length], x(cx), y(cy));
      }
    }
  }
  context.globalAlpha = 1;
}

function paintFrame(canvas, frames, time) {
  const [context, width, height] = prepared(canvas);
  let last = 0;
  while (last + 1 < frames.steps.length && frames.steps[last + 1] <= time) last++;
  const image = frames.loaded[last];
  if (image.complete && image.naturalWidth) context.drawImage(image, 0, 0, width, height);
}

// Charts: lines {x, y, role, thin}, with the place of the time shown and bars below if there are any.

function chart(canvas, lines, { span, range, now, bars }) {
  const [context, width, height] = prepared(canvas);
  const [low, high] = range, margin = 44, floor = height - (bars ? 44 : 16);
  const x = (value) => margin + ((value - span[0]) / (span[1] - span[0] || 1)) * (width - margin - 4);
  const y = (value) => floor - ((value - low) / (high - low || 1)) * (floor - 8);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = color("muted");
  context.strokeStyle = color("rule");
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const level of low < 0 && high > 0 && Math.min(-low, high) > 0.12 * (high - low) ? [low, 0, high] : [low, high]) {
    context.beginPath();
    context.moveTo(margin, y(level));
    context.lineTo(width, y(level));
    context.stroke();
    context.fillText(number(level, clamp(1 - Math.floor(Math.log10(high - low || 1)), 0, 5)), margin - 6, y(level));
  }
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
  if (now !== undefined) {
    context.fillStyle = color("muted");
    context.fillRect(Math.round(x(now)), 4, 1, height - 4);
  }
}

// Each agent's rewards as thin bars on a line of their own.
function paintBars(context, { rows, largest }, x, height, now) {
  const middle = height - 17;
  context.fillStyle = color("muted");
  context.fillText("reward", 38, middle);
  const wide = x(1) - x(0), each = wide / rows.length, gap = each > 3 ? 1 : 0;
  rows.forEach(({ ys, role }, row) => {
    context.fillStyle = color(role);
    ys.forEach((value, t) => {
      const size = (15 * value) / largest;
      context.globalAlpha = now === undefined || t < now ? 0.85 : 0.22;
      if (value) context.fillRect(x(t) + row * each, middle - Math.max(size, 0), each - gap, Math.abs(size));
    });
  });
  context.globalAlpha = 1;
}

// The page.

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];
const SECONDS = 12; // of an episode at speed 1, within bounds
const ENDS = { terminated: "terminated", truncated: "time limit", cut: "cut" };
let data, episode = 0, time = 0, playing = false, speed = 1, shown = [], dirty = true;

const steps = () => Math.max(...data.episodes[episode].tracks.map((track) => track.steps));

// What a track's charts show: running sums and their common range.
function prepare(track, agents) {
  const rewards = agents.map((_, m) => Array.from({ length: track.steps }, (_, t) => at(track.rewards, t, m)));
  const total = Array.from({ length: track.steps }, (_, t) => at(track.totals, t, 0));
  track.total = running(total);
  track.running = rewards.map(running);
  track.bars = { rows: rewards.map((ys, m) => ({ ys, role: agentRole(m) })) };
  if (track.frames) {
    track.frames.loaded = track.frames.images.map((source) => {
      const image = new Image();
      image.onload = () => { fit(); dirty = true; };
      image.src = source;
      return image;
    });
  }
}

function running(values) {
  const sums = [0];
  for (const value of values) sums.push(sums[sums.length - 1] + value);
  return sums;
}

async function take(fresh) {
  const bytes = await inflate(fresh.arrays);
  data = { ...fresh, episodes: unpackAll(fresh.episodes, bytes) };
  for (const { tracks } of data.episodes) {
    tracks.forEach((track) => prepare(track, data.agents));
    const all = tracks.flatMap((track) => [track.total, ...track.running]).flat();
    const largest = Math.max(...tracks.flatMap((track) => track.bars.rows).flatMap((row) => row.ys.map(Math.abs)), 1e-9);
    for (const track of tracks) {
      track.range = [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))];
      track.bars.largest = largest;
    }
  }
  byId("title").textContent = document.title = data.title;
  byId("note").textContent = data.note;
  byId("controls").hidden = false;
  episode = Math.min(episode, data.episodes.length - 1);
  build();
  choose(episode);
}

function build() {
  byId("columns").replaceChildren();
  byId("columns").classList.toggle("single", data.columns.length === 1);
  shown = data.columns.map((column) => buildColumn(column));
  byId("episodes").replaceChildren();
  data.episodes.forEach(({ number }, index) => {
    if (data.episodes.length === 1) return;
    const button = element(byId("episodes"), "button", "", `episode ${number}`);
    button.onclick = () => choose(index);
  });
}

function buildColumn({ name, note }) {
  const column = element(byId("columns"), "section", "column"), head = element(column, "h2", "", name);
  const where = element(head, "small", "", note), sum = element(head, "b");
  const stage = element(element(column, "div", "stage"), "canvas");
  const numbers = element(column, "div", "numbers"), frame = element(numbers, "div", "chart");
  element(frame, "h4", "", data.agents.length > 1 ? "return, in all and by agent" : "return");
  const curve = element(frame, "canvas"), agents = element(numbers, "div", "agents");
  const seek = (event) => {
    const box = curve.getBoundingClientRect();
    go(Math.round(((event.clientX - box.left - 44) / (box.width - 48)) * steps()));
  };
  curve.onpointerdown = (event) => { curve.setPointerCapture(event.pointerId); seek(event); };
  curve.onpointermove = (event) => event.buttons && seek(event);
  const cards = data.agents.map((agent, index) => buildAgent(agents, agent, index));
  if (data.hidden_agents) element(numbers, "p", "", `and ${data.hidden_agents} more agents`);
  return { stage, curve, sum, where, note, cards };
}

function buildAgent(parent, agent, index) {
  const card = element(parent, "div", "agent"), head = element(card, "h3");
  card.style.setProperty("--own", `var(--${agentRole(index)})`);
  element(head, "i");
  element(head, "span", "", agent.name).title = `policy ${agent.policy}`;
  const sum = element(head, "b"), facts = element(card, "dl");
  const [reward, value] = ["reward", "value"].map((name) => {
    const pair = element(facts, "div");
    element(pair, "dt", "", name);
    return element(pair, "dd");
  });
  if (agent.parts) {
    const box = element(card, "div", agent.names.length > 12 ? "choices many" : "choices");
    const bars = agent.names.map((name) => {
      const choice = element(box, "div", "choice"), frame = element(choice, "div", "bar");
      const bar = element(frame, "i"), share = element(frame, "b");
      element(choice, "span", "", name);
      return { choice, bar, share };
    });
    return { card, sum, reward, value, bars };
  }
  const ranges = agent.names.map((name) => {
    const row = element(card, "div", "range");
    element(row, "span", "", name);
    const track = element(row, "div", "track");
    return { band: element(track, "i"), mark: element(track, "b"), text: element(row, "output") };
  });
  return { card, sum, reward, value, ranges };
}

function showAgent(card, agent, track, index, t) {
  const { decisions } = track, own = decisions[index], last = Math.min(t, track.steps);
  card.sum.textContent = number(track.running[index][last]);
  card.reward.textContent = last ? number(at(track.rewards, last - 1, index)) : "\u2013";
  const acts = t < track.steps && at(track.active, t, index) && own;
  card.card.classList.toggle("waits", !acts);
  card.value.textContent = acts ? number(at(own.value, t, 0)) : "\u2013";
  const firsts = running(agent.parts || []);
  card.bars?.forEach(({ choice, bar, share: text }, a) => {
    const part = firsts.findLastIndex((first) => first <= a);
    const taken = acts && at(own.action, t, part) + firsts[part] === a;
    const share = acts && own.probabilities ? at(own.probabilities, t, a) : taken ? 1 : 0;
    bar.style.height = `${62 * share}%`;
    choice.classList.toggle("taken", Boolean(taken));
    text.textContent = acts ? (100 * share).toFixed(0) : "";
    choice.title = `${agent.names[a]}: ${(100 * share).toFixed(1)} %`;
  });
  card.ranges?.forEach(({ band, mark, text }, d) => {
    const place = (value) => 100 * clamp((value - agent.low[d]) / (agent.high[d] - agent.low[d] || 1), 0, 1);
    const [low, mean, high] = acts ? own.spread.map((part) => at(part, t, d)) : [0, 0, 0];
    band.style.left = `${place(low)}%`;
    band.style.right = `${100 - place(high)}%`;
    mark.style.left = `${place(acts ? at(own.action, t, d) : 0)}%`;
    band.hidden = mark.hidden = !acts;
    text.textContent = acts ? number(mean) : "";
    text.title = "mean";
  });
}

function show() {
  const t = Math.floor(time), length = steps();
  shown.forEach(({ stage, curve, sum, where, note, cards }, c) => {
    const track = data.episodes[episode].tracks[c], inside = Math.min(time, track.steps), last = Math.min(t, track.steps);
    if (track.drawing) paintShapes(stage, track.drawing, inside);
    else paintFrame(stage, track.frames, inside);
    sum.textContent = number(track.total[last]);
    const ended = t >= track.steps ? `step ${track.steps}: ${ENDS[track.end]}` : "";
    where.textContent = [note, ended].filter(Boolean).join(" \u00b7 ");
    const lines = track.running.map((ys, m) => ({ ys, role: agentRole(m), thin: data.agents.length > 1 }));
    if (data.agents.length > 1) lines.push({ ys: track.total, role: "ink" });
    chart(curve, lines, { span: [0, length], range: track.range, now: last, bars: track.bars });
    cards.forEach((card, index) => showAgent(card, data.agents[index], track, index, t));
  });
  byId("scrub").value = t;
  byId("clock").textContent = `step ${t} of ${length}`;
  Object.assign(document.body.dataset, { step: t, playing, episode, speed });
}

// Canvases as wide as their place allows, of the shape of what they show.
function fit() {
  shown.forEach(({ stage }, c) => {
    const { drawing, frames } = data.episodes[episode].tracks[c];
    const [left, bottom, right, top] = [0, 1, 2, 3].map((k) => drawing ? at(drawing.bounds, 0, k) : 0);
    const image = frames?.loaded[0];
    const ratio = drawing ? Math.abs((right - left) / (top - bottom)) : (image.naturalWidth || 4) / (image.naturalHeight || 3);
    const tallest = Math.max((byId("curves").hidden ? (shown.length > 1 ? 0.44 : 0.72) : 0.5) * window.innerHeight, 240);
    const width = Math.min(stage.parentElement.clientWidth, ratio * tallest);
    stage.style.width = `${width}px`;
    stage.style.height = `${width / ratio}px`;
  });
  dirty = true;
}

function go(step) {
  time = clamp(step, 0, steps());
  dirty = true;
}

function play(on) {
  if (on && time >= steps()) go(0);
  playing = on;
  byId("play").setAttribute("aria-label", on ? "pause" : "play");
  dirty = true;
}

function choose(index) {
  episode = clamp(index, 0, data.episodes.length - 1);
  [...byId("episodes").children].forEach((button, i) => button.setAttribute("aria-pressed", i === episode));
  byId("scrub").max = steps();
  go(0);
  fit();
}

function setSpeed(value) {
  speed = value;
  byId("speed").value = value;
  dirty = true;
}

let before = 0;
function tick(now) {
  if (data && playing) {
    const perSecond = clamp(steps() / SECONDS, 5, 45) * speed;
    time += (perSecond * Math.min(now - before, 100)) / 1000;
    dirty = true;
    if (time >= steps()) {
      time = steps();
      if (episode + 1 < data.episodes.length) choose(episode + 1);
      else play(false);
    }
  }
  before = now;
  if (data && dirty) { dirty = false; show(); }
  requestAnimationFrame(tick);
}

const KEYS = {
  " ": () => play(!playing),
  ArrowLeft: (event) => { play(false); go(Math.ceil(time) - (event.shiftKey ? 10 : 1)); },
  ArrowRight: (event) => { play(false); go(Math.floor(time) + (event.shiftKey ? 10 : 1)); },
  Home: () => go(0),
  End: () => { play(false); go(steps()); },
  ArrowUp: () => setSpeed(SPEEDS[Math.min(SPEEDS.indexOf(speed) + 1, SPEEDS.length - 1)]),
  ArrowDown: () => setSpeed(SPEEDS[Math.max(SPEEDS.indexOf(speed) - 1, 0)]),
};

document.addEventListener("keydown", (event) => {
  if (!data || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = /^[1-9]$/.test(event.key) ? () => choose(event.key - 1) : KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act(event);
});
SPEEDS.forEach((value) => Object.assign(element(byId("speed"), "option", "", `${value}\u00d7`), { value }));
byId("speed").onchange = (event) => setSpeed(Number(event.target.value));
byId("speed").value = 1;
byId("play").onclick = () => play(!playing);
byId("scrub").oninput = (event) => { play(false); go(Number(event.target.value)); };
new ResizeObserver(() => data && fit()).observe(document.body);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { palette = {}; dirty = true; });
requestAnimationFrame(tick);

// Not by itself where it is one of several things on a page, nor for whoever likes stillness.
const autoplay = () => play(window === window.top && !matchMedia("(prefers-reduced-motion: reduce)").matches);

// A run while it trains: what the server of the page knows, every two seconds.

function paintCurves(panels) {
  const place = byId("curves");
  if (place.hidden !== !panels.length) {
    place.hidden = !panels.length;
    if (data) fit();
  }
  while (place.children.length < panels.length) {
    const frame = element(place, "div");
    element(frame, "h4");
    element(frame, "canvas");
  }
  panels.forEach(({ title, lines }, index) => {
    const [head, canvas] = place.children[index].children, ys = lines.flatMap((line) => line.ys), xs = lines.flatMap((line) => line.xs);
    const least = (values) => values.reduce((a, b) => Math.min(a, b)), most = (values) => values.reduce((a, b) => Math.max(a, b));
    head.textContent = title;
    const shaded = lines.map((line, i) => ({ ...line, role: line.name === "return" ? "ink" : agentRole(i - (lines[0].name === "return")), thin: line.name !== "return" }));
    chart(canvas, shaded, { span: [0, most(xs)], range: [least(ys), most(ys)] });
  });
}

async function follow() {
  for (let known = 0; ; await new Promise((done) => setTimeout(done, 2000))) {
    let live;
    try {
      live = await (await fetch(`live?episode=${known}`)).json();
    } catch {
      byId("note").textContent = "the server has ended";
      continue;
    }
    const busy = data && !playing && time > 0 && time < steps(); // somebody looks at this step
    if (live.episode && !busy) {
      known = live.number;
      await take(live.episode);
      autoplay();
    }
    byId("title").textContent = document.title = live.title;
    byId("note").textContent = live.note;
    document.body.dataset.number = known;
    paintCurves(live.curves);
  }
}

const written = JSON.parse(byId("data").textContent);
if (written) take(written).then(autoplay);
else follow();
