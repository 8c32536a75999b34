"""Off-policy estimators: two steps by hand, a tabular oracle, and recorded episodes end to end."""

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl import Policy, UsageError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.models.policy_spec import PolicySpec, PolicyWeights
from jaxrl.offline.estimators import (
    ESTIMATORS,
    WeightedSteps,
    effective_sample_size,
    weighted_steps,
)
from jaxrl.offline.judged_episodes import judge_episodes
from jaxrl.ops.distributions import Categorical, from_logits
from jaxrl.play.evaluate import evaluate_and_record
from jaxrl.play.host_episodes import EpisodeRange, Players
from tests.messages import refusal, refused_by
from tests.play.test_recording import untrained
from tests.play.test_sampling import episodes_of, players
from tests.probes import Joining
from tests.programs import write_episodes

UNBIASED = ("importance_sampling", "per_decision_importance_sampling", "doubly_robust")


# Two episodes of two steps, by hand; gamma is 0.5, and the arrays are discounted


BY_HAND = WeightedSteps(
    log_weights=np.log([[2.0, 1.0], [0.5, 0.5]]),  # ratios 2, 1/2 and 1/2, 1
    lengths=np.array([2, 2]),
    rewards=np.array([[1.0, 1.0], [0.0, 2.0]]),  # r = 1, 2 and 0, 4
    values=np.array([[2.0, 0.5], [1.0, 1.0]]),  # V = 2, 1 and 1, 2
    action_values=np.array([[1.0, 1.0], [2.0, 1.5]]),  # Q = 1, 2 and 2, 3
)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("importance_sampling", (1 * 2 + 0.5 * 2) / 2),
        ("weighted_importance_sampling", (1 * 2 + 0.5 * 2) / 1.5),
        ("per_decision_importance_sampling", ((2 * 1 + 1 * 1) + (0 + 0.5 * 2)) / 2),
        ("weighted_per_decision_importance_sampling", 2 / 2.5 + (1 * 1 + 0.5 * 2) / 1.5),
        ("direct_method", (2 + 1) / 2),
        # r + gamma V' - Q: 1 + 0.5 - 1 and 1 - 1; 0 + 1 - 2 and 2 - 1.5
        ("doubly_robust", ((2 + 2 * 0.5 + 1 * 0) + (1 + 0.5 * -1 + 0.5 * 0.5)) / 2),
        ("weighted_doubly_robust", 1.5 + (2 * 0.5 + 0.5 * -1) / 2.5 + (1 * 0 + 0.5 * 0.5) / 1.5),
    ],
)
def test_each_estimate_of_two_steps_is_the_one_by_hand(method, expected):
    assert ESTIMATORS[method](BY_HAND).estimate() == pytest.approx(expected)


def test_effective_episodes_of_two_steps_are_those_by_hand():
    last = 1.5**2 / 1.25  # weights 1 and 1/2
    assert effective_sample_size("importance_sampling", BY_HAND) == pytest.approx(last)
    first = 2.5**2 / 4.25  # weights 2 and 1/2
    per_step = effective_sample_size("doubly_robust", BY_HAND)
    assert per_step == pytest.approx((first + last) / 2)
    assert effective_sample_size("direct_method", BY_HAND) == 2


# A tabular oracle: all trajectories of a random process


@dataclass(frozen=True)
class Process:
    """Two states and an end; two actions; at most three steps."""

    start: np.ndarray  # [S]
    move: np.ndarray  # [S, A, S + 1]; the last is the end
    reward: np.ndarray  # [S, A, S + 1]
    behaviour: np.ndarray  # [S, A]
    target: np.ndarray  # [S, A]
    gamma: float = 0.9
    horizon: int = 3

    def trajectories(self):
        """(probability under the behaviour, states, actions, rewards)."""
        under_way = [(p, [s], [], []) for s, p in enumerate(self.start)]
        while under_way:
            p, states, actions, rewards = under_way.pop()
            for action, after in itertools.product(range(2), range(3)):
                state = states[-1]
                chance = p * self.behaviour[state, action] * self.move[state, action, after]
                reward = self.reward[state, action, after]
                step = (chance, [*states, after], [*actions, action], [*rewards, reward])
                if after == 2 or len(actions) + 1 == self.horizon:
                    yield chance, states, step[2], step[3]
                else:
                    under_way.append(step)

    def value(self):
        """The target's, by going backwards in time."""
        values = np.zeros(3)
        for _ in range(self.horizon):
            action_values = np.sum(self.move * (self.reward + self.gamma * values), axis=-1)
            values = np.append(np.sum(self.target * action_values, axis=-1), 0.0)
        return self.start @ values[:2]


