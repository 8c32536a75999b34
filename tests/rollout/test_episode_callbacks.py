"""Episode callbacks.

What the hooks are given, what becomes of what they return, and that they disturb nothing.
"""

import functools
import json
from dataclasses import dataclass

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, Trainer, UsageError, make_train
from jaxrl.envs.arena import MultiAgentArena
from jaxrl.rollout.episode_callbacks import EpisodeCallbacks, postprocess, traced_callbacks
from jaxrl.rollout.episode_stats import histogram
from jaxrl.rollout.steps import Steps
from jaxrl.run.results import lookup
from jaxrl.run.stopping import met
from scripts.arena_callbacks import ArenaMetrics, Curiosity, RewardScale
from tests.algorithms.reinforce import ReinforceConfig
from tests.messages import refused_by
from tests.probes import Leavers, Probe
from tests.programs import SMALL_ARENA

KEY = jax.random.key(0)
E, T, LENGTH, ITERATIONS = 4, 16, 20, 5  # rollouts of 16 steps of episodes of 20
CONFIG = SMALL_ARENA.replace(
    env=MultiAgentArena(4, 4), env_args=(), total_env_steps=E * T * ITERATIONS
)
SCRIPT = "scripts.arena_callbacks"


def train(config):
    """(runner, metrics [U, ...]) of a whole training with episodes of 20 steps."""
    params = MultiAgentArena(4, 4).default_params.replace(max_steps_in_episode=LENGTH)
    return jax.jit(make_train(config))(
        KEY, None, params if isinstance(config.env, MultiAgentArena) else None
    )


