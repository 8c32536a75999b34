"""What `jaxrl train --env NAME` learns with no other flag, beside what other libraries published.

    python benchmarks/zoo.py                          # every environment whose library is installed
    python benchmarks/zoo.py cartpole gymnax:Acrobot-v1 --seeds 5
    python benchmarks/zoo.py --to zoo                 # what is there already is not trained again

Five seeds of each, one after the other; then each plays 100 whole episodes with sampled actions and
100 with the likeliest ones. No setting was chosen on these seeds. The folder is that of
`jaxrl zoo`: `jaxrl.load_policy("zoo/cartpole")` is the seed with the highest return, and
`zoo/cartpole/report.html` plays an episode of it. Minutes are of one training, without compiling.

`PEERS` says what each is held against: a figure that another library published, or that was
measured here. Few of them are of several seeds, and some are the best moment of a training. Those
of MuJoCo in C stand beside MuJoCo Playground, whose rewards are the same, and are marked.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import report

from jaxrl import PPOConfig, UsageError
from jaxrl.publishing import zoo

ZOO3 = "SB3 zoo, PPO"  # benchmark.md of rl-baselines3-zoo: one seed, the likeliest actions
BLINES = "gymnax-blines, PPO"  # agents/NAME/ppo*.pkl there, the better of two rates; one seed
# examples/mujoco/README.md: the best of a training, the mean of ten seeds; how it acts is not said.
TIANSHOU = "Tianshou, PPO"
CLEANRL = "CleanRL, PPO"  # docs/rl-algorithms/ppo.md: three seeds, in training
TOLERANCE = 0.02  # of the peer's figure, within which ours is called equal


class Peer(NamedTuple):
    """A figure of another library."""

    value: float
    env_steps: int
    who: str
    likeliest: bool = False  # played with the likeliest actions; else with sampled ones


PEERS: Mapping[str, Peer | None] = MappingProxyType(
    {
        "cartpole": Peer(500.0, 100_000, ZOO3, likeliest=True),
        # One seed with the tutorial's settings and five epochs, measured by benchmarks/learning.py.
        "arena": Peer(24.2, 84_000, "RLlib, PPO"),
        "pursuit": None,
        # RLlib's examples/multi_agent/pettingzoo_parameter_sharing.py says so: one run.
        "waterworld": Peer(0.32, 800_000, "RLlib, PPO"),
        "gymnax:Acrobot-v1": Peer(-73.5, 1_000_000, ZOO3, likeliest=True),
        "gymnax:MountainCar-v0": Peer(-110.4, 1_000_000, ZOO3, likeliest=True),
        "gymnax:MountainCarContinuous-v0": Peer(88.3, 20_000, ZOO3, likeliest=True),
        "gymnax:Pendulum-v1": Peer(-172.2, 100_000, ZOO3, likeliest=True),
        "gymnax:Catch-bsuite": Peer(1.0, 56_000, BLINES),
        "gymnax:FourRooms-misc": Peer(1.0, 200_000, BLINES),
        "gymnax:Breakout-MinAtar": Peer(43.4, 9_920_000, BLINES),
        "gymnax:Asterix-MinAtar": Peer(17.8, 9_920_000, BLINES),
        "gymnax:Freeway-MinAtar": Peer(58.8, 9_920_000, BLINES),
        "gymnax:SpaceInvaders-MinAtar": Peer(131.6, 9_920_000, BLINES),
        "envpool:InvertedPendulum-v4": Peer(1000.0, 1_000_000, TIANSHOU),
        "envpool:InvertedDoublePendulum-v4": Peer(9231.0, 1_000_000, TIANSHOU),
        "envpool:Reacher-v4": Peer(-4.1, 1_000_000, TIANSHOU),
        "envpool:Swimmer-v4": Peer(281.6, 1_000_000, ZOO3, likeliest=True),
        "envpool:HalfCheetah-v4": Peer(5819.1, 1_000_000, ZOO3, likeliest=True),
        "envpool:Hopper-v4": Peer(2609.0, 1_000_000, TIANSHOU),
        "envpool:Walker2d-v4": Peer(3589.0, 1_000_000, TIANSHOU),
        "envpool:Ant-v4": Peer(3258.0, 1_000_000, TIANSHOU),
        "envpool:LunarLander-v2": Peer(242.1, 1_000_000, ZOO3, likeliest=True),
        "envpool:BipedalWalker-v3": Peer(213.3, 5_000_000, ZOO3, likeliest=True),
        "playground:CartpoleBalance": Peer(855.5, 1_000_000, f"{CLEANRL} (MuJoCo in C)"),
        "playground:CartpoleSwingup": Peer(640.9, 1_000_000, f"{CLEANRL} (MuJoCo in C)"),
        # Crafter's own scoreboard, from pixels: Moon et al. 2023, arXiv:2307.03486.
        "craftax:Craftax-Classic-Symbolic-v1": Peer(10.3, 1_000_000, "PPO with a ResNet"),
        # Of MiniGrid, whose reward XLand-MiniGrid's is; Navix pays 1 whenever the goal is reached,
        # as it was in all of the 14,956 episodes.
        "xminigrid:MiniGrid-DoorKey-5x5": Peer(0.964, 100_000, ZOO3, likeliest=True),
        "navix:Navix-DoorKey-5x5-v0": Peer(1.0, 100_000, ZOO3, likeliest=True),
        "jumanji:Snake-v1": None,
        # Measured by benchmarks/mappo.py, the last quarter of training: five seeds, and one.
        "jaxmarl:MPE_simple_spread_v3": Peer(-53.2, 500_000, "JaxMARL, MAPPO"),
        "jaxmarl:HeuristicEnemySMAX": Peer(8.9, 1_000_000, "JaxMARL, MAPPO"),
    }
)
SMALLEST: dict[str, Any] = {
    **{"seeds": 2, "episodes": 2, "total_env_steps": 1},
    "to": lambda given: tempfile.mkdtemp(),
}


def measured(name: str, arguments: Any) -> zoo.Exhibit | None:
    """Trains an environment, or says that its library is missing."""
    steps = arguments.total_env_steps
    changes = {} if steps is None else {"total_env_steps": steps}
    try:
        config = PPOConfig.tuned(name, **changes)
        chosen = {"seeds": arguments.seeds, "episodes": arguments.episodes}
        found = zoo.add(config, arguments.to, **chosen, quiet=arguments.smoke)
    except UsageError as error:
        if "pip install" not in str(error):
            raise SystemExit(f"{name}: {error}") from None
        print(f"left out: {name}: {error}", flush=True)
        return None
    if found is None:
        raise SystemExit("stopped; the same command goes on")
    return found


def row_of(exhibit: zoo.Exhibit) -> dict[str, Any]:
    peer = PEERS.get(exhibit.env)
    return {
        "env": exhibit.env,
        "env_steps": exhibit.env_steps,
        "minutes": exhibit.minutes,
        "sampled": [seed.sampled for seed in exhibit.seeds],
        "likeliest": [seed.likeliest for seed in exhibit.seeds],
        "peer": None if peer is None else peer._asdict(),
        "verdict": verdict(exhibit),
        **report.circumstances(),
    }


def verdict(exhibit: zoo.Exhibit) -> str:
    """How ours stands beside the peer, played in the same way."""
    peer = PEERS.get(exhibit.env)
    if peer is None:
        return "no figure"
    value = (exhibit.likeliest if peer.likeliest else exhibit.sampled)[0].value
    slack = TOLERANCE * abs(peer.value)
    if abs(value - peer.value) <= slack:
        return "equal"
    return "better" if value > peer.value else "below"


def table(found: list[zoo.Exhibit]) -> str:
    titles = ["environment", "steps", "minutes", "seeds", "sampled", "likeliest", "other library"]
    lines = []
    for exhibit in found:
        peer = PEERS.get(exhibit.env)
        acting = "likeliest" if peer is not None and peer.likeliest else "sampled"
        figure = "" if peer is None else f"{peer.value:g}, {peer.who}, {peer.env_steps:,}, {acting}"
        cells = [f"`{exhibit.env}`", f"{exhibit.env_steps:,}", f"{exhibit.minutes:.1f}"]
        for estimate, _ in (exhibit.sampled, exhibit.likeliest):
            cells.append(f"{estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]")
        cells.insert(3, str(len(exhibit.seeds)))
        lines.append([*cells, figure, verdict(exhibit)])
    return report.markdown([*titles, "ours is"], lines)


def main() -> None:
    parser = report.arguments_of("zoo", __doc__, SMALLEST)
    parser.add_argument("envs", nargs="*", default=[])
    parser.add_argument("--to", type=Path, default=Path(zoo.ZOO), help="the zoo's folder")
    parser.add_argument("--seeds", type=int, default=zoo.SEEDS)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--total-env-steps", type=int, help="default: as `jaxrl train` takes")
    arguments = parser.parse_args()
    names = arguments.envs or list(PEERS)
    if arguments.smoke:
        names = names[:1]
    found = [exhibit for name in names if (exhibit := measured(name, arguments))]
    report.keep(map(row_of, found), arguments.out)
    print(table(found))


if __name__ == "__main__":
    main()
