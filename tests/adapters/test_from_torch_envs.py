"""Simulators that step in batches on tensors; with NumPy always, with PyTorch where it is there."""

import logging
import os
import signal
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl import PPOConfig
from jaxrl.algorithms.on_policy import rollout_keys
from jaxrl.core.errors import TooManyFaults
from jaxrl.outside.host_rollout import HostRollouts
from jaxrl.outside.workers.python_env import make_vector_env
from tests.adapters.batched_simulators import (
    CartPole,
    Clock,
    LeggedPendulum,
    Pendulum,
    RlGamesPendulum,
    RslRlPendulum,
)
from tests.messages import refusal, refused_by

AGENT = "default_agent"
DIALECTS = Pendulum, RslRlPendulum, LeggedPendulum, RlGamesPendulum
T, E = 8, 4
SMALL = {"rollout_length": T, "minibatch_size": 16, "num_epochs": 1, "fcnet_hiddens": (8,)}
QUIET = {"run_dir": None, "quiet": True}


@pytest.fixture(params=["numpy", "torch"])
def library(request):
    if request.param == "torch":
        pytest.importorskip("torch")
    return request.param


def copies_of(make, num_envs=E, **args):
    return make_vector_env(make, num_envs, env_args=args)


def seeds(number=E):
    return np.arange(number, dtype=np.uint32)


def zeros(copies):
    space = copies.spec.action_spaces[AGENT]
    return {AGENT: np.zeros((copies.num_envs, *space.shape), space.dtype)}


def stepped(copies, actions=None):
    copies.send(0, zeros(copies) if actions is None else {AGENT: actions})
    return copies.receive(0)


def simulator_of(copies):
    env = copies._simulator.env
    return getattr(env, "inner", env)


def pointer(tensor):
    return tensor.ctypes.data if isinstance(tensor, np.ndarray) else tensor.data_ptr()


def played(make, config=None, num_rollouts=1, **args):
    """(algorithm, copies, rollouts) of an untrained policy."""
    config = config or PPOConfig(num_envs=E, **SMALL)
    env = make if not args else lambda num_envs=E: make(num_envs=num_envs, **args)
    algorithm = config.replace(env=env).build()
    spec, runner = algorithm.rollout_spec, jax.jit(algorithm.init)(jax.random.key(1))
    weights = tuple(learner.weights for learner in runner.learners)
    host = HostRollouts(spec, spec.env.vector(E), T, algorithm.env_params)
    host.reset(weights, seeds())
    rollouts = []
    for number in range(1, num_rollouts + 1):
        keys = rollout_keys(runner.key, number, jnp.arange(E))
        rollouts.append(host.collect(weights, keys)[1])
    return algorithm, host.vector, rollouts


# ---- what the dialects give


def test_a_function_gets_the_context_that_the_simulator_was_created_with():
    told = []
    created = lambda env, context: told.append((env, dict(context)))
    copies = make_vector_env(Pendulum, E, env_args={"limit": 9}, created=created)
    seen = copies.foreach_env(lambda env, context: (env, dict(context)), None)
    assert seen == told
    assert seen[0][1]["limit"] == 9


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_is_read_alike(dialect, library):
    copies = copies_of(dialect, library=library, limit=3)
    spec = copies.spec
    assert (spec.agents, copies.num_envs, spec.masked, spec.metrics) == ((AGENT,), E, False, ())
    assert spec.observation_spaces[AGENT].shape == (3,)
    assert spec.critic_space.shape == (4,)
    assert spec.action_spaces[AGENT].shape == (1,)
    first = copies.reset(seeds())
    np.testing.assert_array_equal(first.critic[:, :3], first.obs[AGENT])
    flags = []
    for _ in range(7):
        steps = stepped(copies)
        assert steps.reward.shape == steps.terminated.shape == (E, 1)
        assert steps.reward.max() < 0
        np.testing.assert_array_equal(steps.critic[:, :3], steps.obs[AGENT])
        assert not steps.terminated.any()
        assert not steps.final_known.any()
        np.testing.assert_array_equal(steps.truncated[:, 0], steps.episode_done)
        flags.append(bool(steps.episode_done.all()))
    ends = np.flatnonzero(flags).tolist()
    assert len(ends) >= 2
    assert np.diff(ends).tolist() == [3] * (len(ends) - 1)