def same(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


class Clock(EpisodeCallbacks):
    """Counts steps from 100 on, and remembers the last state's own time and the first one's."""

    def on_episode_start(self, state, params):
        return {
            "steps": 100,
            "first": state.time,
            "last": jnp.int32(-1),
            "limit": params.max_steps_in_episode,
        }

    def on_episode_step(self, data, step):
        return {**data, "steps": data["steps"] + 1, "last": step.state.time}

    def on_episode_end(self, data, episode):
        return {f"clock_{name}": value for name, value in data.items()} | {
            "clock_len": episode.length
        }


class Untouched(EpisodeCallbacks):
    """Gives back the trajectory that it was given."""

    def on_postprocess_trajectory(self, policy, trajectory):
        return trajectory


class Chosen:
    """Not derived from anything.

    How often `long` and `wide` choose what they are paid for, by their actions.
    """

    def on_episode_start(self, state, params):
        return jnp.zeros(2)

    def on_episode_step(self, data, step):
        return data + jnp.stack([step.actions["long"] == 1, step.actions["wide"] == 2])

    def on_episode_end(self, data, episode):
        paid = episode.agent_returns
        return {"chosen": jnp.sum(data), "missing": jnp.sum(data) - paid["long"] - paid["wide"]}


@pytest.fixture(scope="module")
def arena():
    """(runner, metrics) of a training with three callbacks."""
    return train(CONFIG.replace(callbacks=[f"{SCRIPT}:ArenaMetrics", Clock, Untouched()]))


def of_iterations(metrics, name):
    """(sums, counts) of a custom metric in the iterations in which an episode ended."""
    episodes = metrics.episodes.iteration
    return np.asarray(episodes.custom_metrics[name].sum), np.asarray(episodes.count)


@pytest.mark.long
def test_returns_as_custom_metrics_are_the_returns(arena):
    episodes = arena[1].episodes.iteration
    assert episodes.count.sum() == E * (T * ITERATIONS // LENGTH)
    for i, agent in enumerate(MultiAgentArena.agents):
        np.testing.assert_array_equal(
            of_iterations(arena[1], f"{agent}_return")[0], episodes.agent_returns.sum[:, i]
        )


def test_what_the_arena_counts_by_itself_a_callback_counts_from_the_rewards(arena):
    for name, expected_name in (
        ("explorer_new_fields", "new_fields_discovered"),
        ("hunter_collisions", "num_collisions"),
    ):
        np.testing.assert_array_equal(
            of_iterations(arena[1], name)[0], of_iterations(arena[1], expected_name)[0]
        )
    assert of_iterations(arena[1], "hunter_collisions")[0].sum() > 0


def test_data_starts_again_with_each_episode_and_goes_on_over_rollouts(arena):
    """Of every 20 steps some lie in one rollout and some in the next."""
    episodes = arena[1].episodes.iteration
    ended = np.asarray(episodes.count) > 0
    assert ended.sum() >= 3
    expected = {"steps": 100 + LENGTH, "first": 0, "last": LENGTH, "limit": LENGTH, "len": LENGTH}
    for name, value in expected.items():
        spread = episodes.custom_metrics[f"clock_{name}"]
        assert (
            set(np.asarray(spread.min)[ended]) == set(np.asarray(spread.max)[ended]) == {value}
        ), name
    steps = arena[0].envs.features["callbacks"][1]["steps"]
    assert steps.tolist() == [100 + T * ITERATIONS % LENGTH] * E


def test_histograms_are_of_all_steps_of_the_iteration(arena):
    histograms = arena[1].episodes.histograms
    assert set(histograms) == {"agent1_reward", "agent2_reward"}
    for values in histograms.values():
        assert (
            np.asarray(values.counts).sum(axis=-1).tolist()
            == [E * T] * ITERATIONS
            == values.count.tolist()
        )
    pays = np.asarray(histograms["agent2_reward"].counts)[
        :, -1
    ]  # 1 for a collision, the greatest there is
    assert np.all(np.asarray(histograms["agent2_reward"].max) == 1)
    np.testing.assert_allclose(
        histograms["agent2_reward"].sum, pays - 0.1 * (E * T - pays), rtol=1e-5
    )


@pytest.mark.parametrize("shape", [(7,), (40, 25)])
def test_a_histogram_is_numpys(shape):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    computed = jax.jit(histogram)(values)
    counts, edges = np.histogram(values, bins=30)
    np.testing.assert_array_equal(computed.counts, counts)
    assert (computed.min, computed.max, computed.count) == (edges[0], edges[-1], values.size)
    np.testing.assert_allclose(computed.sum, values.sum(), rtol=1e-4)


def test_members_of_a_mapped_axis_share_one_histogram():
    values = jax.random.normal(KEY, (3, 50))
    over_axis = jax.vmap(functools.partial(histogram, axis_name="i"), axis_name="i")
    parts, whole = jax.device_get(jax.jit(lambda x: (over_axis(x), histogram(x)))(values))
    for name in ("count", "min", "max", "counts"):
        for member in getattr(parts, name):
            np.testing.assert_array_equal(member, getattr(whole, name))


def test_equal_values_are_all_in_the_last_bin():
    assert jax.jit(histogram)(jnp.full(5, 3.0)).counts.tolist() == [0] * 29 + [5]


@pytest.mark.bits
def test_callbacks_that_change_nothing_leave_every_number_as_it_is(arena):
    (runner, metrics), (plain, plain_metrics) = arena, train(CONFIG)
    same(runner.learners, plain.learners)
    same(runner.envs.replace(features={}), plain.envs)
    same(metrics.learners, plain_metrics.learners)
    same(metrics.episodes.iteration.episode_return, plain_metrics.episodes.iteration.episode_return)
    assert plain.envs.features == {}
    assert plain_metrics.episodes.histograms == {}


@dataclass(frozen=True)
class HalfPaid(Probe):
    """The probe with half of its rewards."""

    def step_env(self, *args):
        obs, state, reward, terminated, info = super().step_env(*args)
        return obs, state, 0.5 * reward, terminated, info


def floats(tree):
    """The leaves that are numbers, without random keys."""
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.number)]


@pytest.mark.long
def test_halved_rewards_are_learned_from_as_if_the_environment_paid_half_and_returns_stay_whole():
    probe = {"num_steps": 3, "reward_for": "action"}
    runner, metrics = train(CONFIG.replace(env=Probe(**probe), callbacks=RewardScale(0.5)))
    half, half_metrics = train(CONFIG.replace(env=HalfPaid(**probe)))
    # Two programs that scale in different places: XLA fuses them differently, so the last bits may
    # differ.
    alike = functools.partial(chex.assert_trees_all_close, rtol=1e-4, atol=1e-6)
    alike(floats(runner.learners), floats(half.learners))
    alike(floats(metrics.learners), floats(half_metrics.learners))
    returns, half_returns = (
        trained.episodes.iteration.agent_returns.sum for trained in (metrics, half_metrics)
    )
    assert np.all(np.asarray(returns) > 0)
    np.testing.assert_allclose(returns, 2 * half_returns, rtol=1e-5)


