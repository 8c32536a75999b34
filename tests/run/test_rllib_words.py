"""RLlib's words for what a user does with a configuration, a trainer, a result and a policy.

Each works, or is refused in one line that names ours.
"""

import pickle

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl import PPOConfig, UsageError
from jaxrl.core.foreign_names import CALLS, LIBRARIES, library_file, names_of
from jaxrl.core.metrics_logger import MetricsLogger
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.rollout.sample_batch import SampleBatch
from jaxrl.run.results import ResultTree
from jaxrl.sweeps.outcomes import TrialResult
from jaxrl.sweeps.results import Sweep
from tests.messages import refused

OBS = [3, 4]


def test_a_configuration_can_be_read_by_names_and_made_without_an_environment():
    config = PPOConfig()
    assert config["lr"] == config.lr == 5e-5
    assert PPOConfig.from_dict(config.to_dict()) == config
    assert config.replace(env="arena") == PPOConfig(env="arena")
    assert not hasattr(config, "training") and not hasattr(config, "_private")
    assert pickle.loads(pickle.dumps(config)) == config


test_rllibs_words_for_a_configuration_are_answered_with_the_words_here = refused(
    [
        (lambda: PPOConfig().environment("cartpole"), r"PPOConfig has no 'environment': settings"),
        (lambda: PPOConfig(env="arena").training(lr=1), r"no 'training': settings are arguments"),
        (lambda: PPOConfig(env="arena").build_algo(), r"no 'build_algo': jaxrl.Trainer\(config\)"),
        (lambda: PPOConfig(env="arena").build().train(), r"Algorithm has no 'train': .*Trainer"),
        (lambda: PPOConfig().update({}), r"no 'update': RLlib's name for replace"),
        (lambda: PPOConfig()["num_sgd_iter"], "RLlib's name for num_epochs"),
        (lambda: PPOConfig().overrides(lr=1), "RLlib's name for per_policy"),
        (lambda: PPOConfig().items(), r"RLlib's name for to_dict; config.to_dict\(\).items"),
        (lambda: PPOConfig().lrr, "PPOConfig has no 'lrr'; did you mean 'lr'"),
        (lambda: PPOConfig().__setitem__("lr", 1), r"config.replace\(lr=1\) is a changed copy"),
        (lambda: PPOConfig().setup(), "env is missing: a name such as 'arena'"),
        (lambda: jaxrl.Trainer(PPOConfig(), run_dir=None), "env is missing"),
        (lambda: jaxrl.make_train(PPOConfig()), "env is missing"),
    ]
)


def test_old_names_of_results_are_answered_with_the_present_ones(trained):
    result = trained.last_result
    assert isinstance(result, dict) and result["training_iteration"] == 3
    for tree in (result, result["env_runners"]):
        with pytest.raises(KeyError, match="RLlib's name for env_runners/episode_return_mean"):
            tree["episode_reward_mean"]
    with pytest.raises(KeyError, match="'info': RLlib's name for learners"):
        result["info"]["learner"]
    with pytest.raises(KeyError, match="did you mean 'env_runners/episode_return_mean'"):
        result["episode_return_mean"]
    assert result.get("episode_reward_mean") is None and "info" not in result
    with pytest.raises(KeyError, match="before an episode has ended"):
        ResultTree({"num_episodes": 0})["episode_return_mean"]


def test_weights_of_some_policies_can_be_asked_for(trained):
    every = trained.get_weights()
    (name, weights), *others = trained.get_weights(["pol2"]).items()
    assert name == "pol2" and not others and set(every) == {"pol1", "pol2"}
    jax.tree.map(np.testing.assert_array_equal, weights, every["pol2"])


def test_weights_can_be_taken_from_a_policy(trained):
    before = trained.get_weights()
    try:
        trained.set_weights({"pol1": trained.get_policy("pol2")})
        now = trained.get_weights()["pol1"]
        jax.tree.map(np.testing.assert_array_equal, now, before["pol2"])
    finally:
        trained.set_weights(before)