def draw_process(seed):
    generator = np.random.default_rng(seed)
    return Process(
        start=generator.dirichlet(np.ones(2)),
        move=generator.dirichlet(np.ones(3), (2, 2)),
        reward=generator.normal(size=(2, 2, 3)),
        behaviour=generator.dirichlet(np.full(2, 2.0), 2),
        target=generator.dirichlet(np.full(2, 2.0), 2),
    )


def steps_of_trajectories(process, action_values):
    """(probabilities, WeightedSteps) of all trajectories, with a given Q [T, S, A]."""
    chances, states, actions, rewards = zip(*process.trajectories(), strict=True)
    lengths = np.array([len(each) for each in actions])
    shape = len(lengths), process.horizon
    log_ratios, filled, values, q = (np.zeros(shape) for _ in range(4))
    state_values = np.sum(process.target * action_values, axis=-1)  # [T, S]
    for i, length in enumerate(lengths):
        s, a, t = states[i][:length], actions[i], np.arange(length)
        log_ratios[i, :length] = np.log(process.target[s, a] / process.behaviour[s, a])
        filled[i, :length] = process.gamma**t * rewards[i]
        values[i, :length] = process.gamma**t * state_values[t, s]
        q[i, :length] = process.gamma**t * action_values[t, s, a]
    steps = WeightedSteps(np.cumsum(log_ratios, axis=1), lengths, filled, values, q)
    return np.array(chances), steps


@pytest.mark.parametrize("seed", range(5))
def test_over_all_trajectories_unbiased_estimates_average_to_the_true_value(seed):
    process = draw_process(seed)
    any_values = np.random.default_rng(seed + 100).normal(size=(process.horizon, 2, 2))
    chances, steps = steps_of_trajectories(process, any_values)
    assert chances.sum() == pytest.approx(1.0)
    for method in UNBIASED:
        of_each = ESTIMATORS[method](steps)
        np.testing.assert_array_equal(of_each.denominators, 1.0)
        assert chances @ of_each.numerators[:, 0] == pytest.approx(process.value()), method


def test_weighted_forms_converge_to_the_true_value():
    """Each trajectory as often as its probability says: what infinitely many episodes give."""
    process = draw_process(3)
    any_values = np.random.default_rng(7).normal(size=(process.horizon, 2, 2))
    chances, steps = steps_of_trajectories(process, any_values)
    for method in ESTIMATORS.keys() - {*UNBIASED, "direct_method"}:
        sums = ESTIMATORS[method](steps)
        ratios = (chances @ sums.numerators) / (chances @ sums.denominators)
        assert ratios.sum() == pytest.approx(process.value()), method


def test_with_exact_values_doubly_robust_has_less_variance_than_importance_sampling():
    process = draw_process(1)
    exact, after = np.zeros((process.horizon, 2, 2)), np.zeros(3)
    for t in reversed(range(process.horizon)):
        exact[t] = np.sum(process.move * (process.reward + process.gamma * after), axis=-1)
        after = np.append(np.sum(process.target * exact[t], axis=-1), 0.0)
    chances, steps = steps_of_trajectories(process, exact)
    variance = {}
    for method in UNBIASED:
        estimates = ESTIMATORS[method](steps).numerators[:, 0]
        variance[method] = chances @ (estimates - process.value()) ** 2
    assert variance["doubly_robust"] < 0.8 * variance["per_decision_importance_sampling"]
    assert variance["per_decision_importance_sampling"] < variance["importance_sampling"]


# Recorded episodes and policies


@dataclass(frozen=True)
class Table:
    """A model whose logits are looked up by the observation."""

    num_actions: int = 2

    def init(self, key):
        return jnp.zeros((3, self.num_actions))

    def apply(self, params, obs):
        return Categorical(params[obs]), jnp.zeros(obs.shape)


