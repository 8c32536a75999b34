// The page: what is chosen and played, and the numbers beside the stage.

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];
const SECONDS = 12; // of an episode at speed 1, within bounds
const ENDS = { terminated: "terminated", truncated: "time limit", cut: "cut" };
let data, episode = 0, time = 0, playing = false, speed = 1, shown = [], dirty = true;

const steps = () => Math.max(...data.episodes[episode].tracks.map((track) => track.steps));

// What a track's charts show: running sums and their common range.
function prepare(track, agents) {
  const series = (array, k) => Array.from({ length: track.steps }, (_, t) => at(array, t, k));
  const rewards = agents.map((_, m) => series(track.rewards, m));
  track.total = running(series(track.totals, 0));
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
    const rows = tracks.flatMap((track) => track.bars.rows);
    const largest = Math.max(most(rows.flatMap((row) => row.ys.map(Math.abs))), 1e-9);
    for (const track of tracks) {
      track.range = [least(all), most(all)];
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
  const column = element(byId("columns"), "section", "column");
  const head = element(column, "h2", "", name);
  const where = element(head, "small", "", note), sum = element(head, "b");
  const stage = element(element(column, "div", "stage"), "canvas");
  const numbers = element(column, "div", "numbers"), frame = element(numbers, "div", "chart");
  element(frame, "h4", "", data.agents.length > 1 ? "return, in all and by agent" : "return");
  const curve = element(frame, "canvas"), agents = element(numbers, "div", "agents");
  const seek = (event) => {
    const box = curve.getBoundingClientRect();
    go(Math.round(((event.clientX - box.left - MARGIN) / (box.width - MARGIN - 4)) * steps()));
  };
  curve.onpointerdown = (event) => { curve.setPointerCapture(event.pointerId); seek(event); };
  curve.onpointermove = (event) => event.buttons && seek(event);
  const cards = data.agents.map((agent, index) => buildAgent(agents, agent, index));
  const observation = element(numbers, "p", "observation");
  if (data.hidden_agents) element(numbers, "p", "", `and ${data.hidden_agents} more agents`);
  return { column, stage, curve, sum, where, note, cards, observation };
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
  const made = { card, sum, reward, value };
  if (agent.parts) {
    const box = element(card, "div", agent.names.length > 12 ? "choices many" : "choices");
    made.bars = agent.names.map((name) => {
      const choice = element(box, "div", "choice"), frame = element(choice, "div", "bar");
      const bar = element(frame, "i"), share = element(frame, "b");
      element(choice, "span", "", name);
      return { choice, bar, share };
    });
  }
  const numbers = agent.parts ? agent.numbers || [] : agent.numbers || agent.names;
  made.ranges = numbers.map((name) => {
    const row = element(card, "div", "range");
    element(row, "span", "", name);
    const track = element(row, "div", "track");
    return { band: element(track, "i"), mark: element(track, "b"), text: element(row, "output") };
  });
  return made;
}

function showAgent(card, agent, track, index, t) {
  const { decisions } = track, own = decisions[index], last = Math.min(t, track.steps);
  card.sum.textContent = number(track.running[index][last]);
  card.reward.textContent = last ? number(at(track.rewards, last - 1, index)) : "\u2013";
  const acts = t < track.steps && at(track.active, t, index) && own;
  card.card.classList.toggle("waits", !acts);
  card.value.textContent = acts && own.value ? number(at(own.value, t, 0)) : "\u2013";
  const firsts = running(agent.parts || []);
  card.bars?.forEach(({ choice, bar, share: text }, a) => {
    const part = firsts.findLastIndex((first) => first <= a);
    const taken = acts && at(own.action, t, part) + firsts[part] === a;
    const share = acts && own.probabilities ? at(own.probabilities, t, a) : undefined;
    bar.style.height = `${62 * (share ?? 0)}%`;
    choice.classList.toggle("taken", Boolean(taken));
    text.textContent = share === undefined ? "" : (100 * share).toFixed(0);
    choice.title = agent.names[a] + (share === undefined ? "" : `: ${(100 * share).toFixed(1)} %`);
  });
  card.ranges?.forEach(({ band, mark, text }, d) => {
    const bottom = agent.low[d], reach = agent.high[d] - bottom || 1;
    const place = (value) => 100 * clamp((value - bottom) / reach, 0, 1);
    const spread = acts && own.spread; // where the policy's distribution was recorded
    const [low, mean, high] = spread ? spread.map((part) => at(part, t, d)) : [0, 0, 0];
    band.style.left = `${place(low)}%`;
    band.style.right = `${100 - place(high)}%`;
    mark.style.left = `${place(acts ? at(own.action, t, (agent.parts || []).length + d) : 0)}%`;
    band.hidden = !spread;
    mark.hidden = !acts;
    text.textContent = spread ? number(mean) : "";
    text.title = "mean";
  });
}

function show() {
  const t = Math.floor(time), length = steps();
  shown.forEach(({ stage, curve, sum, where, note, cards, observation }, c) => {
    const track = data.episodes[episode].tracks[c];
    const inside = Math.min(time, track.steps), last = Math.min(t, track.steps);
    if (track.drawing) paintShapes(stage, track.drawing, inside);
    else paintFrame(stage, track.frames, inside);
    sum.textContent = number(track.total[last]);
    const ended = t >= track.steps ? `step ${track.steps}: ${ENDS[track.end]}` : "";
    where.textContent = [note, ended].filter(Boolean).join(" \u00b7 ");
    const several = data.agents.length > 1;
    const lines = track.running.map((ys, m) => ({ ys, role: agentRole(m), thin: several }));
    if (several) lines.push({ ys: track.total, role: "ink" });
    chart(curve, lines, { span: [0, length], range: track.range, now: last, bars: track.bars });
    if (track.observation) {
      const value = (_, k) => number(at(track.observation, last, k));
      const values = Array.from({ length: track.observation.inner }, value);
      observation.textContent = `observation  ${values.join("  ")}`;
    }
    cards.forEach((card, index) => showAgent(card, data.agents[index], track, index, t));
  });
  byId("scrub").value = t;
  byId("clock").textContent = `step ${t} of ${length}`;
  Object.assign(document.body.dataset, { step: t, playing, episode, speed });
}

// Canvases as wide as their place allows, of the shape of what they show.
function fit() {
  const share = shown.length > 1 ? 0.44 : 0.72;
  shown.forEach(({ column, stage }, c) => {
    column.style.removeProperty("--stage");
    const above = stage.getBoundingClientRect().top + window.scrollY;
    const room = byId("curves").hidden ? share * window.innerHeight : window.innerHeight - above - 84;
    const tallest = Math.max(room, byId("curves").hidden ? 240 : 300);
    const { drawing, frames } = data.episodes[episode].tracks[c];
    const image = frames?.loaded[0];
    const size = drawing ? sizeOf(drawing) : [image.naturalWidth, image.naturalHeight];
    const ratio = size[0] / size[1] || 4 / 3; // before a frame is loaded
    const width = Math.min(stage.parentElement.clientWidth, ratio * tallest);
    stage.style.width = `${width}px`;
    stage.style.height = `${width / ratio}px`;
    column.style.setProperty("--stage", `${width}px`); // what is beside it takes the rest
  });
  dirty = true;
}

function sizeOf({ bounds }) {
  const [left, bottom, right, top] = [0, 1, 2, 3].map((k) => at(bounds, 0, k));
  return [Math.abs(right - left), Math.abs(top - bottom)];
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
  const buttons = [...byId("episodes").children];
  buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === episode));
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
  if (event.key === " " && event.target.closest?.("button, summary")) return; // which it presses
  const act = /^[1-9]$/.test(event.key) ? () => choose(event.key - 1) : KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act(event);
});
for (const value of SPEEDS) element(byId("speed"), "option", "", `${value}\u00d7`).value = value;
byId("speed").onchange = (event) => setSpeed(Number(event.target.value));
byId("speed").value = 1;
byId("play").onclick = () => play(!playing);
byId("scrub").oninput = (event) => { play(false); go(Number(event.target.value)); };
new ResizeObserver(() => data && fit()).observe(document.body);
window.addEventListener("resize", () => data && fit());
matchMedia("(prefers-color-scheme: dark)").onchange = () => { palette = {}; dirty = true; };
requestAnimationFrame(tick);

// Not by itself where it is one of several things on a page, nor for whoever likes stillness.
function autoplay() {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  play(window === window.top && !still);
}

const written = JSON.parse(byId("data").textContent);
if (written?.episodes) take(written).then(autoplay);
