"""Speed of the training program beside the same PPO written plainly (plain.py).

    python benchmarks/engine.py     # CartPole: 2048 x 32, 4 x 128, 8 seeds of the latter; 5 turns
    python benchmarks/engine.py --purejaxrl ../purejaxrl/purejaxrl/ppo.py

All programs of a row take turns in one process; figures are medians [least, most] of steps/s,
compilation apart. Networks of 64 x 64, 4 epochs of 4 minibatches, Adam; ours also keeps its
statistics, KL and clipped shares. With --purejaxrl PureJaxRL's own file takes turns too, at the
same settings (purejaxrl_program.py); "times" are medians of each turn's own ratio. And how far from
the limit: operations/s in products, of training and of the largest of its products alone, in turns.
"""

from pathlib import Path

import purejaxrl_program
import report
from plain import Settings, make_plain_train
from programs import Work, flops_of, in_turns, product, ratio, training, whole
from report import CORES

from jaxrl import PPOConfig, make_train
from jaxrl.algorithms.sharding import devices_worth_using

WORK = {  # environments, steps of a rollout, updates in a turn, seeds
    "2048 x 32": (2048, 32, 4, 1),
    "4 x 128": (4, 128, 200, 1),
    "8 seeds of 4 x 128": (4, 128, 60, 8),
}
PUREJAXRL = purejaxrl_program.NAME
SMALLEST = {"4 x 8": (4, 8, 2, 1), "2 seeds of 2 x 8": (2, 8, 2, 2)}
RLLIB = {
    "num_envs": 8,
    "rollout_length": 500,
    "minibatch_size": 128,
    "num_epochs": 5,
    "total_env_steps": 20_000,
}


def configuration(num_envs: int, rollout_length: int, updates: int) -> PPOConfig:
    """The plain program's settings."""
    batch = num_envs * rollout_length
    return PPOConfig(
        env="cartpole",
        num_envs=num_envs,
        rollout_length=rollout_length,
        minibatch_size=batch // 4,
        num_epochs=4,
        fcnet_hiddens=(64, 64),
        lr=2.5e-4,
        lambda_=0.95,
        clip_param=0.2,
        entropy_coeff=0.01,
        vf_loss_coeff=0.5,
        value_clip="prediction",
        vf_clip_param=0.2,
        use_kl_loss=False,
        grad_clip=0.5,
        adam_epsilon=1e-5,
        normalize_advantages="minibatch",
        total_env_steps=batch * updates,
    )


def programs_of(
    num_envs: int, length: int, updates: int, seeds: int, purejaxrl: Path | None = None
) -> dict[str, Work]:
    """The plain program first; then PureJaxRL's, if its file is given."""
    config = configuration(num_envs, length, updates)
    works = {"plain": whole(make_plain_train(Settings(num_envs, length, updates)), seeds)}
    if purejaxrl is not None and seeds == 1:  # vmapped, its QRs of LAPACK wait for each other
        settings = purejaxrl_program.cartpole_settings(num_envs, length, updates)
        works[PUREJAXRL] = whole(purejaxrl_program.make_train(purejaxrl, settings), seeds)
    works["make_train"] = whole(make_train(config), seeds)
    devices = devices_worth_using(config, CORES)
    if devices > 1:
        works[f"Trainer, {devices} devices"] = training(config, devices)
    if seeds % CORES == 0 and CORES > 1:
        works[f"make_train, seeds over {CORES} devices"] = whole(make_train(config), seeds, CORES)
    return works


def from_the_limit(work: str, config: PPOConfig, turns: int, devices: int = 1) -> dict:
    """Training beside the product that takes most of its time: GFLOP/s of both."""
    width, rows = config.fcnet_hiddens[0], config.minibatch_size
    alone, flops = product(rows, width)
    works = {"training": training(config, devices), "product": alone}
    flops_a_step = flops_of(config)
    steps = {"training": flops_a_step * config.total_env_steps / 1e9, "product": flops / 1e9}
    rates = in_turns(works, steps, turns)
    share = ratio(rates["training"], rates["product"])
    shape = f"({rows:,} x {width}) @ ({width} x {width})"
    return {
        "work": work,
        "mflop_a_step": flops_a_step / 1e6,
        "shape": shape,
        "gflop_per_s": rates,
        "share": share,
    }


def limits(works: dict[str, tuple], length: int, turns: int) -> list[dict]:
    """CartPole as the first two of the works have it, and at RLlib's settings."""
    (large_name, large), (small_name, small) = (
        (name, configuration(*sizes[:3])) for name, sizes in list(works.items())[:2]
    )
    rllib = RLLIB | {"rollout_length": length, "total_env_steps": 5 * 8 * length}
    return [
        from_the_limit(large_name, large, turns, devices_worth_using(large, CORES)),
        from_the_limit(small_name, small, turns),
        from_the_limit(
            f"8 x {length}, RLlib's settings", PPOConfig(env="cartpole", **rllib), turns
        ),
    ]


def main() -> None:
    parser = report.arguments_of("engine", __doc__, {"turns": 1, "purejaxrl": None})
    parser.add_argument("--turns", type=int, default=5)
    purejaxrl_program.add_argument(parser, "train")
    arguments = parser.parse_args()
    report.use_devices()
    lines, groups, works = [], {}, SMALLEST if arguments.smoke else WORK
    references = ["plain"] if arguments.purejaxrl is None else ["plain", PUREJAXRL]
    for work, sizes in works.items():
        num_envs, length, updates, seeds = sizes
        steps = seeds * updates * num_envs * length
        rates = in_turns(programs_of(*sizes, arguments.purejaxrl), steps, arguments.turns)
        rows = []
        for name, speeds in rates.items():
            known = [reference for reference in references if reference in rates]
            times = {reference: ratio(speeds, rates[reference]) for reference in known}
            row = {"work": work, "program": name, "steps_per_s": speeds, "ratio": times["plain"]}
            rows.append({**row, "times_purejaxrl": times.get(PUREJAXRL)})
            cells = [f"{times[who]:.2f}" if who in times else "" for who in references]
            lines.append([work, name, report.spread(speeds), *cells])
        report.keep([{**row, **report.circumstances()} for row in rows], arguments.out)
        groups[f"CartPole {work}"] = rates
    titles = ["CartPole", "program", "steps/s", "times the plain one", "times PureJaxRL's"]
    print(report.markdown(titles[: 3 + len(references)], lines))
    rows = limits(works, 32 if arguments.smoke else RLLIB["rollout_length"], arguments.turns)
    report.keep([{**row, **report.circumstances()} for row in rows], arguments.out)
    lines = []
    for row in rows:
        speeds = [
            report.spread(row["gflop_per_s"][name], ".0f") for name in ("training", "product")
        ]
        lines.append(
            [
                row["work"],
                f"{row['mflop_a_step']:.2f}",
                *speeds,
                row["shape"],
                f"{row['share']:.0%}",
            ]
        )
    titles = [
        "CartPole",
        "MFLOP a step",
        "training, GFLOP/s",
        "its product alone, GFLOP/s",
        "that product",
        "share",
    ]
    print(f"\n{report.markdown(titles, lines)}")
    report.bars(
        arguments.out,
        "The engine beside the same PPO written plainly",
        "environment steps/s",
        groups,
    )


if __name__ == "__main__":
    main()