def test_where_both_flags_hold_an_episode_terminated(library):
    copies = copies_of(Clock, library=library, limit=2, falls_at=2)
    copies.reset(seeds())
    stepped(copies)
    steps = stepped(copies)
    assert steps.terminated.all()
    assert not steps.truncated.any()


def test_a_cartpole_is_that_of_jaxrl_with_the_same_actions(library):
    """Every step from its own state: a reset draws other numbers."""
    env = jaxrl.make("cartpole")[0]
    params, keys = env.default_params, jax.random.split(jax.random.key(0), E)
    state = jax.vmap(env.reset, in_axes=(0, None))(keys, params)[1]
    copies = copies_of(CartPole, library=library, limit=50, says_final=True)
    obs = np.asarray(copies.reset(seeds()).obs[AGENT])
    actions, time = np.random.default_rng(0).integers(0, 2, (120, E)), np.zeros(E, np.int64)
    step = jax.jit(jax.vmap(env.step_env, in_axes=(0, 0, 0, None)))
    ends = 0
    for action in actions.astype(np.int32):
        steps = stepped(copies, action)
        state = state.replace(motion=jnp.asarray(obs), time=jnp.asarray(time, jnp.int32))
        expected, _, reward, fallen, _ = step(keys, state, action, params)
        time += 1
        np.testing.assert_allclose(steps.final_obs[AGENT], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(steps.reward[:, 0], reward)
        np.testing.assert_array_equal(steps.terminated[:, 0], fallen)
        np.testing.assert_array_equal(steps.truncated[:, 0], (time >= 50) & ~np.asarray(fallen))
        done = np.asarray(steps.episode_done)
        obs, time = np.array(steps.obs[AGENT]), np.where(done, 0, time)
        np.testing.assert_array_equal(obs[~done], steps.final_obs[AGENT][~done])
        ends += int(done.sum())
    assert ends > 10


# ---- without a copy


def test_observations_are_views_of_the_simulators_tensors(library):
    copies = copies_of(CartPole, library=library)
    first = copies.reset(seeds())
    simulator = simulator_of(copies)
    steps = stepped(copies)
    assert steps.obs[AGENT].unsafe_buffer_pointer() == pointer(simulator.buffer)
    # The first ones are kept over the rollout, and are the host's own.
    assert first.obs[AGENT].unsafe_buffer_pointer() != pointer(simulator.buffer)


def test_actions_of_floats_are_the_policys_own_memory():
    pytest.importorskip("torch")
    taken = []

    class Taking(Pendulum):
        def step(self, actions):
            taken.append(actions.data_ptr())
            return super().step(actions)

    copies = copies_of(Taking, library="torch")
    copies.reset(seeds())
    actions = jnp.full((E, 1), 0.5)
    stepped(copies, actions)
    assert taken[-1] == actions.unsafe_buffer_pointer()


def test_integers_arrive_in_the_type_of_the_action_space(library):
    taken = []

    class Taking(CartPole):
        def step(self, actions):
            taken.append(str(actions.dtype).rpartition(".")[2])
            return super().step(actions)

    copies_of(Taking, library=library)
    assert taken == ["int64"]


@pytest.mark.parametrize("form", ["float64", "float16", "gaps"])
def test_other_tensors_are_copied_to_the_same_numbers(form, library):
    class Other(CartPole):
        def observed(self):
            obs = super().observed()
            if form == "gaps":
                return self.xp.concatenate([obs, obs], 1)[:, 2:6]
            return obs.astype(form) if library == "numpy" else obs.to(getattr(self.xp, form))

    copies = copies_of(Other, library=library)
    copies.reset(seeds())
    found = stepped(copies).obs[AGENT]
    expected = np.asarray(simulator_of(copies).buffer)
    if form == "gaps":
        expected = np.concatenate([expected, expected], 1)[:, 2:6]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-3 if form == "float16" else 0)


@pytest.mark.long
def test_what_a_simulator_writes_into_its_tensors_changes_nothing_that_was_recorded(library):
    """It writes each observation over the one before, and clears the actions that it was given."""

    class Writing(Clock):
        def step(self, actions):
            results = super().step(actions)
            actions[:] = 0
            return results

    _, _, (rollout,) = played(Writing, library=library, limit=100)
    (rows,) = rollout.trajectories
    assert rows.obs[:, 0, 0, 0, 0].tolist() == list(range(T))
    assert jnp.abs(rows.action).min() > 0


