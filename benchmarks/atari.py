"""Pictures with their channels first: a game of Atari, learned here and by Stable-Baselines3.

    pip install ale-py opencv-python-headless "stable-baselines3>=2.9"
    python benchmarks/atari.py
    python benchmarks/atari.py --game Pong --size 84 --steps 1_000_000 --seeds 0 1 --only jaxrl

The environment is Gymnasium's own pipeline, `AtariPreprocessing` and `FrameStackObservation(4)`, so
observations are bytes of the shape (4, 84, 84), or with `--size 42` (4, 42, 42). In training, a
lost life ends an episode and the reward is its sign. Both learn with the same settings and the same
network, of the two convolutions that `PPOConfig.fast` chooses for pictures and a layer of 256,
which policy and value share. Each steps its environments in its own process, one after the other;
Stable-Baselines3 learns once with each number of PyTorch's threads in `--threads`.

The score is that of whole games with the game's own points, played with sampled actions; that of
actions drawn uniformly stands beside it.
"""

import functools
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import report

import jaxrl

CONV_FILTERS, HIDDEN = ((16, 8, 4), (32, 4, 2)), 256
# Those of the RL Zoo for Atari, without its schedules; epochs and minibatches for few cores.
SETTINGS = {
    "num_envs": 8,
    "rollout_length": 128,
    "minibatch_size": 256,
    "num_epochs": 3,
    "lr": 5e-4,
    "gamma": 0.99,
    "lambda_": 0.95,
    "clip_param": 0.1,
    "entropy_coeff": 0.01,
    "vf_loss_coeff": 0.5,
    "grad_clip": 0.5,
}


class Task(NamedTuple):
    """What is played, and for how long."""

    game: str  # as ALE names it
    size: int  # pixels of the width and the height
    steps: int  # environment steps to learn for
    num_games: int  # that the score is of
    max_moves: int  # of a game, which may go on for ever

    @property
    def settings(self) -> dict[str, Any]:
        """`SETTINGS`, or smaller ones for a few steps."""
        few = {"num_envs": 2, "rollout_length": 16, "minibatch_size": 16}
        return SETTINGS if self.steps >= 1024 else {**SETTINGS, **few}


Act = Callable[[np.ndarray], int]


def atari(task: Task, *, learning: bool = True) -> Any:
    """A game in Gymnasium's pipeline; for learning with clipped rewards and one life."""
    import ale_py
    import gymnasium
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformReward

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(f"ALE/{task.game}-v5", frameskip=1, disable_env_checker=True)
    env = AtariPreprocessing(env, screen_size=task.size, terminal_on_life_loss=learning)
    env = TransformReward(env, np.sign) if learning else env
    return FrameStackObservation(env, 4)


def learn_here(task: Task, seed: int) -> tuple[Act, int]:
    """(the policy that has learned, its number of parameters)."""
    config = jaxrl.PPOConfig(
        env=functools.partial(atari, task),
        seed=seed,
        total_env_steps=task.steps,
        conv_filters=CONV_FILTERS,
        normalize_images=True,
        fcnet_hiddens=(HIDDEN,),
        fcnet_activation="relu",
        vf_share_layers=True,
        value_clip=None,
        use_kl_loss=False,
        normalize_advantages="minibatch",
        adam_epsilon=1e-5,
        **task.settings,
    )
    with jaxrl.Trainer(config, run_dir=None, quiet=True, workers=0) as trainer:
        trainer.fit()
        policy = trainer.get_policy("default_policy")
    size = sum(leaf.size for leaf in jax.tree.leaves(policy.params))
    return lambda obs: int(policy.act(obs, explore=True)), size


