"""What a second core could bring where minibatches are too small to be split over two devices.

    python benchmarks/second_core.py                       # CartPole 4 x 128, and tuned settings
    python benchmarks/second_core.py --only arena --turns 9

one program    the Trainer's, on one device
in turn        rollout and learning as two programs, one after the other, on one device
pipelined      the next rollout on one device while another learns from the last one: it is played
               by weights that are an update older
by policies    rollout, then each policy learns on a device of its own; where there are several

No setting trains in the last two ways: these prototypes, with two threads, say what one would gain.
States are copied between the devices. Figures are medians of environment steps/s,
interleaved, compilation apart.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import report
from engine import configuration
from programs import in_turns, ratio, training

from jaxrl import PPOConfig

SMALLEST = {"only": report.first, "turns": 1}
SETTINGS = {
    "CartPole 4 x 128": lambda: configuration(4, 128, 1),
    "tuned CartPole": lambda: PPOConfig.tuned("cartpole"),
    "arena": lambda: PPOConfig.tuned("arena"),
}


def main() -> None:
    parser = report.arguments_of("second_core", __doc__, SMALLEST)
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    report.use_devices(2)

    updates = 2 if arguments.smoke else 40
    rows, lines = [], []
    for name in arguments.only:
        config = SETTINGS[name]()
        config = config.replace(total_env_steps=updates * config.train_batch_size)
        works = works_of(config)
        rates = in_turns(works, config.total_env_steps, arguments.turns)
        first = rates["one program"]
        for way, values in rates.items():
            rows.append({"setting": name, "way": way, "steps_per_s": values})
            lines.append([name, way, report.spread(values), f"{ratio(values, first):.2f}"])
    report.keep([{**row, **report.circumstances()} for row in rows], arguments.out)
    print(report.markdown(["setting", "way", "steps/s", "times one program"], lines))


def works_of(config: PPOConfig) -> dict[str, Callable[[], object]]:

    halves = Halves(config)
    works = {"one program": training(config), "in turn": halves.in_turn}
    works["pipelined"] = halves.pipelined
    if len(halves.learners) > 1:
        works["by policies"] = halves.by_policies
    return works


class Halves:
    """Rollout and learning as programs of their own, for two devices."""

    def __init__(self, config: PPOConfig):
        self.updates = config.num_updates
        self.devices = jax.devices()[:2]
        algorithm = config.static().build()
        hypers = config.hypers()
        self.collect = jax.jit(algorithm.collect)
        self.learn = jax.jit(lambda runner, rollout: algorithm.learn(runner, rollout, hypers))
        runner = jax.jit(lambda key: algorithm.init(key, hypers))(jax.random.key(0))
        self.runner = jax.device_put(runner, self.devices[0])
        self.learners = [self.of(config, policy) for policy in algorithm.trained]
        self.threads = ThreadPoolExecutor(2)

    def of(self, config: PPOConfig, policy: str) -> Callable:
        """Learning of one policy alone."""
        alone = config.replace(policies_to_train=[policy])
        algorithm, hypers = alone.static().build(), alone.hypers()
        return jax.jit(lambda runner, rollout: algorithm.learn(runner, rollout, hypers))

    def in_turn(self) -> None:
        runner = self.runner
        for _ in range(self.updates):
            runner, rollout = self.collect(runner)
            runner, _ = self.learn(runner, rollout)
        jax.block_until_ready(runner)

    def pipelined(self) -> None:
        here, there = self.devices
        actor, rollout = jax.block_until_ready(self.collect(self.runner))
        learner = jax.device_put(self.runner, there)
        for left in reversed(range(self.updates)):
            envs, played = jax.device_put((actor.envs, rollout), there)
            learner = learner.replace(envs=envs)
            learning = self.threads.submit(self.waited, self.learn, learner, played)
            if left:
                actor, rollout = self.waited(self.collect, actor)
            learner, _ = learning.result()
            weights = jax.device_put((learner.learners, learner.num_updates), here)
            actor = actor.replace(learners=weights[0], num_updates=weights[1])
        jax.block_until_ready(actor)

    def by_policies(self) -> None:
        runner = self.runner
        for _ in range(self.updates):
            runner, rollout = jax.block_until_ready(self.collect(runner))
            copies = [jax.device_put((runner, rollout), device) for device in self.devices]
            learning = [
                self.threads.submit(self.waited, learn, *copy)
                for learn, copy in zip(self.learners, copies, strict=True)
            ]
            learned = [jax.device_put(each.result()[0], self.devices[0]) for each in learning]
            learners = tuple(state.learners[i] for i, state in enumerate(learned))
            runner = learned[0].replace(learners=learners)
        jax.block_until_ready(runner)

    def waited(self, function: Callable, *arguments: object) -> object:
        return jax.block_until_ready(function(*arguments))


if __name__ == "__main__":
    main()
