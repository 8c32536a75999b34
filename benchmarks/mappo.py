"""Where a centralised critic pays: MAPPO beside independent PPO, and JaxMARL's own MAPPO.

    python benchmarks/mappo.py
    python benchmarks/mappo.py --cases spread --peer JaxMARL/baselines/MAPPO
    python benchmarks/mappo.py --cases pursuit --seeds 0 --steps 80_000
    python benchmarks/mappo.py --cases spread --critics all-agents --settings '{"grad_clip": null}'

Each case is trained with the same settings and each kind of critic. The numbers are the mean
returns of the episodes that end in each quarter of training.

    pursuit   eight pursuers, its tuned settings with dense layers; summed over agents
    spread    JaxMARL's MPE_simple_spread_v3, a GRU, settings as JaxMARL's MAPPO has them; summed
              over agents
    battle    JaxMARL's HeuristicEnemySMAX with the map 3m, likewise; of each agent, all are equal
    five      HeuristicEnemySMAX as it is without a map, five soldiers against five, likewise

With --peer JaxMARL's script of the same environment is trained as it is, for as many steps: a
folder of its repository (baselines/MAPPO), which stays where it is. Its networks are as large, and
its critic has an optimizer of its own.
"""

import functools
import importlib
import json
import sys
import time
import types
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import report

from jaxrl import PPOConfig, make_train

SPREAD, BATTLE = "MPE_simple_spread_v3", "HeuristicEnemySMAX"
BATTLE_ARGS = {"see_enemy_actions": True, "walls_cause_death": True, "attack_mode": "closest"}
GRU = {  # as in JaxMARL's config/mappo_homogenous_rnn_*.yaml
    "rollout_length": 128,
    "num_epochs": 4,
    "lambda_": 0.95,
    "clip_param": 0.2,
    "value_clip": "prediction",
    "vf_clip_param": 0.2,
    "vf_loss_coeff": 0.25,  # theirs is 0.5, of half the squared error
    "normalize_advantages": "minibatch",
    "kl_coeff": 0.0,
    "adam_epsilon": 1e-5,
    "fcnet_hiddens": (128,),
    "fcnet_activation": "relu",
    "use_gru": True,
    "lstm_cell_size": 128,
    "head_fcnet_hiddens": (128,),
    "max_seq_len": 128,
}
PEER = {
    "NUM_STEPS": 128,
    "FC_DIM_SIZE": 128,
    "GRU_HIDDEN_DIM": 128,
    "UPDATE_EPOCHS": 4,
    "NUM_MINIBATCHES": 4,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "SCALE_CLIP_EPS": False,
    "VF_COEF": 0.5,
    "ANNEAL_LR": True,
    "LR": 2e-3,
}
PEER_IN_BATTLE = {
    **{"ENV_NAME": BATTLE, "ENV_KWARGS": BATTLE_ARGS, "OBS_WITH_AGENT_ID": True},
    **{"NUM_ENVS": 128, "ENT_COEF": 0.0, "MAX_GRAD_NORM": 0.25},
}
FIVE = "5m"  # what JaxMARL has where no map is named; it knows no name for it


class Case(NamedTuple):
    settings: dict[str, Any]
    critics: tuple[str, ...]
    steps: int
    share: float = 1.0  # of the summed return that is shown
    peer: str = ""  # JaxMARL's script
    peer_settings: Mapping[str, Any] = MappingProxyType({})


CASES = {
    "pursuit": Case({}, ("own", "state", "all-agents"), 800_000),
    "spread": Case(
        GRU
        | {"env": f"jaxmarl:{SPREAD}", "num_envs": 16, "minibatch_size": 1536}
        | {"entropy_coeff": 0.01, "grad_clip": 0.5}
        | {"shuffle_blocks": 4},  # 8 would need minibatches of 16 sequences, not 12
        ("own", "all-agents"),
        500_000,
        peer="mappo_rnn_mpe",
        peer_settings={"ENV_NAME": SPREAD, "ENV_KWARGS": {}, "NUM_ENVS": 16}
        | {"ENT_COEF": 0.01, "MAX_GRAD_NORM": 0.5},
    ),
    "battle": Case(
        GRU
        | {"env": f"jaxmarl:{BATTLE}", "num_envs": 128, "minibatch_size": 12_288}
        | {"env_args": {**BATTLE_ARGS, "scenario": "3m"}, "grad_clip": 0.25},
        ("own", "state"),
        1_000_000,
        share=1 / 3,
        peer="mappo_rnn_smax",
        peer_settings={**PEER_IN_BATTLE, "MAP_NAME": "3m"},
    ),
    "five": Case(
        GRU
        | {"env": f"jaxmarl:{BATTLE}", "num_envs": 128, "minibatch_size": 20_480}
        | {"grad_clip": 0.25},
        ("own", "state"),
        1_000_000,
        share=1 / 5,
        peer="mappo_rnn_smax",
        peer_settings={**PEER_IN_BATTLE, "MAP_NAME": FIVE},
    ),
}


SMALLEST = {  # four updates of two episodes
    **{"cases": report.first, "critics": ["all-agents"], "seeds": [0], "steps": 4000},
    "settings": lambda given: {
        **{"num_envs": 2, "rollout_length": 500, "minibatch_size": 500, "num_epochs": 1},
        **{"fcnet_hiddens": (8,), **given},
    },
}


def configuration(name: str, critic: str, steps: int, changes: dict[str, Any]) -> PPOConfig:
    chosen = {"critic_observation": critic, "total_env_steps": steps, **changes}
    if name == "pursuit":
        return PPOConfig.tuned("pursuit", **chosen)
    lr = [[0, PEER["LR"]], [steps, 0.0]]
    return PPOConfig(**{**CASES[name].settings, "lr": lr, **chosen})


