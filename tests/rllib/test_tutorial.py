"""RLlib's tutorial of two agents in an arena, walked in cells of RLlib's own words.

The cells are written for this test and do the tutorial's steps in their order, small. Where a line
has to change, RLlib's stands above ours, after `# RLlib: `, as on the page docs/from-rllib.md. What
has no such cell: `ray.init()` falls away, and a model is written anew, as a Flax module.
"""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from flax import linen as nn

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CHANGED = re.compile(r"^(?P<indent> *)# RLlib: (?P<line>.*)\n.*\n?", re.MULTILINE)
ANEW = "## What you have to rewrite"

IMPORTS = """
# RLlib: from ray.rllib.env.multi_agent_env import MultiAgentEnv
MultiAgentEnv = object
# RLlib: from ray.rllib.agents.ppo import PPOTrainer
import jaxrl
# RLlib: from ray import tune
import jaxrl as tune
# RLlib: from ray.rllib.agents.callbacks import DefaultCallbacks
from jaxrl import Callbacks as DefaultCallbacks
import os

import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete
"""

ENVIRONMENT = '''
class MultiAgentArena(MultiAgentEnv):
    """agent1 is paid for each new cell, agent2 for each collision with agent1."""

    def __init__(self, config=None):
        config = config or {}
        self.width, self.height = config.get("width", 10), config.get("height", 10)
        self.time_limit = config.get("ts", 100)
        cells = self.width * self.height
        self.observation_space = MultiDiscrete([cells, cells])
        self.action_space = Discrete(4)

    def reset(self):
        self.time = 0
        self.places = {"agent1": (0, 0), "agent2": (self.height - 1, self.width - 1)}
        self.visited = {self.places["agent1"]}
        return self.observations()

    def step(self, actions):
        self.time += 1
        collided = [self.move(agent, actions[agent]) for agent in ("agent2", "agent1")]
        is_new = self.places["agent1"] not in self.visited
        self.visited.add(self.places["agent1"])
        if any(collided):
            rewards = {"agent1": -1.0, "agent2": 1.0}
        else:
            rewards = {"agent1": 1.0 if is_new else -0.5, "agent2": -0.1}
        is_done = self.time >= self.time_limit
        dones = {"agent1": is_done, "agent2": is_done, "__all__": is_done}
        return self.observations(), rewards, dones, {}

    def move(self, agent, action):
        row, column = self.places[agent]
        row += {0: -1, 2: 1}.get(action, 0)
        column += {1: 1, 3: -1}.get(action, 0)
        place = (min(max(row, 0), self.height - 1), min(max(column, 0), self.width - 1))
        other = self.places["agent2" if agent == "agent1" else "agent1"]
        if place == other:
            return True
        self.places[agent] = place
        return False

    def observations(self):
        first, second = (self.places[agent][0] * self.width + self.places[agent][1]
                         for agent in ("agent1", "agent2"))
        return {"agent1": np.array([first, second]), "agent2": np.array([second, first])}
'''

LOOP = """
env = MultiAgentArena({"width": 4, "height": 4, "ts": 10})
obs, steps = env.reset(), 0
while True:
    actions = {agent: np.random.randint(4) for agent in obs}
    obs, rewards, dones, infos = env.step(actions)
    steps += 1
    if dones["__all__"]:
        break
"""

TRAINER = """
config = {
    "env": MultiAgentArena,
    "env_config": {"width": 4, "height": 4, "ts": 10},
    "create_env_on_driver": True,
    "framework": "torch",
    "num_workers": 2,
    "train_batch_size": 200,
    "sgd_minibatch_size": 100,
    "num_sgd_iter": 1,
    "model": {"fcnet_hiddens": [8]},
}
# RLlib: rllib_trainer = PPOTrainer(config=config)
rllib_trainer = jaxrl.from_rllib(config).trainer(run_dir=None, quiet=True)
"""

