// What is around the episode: curves, warnings, the plan, and the table of a sweep's trials.

const SI = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
const NOTHING = "\u2013";

// 1500 as "1.5k", 2000000 as "2M".
function short(value) {
  const found = SI.find(([unit]) => Math.abs(value) >= unit);
  return found ? `${+(value / found[0]).toPrecision(4)}${found[1]}` : `${+value.toPrecision(4)}`;
}

// Few digits, as many as a small place holds.
function brief(value) {
  if (value === null || value === undefined) return NOTHING;
  const size = Math.abs(value), isSmall = size > 0 && size < 1e-3;
  const text = isSmall || size >= 1e12 ? value.toExponential(1).replace(".0", "")
    : size < 1 ? `${+value.toPrecision(3)}` : short(value);
  return text.replaceAll("-", "\u2212");
}

const built = {}; // {part of the page: what it shows, as JSON}

// True if a part is to show something new. What stays the same is not built again, so that selected
// text and the focus stay where they are.
function isNew(part, ...contents) {
  const before = built[part];
  built[part] = JSON.stringify(contents);
  return built[part] !== before;
}

// Curves, drawn by uPlot: where the mouse is, all panels say their values at that step.

const FONT = "11px system-ui, sans-serif";
const HEIGHT = 170;
const panels = [];

class CurvePanel {
  constructor(place) {
    this.frame = element(place, "div", "panel");
    this.title = element(this.frame, "h4");
    this.note = element(this.frame, "small", "note");
    this.legend = element(this.frame, "p", "legend");
    this.canvas = element(this.frame, "div");
    this.isZoomed = false;
    const fitted = () => this.plot?.setSize({ width: this.canvas.clientWidth, height: HEIGHT });
    new ResizeObserver(fitted).observe(this.frame);
  }

  show({ title, note, log, lines }) {
    const looks = lines.map(({ name, role, style, low, smooth }) =>
      [name, role, style, Boolean(low), Boolean(smooth)]);
    const form = JSON.stringify([title, note, log, looks]), data = columns(lines);
    this.lines = lines;
    if (form === this.form) {
      this.plot.setData(data, !this.isZoomed);
      if (this.isZoomed) this.plot.redraw();
    } else {
      this.plot?.destroy();
      Object.assign(this, { form, step: null });
      this.title.textContent = title;
      this.note.textContent = note;
      this.buildLegend();
      this.plot = new uPlot(this.options(log, lines), data, this.canvas);
      this.step = element(this.plot.over, "small", "step");
    }
    if (this.plot.cursor.idx == null) this.tell();
  }

  buildLegend() {
    this.legend.replaceChildren();
    this.values = this.lines.map(({ name, role, style }) => {
      const entry = element(this.legend, "span"), mark = element(entry, "i", style);
      mark.style.setProperty("--own", `var(--${role})`);
      element(entry, "span", "", name).title = name;
      return element(entry, "b");
    });
  }

  options(log, lines) {
    const series = [{}], bands = [];
    for (const line of lines) {
      const stroke = () => color(line.role), faint = (share) => () => color(line.role) + share;
      const hidden = { stroke: "transparent", width: 0, points: { show: false } };
      if (line.low) {
        bands.push({ series: [series.length + 1, series.length], fill: faint("28") });
        series.push(hidden, hidden);
      }
      if (line.smooth) series.push({ stroke: faint("48"), width: 1, points: { show: false } });
      series.push({ stroke, ...lookOf(line) });
    }
    const axis = { stroke: () => color("muted"), font: FONT, ticks: { show: false } };
    const filter = (_, at) => levels(at, log);
    const grid = { stroke: () => color("rule"), width: 1, filter };
    const values = (_, at) => at.map((value) => (value === null ? "" : brief(value)));
    return {
      width: this.canvas.clientWidth, height: HEIGHT, series, bands,
      legend: { show: false }, padding: [8, 12, 0, 0],
      scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
      axes: [
        { ...axis, grid: { show: false }, size: 24, space: 42, values: (_, at) => at.map(short) },
        { ...axis, grid, size: 46, gap: 4, space: 26, filter, values },
      ],
      cursor: { y: false, points: { show: false }, sync: { key: "steps" }, drag: { x: true, y: false } },
      hooks: {
        setCursor: [({ cursor }) => this.tell(cursor.idx, cursor.left)],
        setSelect: [({ select }) => { this.isZoomed = this.isZoomed || select.width > 0; }],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => { this.isZoomed = false; })],
      },
    };
  }

  // The values at a point of the plot; without one the last ones.
  tell(index = null, left = 0) {
    if (!this.step) return; // uPlot is still being made
    const step = index === null ? Infinity : this.plot.data[0][index];
    const isRight = left > this.plot.over.clientWidth / 2;
    this.step.textContent = index === null ? "" : `step ${step.toLocaleString("en")}`;
    this.step.style.left = `${left}px`;
    this.step.style.transform = isRight ? "translateX(-100%)" : "";
    this.lines.forEach(({ xs, ys, low, high }, i) => {
      let last = xs.length - 1;
      while (last >= 0 && xs[last] > step) last--;
      const has = last >= 0, entry = this.values[i];
      entry.textContent = has ? brief(ys[last]) : NOTHING;
      entry.title = low && has ? `from ${brief(low[last])} to ${brief(high[last])}` : "";
    });
  }
}