def test_a_single_action_is_drawn_as_the_policy_acts_or_is_the_likeliest(trained):
    policy = trained.get_policy("pol1")
    greedy = trained.compute_single_action(OBS, policy_id="pol1", explore=False)
    assert greedy == policy.act(OBS)
    drawn = {int(trained.compute_single_action(OBS, policy_id="pol1")) for _ in range(40)}
    assert len(drawn) > 1
    assert trained.compute_action(OBS, policy_id="pol1", explore=False) == greedy
    told = {"prev_action": 1, "info": {}, "explore": False}
    assert trained.compute_single_action(OBS, policy_id="pol1", **told) == greedy
    assert trained.iteration == trained.lifetime.training_iteration == 3


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda t: t.restore("x"), r"Trainer has no 'restore': .*Trainer.from_checkpoint\(path\)"),
        (
            lambda t: t.evaluate(episodes=1)["evaluation"],
            r"trainer.evaluate\(\) returns what is in",
        ),
        (
            lambda t: t.evaluate(episodes=1)["episode_reward_mean"],
            "env_runners/episode_return_mean",
        ),
        (lambda t: t.last_result["config"], "trainer.config, and config.json"),
        (lambda t: t.last_result["custom_metrics"], "RLlib's name for env_runners/custom_metrics"),
        (
            lambda t: t.last_result["timers"]["env_runner_sampling_timer"],
            r"trainer.profile\(\)\['timers'\] measures them apart",
        ),
        (lambda t: t.last_result["cpu_util_percent"], "in perf, where psutil is installed"),
        (
            lambda t: t.last_result["timesteps_this_iter"],
            "RLlib's name for env_runners/num_env_steps_sampled",
        ),
        (
            lambda t: t.last_result["policy_reward_min"],
            "RLlib's name for env_runners/module_episode_returns_min",
        ),
        (lambda t: t.last_result["env_runners"]["hist_stats"], "it is at the top of a result"),
        (lambda t: t.last_result["timers"]["x"], r"unknown result 'x'; known: iteration$"),
        (lambda t: t.get_weights(["pol3"]), "unknown policy 'pol3'"),
        (lambda t: t.last_result["fault_tolerance"], "no worker processes that could be lost"),
        (
            lambda t: t.last_result["num_env_steps_sampled_lifetime_throughput"],
            "RLlib's name for perf/env_steps_per_s",
        ),
        (lambda t: t.sample(num_timesteps=0), "num_timesteps=0 must be"),
        (
            lambda t: t.last_result["env_runners"]["episode_duration_sec_mean"],
            "not measured: episodes have a length in steps",
        ),
        (lambda t: t.get_policy("pol1").model, r"policy.distribution\(observation\).logits"),
        (lambda t: t.get_policy("pol1").get_session(), "there is no session"),
        (lambda t: t.add_policy("p"), "fixed before it is compiled: `policies` may name more than"),
        (
            lambda t: t.evaluation_workers,
            r"there are no workers: evaluate\(episodes=..., env_args=",
        ),
        (lambda t: t.logdir, "RLlib's name for run_dir"),
        (lambda t: t.save("checkpoints"), "save takes no folder: it writes into run_dir"),
        (lambda t: t.training_iteration, "RLlib's name for iteration"),
        (lambda t: t.get_state(), r"RLlib's name for runner; .*; save\(\) writes it"),
        (lambda t: t.restore_from_path("x"), r"Trainer.from_checkpoint\(path\)"),
        (lambda t: t.import_policy_model_from_h5("x"), "RLlib's name for set_weights; docs/"),
        (lambda t: t.trian(), "Trainer has no 'trian'; did you mean 'train'"),
        (lambda t: t.compute_single_action(OBS), "holds 2 policies; name one of them"),
        (
            lambda t: t.compute_single_action(OBS, state=[0], policy_id="pol1"),
            r"takes no state: get_policy\(policy\).act remembers by itself",
        ),
        (
            lambda t: t.compute_single_action(OBS, full_fetch=True, policy_id="pol1"),
            "takes no full_fetch",
        ),
        (lambda t: t.get_policy("pol1").compute_single_action(OBS), "RLlib's name for act"),
        (lambda t: t.get_policy("pol1").get_weights(), "for params; Trainer.set_weights"),
        (
            lambda t: t.get_policy("pol1").distribution(OBS).sample(),
            r"sample takes a random key: distribution.sample\(jax.random.key\(0\)\)",
        ),
    ],
)
def test_rllibs_words_for_a_trainer_and_a_policy_are_answered_with_ours(trained, ask, message):
    with pytest.raises(UsageError, match=message) as error:
        ask(trained)
    assert "\n" not in str(error.value)


