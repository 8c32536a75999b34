// The page of a run or a sweep while it trains: what the server knows, every two seconds.

const LOOK = 2000; // milliseconds
let compared = false, hurry = () => {};

const rest = () => new Promise((done) => { hurry = done; setTimeout(done, LOOK); });

async function follow() {
  // The number of the episode that came last, and the episode itself until it is shown.
  let known = 0, pending = null, shows = false;
  for (; ; await rest()) {
    const wanted = compared;
    let live;
    try {
      const asked = `live?episode=${shows === wanted ? known : 0}&compared=${Number(wanted)}`;
      live = await (await fetch(asked)).json();
    } catch {
      byId("note").textContent = "the server has ended; this is what it showed last";
      continue;
    }
    if (live.problem) {
      byId("note").textContent = live.problem;
      continue;
    }
    if (live.episode && live.number !== known) [known, pending] = [live.number, live.episode];
    const underWay = shows === wanted && data && time > 0 && time < steps(); // seen to its end
    if (pending && !underWay) {
      await take(pending);
      pending = null;
      document.body.dataset.number = known;
      autoplay();
    }
    shows = wanted;
    showOverview(live);
    byId("which").hidden = !live.compares;
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