FIRST_ITERATION = """
results = rllib_trainer.train()
# RLlib: del results["config"]
assert "config" not in results
"""

POLICIES = """
policies = {
    "policy1": (None, env.observation_space, env.action_space, {}),
    "policy2": (None, env.observation_space, env.action_space, {"lr": 0.0002}),
}


def policy_mapping_fn(agent_id):
    return "policy1" if agent_id == "agent1" else "policy2"


config.update(
    {"multiagent": {"policies": policies, "policy_mapping_fn": policy_mapping_fn}}
)
rllib_trainer.stop()
"""

TWO_POLICIES = """
# RLlib: rllib_trainer = PPOTrainer(config=config)
rllib_trainer = jaxrl.from_rllib(config).trainer(run_dir="runs/two", quiet=True, pictures=False)
"""

ITERATIONS = """
for _ in range(2):
    results = rllib_trainer.train()
    # RLlib: reward = results["episode_reward_mean"]
    reward = results["env_runners"]["episode_return_mean"]
    print(f"Iteration={rllib_trainer.iteration}: R={reward}")
"""

EACH_POLICY = """
results = rllib_trainer.train()
# RLlib: rewards = results["policy_reward_mean"]
rewards = results["env_runners"]["module_episode_returns_mean"]
print(f"R1={rewards['policy1']} R2={rewards['policy2']}")
"""

INSIDE = """
policy = rllib_trainer.get_policy("policy1")
print(policy, policy.observation_space, policy.action_space)
obs = np.array([env.observation_space.sample()])
# RLlib: logits, _ = policy.model({"obs": obs})
logits = policy.distribution(obs).logits
scores = np.exp(np.squeeze(logits))
action = np.random.choice([0, 1, 2, 3], p=scores / scores.sum())
"""

SAVE = """
checkpoint_file = rllib_trainer.save()
print(f"saved at iteration {rllib_trainer.iteration}: {checkpoint_file}")
files = os.listdir(os.path.dirname(checkpoint_file))
rllib_trainer.stop()
"""

NEW = """
# RLlib: new_trainer = PPOTrainer(config=config)
new_trainer = jaxrl.from_rllib(config).trainer(run_dir=None, quiet=True)
iteration_before = new_trainer.iteration
new_trainer.stop()
"""

RESTORE = """
# RLlib: new_trainer.restore(checkpoint_file)
new_trainer = jaxrl.Trainer.from_checkpoint(checkpoint_file, config=new_trainer.config)
"""

EVALUATE = """
results = new_trainer.evaluate()
# RLlib: reward = results["evaluation"]["episode_reward_mean"]
reward = results["env_runners"]["episode_return_mean"]
"""

PLAY = """
obs = env.reset()
dones, steps = {"__all__": False}, 0
while not dones["__all__"]:
    actions = {}
    for agent in obs:
        policy_id = policy_mapping_fn(agent)
        actions[agent] = new_trainer.compute_single_action(obs[agent], policy_id=policy_id)
    obs, rewards, dones, infos = env.step(actions)
    steps += 1
"""

DEFAULTS = """
# RLlib: defaults = DEFAULT_CONFIG
defaults = jaxrl.PPOConfig().to_dict()
print(defaults["lr"], defaults["clip_param"])
"""

GRID = """
tune_config = config.copy()
tune_config["lr"] = tune.grid_search([0.0001, 0.5])
tune_config["train_batch_size"] = tune.grid_search([200, 300])
stop = {"training_iteration": 2, "episode_reward_mean": 60.0}
settings = {"config": tune_config, "stop": stop, "checkpoint_at_end": True, "checkpoint_freq": 10}
# RLlib: analysis = tune.run("PPO", **settings)
analysis = jaxrl.from_rllib(settings).sweep(quiet=True)
"""

BEST = """
# RLlib: best_checkpoint = analysis.get_best_checkpoint(metric="episode_reward_mean", mode="max")
best_checkpoint = analysis.best_trial().folder
"""