@pytest.mark.long
def test_episodes_are_sampled_until_they_have_so_many_steps_together(trained):
    episodes = trained.sample(num_timesteps=25)  # of the arena's 20 steps each
    assert [len(episode) for episode in episodes] == [20, 20]
    assert [len(episode) for episode in trained.sample(1, num_timesteps=25)] == [20]
    assert len(trained.sample()) == 1


@pytest.mark.long
def test_policies_that_play_nobody_are_kept_and_shown_and_change_nothing(small):
    named = {"pol1": ["agent1"], "pol2": ["agent2"]}
    plain, idle = (small.replace(policies={**named, **more}) for more in ({}, {"spare": []}))
    idle = idle.replace(policies_to_train=["pol1", "spare"], per_policy={"spare": {"lr": 1.0}})
    assert idle.to_dict()["policies"]["spare"] == ()
    assert PPOConfig.from_dict(idle.to_dict()) == idle
    assert "spare plays nobody" in idle.describe()
    assert idle.setup().idle == ("spare",) and idle.setup().trained == ("pol1",)
    assert set(idle.hypers()) == {"pol1", "pol2"}
    message = r"policies_to_train=\['spare'\]: these play nobody; the .* play are pol1, pol2$"
    with pytest.raises(UsageError, match=message):
        idle.replace(policies_to_train=["spare"]).setup()
    runs = [
        jax.jit(jaxrl.make_train(config))(jax.random.key(0))[0].learners
        for config in (plain.replace(policies_to_train=["pol1"]), idle)
    ]
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), *runs))
    trainer = jaxrl.Trainer(idle, run_dir=None, quiet=True)
    with pytest.raises(UsageError, match="policy 'spare' plays nobody, so it has no spaces"):
        trainer.get_policy("spare")


def test_logp_is_the_log_probability_by_rllibs_name(trained):
    distribution = trained.get_policy("pol1").distribution(OBS)
    assert distribution.logp(1) == distribution.log_prob(1)
    several = trained.get_policy("pol1").distribution([OBS, OBS])
    assert several.logp([1, 2]).tolist() == [distribution.logp(1), distribution.logp(2)]
    with pytest.raises(UsageError, match="log_prob takes actions of Discrete"):
        several.logp([1, 4])
    assert distribution.sample(jax.random.key(0)) in range(4)


def test_what_is_printed_says_what_it_is(trained):
    name = "Trainer arena: after iteration 3, 192 steps, return "
    assert repr(trained).startswith(f"<{name}") and repr(trained).endswith(f"{trained.run_dir}>")
    policy = trained.get_policy("pol1")
    assert repr(policy).startswith("<Policy 'pol1' of arena playing agent1: MultiDiscrete")
    assert repr(pickle.loads(pickle.dumps(policy))).startswith("<Policy 'pol1' playing agent1: ")