def policy_of(probabilities, name="default_policy", **settings):
    """A policy with these action probabilities, [3, A], of the observations 0, 1 and 2."""
    probabilities = np.array(probabilities, np.float32)
    spec = PolicySpec(Table(probabilities.shape[1]), Discrete(3), Discrete(probabilities.shape[1]))
    return Policy(spec, PolicyWeights(np.log(probabilities)), name=name, **settings)


TARGET = policy_of([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1]])
BEHAVIOUR = np.array([[0.5, 0.5], [0.25, 0.75], [0.4, 0.6]])


def episode_of(observations, actions, rewards, **changes):
    logp = np.log(BEHAVIOUR[observations[:-1], actions])
    settings = {"terminated": True, "extra_model_outputs": {"action_logp": logp}} | changes
    return SingleAgentEpisode(
        observations=np.array(observations),
        actions=np.array(actions),
        rewards=np.array(rewards, float),
        len_lookback_buffer=0,
        **settings,
    )


def drawn_episodes(number, seed=0, behaviour=BEHAVIOUR):
    """Up to four steps on a ring of three states; action 1 moves on and is rewarded in state 0."""
    generator = np.random.default_rng(seed)
    episodes = []
    for _ in range(number):
        states, actions, rewards = [int(generator.integers(3))], [], []
        while len(actions) < 4 and (not actions or generator.random() < 0.9):
            actions.append(int(generator.random() < behaviour[states[-1], 1]))
            rewards.append(float(actions[-1] * (states[-1] == 0)) + generator.normal(scale=0.1))
            states.append((states[-1] + actions[-1]) % 3)
        logp = np.log(behaviour[states[:-1], actions])
        outputs = {"action_logp": logp}
        episodes.append(episode_of(states, actions, rewards, extra_model_outputs=outputs))
    return episodes


def true_return(policy):
    """Of the ring, by the distribution over states."""
    act = np.exp(policy.distribution(np.arange(3)).log_prob(np.ones(3, np.int32)))
    states, total = np.full(3, 1 / 3), 0.0
    for _ in range(4):
        total += states[0] * act[0]
        states = 0.9 * (states * (1 - act) + np.roll(states * act, 1))
    return total


TWO = [episode_of([0, 1, 2], [1, 0], [1.0, 2.0]), episode_of([2, 2], [0], [4.0])]


def test_ratios_are_those_of_the_policy_and_of_what_was_recorded():
    judged = judge_episodes(TWO, TARGET)
    expected = [[0.8 / 0.5, 0.5 / 0.25], [0.9 / 0.4, 1.0]]
    np.testing.assert_allclose(np.exp(judged.log_ratios), expected, rtol=1e-6)
    np.testing.assert_array_equal(judged.rewards, [[1, 2], [4, 0]])
    steps = weighted_steps(judged, gamma=0.5)
    np.testing.assert_allclose(np.exp(steps.log_weights), [[1.6, 3.2], [2.25, 2.25]], rtol=1e-6)
    np.testing.assert_array_equal(steps.rewards, [[1, 1], [4, 0]])


def test_a_table_has_a_row_for_each_method_by_hand():
    table = jaxrl.estimate_return(TWO, TARGET, method=["importance_sampling"], gamma=0.5)
    assert table["importance_sampling"].estimate == pytest.approx((3.2 * 2 + 2.25 * 4) / 2)
    assert (table.num_episodes, table.mean_return, len(table)) == (2, 3.0, 1)
    text = str(table).splitlines()
    assert text[0] == (
        "2 episodes, recorded return 3.00 (gamma 0.5); 95% intervals (bca bootstrap)"
    )
    assert text[1].split() == ["method", "estimate", "low", "high", "effective"]
    assert text[2].split()[:2] == ["importance_sampling", "7.70"]
    assert len(text) == 3 and table.warnings == ()  # 1.9 of 2 episodes are effective