def test_each_policy_of_a_group_is_rewritten_by_itself_and_callbacks_follow_in_order():
    class Add(EpisodeCallbacks):
        def on_postprocess_trajectory(self, policy, trajectory):
            assert trajectory.reward.shape == (5, 3, 1)
            return trajectory.replace(reward=trajectory.reward + {"pol1": 1.0, "pol2": 3.0}[policy])

    rows = Steps(reward=jnp.ones((5, 2, 3, 1)))
    for callbacks, expected in (
        ((Add(), RewardScale(2.0)), (4, 8)),
        ((RewardScale(2.0), Add()), (3, 5)),
    ):
        rewritten, _ = postprocess((ArenaMetrics(), *callbacks), ("pol1", "pol2"), rows)
        reward = rewritten.reward
        assert [set(np.asarray(reward)[:, i].ravel()) for i in (0, 1)] == [
            {expected[0]},
            {expected[1]},
        ]
    assert postprocess((ArenaMetrics(),), ("pol1", "pol2"), rows)[0] is rows


def test_curiosity_pays_one_policy_for_the_cells_that_it_seldom_saw():
    """Four visits to cell 3 and one to cell 0: 0.5 / sqrt(4) and 0.5 / sqrt(1)."""
    cells = jnp.array([3, 3, 0, 3, 3]).reshape(5, 1, 1, 1)
    obs = jnp.broadcast_to(cells[..., None], (5, 2, 1, 1, 2))
    rows = Steps(reward=jnp.zeros((5, 2, 1, 1)), obs=obs)
    rewrite = jax.jit(lambda rows: postprocess((Curiosity(),), ("pol1", "pol2"), rows)[0])
    reward = np.asarray(rewrite(rows).reward)
    np.testing.assert_allclose(reward[:, 0, 0, 0], [0.25, 0.25, 0.5, 0.25, 0.25])
    assert not np.any(reward[:, 1])


class Shaped(EpisodeCallbacks):
    """Counts in place of the environment, and looks at what the steps reached."""

    def on_episode_step(self, data, step, metrics_logger):
        metrics_logger.log_value("reward", step.reward[0], reduce="max")
        metrics_logger.log_value(("group", "two"), 2, reduce="sum")
        return data

    def on_episode_end(self, data, episode, metrics_logger):
        metrics_logger.log_value("length", episode.length)
        metrics_logger.log_value("group/length", episode.length)
        return {"new_fields_discovered": jnp.float32(-7)}

    def on_postprocess_trajectory(self, policy, trajectory, next_obs, metrics_logger):
        goes_on = ~trajectory.done[:-1, ..., None]
        strays = jnp.where(goes_on, next_obs[:-1] != trajectory.obs[1:], False)
        metrics_logger.log_value("strays", jnp.sum(strays), reduce="sum")
        metrics_logger.log_value("moved", jnp.any(next_obs != trajectory.obs), reduce="max")
        return trajectory.replace(reward=trajectory.reward + 1)

    def on_learn_on_batch(self, *, policy, train_batch, result, **kwargs):
        result["batch_reward"] = train_batch["rewards"].mean()
        result["group/one"] = 1

    def on_sample_end(self, *, env_runner, samples, metrics_logger, **kwargs):
        metrics_logger.log_value("num_rows", samples.count, reduce="sum")
        assert samples["actions"] is samples.action and samples["obs"] is samples.obs
        error = samples["action_logp"] - samples.distribution.log_prob(samples.action)
        metrics_logger.log_value("logp_error", jnp.max(jnp.abs(error)))


@pytest.fixture(scope="module")
def shaped():
    """(the first result of a training in RLlib's words, of the same one without callbacks)."""
    args = {"height": 4, "width": 4, "max_steps_in_episode": 8}
    config = CONFIG.replace(env="arena", env_args=args)
    results = []
    for callbacks in (Shaped, ()):
        changed = config.replace(callbacks=callbacks)
        results.append(Trainer(changed, run_dir=None, quiet=True).train())
    return results