# ---- time limits


def test_a_time_limit_is_bootstrapped_from_what_the_step_reached(library):
    """Copy 1 goes on where the limit cuts copy 0, so the policy values that state there."""
    _, _, (rollout,) = played(Clock, library=library, limit=(3, 100, 100, 100), says_final=True)
    (rows,) = rollout.trajectories
    ended = np.asarray(rows.done & ~rows.terminated)[:, 0, :, 0]
    assert np.argwhere(ended).tolist() == [[2, 0], [5, 0]]
    for step in (2, 5):
        np.testing.assert_allclose(
            rows.next_value[step, 0, 0, 0], rows.value[3, 0, 1, 0], rtol=1e-5
        )


def test_without_it_a_time_limit_is_bootstrapped_from_the_observation_before(library, caplog):
    with caplog.at_level(logging.WARNING):
        _, _, (rollout,) = played(Clock, library=library, limit=(3, 100, 100, 100))
    (rows,) = rollout.trajectories
    for step in (2, 5):
        np.testing.assert_allclose(
            rows.next_value[step, 0, 0, 0], rows.value[step, 0, 0, 0], rtol=1e-5
        )
        assert rows.value[step, 0, 0, 0] != rows.value[0, 0, 0, 0]
    lines = [line for line in caplog.messages if "no last observation" in line]
    assert len(lines) == 1
    assert "bootstrapped from the observation before it" in lines[0]


def test_an_end_that_is_no_time_limit_is_not_bootstrapped(library):
    _, _, (rollout,) = played(Clock, library=library, limit=100, falls_at=3)
    (rows,) = rollout.trajectories
    assert np.flatnonzero(rows.terminated[:, 0, 0, 0]).tolist() == [2, 5]
    np.testing.assert_array_equal(rows.terminated, rows.done)


# ---- the critic's group


class Loud(Pendulum):
    """The critic's group has other numbers."""

    def observed(self):
        obs = super().observed()
        return {"policy": obs["policy"], "critic": obs["critic"] + 5}


def test_the_critics_group_reaches_the_critic_alone(library):
    config = PPOConfig(num_envs=E, critic_observation="state", **SMALL)
    _, _, (plain,) = played(Pendulum, config, library=library)
    algorithm, _, (loud,) = played(Loud, config, library=library)
    (plain,), (loud,) = plain.trajectories, loud.trajectories
    np.testing.assert_array_equal(plain.obs, loud.obs)
    np.testing.assert_array_equal(plain.action, loud.action)
    np.testing.assert_array_equal(
        plain.inputs.critic["observation"] + 5, loud.inputs.critic["observation"]
    )
    assert jnp.abs(plain.value - loud.value).min() > 0
    (policy_spec,) = algorithm.rollout_spec.policy_specs
    assert policy_spec.observation_space.shape == (3,)
    assert policy_spec.critic.space["observation"].shape == (4,)


def test_a_critics_group_that_nobody_reads_is_told_of(caplog):
    config = PPOConfig(env=Pendulum, num_envs=E, total_env_steps=E * T, **SMALL)
    for source, count in (("own", 1), ("state", 0)):
        caplog.clear()
        with jaxrl.Trainer(config.replace(critic_observation=source), **QUIET):
            pass
        lines = [line for line in caplog.messages if "critic_observation='state'" in line]
        assert len(lines) == count


def test_at_a_time_limit_the_critic_values_its_own_last_observation(library):
    config = PPOConfig(num_envs=E, critic_observation="state", **SMALL)
    limits = {"library": library, "limit": (3, 100, 100, 100), "has_critic": True}
    for says_final in (True, False):
        _, _, (rollout,) = played(Clock, config, says_final=says_final, **limits)
        (rows,) = rollout.trajectories
        expected = rows.value[3, 0, 1, 0] if says_final else rows.value[2, 0, 0, 0]
        np.testing.assert_allclose(rows.next_value[2, 0, 0, 0], expected, rtol=1e-5)


# ---- faults