// The levels of the left axis: of a logarithmic one powers of ten alone, if there are several.
function levels(values, log) {
  const isPower = (value) => Math.abs(Math.log10(value) % 1) < 1e-6;
  if (!log || values.filter(isPower).length < 2) return values;
  return values.map((value) => (isPower(value) ? value : null));
}

function lookOf({ style, role, xs, ys, smooth }) {
  if (style === "dots") {
    return { paths: () => null, points: { show: true, size: 6, fill: () => color("panel") } };
  }
  if (style === "dashes") return { width: 1, dash: [5, 4], points: { show: false } };
  const alone = xs.length === 1;
  return { width: role === "ink" ? 2.2 : 1.7, points: { show: alone, size: 6 } };
}

// What uPlot takes: all steps, and for each column the values there; undefined bridges.
function columns(lines) {
  const tables = lines.map(({ xs, ys, low, high, smooth }) =>
    [xs, ...(low ? [low, high] : []), ...(smooth ? [ys, smooth] : [ys])]);
  return uPlot.join(tables);
}

function showCurves(found) {
  const place = byId("curves"), wasHidden = place.hidden;
  place.hidden = !found.length;
  while (panels.length > found.length) {
    const { plot, frame } = panels.pop();
    plot.destroy();
    frame.remove();
  }
  found.forEach((panel, i) => (panels[i] ??= new CurvePanel(place)).show(panel));
  if (data && wasHidden !== place.hidden) fit();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  palette = {};
  panels.forEach(({ plot }) => plot.redraw());
});

// The table of trials, sorted by a click on a column's head.

let sorting = null; // {column, isUp}

function showTrials(trials) {
  byId("trials").hidden = !trials;
  if (!trials) return;
  sorting ??= { column: trials.columns.length - 1, isUp: false };
  if (!isNew("trials", trials, sorting)) return;
  const { column, isUp } = sorting, [head, body] = byId("trials").querySelectorAll("tr, tbody");
  const buttons = () => [...head.querySelectorAll("button")];
  const focused = buttons().indexOf(document.activeElement);
  head.replaceChildren();
  trials.columns.forEach((name, index) => {
    const isNumber = typeof sample(trials, index) === "number";
    const cell = element(head, "th", isNumber ? "number" : ""), button = element(cell, "button", "", name);
    const present = index === column;
    if (present) cell.setAttribute("aria-sort", isUp ? "ascending" : "descending");
    button.onclick = () => {
      sorting = { column: index, isUp: present ? !isUp : !isNumber };
      showTrials(trials);
    };
  });
  buttons()[focused]?.focus();
  body.replaceChildren();
  const rows = [...trials.rows].sort((a, b) => compare(a.cells[column], b.cells[column], isUp));
  for (const { role, reason, cells } of rows) {
    const row = element(body, "tr");
    row.title = reason;
    cells.forEach((value, index) => {
      const cell = element(row, "td", typeof value === "number" ? "number" : "");
      if (!index) {
        const mark = element(cell, "i");
        mark.style.setProperty("--own", role ? `var(--${role})` : "transparent");
      }
      cell.append(cellText(value, trials.columns[index]));
    });
    if (reason) row.classList.add("failed");
  }
}

const sample = ({ rows }, index) => rows.map(({ cells }) => cells[index]).find((v) => v !== null);

// Numbers by size, anything else by its letters; what is missing comes last.
function compare(a, b, isUp) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "number" && typeof b === "number" ? a - b : `${a}`.localeCompare(`${b}`);
  return isUp ? order : -order;
}

function cellText(value, name) {
  if (value === null) return NOTHING;
  if (typeof value !== "number" || name === "seed") return `${value}`;
  return Number.isInteger(value) ? value.toLocaleString("en") : `${+value.toPrecision(5)}`;
}

// Warnings, and the plan that a training begins with.

function showWarnings(warnings) {
  if (!isNew("warnings", warnings)) return;
  byId("warnings").hidden = !warnings.length;
  byId("warnings").replaceChildren();
  for (const text of warnings) element(byId("warnings"), "li", "", text);
}

function showPlan(plan, source) {
  if (!isNew("plan", plan, source)) return;
  byId("plan").hidden = !plan.length;
  byId("source").textContent = source;
  const list = byId("plan").querySelector("dl");
  list.replaceChildren();
  for (const [label, text] of plan) {
    element(list, "dt", "", label);
    element(list, "dd", "", text);
  }
}

function showOverview({ title, note, warnings, plan, source, curves, trials }) {
  byId("title").textContent = document.title = title;
  byId("note").textContent = note;
  byId("keys").hidden = !data;
  showWarnings(warnings);
  showPlan(plan, source);
  showCurves(curves);
  showTrials(trials);
}

async function showReport(report) {
  showOverview(report);
  if (!report.episode) return;
  await take(report.episode);
  showOverview(report); // whose title stays
  autoplay();
}

if (written?.curves) showReport(written);