def test_the_policy_that_played_has_the_plain_mean_return():
    same = policy_of(BEHAVIOUR)
    episodes = drawn_episodes(60)
    table = jaxrl.estimate_return(episodes, same)
    mean = np.mean([episode.get_return() for episode in episodes])
    for row in table:
        if row.method not in ("direct_method", "doubly_robust", "weighted_doubly_robust"):
            assert row.estimate == pytest.approx(mean, rel=1e-5), row
        assert row.low < mean < row.high, row
        assert row.effective_sample_size == pytest.approx(60, rel=1e-5)
    assert table.warnings == ()


@pytest.fixture(scope="module")
def ring():
    """(the estimates of 400 episodes of the ring, the true return)."""
    return jaxrl.estimate_return(drawn_episodes(400), TARGET), true_return(TARGET)


def test_intervals_hold_the_true_return_and_fitted_values_narrow_them(ring):
    table, truth = ring
    assert truth == pytest.approx(0.5, abs=0.3)
    width = {row.method: row.high - row.low for row in table}
    for row in table:
        assert row.low < row.estimate < row.high
        if row.method != "direct_method":
            assert row.low < truth < row.high, row
    assert width["doubly_robust"] < 0.8 * width["per_decision_importance_sampling"]
    assert width["per_decision_importance_sampling"] < width["importance_sampling"]
    assert table["direct_method"].estimate == pytest.approx(truth, abs=0.05)


def test_uneven_weights_are_warned_of():
    surer = policy_of([[0.02, 0.98], [0.02, 0.98], [0.98, 0.02]])
    table = jaxrl.estimate_return(drawn_episodes(100), surer)
    assert table["importance_sampling"].effective_sample_size < 40
    warning = table.warnings[0]
    size = table["importance_sampling"].effective_sample_size
    assert f"worth {size:.1f} of 100 episodes, so all intervals are too narrow" in warning
    direct = jaxrl.estimate_return(drawn_episodes(100), surer, method="direct_method")
    assert direct.warnings == ()
    assert f"\nwarning: {warning}" in str(table)


def test_episodes_that_the_judged_policy_would_never_play_are_warned_of():
    """Their weights are even, and next to 0."""
    never = policy_of([[1.0, 1e-30], [0.5, 0.5], [0.5, 0.5]])
    table = jaxrl.estimate_return([episode_of([0, 1], [1], [1.0])] * 4, never)
    assert table["importance_sampling"].effective_sample_size == pytest.approx(4)
    (warning,) = table.warnings
    assert warning.startswith("the weights average 2e-30 instead of 1")


def test_the_order_of_episodes_does_not_matter_to_methods_without_a_fit():
    episodes = drawn_episodes(50)
    methods = [name for name in ESTIMATORS if "sampling" in name]
    there = jaxrl.estimate_return(episodes, TARGET, method=methods)
    back = jaxrl.estimate_return(episodes[::-1], TARGET, method=methods)
    for row, other in zip(there, back, strict=True):
        assert row.estimate == pytest.approx(other.estimate)
        assert row.effective_sample_size == pytest.approx(other.effective_sample_size)


def test_twice_the_rewards_are_twice_the_estimates_and_intervals():
    episodes = drawn_episodes(50)
    twice = [SingleAgentEpisode.from_state(episode.get_state()) for episode in episodes]
    for episode in twice:
        episode.set_rewards(new_data=2 * episode.get_rewards())
    tables = [jaxrl.estimate_return(data, TARGET) for data in (episodes, twice)]
    for row, other in zip(*tables, strict=True):
        numbers = [(each.estimate, each.low, each.high) for each in (row, other)]
        np.testing.assert_allclose(2 * np.array(numbers[0]), numbers[1], rtol=1e-6)


def test_a_higher_level_is_a_wider_interval():
    episodes = drawn_episodes(50)
    widths = []
    for level in (0.5, 0.8, 0.99):
        row = jaxrl.estimate_return(episodes, TARGET, method="doubly_robust", level=level)
        widths.append(row["doubly_robust"].high - row["doubly_robust"].low)
    assert widths[0] < widths[1] < widths[2]


def test_a_folder_is_judged_like_its_episodes(tmp_path):
    pytest.importorskip("pyarrow", reason="the extra `offline`")
    episodes = drawn_episodes(20)
    write_episodes(tmp_path, episodes)
    method = "weighted_importance_sampling"
    assert jaxrl.estimate_return(tmp_path, TARGET, method=method) == jaxrl.estimate_return(
        iter(episodes), TARGET, method=method
    )