class Broken(Clock):
    """Copy 2 gives NaN in steps 3 and 4 of an episode; one `raises` in its tenth step."""

    num_steps = 0

    def __init__(self, num_envs=E, library="numpy", raises=False):
        super().__init__(num_envs, library, limit=6)
        self.raises = raises

    def observed(self):
        obs = super().observed()
        if self.time[2] in (3, 4):
            obs[2, 0] = np.nan
        return obs

    def step(self, actions):
        self.num_steps += 1
        if self.raises and self.num_steps == 10:
            raise RuntimeError("the solver diverged")
        return super().step(actions)


def test_nothing_is_learned_from_the_episode_of_a_copy_that_gives_nan(library):
    _, copies, rollouts = played(Broken, num_rollouts=1, library=library)
    (rows,) = rollouts[0].trajectories
    active = np.asarray(rows.active[:, 0, :, 0])
    assert active[:, [0, 1, 3]].all()
    assert np.flatnonzero(~active[:, 2]).tolist() == [0, 1, 2, 3]
    assert np.isfinite(rows.obs).all()
    assert copies.num_faults == 1


@pytest.mark.long
def test_a_simulator_that_raises_ends_training_in_a_line():
    config = PPOConfig(
        env=Broken, env_args={"raises": True}, num_envs=E, total_env_steps=320, **SMALL
    )
    with (
        jaxrl.Trainer(config, **QUIET) as trainer,
        pytest.raises(TooManyFaults, match=r"'Broken': its step failed: .*the solver diverged"),
    ):
        trainer.fit()


# ---- what is refused before anything is compiled


class NoNumber(Pendulum):
    num_actions = 1

    def __init__(self):
        super().__init__()
        del self.num_envs


class NoSpace(RslRlPendulum):
    num_actions = None


def giving(**changes):
    """A class whose step or reset gives something else."""

    class Changed(Clock):
        def step(self, actions):
            obs, reward, terminated, truncated, info = super().step(actions)
            given = {"obs": obs, "reward": reward, "terminated": terminated, "info": info}
            given |= {name: change(given[name]) for name, change in changes.items()}
            return given["obs"], given["reward"], given["terminated"], truncated, given["info"]

    return Changed


class Few(Clock):
    def observed(self):
        return super().observed()[:3]


class Raises(Clock):
    def reset(self, *, seed=None, options=None):
        raise ValueError("no such scene")


class Later(Clock):
    metadata = MappingProxyType({"autoreset_mode": "NextStep"})


class Three(Clock):
    def step(self, actions):
        return super().step(actions)[:3]


test_what_is_no_simulator_is_refused_in_a_line = refused_by(
    lambda make: PPOConfig(env=make, num_envs=E, **SMALL).build(),
    {
        "no num_envs": (NoNumber, r"'NoNumber' steps many copies .* needs num_envs, .* not None"),
        "no action space": (NoSpace, r"'NoSpace' has no action space: give it single_action_space"),
        "few rows": (
            Few,
            r"'Few': the observation has shape \(3, 1\), not \(8, \.\.\.\) for its 8",
        ),
        "reward": (
            giving(reward=lambda reward: reward[:, None]),
            r"'Changed': reward has shape \(8, 1\), not \(8,\)",
        ),
        "flags": (
            giving(terminated=lambda flags: flags.all()),
            r"'Changed': terminated has shape \(\), not \(8,\)",
        ),
        "obs": (
            giving(obs=lambda obs: np.concatenate([obs, obs], 1)),
            r"'Changed': the observation has shape \(8, 2\), not \(8, 1\)",
        ),
        "info": (giving(info=lambda info: []), r"'Changed': info must be a dict, not \[\]"),
        "a reset that fails": (Raises, "'Raises': its reset failed: ValueError: no such scene"),
        "another reset": (Later, "'Later' does not begin new episodes within the step that ended"),
        "three results": (Three, "'Three': step must give .*, not "),
    },
)


@pytest.mark.long
def test_an_object_has_one_set_of_copies_and_the_number_is_its_own():
    simulator = Pendulum(num_envs=E)
    config = PPOConfig(env=simulator, num_envs=E, total_env_steps=E * T, **SMALL)
    with refusal("num_envs=5: Pendulum makes 4 copies: set num_envs=4"):
        jaxrl.Trainer(config.replace(num_envs=5), **QUIET)
    with refusal("an object with copies of its own"):
        jaxrl.Trainer(config, **QUIET, evaluation_interval=1)
    with jaxrl.Trainer(config, **QUIET) as trainer:
        assert trainer.fit()["num_env_steps_sampled_lifetime"] == E * T
    assert not simulator.is_closed


