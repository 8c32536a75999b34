"""Training on environments of other libraries, up to a published mark.

    python benchmarks/library_environments.py     # all tasks whose library is installed, 3 seeds
    python benchmarks/library_environments.py --tasks envpool-cartpole --seeds 0 1 2 3 4
    python benchmarks/library_environments.py --speed     # steps/s, beside the library's own loop
    python benchmarks/library_environments.py --resets     # Craftax's automatic reset beside ours

A task trains for its number of environment steps; then 100 episodes are played with each action the
distribution's mode, and their mean return is held against the mark. A row for each (task, seed).
Tic-tac-toe plays 1,000 games with sampled moves, Snake and Craftax-Classic 100; the return of
tic-tac-toe is that of the player that learns.

The marks: Gymnasium's thresholds for its tasks. simple_spread, summed over agents: what JaxMARL's
own IPPO reaches after a million steps in a good run. Its settings are trained here too, once with
the clock as a truncation and once as an end of the world, as IPPO reads it. Tic-tac-toe against
random moves: 0.9, where the best play has 0.96 (the mean over the tree of moves; the other begins
half of the games). Snake on 6 x 6: 11, twice what random legal moves reach; a full board has 35.

The speed is that of EnvPool's environments with random actions: by EnvPool's own loop in Python,
by the calls of the compiled program alone, and by a rollout with a network of two layers of 64.

Tasks that do not set the epochs start from `PPOConfig.fast`. More marks: 0.9 for the doors, a
walk of 27 steps in XLand-MiniGrid (the reward falls by 0.9 over 250 steps; Navix gives 1 for the
goal); Gymnasium's for Brax's pendulum; nine tenths of the most that CartpoleBalance gives in its
1,000 steps; for Craftax-Classic the reward of PPO in Crafter with a million steps, 4.2 (1.2 its
spread), of the scoreboard in the README of github.com/danijar/crafter (Hafner, ICLR 2022,
arXiv:2109.06780), which sees pixels where Craftax-Classic has symbols.

Resets: steps/s with random actions, within one compiled program each, in turns: Craftax-Classic by
the library's own `step`, and by its adapter and the reset of the training loop.
"""

import time
from collections.abc import Callable

import report

