// The arena in a browser, drawn as on the replay page. Another script of the page has its players:
// `makePlayers()` gives a promise of {act(observations), end(state)}, each a promise too.

const HEIGHT = 10, WIDTH = 10, CELLS = HEIGHT * WIDTH, STEPS = 100, MILLISECONDS = 120;

// The rules, as in envs/arena.py.

function reset() {
  return { positions: [0, CELLS - 1], visited: new Set(), returns: [0, 0], time: 0 };
}

// The cell that an action leads to: 0 up, 1 right, 2 down, 3 left.
function aim(cell, action) {
  const row = Math.floor(cell / WIDTH), column = cell % WIDTH;
  if (action === 0 && row > 0) return cell - WIDTH;
  if (action === 1 && column < WIDTH - 1) return cell + 1;
  if (action === 2 && row < HEIGHT - 1) return cell + WIDTH;
  if (action === 3 && column > 0) return cell - 1;
  return cell;
}

function step({ positions: before, visited, returns, time }, actions, agent2First) {
  const positions = [...before], targets = before.map((cell, agent) => aim(cell, actions[agent]));
  const collided = [false, false];
  for (const agent of agent2First ? [1, 0] : [0, 1]) {
    collided[agent] = targets[agent] === positions[1 - agent];
    if (!collided[agent]) positions[agent] = targets[agent];
  }
  const collision = collided[0] || collided[1];
  const isNew = !collided[0] && !visited.has(positions[0]);
  const after = collided[0] ? visited : new Set(visited).add(positions[0]);
  const rewards = collision ? [-1, 1] : [isNew ? 1 : -0.5, -0.1];
  const sums = returns.map((sum, agent) => sum + rewards[agent]);
  return { positions, visited: after, returns: sums, time: time + 1 };
}

// One state in the form that painting.js reads: rows of numbers.

const rows = (all) => {
  const values = all.flat();
  return { times: 1, inner: values.length, count: all.length, values };
};
const place = (cell) => [(cell % WIDTH) + 0.5, Math.floor(cell / WIDTH) + 0.5];
const always = { visible: rows([1]) };

function drawing({ positions, visited }) {
  const cells = Array.from({ length: CELLS }, (_, cell) => cell);
  const square = (arrays, look) => ({
    kind: "rectangles",
    opacity: 1,
    ...look,
    arrays: { ...always, angle: rows([0]), ...arrays },
  });
  return {
    bounds: rows([[-0.1, HEIGHT + 0.1, WIDTH + 0.1, -0.1]]),
    shapes: [
      square(
        {
          center: rows(cells.map(place)),
          size: rows([[0.94, 0.94]]),
          color_index: rows(cells.map((cell) => Number(visited.has(cell)))),
        },
        { colors: ["ground", "trail"], corner: 0.08 },
      ),
      {
        kind: "circles",
        opacity: 1,
        colors: ["agent0"],
        line_width: 0,
        arrays: { ...always, center: rows([place(positions[0])]), radius: rows([0.34]) },
      },
      square(
        { center: rows([place(positions[1])]), size: rows([[0.62, 0.62]]) },
        { colors: ["agent1"], corner: 0.14 },
      ),
    ],
  };
}

function show(state) {
  paintShapes(byId("stage"), drawing(state), 0);
  const sums = state.returns.map((sum) => number(sum, 1)).join(" and ");
  byId("numbers").textContent = `step ${state.time}, returns ${sums}`;
}

// Each agent sees its cell, then the other's.
async function play(players, coins, pause) {
  const states = [reset()];
  for (const agent2First of coins) {
    const state = states[states.length - 1], [first, second] = state.positions;
    show(state);
    const actions = await players.act([[first, second], [second, first]], state);
    states.push(step(state, actions, agent2First));
    if (pause) await new Promise((done) => setTimeout(done, pause));
  }
  show(states[states.length - 1]);
  await players.end(states[states.length - 1]);
  return states;
}

// An agent that a person steers: it goes where the last arrow key points, from the first one on.

const ARROWS = { ArrowUp: 0, ArrowRight: 1, ArrowDown: 2, ArrowLeft: 3 };
const PARTS = {
  agent1: "the blue explorer: +1 for a new cell, -0.5 for an old one, -1 for a collision",
  agent2: "the orange hunter: +1 for a collision with the explorer, -0.1 for any other step",
};

async function steered(players, agent) {
  const index = Object.keys(PARTS).indexOf(agent);
  if (index < 0) throw Error(`play=${agent}: choose ${Object.keys(PARTS).join(" or ")}`);
  let action;
  show(reset());
  byId("numbers").textContent =
    `You are ${PARTS[agent]}. An arrow key begins the ${STEPS} steps, and turns you.`;
  await new Promise((begin) => addEventListener("keydown", (event) => {
    if (!(event.key in ARROWS)) return;
    event.preventDefault();
    action = ARROWS[event.key];
    begin();
  }));
  const act = async (...seen) => (await players.act(...seen)).with(index, action);
  return { ...players, act };
}

async function main() {
  const words = new URLSearchParams(location.search);
  const chosen = words.get("coins"), played = words.get("play");
  const coins = chosen // for a certain episode
    ? Array.from(chosen, (coin) => coin === "1")
    : Array.from({ length: STEPS }, () => Math.random() < 0.5);
  const policies = await makePlayers();
  const players = played ? await steered(policies, played) : policies;
  const pause = played ? 2 * MILLISECONDS : MILLISECONDS;
  const states = await play(players, coins, chosen ? 0 : pause);
  if (played) byId("numbers").textContent += ". Reload the page to play again.";
  document.body.dataset.states = JSON.stringify(states.map(({ positions }) => positions));
  document.body.dataset.returns = JSON.stringify(states[states.length - 1].returns);
}

main().catch((error) => { byId("numbers").textContent = String(error); });