# Policies of every kind: what sampled an episode gives each of its actions the recorded probability


def policies_of(players):
    algorithm, weights, *_ = players
    policies = {}
    for g, group in enumerate(algorithm.grouping.groups):
        for i, policy in enumerate(group.policies):
            policies[policy] = Policy(
                algorithm.policy_specs[g],
                jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], weights[g]),
                name=policy,
                agents=group.agents[i],
                masked=algorithm.rollout_spec.masked,
            )
    return policies


@pytest.mark.long
def test_a_memory_that_is_told_the_last_action_and_reward_and_its_agent_has_ratios_of_1():
    told = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True, "agent_id_obs": True}
    small = {"use_gru": True, "lstm_cell_size": 4, "policies": "shared"}
    algorithm, weights, params = untrained(Joining(), **told, **small)
    told_players = Players(algorithm, jax.tree.map(lambda leaf: 10 * leaf, weights), params, {})
    wanted = EpisodeRange(number=3, explore=True)
    episodes = []
    evaluate_and_record(told_players, wanted, episodes.append)
    judged = judge_episodes(episodes, policies_of(told_players))
    np.testing.assert_allclose(judged.log_ratios, 0, atol=1e-4)


@pytest.mark.long
def test_a_memory_that_is_forgotten_gives_other_ratios():
    """So the policy of the test above did remember."""
    (name, policy), episodes = policies_of(players("memory")).popitem(), episodes_of("memory")
    later = [
        SingleAgentEpisode(
            observations=episode.get_observations()[1:],
            actions=episode.get_actions()[1:],
            rewards=episode.get_rewards()[1:],
            extra_model_outputs={"action_logp": episode.get_extra_model_outputs("action_logp")[1:]},
            terminated=True,
            len_lookback_buffer=0,
        )
        for episode in episodes
    ]
    assert np.abs(judge_episodes(later, {name: policy}).log_ratios).max() > 1e-3


@pytest.mark.long
def test_only_agents_whose_policy_is_judged_take_part_in_the_ratios():
    episodes, policies = episodes_of("arena"), policies_of(players("arena"))
    zeros = jax.tree.map(jnp.zeros_like, policies["pol1"].weights)
    uniform = Policy(policies["pol1"].policy_spec, zeros, name="pol1", agents=("agent1",))
    together = judge_episodes(episodes, {"pol1": uniform, "pol2": policies["pol2"]})
    alone = judge_episodes(episodes, uniform)
    np.testing.assert_allclose(together.log_ratios, alone.log_ratios, atol=1e-5)
    data = episodes[0].agent_episodes["agent1"]
    num_actions = policies["pol1"].action_space.n
    expected = -np.log(num_actions) - data.get_extra_model_outputs("action_logp")
    np.testing.assert_allclose(alone.log_ratios[0, : len(data)], expected, atol=1e-5)


def test_a_single_agents_return_is_judged_by_its_name():
    episodes, policies = episodes_of("arena"), policies_of(players("arena"))
    table = jaxrl.estimate_return(
        episodes, policies, agent="agent2", method="weighted_importance_sampling"
    )
    returns = [episode.agent_episodes["agent2"].get_return() for episode in episodes]
    assert table["weighted_importance_sampling"].estimate == pytest.approx(np.mean(returns))
    assert table.mean_return == pytest.approx(np.mean(returns))


def turns():
    """White moves at steps 0 and 2, black at step 1; white is paid for black's move as well."""
    game = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, episode: agent)
    logp = lambda agent: {agent: {"action_logp": np.log(0.5)}}
    game.add_env_reset(observations={"white": 0})
    game.add_env_step({"black": 1}, {"white": 1}, {"white": 1.0}, extra_model_outputs=logp("white"))
    game.add_env_step({"white": 2}, {"black": 0}, {"white": 3.0}, extra_model_outputs=logp("black"))
    game.add_env_step(
        {"white": 2, "black": 1},
        {"white": 1},
        {"white": 5.0, "black": 7.0},
        terminateds={"__all__": True},
        extra_model_outputs=logp("white"),
    )
    return game