def test_a_sweep_of_many_trials_is_printed_in_one_line():
    class Trial:
        def __init__(self, lr):
            self.settings, self.seed = {"lr": lr}, 0

    result = {"training_iteration": 5, "env_runners": dict.fromkeys(map(str, range(100)), 0.0)}
    outcomes = [TrialResult(Trial(lr), "terminated", result, 10 * lr) for lr in (0.1, 0.2)]
    best = "<TrialResult lr=0.2: terminated, 5 iterations, score 2>"
    sweep = Sweep(outcomes, "x", None)
    assert repr(sweep) == f"<Sweep of 2 trials by x, the best {best}>"
    assert repr(Sweep([], "x", None)) == "<Sweep of 0 trials by x>"
    with pytest.raises(UsageError, match=r"Sweep has no 'get_best_result': .* best_trial"):
        sweep.get_best_result()
    assert list(sweep) == outcomes and len(sweep) == 2 and sweep[1] is outcomes[1]
    with pytest.raises(UsageError, match="Sweep has no 'best_result': RLlib's name for best_trial"):
        assert sweep.best_result
    with pytest.raises(UsageError, match="Sweep has no 'trials': RLlib's name for outcomes"):
        sweep.trials[0]
    with pytest.raises(UsageError, match=r"TrialResult has no 'checkpoint': .* folder; load_"):
        assert sweep.outcomes[0].checkpoint


test_words_of_ray_for_the_package_are_answered_with_the_ones_here = refused(
    [
        (
            lambda: jaxrl.register_env("x", dict),
            "has no 'register_env': RLlib's name for jaxrl.reg",
        ),
        (lambda: jaxrl.Tuner("PPO"), "RLlib's name for jaxrl.sweep; jaxrl.from_rllib"),
        (lambda: jaxrl.DEFAULT_CONFIG.copy(), r"RLlib's name for jaxrl.PPOConfig\(\)"),
        (lambda: jaxrl.PPOTrainer(env="x"), r"jaxrl.Trainer\(jaxrl.PPOConfig\(env=...\)\)"),
        (lambda: jaxrl.DQNConfig(), "PPOConfig, BCConfig and MARWILConfig are here; docs/algo"),
        (lambda: jaxrl.PolicySpec(), r"policies=\{policy: \[agents\]\} and per_policy"),
        (lambda: jaxrl.PolicyClient, "docs/serving.md"),
        (lambda: jaxrl.MultiCallbacks, r"callbacks=\(First, Second\) calls both"),
        (lambda: jaxrl.PPOConfg(), "jaxrl has no 'PPOConfg'; did you mean 'PPOConfig'"),
    ]
)


def test_a_name_that_the_package_lacks_can_be_asked_for():
    assert not hasattr(jaxrl, "register_env") and not hasattr(jaxrl, "__wrapped__")
    with pytest.raises(ImportError, match="cannot import name 'register_env'"):
        exec("from jaxrl import register_env")


def test_what_is_said_of_a_call_is_said_of_one_that_does_not_exist():
    """A method of ours never has a line that leads away from it."""
    classes = {"Trainer": jaxrl.Trainer, "PPOConfig": PPOConfig, "Policy": jaxrl.Policy}
    classes |= {"SampleBatch": SampleBatch, "Episode": MultiAgentEpisode}
    classes |= {"MetricsLogger": MetricsLogger}
    classes |= {found.__name__: found for found in (SingleAgentEpisode, MultiAgentEpisode)}
    tables = {table for library in LIBRARIES for table in library_file(library)}
    calls = {table.removeprefix(f"{CALLS} ") for table in tables if table.startswith(CALLS)}
    assert calls == {*classes, "Algorithm", "Sweep", "TrialResult", "jaxrl"}
    for owner, found in {**classes, "jaxrl": jaxrl, "TrialResult": TrialResult}.items():
        for name in names_of("RLlib", f"{CALLS} {owner}"):
            assert not hasattr(found, name), f"{owner} has {name}"
