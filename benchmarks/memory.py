"""Networks with and without memory at equal steps: where memory pays, and what it costs.

    python benchmarks/memory.py               # two tasks that need it, and CartPole, which does not
    python benchmarks/memory.py --tasks blind --networks mlp gru --seeds 3
    python benchmarks/memory.py --tasks cartpole --settings '{"normalize_returns": false}'
    python benchmarks/memory.py --speed       # networks with memory beside those without, in turns

cartpole   CartPole-v1 as it is
blind      the same without its two velocities: they have to be taken from what was seen before
chain      gymnax's MemoryChain-bsuite: one bit, shown first, is asked for at the last step

The seeds of a network train in one program (`jaxrl.sweep`). The return is the mean of the last 100
episodes.
"""

import json
import math
import statistics
from dataclasses import dataclass

import report

from jaxrl.algorithms.sharding import devices_worth_using
from jaxrl.core.spaces import Box
from jaxrl.envs.cartpole import CartPole

STEPS = {"cartpole": 300_000, "blind": 500_000, "chain": 250_000}
NETWORKS = {
    "mlp": {},
    "gru": {"use_gru": True, "lstm_cell_size": 64},
    "lstm": {"use_lstm": True, "lstm_cell_size": 64},
    "attention": {
        "use_attention": True,
        "attention_dim": 32,
        "attention_head_dim": 16,
        "attention_memory_inference": 20,
    },
}
SETTINGS = {  # what each of the first three does is in benchmarks/README.md
    "observation_filter": "MeanStdFilter",
    "normalize_returns": True,
    "lambda_": 0.98,
    "num_envs": 32,
    "rollout_length": 128,
    "minibatch_size": 512,
    "num_epochs": 4,
    "vf_loss_coeff": 0.5,
    "value_clip": None,
    "grad_clip": 0.5,
    "fcnet_hiddens": (64,),
    "max_seq_len": 32,
}


SMALLEST = {
    **{"tasks": ["blind"], "networks": ["attention"], "seeds": 2, "steps": 640, "turns": 1},
    "settings": lambda given: {"num_envs": 2, "rollout_length": 32, "minibatch_size": 32, **given},
}


@dataclass(frozen=True)
class BlindCartPole(CartPole):
    """CartPole whose velocities are not shown: cart position, m, and pole angle, rad."""

    def observation_space(self, params=None) -> Box:
        full = super().observation_space(params)
        return Box(full.low[::2], full.high[::2])

    def reset_env(self, key, params):
        obs, state = super().reset_env(key, params)
        return obs[::2], state

    def step_env(self, key, state, action, params):
        obs, *rest = super().step_env(key, state, action, params)
        return obs[::2], *rest


def configuration(task: str, network: str, steps: int, length: int, changed: dict):
    from jaxrl import PPOConfig

    if task == "chain":
        where = {"env": "gymnax:MemoryChain-bsuite", "env_args": {"memory_length": length}}
    else:
        where = {"env": BlindCartPole() if task == "blind" else "cartpole"}
    schedule = {"total_env_steps": steps, "lr": [[0, 1e-3], [steps, 0.0]]}
    return PPOConfig(**{**where, **SETTINGS, **schedule, **NETWORKS[network], **changed})


def learn(config, num_seeds: int) -> dict:
    """{returns [seeds] at the end, curves [seeds, 10] after each tenth, seconds} of training."""
    from jaxrl import sweep

    done = sweep(config, seeds=num_seeds, run_dir=None, quiet=True)
    tenths = [math.ceil(config.num_updates * part / 10) - 1 for part in range(1, 11)]
    curves = [
        [*outcome.curve[1], *[math.nan] * config.num_updates] for outcome in done.outcomes
    ]  # if one diverged
    curves = [[curve[i] for i in tenths] for curve in curves]
    return {"returns": [curve[-1] for curve in curves], "curves": curves, "seconds": done.seconds}


