"""`Learner`: acting and learning as parts for a loop of your own, with no environment inside."""

import dataclasses
import functools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.algorithms.memory_estimate import check_sizes
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fields import flag
from jaxrl.core.outside_env import outside_environment
from jaxrl.core.spaces import Space, from_json
from jaxrl.core.types import DEFAULT_AGENT, AgentId, PolicyId, PyTree
from jaxrl.core.value_copies import owned
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.outside.episode_lanes import EpisodeLanes
from jaxrl.outside.recorded_rollout import recorded_rollout
from jaxrl.outside.recording_policy import RecordingPolicy
from jaxrl.outside.workers.space_forms import form_of
from jaxrl.outside.workers.vector import VectorSpec
from jaxrl.rollout.rollout import Rollout
from jaxrl.run.health import Diverged, first_bad
from jaxrl.run.inference.weights import PolicyAccess
from jaxrl.run.processes import processes
from jaxrl.run.results import Lifetime, Result, Snapshot, iteration_results
from jaxrl.run.settings import RunSettings
from jaxrl.run.storage import checkpoint, run_state
from jaxrl.run.storage.dtypes import TrainingNumbers

Episodes = SingleAgentEpisode | MultiAgentEpisode


class Learner(TrainingNumbers, PolicyAccess):
    """A configuration's policies and their learning; whoever has it brings the experience.

        config = jaxrl.PPOConfig(env="external")
        learner = jaxrl.Learner(config, env.observation_space, env.action_space)
        action, outputs = learner.act(obs)   # outputs are recorded with the step
        learner.add(episodes)                # SingleAgentEpisode, MultiAgentEpisode, or chunks
        if learner.ready:
            result = learner.update()

    Args:
        config: a configuration such as `PPOConfig(env="external")`. An update learns from
            `train_batch_size` steps: num_envs lanes of rollout_length rows.
        observation_space, action_space: of jaxrl or Gymnasium; of several agents, dicts by agent.
            None: those of the configuration's environment, of which nothing else is used.
        masked: whether observations come with a mask of the possible actions.

    Raises:
        UsageError: settings or spaces that cannot work, before any compiling.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        observation_space: Any = None,
        action_space: Any = None,
        *,
        masked: bool = False,
    ):
        flag("masked", masked)
        self.config = config = _with_spaces(config, observation_space, action_space, masked)
        self.algorithm: Algorithm = config.build()
        if not self.algorithm.plays:
            raise UsageError("Learner: this algorithm learns from the files of `input` alone")
        if self.algorithm.rollout_spec.informing:
            raise UsageError(
                "Learner: critic_observation must be 'own': steps hold what each agent saw alone"
            )
        check_sizes(config, self.algorithm)
        self._hypers = config.hypers()
        self._env_params = self.algorithm.env_params
        self.lifetime = Lifetime(num_agent_steps={}, num_module_steps_trained={})
        self.processes = processes()
        self.last_result: Result | None = None
        self._runner: RunnerState | None = None
        self._policies: dict[PolicyId, RecordingPolicy] = {}
        self._rollouts: list[Rollout] = []
        self._lanes = EpisodeLanes(config, self.algorithm.rollout_spec)

    @property
    def runner(self) -> RunnerState:
        """The state of learning."""
        if self._runner is None:
            key = jax.random.key(self.config.seed, impl="threefry2x32")
            self._runner = _start(_Hashed(self.algorithm), key, self.hypers)
        return self._runner

    @property
    def weights(self) -> dict[PolicyId, PolicyWeights]:
        """Every policy's weights as NumPy arrays; `set_weights` replaces them."""
        return self.get_weights()

    def set_weights(self, weights: Mapping[PolicyId, PolicyWeights]) -> None:
        super().set_weights(weights)
        self._refresh()

    def act(
        self,
        observations: Any,
        *,
        explore: bool = True,
        begins: Any = False,
        action_masks: Any = None,
        prev_rewards: Any = None,
    ) -> tuple[Any, Any]:
        """(actions of the environment, outputs to record), by agent where there are several.

        Args:
            observations: one or a batch, `[..., *observation_space.shape]`; {agent: observation} of
                those that act, where there are several agents.
            explore: whether actions are drawn as in training, by `exploration_config` where there
                is one; else each is its distribution's mode.
            begins: whether an episode begins here, for policies with memory: a bool, or one for
                each of the batch.
            action_masks: the possible actions, bool[..., A], by agent where there are several.
            prev_rewards: what the last actions brought, for policies that are told, by agent where
                there are several.
        """
        agents = self.algorithm.grouping.agents
        if agents == (DEFAULT_AGENT,):
            unnamed = observations, action_masks, prev_rewards
            observations, action_masks, prev_rewards = ({DEFAULT_AGENT: part} for part in unnamed)
        if not isinstance(observations, Mapping):
            raise UsageError(f"act takes {{agent: observation}} of {', '.join(agents)}")
        env_steps = self.lifetime.num_env_steps + self.num_waiting
        arguments = {"explore": explore, "begins": begins, "env_steps": env_steps}
        actions, outputs = {}, {}
        for agent, observation in observations.items():
            arguments["action_mask"] = (action_masks or {}).get(agent)
            reward = (prev_rewards or {}).get(agent)
            arguments["prev_reward"] = 0.0 if reward is None else reward
            policy = self._policy_of(agent)
            actions[agent], outputs[agent] = policy.decide(observation, agent=agent, **arguments)
        if agents == (DEFAULT_AGENT,):
            return actions[DEFAULT_AGENT], outputs[DEFAULT_AGENT]
        return actions, outputs

    def add(self, experience: Any) -> None:
        """Takes experience to learn from: an episode, several, or a whole `Rollout`.

        An episode may be a chunk of one: chunks with one `id_` are one episode in the statistics.
        It is learned from whole, in pieces where it is longer than the rows that are left. Steps
        hold the outputs of `act`; without "action_logp" an action counts as the present policy's.
        What is added is copied.

        Raises:
            UsageError: data that do not fit the spaces, or numbers that are not finite; nothing of
                that episode is kept.
        """
        if isinstance(experience, Rollout):
            _check_finite(experience)
            self._rollouts.append(jax.tree.map(owned, experience))
            return
        single = isinstance(experience, Episodes)
        for episode in [experience] if single else experience:
            self._lanes.add(episode)

    @property
    def num_waiting(self) -> int:
        """Environment steps that were added and not learned from."""
        steps = self.algorithm.num_env_steps
        return len(self._rollouts) * steps + self._lanes.num_env_steps

    @property
    def ready(self) -> bool:
        """True if the steps of a whole update wait."""
        return self.num_waiting >= self.algorithm.num_env_steps

    def update(self) -> Result:
        """Learns from the oldest steps that wait, a full batch or fewer; returns its result tree.

        Raises:
            UsageError: nothing was added.
            Diverged: a loss, a gradient or a parameter is not finite; the state stays as it was.
        """
        if not self.num_waiting:
            raise UsageError("update: add episodes first, there is nothing to learn from")
        began, waiting = time.perf_counter(), self.num_waiting
        rollout = self._rollouts.pop(0) if self._rollouts else self._rollout()
        runner, metrics = _learn(_Hashed(self.algorithm), self.runner, rollout, self.hypers)
        metrics = jax.tree.map(lambda leaf: np.asarray(leaf)[None], metrics)
        seconds = time.perf_counter() - began
        learned = dataclasses.replace(self.algorithm, num_env_steps=waiting - self.num_waiting)
        lifetime = dataclasses.replace(self.lifetime)
        results = iteration_results(learned, metrics, 1, seconds, lifetime)
        if bad := first_bad(results, self.algorithm.root_cause_metrics):
            raise Diverged(f"update {lifetime.training_iteration}: {bad[1]}; the state is kept")
        self._runner, self.lifetime, self.last_result = runner, lifetime, results[0]
        self._refresh()
        return results[0]

    def save(self, folder: str | Path) -> Path:
        """Writes a checkpoint into `folder`, which `load_policy` and `restore` read; its path."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        arrays = self.runner, self.hypers, self.env_params
        snapshot = Snapshot(*arrays, self.lifetime, self.last_result, {"callbacks": []})
        return run_state.write(folder, self.algorithm, self._facts(), snapshot)

    def restore(self, path: str | Path) -> None:
        """Continues from a checkpoint: of `save`, or of a run with the same policies.

        Raises:
            UsageError: there is none, or it does not fit.
        """
        saved = checkpoint.open_found(path)
        key = jax.random.key(self.config.seed, impl="threefry2x32")
        start = key, self.hypers, self.env_params
        restored = run_state.restore(saved, self._facts(), self.config, self.algorithm, start)
        self._runner, self._hypers = restored.runner, restored.hypers
        self.lifetime, self.last_result = Lifetime(**saved.facts["lifetime"]), saved.facts["result"]
        self._refresh()

    def _facts(self) -> dict[str, Any]:
        return run_state.facts_of(self.config, self.algorithm, RunSettings().to_dict())

    def _rollout(self) -> Rollout:
        lanes, finished, episode_done = self._lanes.take()
        weights = tuple(learner.weights for learner in self.runner.learners)
        spec = self.algorithm.rollout_spec
        return _recorded(spec, weights, lanes, finished, episode_done)

    def _policy_of(self, agent: AgentId) -> RecordingPolicy:
        for group in self.algorithm.grouping.groups:
            for policy, agents in zip(group.policies, group.agents, strict=True):
                if agent not in agents:
                    continue
                if policy not in self._policies:
                    self._policies[policy] = self._recording_policy(policy, agents)
                return self._policies[policy]
        agent_names = ", ".join(self.algorithm.grouping.agents)
        raise UsageError(f"act: there is no agent {agent!r}; the agents are {agent_names}")

    def _recording_policy(self, policy: PolicyId, agents: tuple[AgentId, ...]) -> RecordingPolicy:
        group, _ = self.algorithm.grouping.locate(policy)
        return RecordingPolicy(
            self.algorithm.policy_specs[group],
            self.algorithm.policy_weights(self.runner, policy),
            name=policy,
            agents=agents,
            masked=self.algorithm.rollout_spec.masked,
            seed=self.config.seed,
        )

    def _refresh(self) -> None:
        """The policies that act get the present weights; what they remember stays."""
        for name, policy in self._policies.items():
            policy.weights = self.algorithm.policy_weights(self.runner, name)


def _check_finite(rollout: Rollout) -> None:
    """Refuses a rollout with a row that nothing can be learned from."""
    for trajectory in rollout.trajectories:
        for name in ("obs", "next_obs", "action", "reward", "log_prob"):
            for leaf in jax.tree.leaves(getattr(trajectory, name)):
                if not np.issubdtype(leaf.dtype, np.floating):
                    continue
                rows = jnp.isfinite(leaf).reshape(*trajectory.active.shape, -1).all(axis=-1)
                if not np.all(rows | ~trajectory.active):
                    raise UsageError(f"add: {name} of a rollout holds NaN or infinity")


class _Hashed:
    """An algorithm as a static argument: the same while it lives."""

    def __init__(self, algorithm: Algorithm):
        self.algorithm = algorithm

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Hashed) and self.algorithm is other.algorithm

    def __hash__(self) -> int:
        return id(self.algorithm)


_recorded = jax.jit(recorded_rollout, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def _start(hashed: _Hashed, key: jax.Array, hypers: PyTree) -> RunnerState:
    return hashed.algorithm.init(key, hypers)


@functools.partial(jax.jit, static_argnums=0)
def _learn(hashed: _Hashed, runner: RunnerState, rollout: Rollout, hypers: PyTree) -> tuple:
    return hashed.algorithm.learn(runner, rollout, hypers)


def _with_spaces(
    config: Any, observation_space: Any, action_space: Any, masked: bool
) -> AlgorithmConfig:
    """The configuration over an environment that declares these spaces, and nothing else."""
    if not isinstance(config, AlgorithmConfig):
        raise UsageError(
            f"Learner takes a configuration such as PPOConfig(env='external'), not {brief(config)}"
        )
    if (observation_space is None) != (action_space is None):
        raise UsageError("Learner: give both observation_space and action_space, or neither")
    unread = tuple((part, "part that is left out") for part in config.ignore_observations)
    if observation_space is None:
        setup = config.setup()
        env, params = setup.env, setup.env_params
        observations = {agent: env.observation_space(agent, params) for agent in env.agents}
        actions = {agent: env.action_space(agent, params) for agent in env.agents}
        masked = hasattr(env, "action_mask")
        name = config.env_name
    else:
        observations, unread = _by_agent(observation_space, "observation_space", is_observed=True)
        actions, _ = _by_agent(action_space, "action_space")
        name = "external"
    if list(observations) != list(actions):
        raise UsageError(
            f"Learner: observation_space has the agents {', '.join(map(str, observations))}, "
            f"action_space {', '.join(map(str, actions))}"
        )
    several = tuple(observations) != (DEFAULT_AGENT,)
    spec = VectorSpec(
        name=name,
        agents=tuple(observations),
        observation_spaces=observations,
        action_spaces=actions,
        metrics=(),
        masked=masked,
        always_active=not several,
        waits=several,
    )
    env = outside_environment(spec, _no_copies)
    env.unread = unread
    return config.replace(env=env, env_args={}, curriculum=None, env_task_fn=None)


def _no_copies(num_envs: int, **settings: Any) -> Any:
    raise UsageError("a Learner has no environment of its own: add episodes to it")


def _by_agent(
    declared: Any, what: str, *, is_observed: bool = False
) -> tuple[dict[AgentId, Space], tuple[tuple[str, str], ...]]:
    """({agent: space of jaxrl}, the parts that no network reads); one space is of one agent."""
    spaces = declared if isinstance(declared, dict) else {DEFAULT_AGENT: declared}
    found, unread = {}, set()
    for agent, space in spaces.items():
        if not isinstance(space, Space):
            form = form_of(space, what, is_observed=is_observed)
            space, unread = from_json(form.json), unread | set(form.unread)
        found[agent] = space
    return found, tuple(sorted(unread))