# Of Gymnasium's registry: the mean return at which a task counts as solved.
GYMNASIUM = {"CartPole-v1": 475.0, "InvertedPendulum-v4": 950.0}
PPO = {
    "num_envs": 16,
    "rollout_length": 128,
    "minibatch_size": 256,
    "vf_loss_coeff": 0.5,
    "value_clip": None,
    "grad_clip": 0.5,
    "fcnet_hiddens": (64, 64),
}
IPPO = {  # as in JaxMARL's baselines/IPPO/config/ippo_ff_mpe.yaml, but for the number of steps
    "env": "jaxmarl:MPE_simple_spread_v3",
    "num_envs": 16,
    "rollout_length": 128,
    "minibatch_size": 1536,
    "num_epochs": 4,
    "total_env_steps": 1_000_000,
    "lr": [[0, 2.5e-4], [1_000_000, 0.0]],
    "lambda_": 0.95,
    "clip_param": 0.2,
    "value_clip": "prediction",
    "vf_clip_param": 0.2,
    "vf_loss_coeff": 0.25,  # theirs is 0.5, of half the squared error
    "normalize_advantages": "minibatch",
    "entropy_coeff": 0.01,
    "kl_coeff": 0.0,
    "grad_clip": 0.5,
    "adam_epsilon": 1e-5,
    "fcnet_hiddens": (64, 64),
    "fcnet_activation": "tanh",
}
TASKS = {
    "envpool-cartpole": {
        **PPO,
        "env": "envpool:CartPole-v1",
        "num_epochs": 4,
        "lr": [[0, 3e-3], [500_000, 1e-4]],
        "lambda_": 0.98,
        "total_env_steps": 200_000,
    },
    "envpool-inverted-pendulum": {
        **PPO,
        "env": "envpool:InvertedPendulum-v4",
        "num_epochs": 10,
        "lr": [[0, 1e-3], [300_000, 1e-4]],
        "lambda_": 0.95,
        "clip_param": 0.2,
        "observation_filter": "MeanStdFilter",
        "total_env_steps": 300_000,
    },
    "xminigrid-doorkey": {"env": "xminigrid:MiniGrid-DoorKey-5x5", "total_env_steps": 300_000},
    "navix-doorkey": {"env": "navix:Navix-DoorKey-5x5-v0", "total_env_steps": 1_000_000},
    "brax-inverted-pendulum": {"env": "brax:inverted_pendulum", "total_env_steps": 500_000},
    "playground-cartpole": {"env": "playground:CartpoleBalance", "total_env_steps": 500_000},
    "craftax-classic": {"env": "craftax:Craftax-Classic-Symbolic-v1", "total_env_steps": 1_000_000},
    "jaxmarl-spread": {
        "env": "jaxmarl:MPE_simple_spread_v3",
        "num_envs": 128,
        "rollout_length": 26,
        "minibatch_size": 1248,
        "normalize_returns": False,  # which harms here: docs/ppo.md
        "total_env_steps": 400_000,
    },
    "jaxmarl-spread-ippo": IPPO,
    "jaxmarl-spread-ippo-terminates": {**IPPO, "env_args": {"time_limit": "terminates"}},
    "pgx-tic-tac-toe": {
        "env": "pgx:tic_tac_toe",
        "policies": {"learner": ["player_0"], "random": ["player_1"]},
        "policies_to_train": ["learner"],  # an untrained network's moves are nearly uniform
        "total_env_steps": 300_000,
    },
    "jumanji-snake": {
        "env": "jumanji:Snake-v1",
        "env_args": {"num_rows": 6, "num_cols": 6, "time_limit": 200},
        "lr": [[0, 1e-3], [600_000, 1e-4]],
        "total_env_steps": 600_000,
    },
}
MARKS = {
    "envpool-cartpole": GYMNASIUM["CartPole-v1"],
    "envpool-inverted-pendulum": GYMNASIUM["InvertedPendulum-v4"],
    "xminigrid-doorkey": 0.9,
    "navix-doorkey": 0.9,
    "brax-inverted-pendulum": GYMNASIUM["InvertedPendulum-v4"],
    "playground-cartpole": 900.0,
    "craftax-classic": 4.2,
    "jaxmarl-spread": -63.4,
    "jaxmarl-spread-ippo": -63.4,
    "jaxmarl-spread-ippo-terminates": -63.4,
    "pgx-tic-tac-toe": 0.9,
    "jumanji-snake": 11.0,
}
EVALUATED = 100  # episodes
SAMPLED = {  # episodes with sampled actions
    "pgx-tic-tac-toe": 1000,
    "jumanji-snake": EVALUATED,
    "craftax-classic": EVALUATED,
}
SPEEDS = (("CartPole-v1", 64), ("CartPole-v1", 256), ("InvertedPendulum-v4", 64), ("Pong-v5", 16))


def learn(task: str, seed: int, steps: int | None = None) -> dict:
    """The row of a task and seed."""
    from jaxrl import PPOConfig, Trainer

    begin = time.perf_counter()
    settings = TASKS[task] | ({} if steps is None else {"total_env_steps": steps})
    configure = PPOConfig if "num_epochs" in settings else PPOConfig.fast
    config = configure(**settings, seed=seed)
    with Trainer(config, run_dir=None, quiet=True) as trainer:
        trainer.fit()
        episodes = SAMPLED.get(task, EVALUATED)
        evaluated = trainer.evaluate(episodes=episodes, explore=task in SAMPLED)["env_runners"]
    by_agent = evaluated["agent_episode_returns_mean"]
    return {
        "task": task,
        "seed": seed,
        "return_mean": by_agent.get("player_0", evaluated["episode_return_mean"]),
        "return_min": evaluated["episode_return_min"],
        "mark": MARKS[task],
        "env_steps": trainer.lifetime.num_env_steps,
        "seconds": time.perf_counter() - begin,
        **report.circumstances(),
    }