def learn(
    name: str, critic: str, changes: dict[str, Any], seeds: list[int], steps: int
) -> list[dict[str, Any]]:
    """A row for each seed, of one compiled program."""
    config, share = configuration(name, critic, steps, changes), CASES[name].share
    title = ", ".join([f"critic sees {critic}", *(f"{key}={changes[key]}" for key in changes)])
    train = jax.jit(make_train(config)).lower(jax.random.key(0)).compile()
    rows = []
    for seed in seeds:
        begin = time.perf_counter()
        _, metrics = train(jax.random.key(seed))
        episodes = jax.device_get(metrics.episodes.iteration)
        seconds = time.perf_counter() - begin
        quarters = zip(
            np.array_split(episodes.episode_return.sum, 4),
            np.array_split(episodes.count, 4),
            strict=True,
        )
        # NaN where no episode ended.
        returns = [share * float(sums.sum() / (count.sum() or np.nan)) for sums, count in quarters]
        rows.append(row_of(name, title, seed, returns, (steps, seconds)))
    return rows


class Categorical:
    """What JaxMARL's script needs of distrax, which requires nightly versions."""

    def __init__(self, logits):
        self.logits = jax.nn.log_softmax(logits)

    def sample(self, seed):
        return jax.random.categorical(seed, self.logits)

    def log_prob(self, action):
        return jnp.take_along_axis(self.logits, action[..., None], axis=-1)[..., 0]

    def entropy(self):
        return -jnp.sum(jnp.exp(self.logits) * self.logits, axis=-1)


def peer_module(folder: Path, name: str, logged: list[dict[str, Any]]) -> Any:
    """JaxMARL's script, whose logging goes to `logged`."""
    needed = {
        "distrax": {"Categorical": Categorical},
        "hydra": {"main": lambda **settings: lambda function: function},
        "omegaconf": {"OmegaConf": object},
        "wandb": {"log": logged.append},
    }
    for module, attributes in needed.items():
        sys.modules[module] = types.ModuleType(module)
        vars(sys.modules[module]).update(attributes)
    sys.path.insert(0, str(folder))
    module = importlib.import_module(name)
    if hasattr(module, "map_name_to_scenario"):
        from jaxmarl.environments.smax.smax_env import Scenario, register_scenario

        register_scenario(FIVE, Scenario(jnp.zeros(10, jnp.uint8), 5, 5, False, False))
    return module


def learn_peer(name: str, folder: Path, seeds: list[int], steps: int) -> list[dict[str, Any]]:
    case, logged, rows = CASES[name], [], []
    script = peer_module(folder, case.peer, logged)
    settings = {**PEER, **case.peer_settings, "TOTAL_TIMESTEPS": steps}
    train = jax.jit(script.make_train(settings)).lower(jax.random.PRNGKey(0)).compile()
    for seed in seeds:
        logged.clear()
        begin = time.perf_counter()
        jax.block_until_ready(train(jax.random.PRNGKey(seed)))
        jax.effects_barrier()
        seconds = time.perf_counter() - begin
        by_update = sorted(logged, key=lambda entry: int(entry["env_step"]))
        returns = [float(entry["returns"]) for entry in by_update]
        quarters = [float(np.nanmean(part)) for part in np.array_split(returns, 4)]
        rows.append(row_of(name, "JaxMARL's MAPPO", seed, quarters, (steps, seconds)))
    return rows


def row_of(
    name: str, critic: str, seed: int, returns: list[float], work: tuple[int, float]
) -> dict[str, Any]:
    """One training; `work` is (steps, seconds)."""
    steps, seconds = work
    shown = ", ".join(f"{value:.2f}" for value in returns)
    print(f"{name}, {critic}, seed {seed}: {shown}; {seconds:.0f} s", flush=True)
    quarters = {"returns": returns, "steps": steps, "steps/s": steps / seconds}
    return {"case": name, "critic": critic, "seed": seed, **quarters}


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for case, critic in dict.fromkeys((row["case"], row["critic"]) for row in rows):
        found = [row for row in rows if (row["case"], row["critic"]) == (case, critic)]
        quarters = zip(*(row["returns"] for row in found), strict=True)
        spreads = [report.spread(returns, ".2f") for returns in quarters]
        speed = report.spread([row["steps/s"] for row in found])
        lines.append([case, critic, *spreads, speed])
    titles = ["task", "critic", *(f"quarter {i}" for i in range(1, 5)), "steps/s"]
    return report.markdown(titles, lines)


def main() -> None:
    parser = report.arguments_of("mappo", __doc__, SMALLEST)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, help="environment steps; default: each case's own")
    parser.add_argument("--critics", nargs="+", help="what critics see; default: each case's own")
    parser.add_argument("--settings", type=json.loads, default={}, help="of PPOConfig, as JSON")
    parser.add_argument("--peer", type=Path, help="a folder of JaxMARL's baselines/MAPPO")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.cases:
        case = CASES[name]
        steps = arguments.steps or case.steps
        critics = arguments.critics or case.critics
        runs = [functools.partial(learn, name, critic, arguments.settings) for critic in critics]
        if case.peer and arguments.peer:
            runs.append(functools.partial(learn_peer, name, arguments.peer))
        for run in runs:
            found = run(arguments.seeds, steps)
            report.keep([{**row, **report.circumstances()} for row in found], arguments.out)
            rows += found
    print(table(rows))


if __name__ == "__main__":
    main()