@pytest.mark.long
def test_a_callbacks_number_takes_the_place_of_the_environments_of_that_name(shaped):
    numbers = [result["env_runners"]["custom_metrics"] for result in shaped]
    assert numbers[1]["new_fields_discovered_mean"] > 0
    assert numbers[0]["new_fields_discovered_mean"] == -7
    assert numbers[0]["num_collisions_mean"] == numbers[1]["num_collisions_mean"]


def test_custom_metrics_are_there_of_each_episode(shaped):
    episodes = [result["hist_stats"] for result in shaped]
    count = len(episodes[0]["episode_reward"])
    assert episodes[0]["new_fields_discovered"] == [-7] * count
    assert episodes[0]["group/length"] == [8] * count
    mean = shaped[1]["env_runners"]["custom_metrics"]["new_fields_discovered_mean"]
    assert np.mean(episodes[1]["new_fields_discovered"]) == pytest.approx(mean)


def test_traced_hooks_log_numbers_that_results_hold_by_their_names(shaped):
    runners = shaped[0]["env_runners"]
    assert runners["length"] == runners["episode_len_mean"] == 8
    assert runners["reward"] == runners["hist_stats"]["reward"]["max"] == 1
    assert json.loads(json.dumps(shaped[0])) == shaped[0]


def test_traced_names_with_a_slash_or_of_several_texts_lie_in_groups(shaped):
    runners = shaped[0]["env_runners"]
    assert runners["group"] == {"length": 8, "two": 2 * E * T}
    lengths = {f"length_{of}": 8 for of in ("mean", "min", "max")}
    assert runners["custom_metrics"]["group"] == lengths
    assert runners["hist_stats"]["group"]["two"]["mean"] == 2
    assert shaped[0]["learners"]["pol1"]["group"] == {"one": 1}
    assert met({"learners/pol1/group/one": 0.5}, shaped[0]) == "learners/pol1/group/one"


def test_hooks_of_the_batch_see_what_steps_reached_and_change_what_is_learned_from(shaped):
    learners = shaped[0]["learners"]
    for policy in ("pol1", "pol2"):
        assert learners[policy]["num_rows"] == E * T
        assert (learners[policy]["strays"], learners[policy]["moved"]) == (0, 1)
        assert learners[policy]["logp_error"] == 0
    means = [
        sum(learners[policy]["batch_reward"] for policy in ("pol1", "pol2")),
        shaped[1]["env_runners"]["episode_return_mean"] / 8 + 2,
    ]
    assert means[0] == pytest.approx(means[1], rel=1e-5)  # 16 steps are two episodes of 8


def test_next_observations_are_kept_only_where_a_hook_asks_for_them():
    for callbacks, expected in ((Shaped, True), (Untouched, False), ((), False)):
        spec = CONFIG.replace(callbacks=callbacks).build().rollout_spec
        assert spec.needs_next_obs == expected