def table(rows: list[dict]) -> str:
    titles = ("task", "steps", "mark", "seeds", "return", "seconds")
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        found = [row for row in rows if row["task"] == task]
        returns, seconds = (
            report.spread([row[name] for row in found], form)
            for name, form in (("return_mean", ",.4g"), ("seconds", ",.0f"))
        )
        first = found[0]
        steps, mark = f"{first['env_steps']:,}", f"{first['mark']:,.4g}"
        lines.append((task, steps, mark, str(len(found)), returns, seconds))
    return report.markdown(titles, lines)


def speed(name: str, num_envs: int, seconds: float) -> dict:
    """Steps/s of an EnvPool task by its own loop, by the program's calls, and by a rollout."""
    import envpool
    import jax
    import numpy as np

    from jaxrl import PPOConfig
    from jaxrl.core.env import reset_all, restart_all, step_all

    steps = 200
    pool = envpool.make_gymnasium(name, num_envs=num_envs, seed=0)
    sample = pool.action_space.sample
    actions = np.stack([[sample() for _ in range(num_envs)] for _ in range(steps)])
    pool.reset()

    def loop():
        for action in actions:
            pool.step(action.astype(np.int32) if action.dtype == np.int64 else action)

    config = PPOConfig(
        env=f"envpool:{name}",
        num_envs=num_envs,
        rollout_length=steps,
        fcnet_hiddens=(64, 64),
        train_batch_size=num_envs * steps,
    )
    algorithm = config.build()
    env, params = algorithm.rollout_spec.env, algorithm.env_params
    keys = jax.random.split(jax.random.key(0), num_envs)

    def step(carry, action):
        raw = step_all(env, keys, carry[1], action, params)
        return restart_all(env, keys, raw, params), raw.reward

    calls = jax.jit(lambda begun, actions: jax.lax.scan(step, begun, actions))
    begun = jax.jit(lambda: reset_all(env, keys, params))()
    taken = actions[:, :, None].astype(np.float32 if actions.dtype.kind == "f" else np.int32)
    rates = {"loop": _rate(loop, seconds), "calls": _rate(lambda: calls(begun, taken), seconds)}
    runner, collect = jax.jit(algorithm.init)(jax.random.key(0)), jax.jit(algorithm.collect)
    rates["rollout"] = _rate(lambda: collect(runner), seconds)
    rates = {kind: rate * num_envs * steps for kind, rate in rates.items()}
    return {"env": name, "num_envs": num_envs, **rates, **report.circumstances()}


def _rate(function: Callable[[], object], seconds: float) -> float:
    """Calls per second, the first one left out."""
    import jax

    jax.block_until_ready(function())
    begin, calls = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        jax.block_until_ready(function())
        calls += 1
    return calls / (time.perf_counter() - begin)


def speed_table(rows: list[dict]) -> str:
    titles = ("EnvPool's", "environments", "its own loop", "the program's calls", "a rollout")
    return report.markdown(
        titles,
        [
            (
                row["env"],
                str(row["num_envs"]),
                *(f"{row[kind]:,.0f}" for kind in ("loop", "calls", "rollout")),
            )
            for row in rows
        ],
    )