def test_a_reward_that_comes_while_an_agent_waits_has_the_ratios_until_then():
    both = {name: replace_name(TARGET, name) for name in ("white", "black")}
    judged = judge_episodes([turns()], both)
    # White 0.8 / 0.5 in state 0, black 0.5 / 0.5 in state 1, white 0.1 / 0.5 in state 2.
    np.testing.assert_allclose(np.exp(judged.log_ratios), [[1.6, 1.0, 0.2]], rtol=1e-6)
    np.testing.assert_allclose(judged.rewards, [[0, 1 + 3, 5 + 7]])
    black = judge_episodes([turns()], both["black"], "black")
    np.testing.assert_allclose(np.exp(black.log_ratios), [[1, 1, 1]], rtol=1e-6)
    np.testing.assert_allclose(black.rewards, [[0, 0, 7]])


def test_an_agent_may_be_absent_from_an_episode_and_has_one_policy_in_all():
    alone = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, episode: agent)
    alone.add_env_reset(observations={"white": 0})
    logp = {"white": {"action_logp": np.log(0.5)}}
    ends = {"terminateds": {"__all__": True}, "extra_model_outputs": logp}
    alone.add_env_step({"white": 1}, {"white": 1}, {"white": 1.0}, **ends)
    both = {name: replace_name(TARGET, name) for name in ("white", "black")}
    judged = judge_episodes([turns(), alone], both)
    np.testing.assert_allclose(np.exp(judged.log_ratios), [[1.6, 1, 0.2], [1.6, 1, 1]], rtol=1e-6)
    np.testing.assert_array_equal(judged.states[-1], [1, 0, 0, 0, 0, 0])  # black has seen nothing
    other = turns()
    other.agent_episodes["white"].module_id = "grey"
    with refusal("'white' is played by policy 'white' in some episodes, by"):
        judge_episodes([turns(), other], both)


def replace_name(policy, name):
    return Policy(policy.policy_spec, policy.weights, name=name)


# Refusals


def without_logp(episode):
    return episode_of([0, 1], [1], [1.0], extra_model_outputs={})


def greedy(number):
    """Of a policy whose likeliest action was taken each time."""
    logits = np.tile(np.log([0.6, 0.4]), (10, 1)).astype(np.float32)
    outputs = {"action_logp": np.full(10, np.log(0.6)), "action_dist_inputs": logits}
    return [
        episode_of([0] * 11, [0] * 10, [1.0] * 10, extra_model_outputs=outputs)
        for _ in range(number)
    ]


def with_outputs(logp, **outputs):
    outputs = {"action_logp": np.array([logp]), **outputs}
    return [episode_of([0, 1], [1], [1.0], extra_model_outputs=outputs)] * 2


