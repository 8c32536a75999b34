"""What the engine gains: training beside the same PPO written plainly (plain.py).

    python benchmarks/engine.py               # CartPole: 2048 x 32, 4 x 128, 8 seeds of the latter; 5 turns each

All programs of a row take turns in one process; figures are medians [least, most] of steps/s, compilation apart.
Networks of 64 x 64, 4 epochs of 4 minibatches, Adam; ours also keeps its statistics, KL and clipped shares.
"""

import jax
import report
from plain import Settings, make_plain_train
from programs import Work, in_turns, ratio, training, whole
from report import CORES

from jaxrl import PPOConfig, make_train

WORK = {  # environments, steps of a rollout, updates in a turn, seeds
    "2048 x 32": (2048, 32, 4, 1),
    "4 x 128": (4, 128, 200, 1),
    "8 seeds of 4 x 128": (4, 128, 60, 8),
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


def programs_of(num_envs: int, length: int, updates: int, seeds: int) -> dict[str, Work]:
    """The plain program first."""
    config = configuration(num_envs, length, updates)
    works = {
        "plain": whole(make_plain_train(Settings(num_envs, length, updates)), seeds),
        "make_train": whole(make_train(config), seeds),
    }
    devices = config.devices_worth_using(CORES)
    if devices > 1:
        works[f"Trainer, {devices} devices"] = training(config, devices)
    if seeds % CORES == 0 and CORES > 1:
        works[f"make_train, seeds over {CORES} devices"] = whole(make_train(config), seeds, CORES)
    return works


def main() -> None:
    parser = report.arguments_of("engine", __doc__)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", CORES)
    lines, groups = [], {}
    for work, (num_envs, length, updates, seeds) in WORK.items():
        steps = seeds * updates * num_envs * length
        rates = in_turns(programs_of(num_envs, length, updates, seeds), steps, arguments.turns)
        times = {name: ratio(values, rates["plain"]) for name, values in rates.items()}
        lines += [[work, name, report.spread(rates[name]), f"{times[name]:.2f}"] for name in rates]
        rows = ({"work": work, "program": name, "steps_per_s": rates[name], "ratio": times[name]} for name in rates)
        report.keep([{**row, **report.circumstances()} for row in rows], arguments.out)
        groups[f"CartPole {work}"] = rates
    print(report.markdown(["CartPole", "program", "steps/s", "times the plain one"], lines))
    report.bars(arguments.out, "The engine beside the same PPO written plainly", "environment steps/s", groups)


if __name__ == "__main__":
    main()