def learn_there(task: Task, seed: int, *, threads: int) -> tuple[Act, int]:
    """The same by Stable-Baselines3, with so many threads of PyTorch's."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(threads)
    settings = task.settings
    envs = make_vec_env(functools.partial(atari, task), settings["num_envs"], seed=seed)
    model = PPO(
        "CnnPolicy",
        envs,
        n_steps=settings["rollout_length"],
        batch_size=settings["minibatch_size"],
        n_epochs=settings["num_epochs"],
        learning_rate=settings["lr"],
        gamma=settings["gamma"],
        gae_lambda=settings["lambda_"],
        clip_range=settings["clip_param"],
        ent_coef=settings["entropy_coeff"],
        vf_coef=settings["vf_loss_coeff"],
        max_grad_norm=settings["grad_clip"],
        policy_kwargs={"net_arch": [], "features_extractor_class": small_cnn()},
        seed=seed,
        device="cpu",
    )
    model.learn(task.steps)
    size = sum(weights.numel() for weights in model.policy.parameters())
    return lambda obs: int(model.predict(obs, deterministic=False)[0]), size


def small_cnn() -> type:
    """The network of `learn_here` for Stable-Baselines3."""
    import torch
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class SmallCNN(BaseFeaturesExtractor):
        def __init__(self, observation_space: Any):
            super().__init__(observation_space, HIDDEN)
            layers, (channels, length, _) = [], observation_space.shape
            for filters, kernel, stride in CONV_FILTERS:
                after = -(-length // stride)
                zeros = (after - 1) * stride + kernel - length  # around the picture, as jaxrl has
                before, behind = zeros // 2, zeros - zeros // 2
                layers += [
                    torch.nn.ZeroPad2d((before, behind, before, behind)),
                    torch.nn.Conv2d(channels, filters, kernel, stride),
                    torch.nn.ReLU(),
                ]
                channels, length = filters, after
            dense = torch.nn.Linear(channels * length * length, HIDDEN)
            self.layers = torch.nn.Sequential(*layers, torch.nn.Flatten(), dense, torch.nn.ReLU())

        def forward(self, observations: Any) -> Any:
            return self.layers(observations)

    return SmallCNN


OURS, PEER, UNIFORM = "jaxrl", "Stable-Baselines3", "uniform actions"


def score(act: Act, task: Task) -> list[float]:
    """The points of whole games, in the game's own units."""
    env, scores = atari(task, learning=False), []
    for number in range(task.num_games):
        obs, _ = env.reset(seed=1000 + number)
        points, ended, moves = 0.0, False, 0
        while not ended and moves < task.max_moves:
            obs, reward, terminated, truncated, _ = env.step(act(np.asarray(obs)))
            points, ended, moves = points + float(reward), terminated or truncated, moves + 1
        scores.append(points)
    env.close()
    return scores


def row_of(who: str, learn: Callable | None, task: Task, seed: int) -> dict[str, Any]:
    """What one training reached, or for no library what actions drawn uniformly reach."""
    began, num_parameters = time.perf_counter(), None
    if learn is None:
        actions = atari(task).action_space
        actions.seed(seed)
        act = lambda obs: int(actions.sample())
    else:
        act, num_parameters = learn(task, seed)
    seconds = time.perf_counter() - began
    row = {"library": who, "seed": seed, **task._asdict(), "parameters": num_parameters}
    return {**row, "seconds": seconds, "scores": score(act, task)}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| | game | pixels | seed | steps | parameters | score, mean of games | training, s |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        played = f"| {row['library']} | {row['game']} | {row['size']} | {row['seed']} "
        mean, error = statistics.fmean(row["scores"]), standard_error(row["scores"])
        points = f"{mean:,.1f} +- {error:,.1f}"
        if row["parameters"] is None:
            lines.append(f"{played}| | | {points} | |")
        else:
            learned = f"| {row['steps']:,} | {row['parameters']:,} | {points} "
            lines.append(f"{played}{learned}| {row['seconds']:,.0f} |")
    return "\n".join(lines)


def standard_error(scores: list[float]) -> float:
    return statistics.stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else 0.0


def main() -> None:
    parser = report.arguments_of("atari", __doc__, {"only": ["jaxrl"], "seeds": [0]})
    parser.add_argument("--game", default="KungFuMaster", help="as ALE names it")
    parser.add_argument("--size", type=int, default=84, help="pixels of the width and the height")
    parser.add_argument("--steps", type=int, default=200_000, help="environment steps to learn for")
    parser.add_argument("--games", type=int, default=20, help="that a score is of")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--threads", type=int, nargs="*", default=sorted({1, report.CORES}))
    parser.add_argument("--only", nargs="*", choices=(OURS, PEER, UNIFORM), help="these alone")
    args = parser.parse_args()
    task = Task(args.game, args.size, args.steps, args.games, max_moves=20_000)
    if args.smoke:
        task = Task(args.game, 36, steps=64, num_games=1, max_moves=20)
    has_peer = importlib.util.find_spec("stable_baselines3") is not None
    only = args.only or [UNIFORM, OURS, *([PEER] if has_peer else [])]
    entrants = {UNIFORM: None, OURS: learn_here}
    entrants = {name: entrants[name] for name in entrants if name in only}
    for threads in args.threads if PEER in only else []:
        title = f"{PEER}, {threads} thread{'s' * (threads > 1)}"
        entrants[title] = functools.partial(learn_there, threads=threads)
    rows = []
    for seed in args.seeds:
        for who, learn in entrants.items():
            rows.append(row_of(who, learn, task, seed))
            report.keep([{**report.circumstances(), **rows[-1]}], args.out)
            print(table(rows[-1:]), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