GAME = turns()
REFUSED = {
    "none": ([], TARGET, {}, "no episodes to judge from"),
    "one": (TWO[:1], TARGET, {}, "an interval needs at least 2 episodes, not 1"),
    "no logp": ([without_logp(TWO[0])] * 2, TARGET, {}, "no action_logp was recorded"),
    "some logp": ([TWO[0], without_logp(TWO[0])], TARGET, {}, "no action_logp was recorded"),
    "nan logp": (with_outputs(np.nan), TARGET, {}, "action_logp must be a finite number"),
    "logits": (
        with_outputs(-0.1, action_dist_inputs=np.zeros((1, 2), np.float32)),
        *(TARGET, {}, "action_logp is not the log-probability of the recorded actions"),
    ),
    "units": (with_outputs(-90.0), TARGET, {}, "which chance does not give"),
    "greedy": (greedy(5), TARGET, {}, "record with explore=True"),
    "mixed": ([TWO[0], GAME], TARGET, {}, "episodes of one agent and of several are mixed"),
    "no episode": ([1], TARGET, {}, "expected episodes of jaxrl.episodes, not 1"),
    "a number": (3, TARGET, {}, "episodes are a folder, or a list of episodes, not 3"),
    "chunk": ([TWO[0][1:]], TARGET, {}, "does not begin with its reset"),
    "not ended": ([TWO[0][:1]], TARGET, {}, "has not ended"),
    "no policy": (TWO, "runs/cartpole", {}, "is a jaxrl.Policy, as jaxrl.load_policy gives it"),
    "no policies": (TWO, {}, {}, "no policy to judge"),
    "other name": (TWO, {"pol1": TARGET}, {}, "unknown policy 'pol1' in the episodes"),
    "other agents": ([GAME] * 2, TARGET, {}, "unknown policy 'default_policy' in the episodes"),
    "agent": (TWO, TARGET, {"agent": "agent3"}, "unknown agent 'agent3' in the episodes"),
    "actions": (
        *(TWO, policy_of([[1.0], [1.0], [1.0]]), {}),
        "policy 'default_policy', agent 'default_agent': an action is not in its space Discrete",
    ),
    "last observation": (
        *([episode_of([0, 3], [1], [1.0])] * 2, TARGET, {"method": "direct_method"}),
        "an observation is not in its space Discrete(n=3)",
    ),
    "mask": (
        *(TWO, policy_of(BEHAVIOUR, masked=True), {}),
        "no action_mask was recorded, the possible actions, which it reads",
    ),
    "method": (TWO, TARGET, {"method": "double_robust"}, "did you mean 'doubly_robust'?"),
    "methods": (TWO, TARGET, {"method": 3}, "method is a name, a list of names or None, not 3"),
    "gamma": (TWO, TARGET, {"gamma": 1.5}, "gamma=1.5 must be a number in [0, 1]"),
    "level": (TWO, TARGET, {"level": 95}, "level=95 must be a number in [0.5, 0.999]"),
    "interval": (
        TWO,
        TARGET,
        {"interval": "bcs"},
        "unknown interval 'bcs'; known: bca, percentile",
    ),
    "folds": (TWO, TARGET, {"folds": 1}, "folds=1 must be an integer of at least 2"),
}


test_what_cannot_be_judged_is_refused_in_one_line = refused_by(
    lambda episodes, policy, options: jaxrl.estimate_return(episodes, policy, **options),
    REFUSED,
    literal=True,
)


def test_actions_in_the_environments_units_do_not_fit_their_log_probabilities():
    """A Box's actions as the environment got them, beside the density of those that were drawn."""

    @dataclass(frozen=True)
    class Plain:
        def init(self, key):
            return jnp.zeros(2)

        def apply(self, params, obs):
            logits = jnp.broadcast_to(params, (*obs.shape[:-1], 2))
            return from_logits(Box(-3, 3, (1,)), logits), obs[..., 0]

    policy = Policy(
        PolicySpec(Plain(), Box(-1, 1, (1,)), Box(-3, 3, (1,))), PolicyWeights(np.zeros(2))
    )
    drawn = np.random.default_rng(0).normal(size=(50, 1)).astype(np.float32)
    outputs = {
        "action_logp": -0.5 * drawn[:, 0] ** 2 - 0.5 * np.log(2 * np.pi),
        "action_dist_inputs": np.zeros((50, 2), np.float32),
    }

    def recorded(actions):
        return SingleAgentEpisode(
            observations=np.zeros((51, 1), np.float32),
            actions=actions,
            rewards=np.ones(50),
            truncated=True,
            extra_model_outputs=outputs,
            len_lookback_buffer=0,
        )

    judged = judge_episodes([recorded(drawn)], policy)
    np.testing.assert_allclose(judged.log_ratios, 0, atol=1e-5)
    np.testing.assert_allclose(judged.expected, np.tile([0.0, 1.0], (50, 1)))  # E[a], E[a^2]
    with pytest.raises(UsageError, match="not in the environment's units"):
        judge_episodes([recorded(3 * drawn)], policy)


def test_a_policy_of_another_observation_is_refused():
    with pytest.raises(UsageError, match="an observation has shape"):
        judge_episodes(
            [
                SingleAgentEpisode(
                    observations=np.zeros((2, 4), np.float32),
                    actions=np.array([0]),
                    rewards=np.ones(1),
                    terminated=True,
                    extra_model_outputs={"action_logp": np.zeros(1)},
                    len_lookback_buffer=0,
                )
            ],
            TARGET,
        )