def resets(num_envs: int, turns: int) -> list[dict]:
    """Steps/s of Craftax-Classic with the library's automatic reset and with ours, in turns."""
    import jax
    from craftax.craftax_env import make_craftax_env_from_name

    from jaxrl import make
    from jaxrl.core.env import Solo, reset_all, step_all
    from jaxrl.rollout.env_step import auto_reset

    name, steps = "Craftax-Classic-Symbolic-v1", 200
    library = make_craftax_env_from_name(name, auto_reset=True)
    env, params = make(f"craftax:{name}")
    env, keys = Solo(env), jax.random.split(jax.random.key(0), num_envs)

    def by_library(state, key):
        play, act = jax.random.split(key)
        actions = jax.random.randint(act, (num_envs,), 0, library.num_actions)
        step = lambda key, state, action: library.step(key, state, action, library.default_params)
        _, state, reward, _, _ = jax.vmap(step)(jax.random.split(play, num_envs), state, actions)
        return state, reward

    def by_adapter(state, key):
        play, act = jax.random.split(key)
        actions = jax.random.randint(act, (num_envs, 1), 0, library.num_actions)
        raw = step_all(env, jax.random.split(play, num_envs), state, actions, params)
        _, state = auto_reset(env, keys, jax.random.bits(act, (), "uint32"), raw, params)
        return state, raw.reward

    states = {
        "library": jax.vmap(library.reset)(jax.random.key_data(keys))[1],
        "jaxrl": jax.jit(lambda: reset_all(env, keys, params))()[1],
    }
    programs = {
        who: jax.jit(lambda state, keys, step=step: jax.lax.scan(step, state, keys))
        for who, step in (("library", by_library), ("jaxrl", by_adapter))
    }
    rows = []
    for turn in range(turns + 1):  # the first compiles
        turn_keys = jax.random.split(jax.random.PRNGKey(turn), steps)
        for who, program in programs.items():
            begin = time.perf_counter()
            states[who], _ = jax.block_until_ready(program(states[who], turn_keys))
            rate = num_envs * steps / (time.perf_counter() - begin)
            rows.append({"who": who, "turn": turn, "num_envs": num_envs, "steps_per_s": rate})
    return [{**row, **report.circumstances()} for row in rows if row["turn"]]


def resets_table(rows: list[dict]) -> str:
    rates = {
        who: [row["steps_per_s"] for row in rows if row["who"] == who]
        for who in ("library", "jaxrl")
    }
    times = [fast / slow for slow, fast in zip(*rates.values(), strict=True)]
    titles = ("environments", "the library, steps/s", "jaxrl, steps/s", "times")
    spreads = (report.spread(values) for values in rates.values())
    return report.markdown(
        titles, [(str(rows[0]["num_envs"]), *spreads, report.spread(times, ".1f"))]
    )


def main() -> None:
    parser = report.arguments_of(
        "library_environments",
        __doc__,
        {"tasks": report.first, "seeds": [0], "total_env_steps": 1},
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--total-env-steps", type=int, help="instead of each task's own")
    parser.add_argument("--speed", action="store_true", help="steps/s instead of learning")
    parser.add_argument("--resets", action="store_true", help="Craftax's reset beside ours")
    arguments = parser.parse_args()
    rows = []
    if arguments.resets:
        rows = resets(num_envs=16, turns=1 if arguments.smoke else 9)
        report.keep(rows, arguments.out.with_stem(f"{arguments.out.stem}_resets"))
        print(resets_table(rows))
        return
    if arguments.speed:
        for name, num_envs in SPEEDS[: 1 if arguments.smoke else None]:
            rows.append(speed(name, num_envs, 0.1 if arguments.smoke else 3.0))
            report.keep(rows[-1:], arguments.out.with_stem(f"{arguments.out.stem}_speed"))
        print(speed_table(rows))
        return
    from jaxrl import UsageError

    for task in arguments.tasks:
        for seed in arguments.seeds:
            try:
                rows.append(learn(task, seed, arguments.total_env_steps))
            except UsageError as error:
                if "is not installed" not in str(error):
                    raise
                print(f"{task}: {error}", flush=True)
                break
            report.keep(rows[-1:], arguments.out)
            row = rows[-1]
            print(f"{task}, seed {seed}: {row['return_mean']:.4g}", flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