def speed(turns: int, *, smoke: bool) -> list[dict]:
    """CartPole, 64 x 128: networks with memory beside those without, on the devices worth using."""
    from programs import in_turns, training

    from jaxrl import PPOConfig

    sizes = {
        "num_envs": 64,
        "rollout_length": 128,
        "minibatch_size": 2048,
        "num_epochs": 4,
        "total_env_steps": 8192,
    }
    networks = {
        "MLP 256 x 256, the default": {},
        "the default, GRU 128": {"use_gru": True, "lstm_cell_size": 128},
        "MLP 64 x 64": {"fcnet_hiddens": (64, 64)},
        "MLP 64, GRU 128": {"fcnet_hiddens": (64,), "use_gru": True, "lstm_cell_size": 128},
        "the same, shared layers": {
            "fcnet_hiddens": (64,),
            "use_gru": True,
            "lstm_cell_size": 128,
            "vf_share_layers": True,
        },
        "MLP 64, LSTM 128": {"fcnet_hiddens": (64,), "use_lstm": True, "lstm_cell_size": 128},
        "MLP 64, attention 64": {"fcnet_hiddens": (64,), "use_attention": True},
    }
    if smoke:
        sizes |= {"num_envs": 2, "rollout_length": 32, "minibatch_size": 64, "total_env_steps": 64}
        networks = dict(list(networks.items())[:2])
    configs = {
        name: PPOConfig(env="cartpole", **sizes, **settings) for name, settings in networks.items()
    }
    works = {
        name: training(config, devices_worth_using(config, report.CORES))
        for name, config in configs.items()
    }
    rates = in_turns(works, sizes["total_env_steps"], turns)
    first = statistics.median(next(iter(rates.values())))
    lines = [
        [name, report.spread(speeds), f"{statistics.median(speeds) / first:.2f}"]
        for name, speeds in rates.items()
    ]
    print(report.markdown(["network", "environment steps/s", "times the first"], lines))
    return [
        {"network": name, "steps_per_s": speeds, **report.circumstances()}
        for name, speeds in rates.items()
    ]


def main() -> None:
    parser = report.arguments_of("memory", __doc__, SMALLEST)
    parser.add_argument("--tasks", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--steps", type=int, help="environment steps; default: each task's own")
    parser.add_argument("--memory-length", type=int, default=10, help="steps of a chain")
    parser.add_argument("--speed", action="store_true", help="only measure speed")
    parser.add_argument("--turns", type=int, default=7, help="with --speed")
    parser.add_argument(
        "--settings", type=json.loads, default={}, help="of PPOConfig, instead of ours; JSON"
    )
    arguments = parser.parse_args()
    report.use_devices()
    if arguments.speed:
        report.keep(speed(arguments.turns, smoke=arguments.smoke), arguments.out)
        return
    lines = []
    for task in arguments.tasks:
        groups, steps = {}, arguments.steps or STEPS[task]
        for network in arguments.networks:
            changed = arguments.settings
            config = configuration(task, network, steps, arguments.memory_length, changed)
            learned = learn(config, arguments.seeds)
            returns = report.spread(learned["returns"], ".2f")
            rate = f"{arguments.seeds * steps / learned['seconds']:,.0f}"
            print(f"{task}, {network}: {returns}, {rate} steps/s", flush=True)
            lines.append([task, network, f"{steps:,}", returns, rate])
            row = {
                "task": task,
                "network": network,
                "settings": changed,
                **learned,
                **report.circumstances(),
            }
            report.keep([row], arguments.out)
            tenths = zip(*learned["curves"], strict=True)
            groups[network] = {(i + 1) * steps // 10: values for i, values in enumerate(tenths)}
        report.lines(
            arguments.out,
            f"{task}: with and without memory",
            ("environment steps", "return"),
            groups,
            name=task,
        )
    titles = [
        "task",
        "network",
        "environment steps",
        f"return then, {arguments.seeds} seeds",
        "steps/s of all seeds",
    ]
    print(report.markdown(titles, lines))


if __name__ == "__main__":
    main()
