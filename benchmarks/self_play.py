"""Self-play: tic-tac-toe that nobody beats, and a hunter that meets more than one explorer.

    python benchmarks/self_play.py
    python benchmarks/self_play.py --games tic-tac-toe --cases uniform --seeds 0
    python benchmarks/self_play.py --games arena --seeds 0 1 2
    python benchmarks/self_play.py --games hunter --seeds 0 1 2 3 4

Tic-tac-toe with drawn seats. A policy learns against

    random       a player that takes any free cell
    latest       the newest copy of itself, of every 10 iterations
    uniform      5 copies of itself, of every 10 iterations, and the random player, equally often
    wide         the same with 10 copies, of every 40 iterations
    prioritised  the same as wide, but more often those that beat it

and is judged by the share of 500 games that it loses against the random player and against one that
plays perfectly (minimax, any of its best moves), by its most probable moves, and by all games that
these moves allow: how many of them end lost. 0 means that no player beats it. The payoff
matrices of the last seed are drawn beside --out, self_play_uniform.png and so on.

Arena: explorers (pol1) are trained, each with a hunter of its own. New hunters (pol2) are then
trained against one of them, or against a pool of four or fourteen, and are judged by their return
against four explorers that none of them met. Beside them a hunter by hand, which always moves
towards the explorer. All learners have settings that were once tuned, with dense layers.

Hunter: pairs are trained at the arena's tuned settings, where both learn. At each quarter of the
training a checkpoint is written, and the hunter is judged against the same four explorers. At the
end the explorer meets the hunter by hand, and the explorer of every quarter meets the hunter of
every quarter. Then best responses are trained, as many steps again: to the hunter by hand, and to
each of the pair, which learns no more. All of it is done for each of the seeds.
"""

import itertools
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import report
from flax import struct

import jaxrl
from jaxrl.core.spaces import Box, Discrete

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
POWERS = 3 ** np.arange(9)
DENSE = {  # of the arena, in place of its tuned settings
    "fcnet_hiddens": (64, 64),
    "num_envs": 64,
    "rollout_length": 100,
    "minibatch_size": 320,
    "entropy_coeff": 0.0,
    "gamma": 0.99,
}
GAMES = ("tic-tac-toe", "arena", "hunter")
SEATS = ("x", "o")
MET = {"one": 1, "four": 4, "fourteen": 14}  # explorers that a hunter meets in training
STRANGERS = 4  # explorers that no hunter meets
QUARTERS = (1, 2, 3, 4)  # of the training of a pair
SMALLEST = {
    **{"games": list(GAMES), "cases": ["uniform"], "seeds": [0]},
    **{"steps": 16_384, "arena_steps": 8, "hunter_steps": 102_400},
}


class Board(struct.PyTreeNode):
    cells: jax.Array  # i32[9]  0 free, 1 of x, 2 of o
    time: jax.Array  # i32[]


class Params(struct.PyTreeNode):
    max_steps_in_episode: int = 9


@dataclass(frozen=True)
class TicTacToe(jaxrl.MultiAgentEnvironment):
    """1 for three in a row, -1 for the opponent's; both observe their marks, then the other's."""

    agents = SEATS
    default_params = Params()

    def observation_space(self, agent, params=None):
        return Box(0.0, 1.0, (2, 9))

    def action_space(self, agent, params=None):
        return Discrete(9)

    def is_truncated(self, state, params):
        return jnp.array(False)

    def acting_agents(self, state, params):
        return {"x": state.time % 2 == 0, "o": state.time % 2 == 1}

    def action_mask(self, state, params):
        return dict.fromkeys(SEATS, state.cells == 0)

    def reset_env(self, key, params):
        state = Board(jnp.zeros(9, jnp.int32), jnp.int32(0))
        return self.observe(state), state

    def step_env(self, key, state, action, params):
        mark = 1 + state.time % 2
        cells = state.cells.at[jnp.where(mark == 1, action["x"], action["o"])].set(mark)
        has_won = jnp.any(jnp.all(cells[jnp.array(LINES)] == mark, axis=1))
        is_over = has_won | jnp.all(cells != 0)
        x_wins = jnp.where(has_won, jnp.where(mark == 1, 1.0, -1.0), 0.0)
        state = Board(cells, state.time + 1)
        reward = {"x": x_wins, "o": -x_wins}
        terminated = dict.fromkeys((*SEATS, "__all__"), is_over)
        return self.observe(state), state, reward, terminated, {}

    def observe(self, state):
        x, o = jnp.float32(state.cells == 1), jnp.float32(state.cells == 2)
        return {"x": jnp.stack([x, o]), "o": jnp.stack([o, x])}