CALLBACKS = """
class MyCallbacks(DefaultCallbacks):
    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        rewards = episode.get_rewards()
        new_fields = sum(reward == 1.0 for reward in rewards["agent1"])
        metrics_logger.log_value("new_fields_discovered", new_fields)
        collisions = sum(reward == 1.0 for reward in rewards["agent2"])
        metrics_logger.log_value("num_collisions", collisions)

    def on_train_result(self, *, algorithm, result, **kwargs):
        result["iteration_told"] = algorithm.iteration
"""

WITH_CALLBACKS = """
config["callbacks"] = MyCallbacks
# RLlib: trainer = PPOTrainer(config=config)
trainer = jaxrl.from_rllib(config).trainer(run_dir=None, quiet=True)
results = trainer.train()
trainer.stop()
"""

MODEL = """
config.update(
    {"callbacks": None, "model": {"custom_model": MyModel, "custom_model_config": {"units": 16}}}
)
# RLlib: trainer = PPOTrainer(config=config)
trainer = jaxrl.from_rllib(config).trainer(run_dir=None, quiet=True)
results = trainer.train()
"""

CELLS = {  # what the tutorial does, in its order
    "imports": IMPORTS,
    "an environment": ENVIRONMENT,
    "a loop over an episode": LOOP,
    "a trainer": TRAINER,
    "an iteration": FIRST_ITERATION,
    "a mapping of agents to policies": POLICIES,
    "a trainer of two policies": TWO_POLICIES,
    "iterations": ITERATIONS,
    "each policy's return": EACH_POLICY,
    "a look inside a policy": INSIDE,
    "a checkpoint": SAVE,
    "a new trainer": NEW,
    "the restored trainer": RESTORE,
    "an evaluation": EVALUATE,
    "an episode of the restored trainer": PLAY,
    "the default configuration": DEFAULTS,
    "a grid search": GRID,
    "the best checkpoint": BEST,
    "callbacks": CALLBACKS,
    "a training with callbacks": WITH_CALLBACKS,
    "a custom model": MODEL,
}


class MyModel(nn.Module):
    """The model of the last cell, which is written anew."""

    units: int

    @nn.compact
    def __call__(self, obs):
        x = nn.relu(nn.Dense(self.units)(obs.astype("float32")))
        return nn.Dense(4)(x), nn.Dense(1)(x)


def of_rllib(cell):
    """The cell as RLlib's users have it."""
    return CHANGED.sub(r"\g<indent>\g<line>\n", cell)


def cells_of_the_page():
    page = (DOCS / "from-rllib.md").read_text(encoding="utf-8")
    return BLOCK.findall(page[: page.index(ANEW)])


def names_of_the_reference():
    """The words of RLlib in the first columns of the reference's tables."""
    page = (DOCS / "rllib-reference.md").read_text(encoding="utf-8")
    page = page.replace("<statistic>", "mean")
    columns = re.findall(r"^\| (.*?) \|", page, re.MULTILINE)
    return set(re.findall(r"\w+", " ".join(columns)))


def words_of(line):
    """What a line calls, reads by a name in quotes or as an attribute, or imports."""
    words = set()
    for node in ast.walk(ast.parse(f"{line}\n    pass" if line.endswith(":") else line)):
        words |= {
            ast.Attribute: lambda node: {node.attr},
            ast.Constant: lambda node: {node.value},
            ast.Call: lambda node: {getattr(node.func, "id", None)},
            ast.ImportFrom: lambda node: {alias.name for alias in node.names},
            ast.ClassDef: lambda node: {base.id for base in node.bases},
            ast.Assign: lambda node: {getattr(node.value, "id", None)},
        }.get(type(node), lambda node: set())(node)
    return words


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """{step: what its cell left behind}, after all cells have run in their order."""
    namespace, after = {"__name__": "__tutorial__", "MyModel": MyModel}, {}
    folder = tmp_path_factory.mktemp("tutorial")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for step, cell in CELLS.items():
            exec(compile(cell, step, "exec"), namespace)
            after[step] = SimpleNamespace(**namespace, working_folder=folder)
    return after


