// A run while it trains: what the server of the page knows, every two seconds.

const LOOK = 2000; // milliseconds

function paintCurves(panels) {
  const place = byId("curves");
  if (place.hidden === panels.length > 0) {
    place.hidden = !panels.length;
    if (data) fit();
  }
  while (place.children.length < panels.length) {
    const frame = element(place, "div");
    element(frame, "h4");
    element(frame, "canvas");
  }
  panels.forEach(({ title, lines }, index) => {
    const [head, canvas] = place.children[index].children;
    const isTotal = ({ name }) => name === "return";
    const [xs, ys] = ["xs", "ys"].map((axis) => lines.flatMap((line) => line[axis]));
    const others = lines.filter((line) => !isTotal(line));
    const role = (line) => (isTotal(line) ? "ink" : agentRole(others.indexOf(line)));
    head.textContent = `${title} `;
    const drawn = lines.map((line) => ({ ...line, role: role(line), thin: !isTotal(line) }));
    for (const { name, role } of drawn.length > 1 ? drawn : []) {
      const entry = element(head, "small");
      entry.textContent = ` ${isTotal({ name }) ? "sum" : name.split("/").pop()} `;
      entry.style.color = color(role);
    }
    chart(canvas, drawn, { span: [0, most(xs)], range: [least(ys), most(ys)] });
  });
}

async function follow() {
  for (let known = 0; ; await new Promise((done) => setTimeout(done, LOOK))) {
    let live;
    try {
      live = await (await fetch(`live?episode=${known}`)).json();
    } catch {
      byId("note").textContent = "the server has ended";
      continue;
    }
    const underWay = data && time > 0 && time < steps(); // it is seen to its end first
    if (live.episode && !underWay) {
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

follow();