@pytest.mark.long
def test_agents_of_different_spaces_are_told_apart_by_name_and_any_class_with_a_hook_will_do():
    sizes = {"num_envs": E, "rollout_length": T, "total_env_steps": E * T * ITERATIONS}
    config = ReinforceConfig(env=Leavers(), callbacks=Chosen, fcnet_hiddens=(8,), **sizes)
    _, metrics = train(config.replace(policies_to_train=("long",)))
    episodes = metrics.episodes.iteration
    assert np.all(np.asarray(episodes.count) == E * T // 4)
    chosen = of_iterations(metrics, "chosen")[0]
    assert np.all((chosen > 0) & (chosen < 2 * E * T))
    assert not np.any(of_iterations(metrics, "missing")[0])


@pytest.mark.long
def test_results_hold_custom_metrics_and_histograms_under_rllibs_names():
    config = CONFIG.replace(
        env="arena", env_args={"height": 4, "width": 4, "max_steps_in_episode": LENGTH}
    )
    trainer = Trainer(config.replace(callbacks=f"{SCRIPT}:ArenaMetrics"), run_dir=None, quiet=True)
    first, second = trainer.train(), trainer.train()
    assert "custom_metrics" not in first["env_runners"]
    runners = second["env_runners"]
    for agent, mean in runners["agent_episode_returns_mean"].items():
        assert runners["custom_metrics"][f"{agent}_return_mean"] == pytest.approx(mean, rel=1e-6)
        values = runners["hist_stats"][f"{agent}_reward"]
        assert (sum(values["counts"]), len(values["counts"])) == (E * T, 30)
        assert values["min"] <= values["mean"] <= values["max"] == 1
    assert {"explorer_new_fields_min", "hunter_collisions_max"} <= set(runners["custom_metrics"])
    assert json.loads(json.dumps(second)) == second
    for path in (
        "env_runners/hist_stats/agent1_reward/mean",
        "env_runners/custom_metrics/agent1_return_mean",
    ):
        stopped = trainer.fit({path: -1000.0, "training_iteration": 4})
        assert lookup(stopped, path) is not None
    with pytest.raises(UsageError, match="unknown stop criterion"):
        trainer.fit({"env_runners/hist_stats/agent1_reward/counts": 3})


class Host:
    """Traces nothing."""

    def on_train_result(self, trainer, result):
        pass


def test_a_configuration_keeps_callbacks_as_they_were_given():
    name = f"{SCRIPT}:ArenaMetrics"
    assert (
        PPOConfig(env="arena").callbacks == PPOConfig(env="arena", callbacks=None).callbacks == ()
    )
    for given in (name, [name], (name, Clock), RewardScale(0.5)):
        config = PPOConfig(env="arena", callbacks=given)
        assert config.callbacks == (tuple(given) if isinstance(given, list | tuple) else (given,))
        assert PPOConfig.from_dict(config.to_dict()) == config
        assert hash(config.static()) == hash(config.replace(lr=1.0).static())
        assert config.static() != PPOConfig(env="arena").static()
        assert set(config.hypers()) == {"pol1", "pol2"}
    text = json.loads(json.dumps(PPOConfig(env="arena", callbacks=name).to_dict()))
    assert PPOConfig.from_dict(text).callbacks == (name,)


def test_a_program_depends_on_traced_hooks_alone():
    config = PPOConfig(env="arena", callbacks=[Host(), RewardScale(0.5)])
    assert (
        config.static()
        == config.replace(callbacks=[Host, EpisodeCallbacks, RewardScale(0.5)]).static()
    )
    (feature,) = config.build().rollout_spec.features
    assert feature.callbacks == (RewardScale(0.5),)


def test_an_entry_means_the_same_callback_in_every_program():
    entries = (f"{SCRIPT}:ArenaMetrics", Clock, RewardScale(0.5))
    callbacks, again = traced_callbacks(entries), traced_callbacks(entries)
    assert [type(callback) for callback in callbacks] == [ArenaMetrics, Clock, RewardScale]
    assert all(callback is other for callback, other in zip(callbacks, again, strict=True))


def hooks(**functions):
    """A callback class of these hooks, each without `self`."""
    methods = {
        name: lambda self, *args, function=function: function(*args)
        for name, function in functions.items()
    }
    return type("Wrong", (EpisodeCallbacks,), methods)


class Scaled(RewardScale):
    def __init__(self, scale):
        pass


class Branching(EpisodeCallbacks):
    def on_episode_step(self, data, step):
        return data if step.reward[0] > 0 else ()


class OneArgument(EpisodeCallbacks):
    def on_episode_step(self, step):
        return ()


class Timed(EpisodeCallbacks):
    def on_episode_end(self, data, episode, metrics_logger):
        with metrics_logger.log_time("seconds"):
            pass


def logs_with(**settings):
    """A callback class whose hook logs a number with these settings."""

    def on_episode_end(self, data, episode, metrics_logger):
        metrics_logger.log_value("length", episode.length, **settings)

    return type("Logging", (EpisodeCallbacks,), {"on_episode_end": on_episode_end})


def logs(*hooks, names="x"):
    """A callback class whose hooks log 1.0 under each of the names."""

    def on_episode_step(self, data, step, metrics_logger):
        metrics_logger.log_dict(dict.fromkeys(names, 1.0))
        return data

    def on_episode_end(self, data, episode, metrics_logger):
        metrics_logger.log_dict(dict.fromkeys(names, 1.0))

    def on_sample_end(self, policy, trajectory, metrics_logger):
        metrics_logger.log_dict(dict.fromkeys(names, 1.0))

    found = {hook.__name__: hook for hook in (on_episode_step, on_episode_end, on_sample_end)}
    return type("Logs", (EpisodeCallbacks,), {name: found[name] for name in hooks})


class HostOfOne:
    def on_train_result(self, result):
        pass


ends = lambda values: hooks(on_episode_end=lambda data, episode: values)
steps = lambda start, after: hooks(
    on_episode_start=lambda *_: start, on_episode_step=lambda *_: after
)
WRONG = [
    (
        f"{SCRIPT}:ArenaMetrcs",
        "unknown callbacks 'ArenaMetrcs' in module .*; did you mean 'ArenaMetrics'",
    ),
    (
        "scripts.nowhere:ArenaMetrics",
        "unknown callbacks 'scripts.nowhere:ArenaMetrics': there is no module",
    ),
    ("ArenaMetrics", "callbacks 'ArenaMetrics' must be module:Class, a class or an instance"),
    (3, "callbacks 3 have no hook such as on_train_result"),
    (dict, "callbacks class dict|callbacks {} have no hook such as"),
    ({"a": "b"}, r"callbacks \('a', 'b'\) have no hook such as"),
    (Scaled, "callbacks class Scaled: missing a required argument: 'scale'; give an instance"),
    (
        hooks(on_episode_ends=lambda: 0),
        "unknown hook 'on_episode_ends' of callbacks Wrong; did you mean 'on_episode_e",
    ),
    (
        [Clock, ends({"clock_len": 1})],
        "'clock_len' is given twice: by on_episode_end of Clock and by .* of Wrong",
    ),
    (
        [ArenaMetrics, hooks(hist_data=lambda *_: {"agent1_reward": 0})],
        "'agent1_reward' is given twice: by hist_data of ArenaMetrics and by hist_data of Wrong",
    ),
    (
        Branching,
        "on_episode_step of callbacks Branching fails as it is traced: "
        "TracerBool.*`if`.*test_episode_callbacks.py:",
    ),
    (
        hooks(on_episode_end=lambda data, episode: {"n": episode.steps}),
        "on_episode_end of callbacks Wrong .*Attribute",
    ),
    (
        OneArgument,
        r"on_episode_step of callbacks OneArgument must take \(data, step\): too many positional",
    ),
    (
        type("OfRLlib", (), {"on_episode_start": lambda self, *, worker, agent_id, **_: 0}),
        r"on_episode_start of .* OfRLlib must take \(state, params\): .*; it is compiled, on arr",
    ),
    (
        HostOfOne,
        r"on_train_result of callbacks HostOfOne must take \(trainer, result\): too many posit",
    ),
    (ends(None), "on_episode_end of Wrong must return {name: number}, not None"),
    (
        logs_with(window=10),
        "on_episode_end of Logging is compiled: log_value there takes reduce alone, no window",
    ),
    (
        logs_with(reduce="percentiles"),
        "on_episode_end of Logging is compiled: reduce='percentiles' is for hooks of the host",
    ),
    (
        logs_with(reduce="sum", with_throughput=True),
        "on_episode_end of Logging is compiled: with_throughput=True is for hooks of the host",
    ),
    (
        Timed,
        "on_episode_end of Timed is compiled: log_time measures in hooks of the host, such as",
    ),
    (
        [logs("on_episode_step"), logs("on_episode_step")],
        "'x' is given twice: by on_episode_step of Logs and by on_episode_step of Logs",
    ),
    (
        logs("on_episode_step", "on_episode_end"),
        "'x' is given twice: by on_episode_end of Logs and by on_episode_step of Logs",
    ),
    (
        logs("on_episode_step", names=["num_collisions"]),
        "'num_collisions' is given twice: by the environment's .* and by on_episode_step of Logs",
    ),
    (
        ends({"three": np.zeros(3)}),
        r"on_episode_end of Wrong: 'three' must be one number, not of shape \[3\]",
    ),
    (
        steps({"n": 0}, {"n": 0.5}),
        r"on_episode_step of Wrong must .*: data\['n'\] is int32\[\], not float32\[\]",
    ),
    (steps(np.zeros(2), np.zeros((2, 1))), r"data is float32\[2\], not float32\[2, 1\]"),
    (
        steps({"n": 0}, None),
        r"on_episode_step of Wrong must return the data in the form .*'n'.*, not PyTreeDef\(None\)",
    ),
]


test_callbacks_that_cannot_work_are_refused_in_one_line_before_anything_is_compiled = refused_by(
    lambda callbacks: make_train(CONFIG.replace(callbacks=callbacks)), WRONG
)


def test_a_name_may_be_returned_for_episodes_and_for_steps():
    both = hooks(on_episode_end=lambda *_: {"x": 1.0}, hist_data=lambda *_: {"x": 2.0})
    (feature,) = CONFIG.replace(callbacks=both).build().rollout_spec.features
    assert (feature.metrics, feature.reductions) == (("x",), ())


def learn_from(rewrite):
    learn_with(hooks(on_postprocess_trajectory=rewrite))


test_columns_of_rllibs_batches_that_a_trajectory_lacks_are_answered_with_the_words_here = (
    refused_by(
        learn_from,
        [
            (lambda policy, batch: batch["advantages"], "no 'advantages': they are computed after"),
            (
                lambda policy, batch: batch["new_obs"],
                "no 'new_obs': name next_obs among the hook's",
            ),
            (
                lambda policy, batch: batch["next_obs"],
                "no 'next_obs': name next_obs among the hook's",
            ),
            (lambda policy, batch: batch["truncateds"], "no 'truncateds': trajectory.done & ~"),
            (
                lambda policy, batch: batch["reward_s"],
                "unknown column 'reward_s' of a trajectory; did",
            ),
            (lambda policy, batch: batch[0], "unknown column '0' of a trajectory"),
            (
                lambda policy, batch: batch.rewards,
                "SampleBatch has no 'rewards': RLlib's name for rew",
            ),
            (
                lambda policy, batch: batch.policy_batches,
                "the hook is called for each policy by itse",
            ),
            (
                lambda policy, batch: batch.__setitem__("rewards", 0),
                r"not changed in place: return trajectory.replace\(reward=...\)",
            ),
        ],
    )
)


def learn_with(*callbacks):
    algorithm = CONFIG.replace(callbacks=callbacks).build()
    jax.eval_shape(algorithm.update, jax.eval_shape(algorithm.init, KEY))


test_numbers_of_a_trajectory_that_would_replace_others_are_refused_in_one_line = refused_by(
    learn_with,
    [
        (
            logs("on_sample_end"),
            logs("on_sample_end"),
            "'x' is given twice: by on_sample_end of Logs and by on_sample_end of Logs",
        ),
        (
            logs("on_sample_end", names=["total_loss"]),
            "'total_loss' of on_sample_end of Logs is a number of the result itself",
        ),
    ],
)


test_a_logged_name_of_the_results_is_refused_before_anything_is_compiled = refused_by(
    lambda callbacks: Trainer(
        CONFIG.replace(env="arena", callbacks=callbacks), run_dir=None, quiet=True
    ).result_names(),
    [
        (
            logs("on_episode_end", names=["num_episodes"]),
            "on_episode_end logs 'num_episodes', which the result has already: rename it",
        ),
        (
            logs("on_episode_step", names=["agent_steps"]),
            "on_episode_step logs 'agent_steps', which the result has already: rename it",
        ),
        (
            logs("on_sample_end", names=["num_trainable_parameters"]),
            "'num_trainable_parameters' is a number of the result itself",
        ),
        (
            [logs("on_episode_end"), logs("on_episode_step", names=["x/y"])],
            "on_episode_step logs 'x', which the result has already: rename it",
        ),
    ],
)


test_a_trajectory_of_another_form_is_refused_in_one_line = refused_by(
    learn_from,
    [
        (
            lambda policy, trajectory: None,
            r"must return the trajectory in the form .*, not PyTreeDef\(None\)",
        ),
        (
            lambda policy, trajectory: trajectory.replace(reward=trajectory.reward[..., 0]),
            r"trajectory\.reward is float32\[16, 4, 1\], not float32\[16, 4\]",
        ),
        (
            lambda policy, trajectory: trajectory.replace(active=trajectory.reward),
            r"trajectory\.active is bool\[16, 4, 1\], not float32\[16, 4, 1\]",
        ),
    ],
)
