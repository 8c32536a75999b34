// The page of a run or a sweep while it trains: what the server knows, every two seconds.

const LOOK = 2000; // milliseconds
let compared = false, hurry = () => {};

const rest = () => new Promise((done) => { hurry = done; setTimeout(done, LOOK); });

async function follow() {
  for (let known = 0, shows = false; ; await rest()) {
    let live;
    try {
      const asked = `live?episode=${shows === compared ? known : 0}&compared=${Number(compared)}`;
      live = await (await fetch(asked)).json();
    } catch {
      byId("note").textContent = "the server has ended; this is what it showed last";
      continue;
    }
    if (live.problem) {
      byId("note").textContent = live.problem;
      continue;
    }
    const underWay = shows === compared && data && time > 0 && time < steps(); // seen to its end
    if (live.episode && live.number !== known && !underWay) {
      known = live.number;
      await take(live.episode);
      autoplay();
    }
    shows = compared;
    showOverview(live);
    byId("which").hidden = !live.compares;
    document.body.dataset.number = known;
  }
}

const [newest, several] = byId("which").children;
for (const [button, value] of [[newest, false], [several, true]]) {
  button.onclick = () => {
    compared = value;
    newest.setAttribute("aria-pressed", !value);
    several.setAttribute("aria-pressed", value);
    hurry();
  };
}
follow();