@pytest.mark.long
def test_a_constructor_that_takes_num_envs_makes_as_many_as_there_are_to_be():
    made = []

    class Counted(Pendulum):
        def __init__(self, num_envs=2):
            super().__init__(num_envs)
            made.append(self)

    config = PPOConfig(env=Counted, num_envs=E, total_env_steps=E * T, **SMALL)
    with jaxrl.Trainer(config, **QUIET) as trainer:
        trainer.fit()
        trainer.evaluate(episodes=3)
    numbers = [simulator.num_envs for simulator in made]
    assert (numbers[0], E in numbers, 3 in numbers) == (2, True, True)
    assert all(simulator.is_closed for simulator in made if simulator.num_envs != 2)


def test_the_environment_checker_takes_it():
    jaxrl.check_env(CartPole)


# ---- trainings


def test_the_same_seed_is_the_same_training_also_by_a_generator_of_the_process():
    torch = pytest.importorskip("torch")

    class Drawing(Clock):
        def seen(self, state):
            return super().seen(state) + torch.rand(self.num_envs, 1)

    def training():
        config = PPOConfig(env=Drawing, env_args={"library": "torch"}, num_envs=E, **SMALL)
        with jaxrl.Trainer(config.replace(total_env_steps=3 * E * T), **QUIET) as trainer:
            return trainer.fit()["learners"]["default_policy"]["total_loss"]

    torch.manual_seed(3)
    expected = torch.rand(2).tolist()
    torch.manual_seed(3)
    found = training()
    assert torch.rand(2).tolist() == expected
    assert training() == found


@pytest.mark.long
def test_training_is_that_of_the_same_cartpole_in_jax(library):
    """The episodes are others, so only what is learned is compared."""
    config = PPOConfig.tuned("cartpole", num_envs=32, rollout_length=64, total_env_steps=60_000)
    outside = config.replace(env=CartPole, env_args={"library": library})
    with jaxrl.Trainer(outside, **QUIET, sync=True) as trainer:
        result = trainer.fit()
        assert result["env_runners"]["episode_return_mean"] > 150
        assert result["env_runners"]["num_faulty_episodes"] == 0
        assert trainer.evaluate(episodes=5)["env_runners"]["episode_return_mean"] > 150


@pytest.mark.long
def test_a_run_is_resumed_and_evaluated(library, tmp_path):
    name = "tests.adapters.batched_simulators:Pendulum"
    config = PPOConfig(
        env=name,
        env_args={"library": library, "limit": 20},
        critic_observation="state",
        num_envs=E,
        total_env_steps=4 * E * T,
        **SMALL,
    )
    with jaxrl.Trainer(config, run_dir=tmp_path / "run", quiet=True) as trainer:
        trainer.fit()
    more = config.replace(total_env_steps=8 * E * T)
    with jaxrl.Trainer.from_checkpoint(
        tmp_path / "run", config=more, quiet=True, trust=True
    ) as trainer:
        result = trainer.fit()
    assert result["num_env_steps_sampled_lifetime"] == 8 * E * T
    found = jaxrl.evaluate(tmp_path / "run", episodes=3, trust=True)
    assert found["env_runners"]["episode_len_mean"] == 20
    policy = jaxrl.load_policy(tmp_path / "run", trust=True)
    assert policy.act(np.zeros(3, np.float32)).shape == (1,)


@pytest.mark.long
def test_ctrl_c_ends_training_with_a_checkpoint(tmp_path):
    made, run = [], tmp_path / "run"

    class Interrupted(Pendulum):
        def __init__(self, num_envs=E):
            super().__init__(num_envs)
            self.num_steps = 0
            made.append(self)

        def step(self, actions):
            self.num_steps += 1
            if self.num_steps == 3 * T:
                os.kill(os.getpid(), signal.SIGINT)
            return super().step(actions)

    config = PPOConfig(env=Interrupted, num_envs=E, total_env_steps=50 * E * T, **SMALL)
    with jaxrl.Trainer(config, run_dir=run, quiet=True) as trainer:
        last = trainer.fit()["training_iteration"]
    assert 1 <= last <= 5
    assert (run / "checkpoints" / f"{last:06}").exists()
    assert made[-1].is_closed