def other_side(cells: tuple[int, ...]) -> tuple[int, ...]:
    """A board of 0 free, 1 mine, 2 the other's, as the other one sees it."""
    return tuple((0, 2, 1)[cell] for cell in cells)


def has_lost(cells: tuple[int, ...]) -> bool:
    return any(all(cells[i] == 2 for i in line) for line in LINES)


def after_move(cells: tuple[int, ...], move: int) -> tuple[int, ...]:
    """The board as the other one sees it."""
    return other_side((*cells[:move], 1, *cells[move + 1 :]))


def best_moves() -> np.ndarray:
    """Minimax: which moves are best, bool[3^9, 9], by the board's number."""
    values, best = {}, np.zeros((3**9, 9), bool)

    def value(cells):
        if cells in values:
            return values[cells]
        if has_lost(cells):
            result = -1
        elif 0 not in cells:
            result = 0
        else:
            free = [i for i in range(9) if cells[i] == 0]
            outcome = {i: -value(after_move(cells, i)) for i in free}
            result = max(outcome.values())
            for i in free:
                best[np.dot(cells, POWERS), i] = outcome[i] == result
        values[cells] = result
        return result

    assert value((0,) * 9) == 0
    return best


BEST = best_moves()


def minimax(obs, key):
    """Any of the best moves."""
    number = jnp.int32(obs[0] @ POWERS + 2 * obs[1] @ POWERS)
    return jax.random.categorical(key, jnp.where(jnp.asarray(BEST)[number], 0.0, -jnp.inf))


def lost_games(policy: jaxrl.Policy) -> tuple[int, int]:
    """(lost, all) games of the policy's most probable moves against every reply, in both seats."""
    lost = total = 0
    waiting = [(0,) * 9] + [after_move((0,) * 9, i) for i in range(9)]
    while waiting:
        boards = np.array(waiting)
        obs = np.float32(np.stack([boards == 1, boards == 2], axis=1))
        moves = np.asarray(policy.act(obs, action_mask=boards == 0))
        replies = []
        for cells, move in zip(waiting, moves.tolist(), strict=True):
            turned = after_move(cells, move)
            if has_lost(turned) or 0 not in turned:
                total += 1
                continue
            for reply in (i for i in range(9) if turned[i] == 0):
                board = after_move(turned, reply)
                if has_lost(board) or 0 not in board:
                    total += 1
                    lost += has_lost(board)
                else:
                    replies.append(board)
        waiting = replies
    return lost, total


FIXED = {"random": "random", "minimax": minimax}
POOLS = {
    "random": jaxrl.OpponentPool(size=1, fixed={"random": "random"}),
    "latest": jaxrl.OpponentPool(size=1, every=10, draw="latest"),
    "uniform": jaxrl.OpponentPool(size=5, every=10, fixed={"random": "random"}),
    "wide": jaxrl.OpponentPool(size=10, every=40, fixed={"random": "random"}),
    "prioritised": jaxrl.OpponentPool(
        size=10, every=40, draw="prioritised", fixed={"random": "random"}
    ),
}