@pytest.mark.long
def test_the_cells_of_the_tutorial_go_through(walked):
    assert walked["a loop over an episode"].steps == 10
    first = walked["an iteration"].results
    assert first["training_iteration"] == 1 and first["num_env_steps_sampled_lifetime"] == 200
    two = walked["each policy's return"]
    assert two.rllib_trainer.config.for_policy("policy2").lr == 0.0002
    assert set(two.rewards) == {"policy1", "policy2"}
    assert walked["a look inside a policy"].logits.shape == (1, 4)
    assert walked["a look inside a policy"].action in range(4)


@pytest.mark.long
def test_a_restored_trainer_goes_on_where_the_checkpoint_was_written(walked):
    assert walked["a new trainer"].iteration_before == 0
    restored = walked["an episode of the restored trainer"]
    assert restored.new_trainer.iteration == 3
    assert restored.steps == 10 and -20 <= walked["an evaluation"].reward <= 20


@pytest.mark.long
def test_a_grid_search_of_the_tutorial_is_a_sweep_whose_best_trial_has_a_checkpoint(walked):
    best = walked["the best checkpoint"]
    found = [(outcome.trial.config, outcome.iterations) for outcome in best.analysis.outcomes]
    tried = [(config.lr, config.train_batch_size, number) for config, number in found]
    assert sorted(tried) == [(lr, size, 2) for lr in (0.0001, 0.5) for size in (200, 300)]
    assert (best.working_folder / best.best_checkpoint / "checkpoints").is_dir()


@pytest.mark.long
def test_callbacks_of_present_rllib_report_what_they_log_and_what_they_add(walked):
    """An episode of 10 steps on a grid of 16 cells has at most 10 new fields."""
    result = walked["a training with callbacks"].results
    assert 0 <= result["env_runners"]["new_fields_discovered"] <= 10
    assert 0 <= result["env_runners"]["num_collisions"] <= 10
    assert result["iteration_told"] == 1


@pytest.mark.long
def test_a_flax_module_trains_as_a_custom_model(walked):
    cell = walked["a custom model"]
    assert "Dense_0.kernel" in str(cell.trainer.config.networks())
    assert cell.results["training_iteration"] == 1


@pytest.mark.parametrize("cell", [*CELLS.values(), *cells_of_the_page()])
def test_a_cell_changes_one_line_at_most_and_is_rllib_s_own_without_it(cell):
    changes = [change["line"] for change in CHANGED.finditer(cell)]
    imports = [line for line in changes if "import " in line]
    assert len(changes) - len(imports) <= 1
    ast.parse(of_rllib(cell))
    assert "jaxrl" not in of_rllib(cell)


@pytest.mark.parametrize("cell", [*CELLS.values(), *cells_of_the_page()])
def test_a_line_changes_where_a_table_of_the_reference_says_so(cell):
    for change in CHANGED.finditer(cell):
        assert words_of(change["line"]) & names_of_the_reference(), change["line"]


def test_a_line_of_words_that_no_table_has_is_found():
    assert words_of("trainer.workers.foreach(f)") == {"workers", "foreach", None}
    assert words_of("class A(B):") == {"B"}
    assert not words_of("x = y.unheard_of(result)") & names_of_the_reference()


def test_a_changed_line_is_given_back_and_a_cell_of_two_is_found():
    cell = "if a:\n    # RLlib: b = f(1)\n    b = g(1)\n# RLlib: del c\nd = b\n"
    assert of_rllib(cell) == "if a:\n    b = f(1)\ndel c\n"
    assert len(list(CHANGED.finditer(cell))) == 2


def test_the_page_says_its_purpose_and_shows_code_within_sixty_words():
    page = (DOCS / "from-rllib.md").read_text(encoding="utf-8")
    assert len(page[: page.index("```")].split()) <= 60