def tic_tac_toe(case: str, seed: int, steps: int) -> tuple[dict[str, Any], Any]:
    """(row, payoff matrix) of one training."""
    config = jaxrl.PPOConfig.fast(
        jaxrl.ShuffledSeats(TicTacToe()),
        policies_to_train=("main",),
        opponents=POOLS[case],
        num_envs=512,
        rollout_length=32,
        minibatch_size=1024,
        num_epochs=6,
        fcnet_hiddens=(128, 128),
        lr=[[0, 2e-3], [steps, 2e-4]],
        gamma=1.0,
        entropy_coeff=[[0, 0.1], [3 * steps // 4, 0.1], [steps, 0.0]],
        total_env_steps=steps,
        seed=seed,
    )
    begin = time.perf_counter()
    with jaxrl.Trainer(config, run_dir=None, quiet=True) as trainer:
        trainer.fit()
        seconds = time.perf_counter() - begin
        policy = trainer.get_policy("main")
        judged = config.replace(opponents=jaxrl.OpponentPool(size=1, fixed=FIXED))
        with jaxrl.Trainer(judged, run_dir=None, quiet=True) as judge:
            judge.set_weights({"main": trainer.get_weights()["main"]})
            shares = {name: share_lost(judge, name) for name in FIXED}
        matrix = trainer.payoff_matrix(episodes=200)
    lost, total = lost_games(policy)
    elo = matrix.elo["main"]
    print(f"{case}, seed {seed}: {shares}, {lost} of {total} games, {seconds:.0f} s", flush=True)
    row = {"game": "tic-tac-toe", "case": case, "seed": seed, "steps": steps, "seconds": seconds}
    return {**row, "lost": shares, "lost_lines": lost, "lines": total, "elo": elo}, matrix


def share_lost(trainer: jaxrl.Trainer, opponent: str) -> float:
    played = trainer.evaluate(episodes=500, opponent=opponent, return_episodes=True)["episodes"]
    returns = [episode.agent_episodes["player_0"].get_return() for episode in played]
    return float(np.mean(np.array(returns) < 0))


def explorer(folder: Path, seed: int, steps: int) -> str:
    """The run of an explorer, trained with a hunter of its own."""
    config = jaxrl.PPOConfig.tuned("arena", **DENSE, total_env_steps=steps, seed=seed)
    run = folder / f"explorer{seed}"
    with jaxrl.Trainer(config, run_dir=run, quiet=True, pictures=False) as trainer:
        trainer.fit()
    return f"{run}#pol1"


def hunter(case: str, known: list[str], strangers: list[str], work: tuple[int, int]) -> dict:
    """A hunter's mean returns against explorers that it met and others; `work`: (seed, steps)."""
    seed, steps = work
    first = seed % len(known)  # each seed meets others, as long as there are others
    met = [*known[first:], *known[:first]][: MET[case]]
    config = jaxrl.PPOConfig.tuned("arena", **DENSE, total_env_steps=steps, seed=seed)
    config = config.replace(policies_to_train=("pol2",), opponents=explorers(met))
    with jaxrl.Trainer(config, run_dir=None, quiet=True) as trainer:
        trainer.fit()
        judged = config.replace(opponents=explorers(strangers))
        with jaxrl.Trainer(judged, run_dir=None, quiet=True) as judge:
            judge.set_weights({"pol2": trainer.get_weights()["pol2"]})
            return arena_row(case, seed, steps, returns(trainer), returns(judge))


def explorers(runs: list[str]) -> jaxrl.OpponentPool:
    return jaxrl.OpponentPool(size=1, fixed={f"explorer{i}": run for i, run in enumerate(runs)})


def chase(obs, key):
    """The hunter by hand: a step towards the explorer, along the greater distance."""
    (row, column), (other_row, other_column) = (divmod(cell, 10) for cell in (obs[0], obs[1]))
    down, right = other_row - row, other_column - column
    vertical, sideways = jnp.where(down > 0, 2, 0), jnp.where(right > 0, 1, 3)
    return jnp.where(abs(down) >= abs(right), vertical, sideways)


def hunter_by_hand(strangers: list[str]) -> dict[str, Any]:
    found = []
    for run in strangers:
        config = jaxrl.PPOConfig.tuned("arena", **DENSE, policies_to_train=("pol1",))
        pool = jaxrl.OpponentPool(size=1, fixed={"by_hand": chase})
        config = config.replace(opponents=pool)
        with jaxrl.Trainer(config, run_dir=None, quiet=True, init_from={"pol1": run}) as judge:
            found += returns(judge)
    return arena_row("by hand", 0, 0, [], found)


def pair(strangers: list[str], seed: int, steps: int, run: Path) -> list[dict[str, Any]]:
    """Rows of a pair that learns at the tuned settings, at each quarter of its training."""
    config = jaxrl.PPOConfig.tuned("arena", total_env_steps=steps, seed=seed)
    judged = config.replace(
        policies_to_train=("pol2",),
        opponents=explorers(strangers),
        per_policy={"pol2": config.to_dict()["per_policy"]["pol2"]},
    )
    # `fit` writes a checkpoint as it ends. None by the clock: it would replace those.
    stored = {"run_dir": run, "checkpoint_interval_s": None, "keep": len(QUARTERS)}
    rows = []
    with (
        jaxrl.Trainer(config, quiet=True, pictures=False, **stored) as trainer,
        jaxrl.Trainer(judged, run_dir=None, quiet=True) as judge,
    ):
        for quarter in QUARTERS:
            result = trainer.fit({"num_env_steps_sampled_lifetime": steps * quarter // 4})
            judge.set_weights({"pol2": trainer.get_weights()["pol2"]})
            row = arena_row(f"pair, quarter {quarter}", seed, steps, [], returns(judge))
            both = of_both(result["env_runners"])
            rows.append(
                {**row, **both, "game": "hunter", "iteration": result["training_iteration"]}
            )
            print(f"beside each other: {both}", flush=True)
    found = {"explorer": against_the_hunter_by_hand(f"{run}#pol1")}
    print(f"explorer of seed {seed} against the hunter by hand: {found}", flush=True)
    row = {"game": "hunter", "case": "explorer against the hunter by hand"}
    return [*rows, {**row, "seed": seed, "steps": steps, **found}]


def of_both(env_runners: dict[str, Any]) -> dict[str, float]:
    """The mean returns of the two agents, by role."""
    by_agent = env_runners["agent_episode_returns_mean"]
    return {"explorer": by_agent["agent1"], "hunter": by_agent["agent2"]}


def meetings(run: Path, seed: int, steps: int, iterations: list[int]) -> list[dict[str, Any]]:
    """Rows of the explorer of every quarter beside the hunter of every quarter.

    Args:
        iterations: of the checkpoints of the quarters.
    """
    config = jaxrl.PPOConfig.tuned("arena", total_env_steps=steps, seed=seed)
    stages = [
        {name: jaxrl.load_policy(run, name, checkpoint=iteration) for name in ("pol1", "pol2")}
        for iteration in iterations
    ]
    rows = []
    with jaxrl.Trainer(config, run_dir=None, quiet=True) as judge:
        for i, j in itertools.product(QUARTERS, repeat=2):
            judge.set_weights({"pol1": stages[i - 1]["pol1"], "pol2": stages[j - 1]["pol2"]})
            both = of_both(judge.evaluate(episodes=200, explore=True)["env_runners"])
            print(f"explorer of quarter {i}, hunter of quarter {j}: {both}", flush=True)
            row = {"game": "quarters", "case": f"{i} {j}", "seed": seed, "steps": steps}
            rows.append({**row, **both})
    return rows


def against_the_hunter_by_hand(run: str) -> float:
    """An explorer's mean return."""
    pool = jaxrl.OpponentPool(size=1, fixed={"by_hand": chase})
    config = jaxrl.PPOConfig.tuned("arena", policies_to_train=("pol1",))
    config = config.replace(opponents=pool)
    with jaxrl.Trainer(config, run_dir=None, quiet=True, init_from={"pol1": run}) as judge:
        played = judge.evaluate(episodes=100, explore=True, opponent="by_hand")["env_runners"]
    return played["agent_episode_returns_mean"]["agent1"]


def best_response(role: str, opponent: Any, seed: int, steps: int) -> dict[str, Any]:
    """The row of a policy that learns against one opponent, which learns nothing."""
    config = jaxrl.PPOConfig.tuned("arena", total_env_steps=steps, seed=50 + seed)
    pool = jaxrl.OpponentPool(size=1, fixed={"opponent": opponent})
    config = config.replace(policies_to_train=(role,), opponents=pool)
    with jaxrl.Trainer(config, run_dir=None, quiet=True) as trainer:
        both = of_both(trainer.fit()["env_runners"])
    against = "the hunter by hand" if callable(opponent) else "the pair's other"
    case = f"best response of {role} to {against}"
    print(f"{case}, seed {seed}: {both}", flush=True)
    return {"game": "hunter", "case": case, "seed": seed, "steps": steps, **both}


def hunters(arguments: Any, folder: Path) -> Iterator[list[dict[str, Any]]]:
    """Rows of the hunter by hand, then of each seed."""
    steps = arguments.hunter_steps
    count = 1 if arguments.smoke else STRANGERS
    strangers = [explorer(folder, 100 + i, steps // 4) for i in range(count)]
    yield [{**hunter_by_hand(strangers), "game": "hunter"}]
    for seed in arguments.seeds:
        run = folder / f"pair{seed}"
        rows = pair(strangers, seed, steps, run)
        yield rows
        iterations = [row["iteration"] for row in rows if "iteration" in row]
        yield meetings(run, seed, steps, iterations)
        matches = [("pol1", f"{run}#pol2"), ("pol2", f"{run}#pol1"), ("pol1", chase)]
        for role, opponent in matches[:1] if arguments.smoke else matches:
            yield [best_response(role, opponent, seed, steps)]


def arena_row(
    case: str, seed: int, steps: int, met: list[float], strangers: list[float]
) -> dict[str, Any]:
    shown = [[round(value, 1) for value in values] for values in (met, strangers)]
    print(f"arena, {case}, seed {seed}: met {shown[0]}, strangers {shown[1]}", flush=True)
    return {
        **{"game": "arena", "case": case, "seed": seed, "steps": steps},
        "met": float(np.mean(met)) if met else None,
        "strangers": float(np.mean(strangers)),
    }


def returns(trainer: jaxrl.Trainer) -> list[float]:
    """The hunter's mean returns, by fixed member of the pool."""
    found = []
    for name, _ in trainer.config.opponents.fixed:
        played = trainer.evaluate(episodes=100, explore=True, opponent=name)["env_runners"]
        found.append(played["agent_episode_returns_mean"]["agent2"])
    return found


def tables(rows: list[dict[str, Any]]) -> str:
    cases = dict.fromkeys((row["game"], row["case"]) for row in rows)
    by_case = {key: [row for row in rows if (row["game"], row["case"]) == key] for key in cases}
    lines = {game: [] for game in GAMES}
    columns = {"arena": ("met", "strangers"), "hunter": ("explorer", "hunter", "strangers")}
    for (game, case), found in by_case.items():
        if game == "quarters":
            continue
        if game in columns:
            values = ([row.get(name) for row in found] for name in columns[game])
            shown = ("" if None in value else report.spread(value, ".1f") for value in values)
            lines[game].append([case, *shown])
            continue
        against = ([row["lost"][name] for row in found] for name in FIXED)
        shares = [report.spread(value, ".3f") for value in against]
        lost = report.spread([row["lost_lines"] for row in found])
        elo = report.spread([row["elo"] for row in found])
        lines[game].append([case, *shares, lost, elo])
    titles = {
        "tic-tac-toe": ["against", "lost to random", "lost to minimax", "lost lines", "Elo"],
        "arena": ["explorers met", "return against those", "against four others"],
        "hunter": ["case", "explorer", "hunter", "hunter against four explorers it never met"],
    }
    shown = [report.markdown(titles[game], found) for game, found in lines.items() if found]
    meeting = {case: found for (game, case), found in by_case.items() if game == "quarters"}
    if meeting:
        shown += [quarters_table(meeting, role) for role in ("explorer", "hunter")]
    return "\n\n".join(shown)


def quarters_table(by_case: dict[str, list[dict[str, Any]]], role: str) -> str:
    """The returns of one of the two: a row for an explorer, a column for a hunter."""
    titles = [f"return of the {role}", *(f"hunter of quarter {j}" for j in QUARTERS)]
    lines = []
    for i in QUARTERS:
        values = ([row[role] for row in by_case[f"{i} {j}"]] for j in QUARTERS)
        shown = (report.spread(value, ".1f") for value in values)
        lines.append([f"explorer of quarter {i}", *shown])
    return report.markdown(titles, lines)


def main() -> None:
    parser = report.arguments_of("self_play", __doc__, SMALLEST)
    parser.add_argument("--games", nargs="+", choices=GAMES, default=["tic-tac-toe", "arena"])
    parser.add_argument("--cases", nargs="+", choices=POOLS, default=list(POOLS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--arena-steps", type=int, default=4_000_000, help="of a hunter; an explorer has an eighth"
    )
    parser.add_argument("--hunter-steps", type=int, default=2_000_000, help="of a pair")
    parser.add_argument("--steps", type=int, default=6_000_000, help="of tic-tac-toe")
    arguments = parser.parse_args()
    rows, out = [], arguments.out

    def add(found: list[dict[str, Any]]) -> None:
        """Stores rows as they come: a command that is ended early leaves those that it has."""
        report.keep([{**row, **report.circumstances()} for row in found], out)
        rows.extend(found)

    if "tic-tac-toe" in arguments.games:
        for case, seed in itertools.product(arguments.cases, arguments.seeds):
            row, matrix = tic_tac_toe(case, seed, arguments.steps)
            add([row])
            if POOLS[case].size > 1:
                matrix.plot(out.with_name(f"{out.stem}_{case}.png"))
                print(matrix.table())
    if "arena" in arguments.games:
        with tempfile.TemporaryDirectory() as folder:
            met, others = ({"one": 1}, 1) if arguments.smoke else (MET, STRANGERS)
            steps, count = arguments.arena_steps, max(met.values()) + others
            runs = [explorer(Path(folder), 100 + i, steps // 8) for i in range(count)]
            known, strangers = runs[:-others], runs[-others:]
            add([hunter_by_hand(strangers)])
            for case, seed in itertools.product(met, arguments.seeds):
                add([hunter(case, known, strangers, (seed, steps))])
    if "hunter" in arguments.games:
        with tempfile.TemporaryDirectory() as folder:
            for found in hunters(arguments, Path(folder)):
                add(found)
    print(tables(rows))


if __name__ == "__main__":
    main()
