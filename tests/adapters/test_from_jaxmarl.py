"""JaxMARL's environments: the library's own steps, with its one flag for all ends told apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

pytest.importorskip("jaxmarl", reason="the extra jaxmarl is not installed")

import jaxmarl
from jaxmarl.environments import spaces
from jaxmarl.environments.multi_agent_env import MultiAgentEnv
from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO
from jaxmarl.wrappers.baselines import CTRolloutManager, LogWrapper

from jaxrl import PPOConfig
from jaxrl.adapters.from_jaxmarl import constructor
from jaxrl.core.env import acting_agents, raw_reset, raw_step
from jaxrl.core.env_checker import check_env
from jaxrl.core.errors import UsageError
from jaxrl.core.registry import make
from jaxrl.core.types import ALL
from tests.oracles.same_steps import Player, adapter_player, assert_same_steps, legal_action

pytestmark = [
    pytest.mark.filterwarnings("ignore:OvercookedV2:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:scatter inputs:FutureWarning"),
    pytest.mark.filterwarnings("ignore:max_dist_to_goal:UserWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
    pytest.mark.usefixtures("rank_promotion"),
]
HANABI = {"num_colors": 2, "num_ranks": 2, "hand_size": 2, "num_cards_of_rank": [2, 1]}
NAMES = ["MPE_simple_crypto_v3", "switch_riddle", "overcooked_v2", "coin_game"]


def library_player(env, by_rules, masks=None):
    """The library; `by_rules(state)` tells whether an end is one by the rules."""

    def reset(key):
        obs, state = env.reset(jax.random.key_data(key))
        return {agent: obs[agent] for agent in env.agents}, state

    def step(key, state, action):
        if masks:
            legal = masks(state)
            action = {agent: legal_action(legal[agent] > 0, action[agent]) for agent in env.agents}
        obs, state, reward, done, _ = env.step_env(jax.random.key_data(key), state, action)
        terminated = dict.fromkeys([*env.agents, ALL], done[ALL] & by_rules(state))
        obs, reward = ({each: part[each] for each in env.agents} for part in (obs, reward))
        return obs, state, reward, terminated, done[ALL] & ~by_rules(state)

    return Player(reset, step)


def numbers(env, steps, below=1000):
    draws = np.random.default_rng(0).integers(below, size=(steps, len(env.agents)), dtype=np.int32)
    return {agent: draws[:, i] for i, agent in enumerate(env.agents)}


def test_the_clock_ends_the_particles_as_in_the_library():
    env = constructor("MPE_simple_tag_v3")()
    library = library_player(jaxmarl.make("MPE_simple_tag_v3"), lambda state: jnp.array(False))
    ended = assert_same_steps(library, adapter_player(env), numbers(env, 2600, below=5))
    assert ended == 100  # the library's max_steps of 25 gives 26


def test_the_clock_ends_the_kitchen_as_in_the_library():
    env = constructor("overcooked")(max_steps=40)
    library = jaxmarl.make("overcooked", max_steps=40)
    player = library_player(library, lambda state: jnp.array(False))
    assert assert_same_steps(player, adapter_player(env), numbers(env, 2000, below=6)) == 50


def test_battles_end_by_the_rules_or_by_the_clock():
    sizes = {"num_allies": 2, "num_enemies": 2, "max_steps": 30}
    env = constructor("HeuristicEnemySMAX")(**sizes)
    library = jaxmarl.make("HeuristicEnemySMAX", **sizes)

    def team_is_dead(state):
        alive = state.state.unit_alive
        return ~jnp.any(alive[:2]) | ~jnp.any(alive[2:])

    player = library_player(library, team_is_dead, library.get_avail_actions)
    assert assert_same_steps(player, adapter_player(env, legal=True), numbers(env, 2000)) > 60


def test_robots_end_by_the_rules_or_by_the_clock():
    sizes = {"max_steps": 20, "lidar_num_beams": 10}
    env, library = constructor("jaxnav")(**sizes), jaxmarl.make("jaxnav", **sizes)
    draws = np.random.default_rng(0).random((600, 2, 2), np.float32)
    moves = {agent: draws[:, i] for i, agent in enumerate(env.agents)}
    player = library_player(library, lambda state: jnp.all(state.goal_reached | state.move_term))
    assert assert_same_steps(player, adapter_player(env), moves) >= 30


def test_the_riddle_ends_when_somebody_tells_or_by_the_clock():
    env, library = constructor("switch_riddle")(), jaxmarl.make("switch_riddle")
    _, state = env.reset_env(jax.random.key(0), None)
    silent = dict.fromkeys(env.agents, jnp.int32(0))
    ends = []
    for step in range(library.max_steps):
        _, state, _, terminated, _ = env.step_env(jax.random.key(step), state, silent, None)
        ends.append((bool(terminated[ALL]), bool(env.is_truncated(state, env.default_params))))
    assert ends == [(False, False)] * 5 + [(False, True)]
    tells = dict.fromkeys(env.agents, jnp.int32(2))
    assert env.step_env(jax.random.key(0), state, tells, None)[3][ALL]


def test_fireworks_are_the_librarys():
    env = constructor("hanabi")(**HANABI)
    library = jaxmarl.make("hanabi", **{**HANABI, "num_cards_of_rank": np.array([2, 1])})
    player = library_player(library, lambda state: jnp.array(True), library.get_legal_moves)
    assert assert_same_steps(player, adapter_player(env, legal=True), numbers(env, 3000)) > 100


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_holds(name):
    check_env(constructor(name)(), steps=64)


def test_hanabis_players_act_in_turn_and_have_legal_moves():
    env, params = make("jaxmarl:hanabi", **HANABI)
    _, state = raw_reset(env, jax.random.key(0), params)
    for turn in range(4):
        acting = np.asarray(acting_agents(env, state, params))
        np.testing.assert_array_equal(acting, np.arange(2) == turn % 2)
        masks = env.action_mask(state, params)
        assert masks[env.agents[turn % 2]].sum() > 1
        assert masks[env.agents[1 - turn % 2]].sum() == 1  # to pass
        actions = {agent: jnp.argmax(mask).astype(jnp.int32) for agent, mask in masks.items()}
        state = raw_step(env, jax.random.key(turn), state, actions, params).state


def test_a_dead_unit_waits_and_shares_its_teams_rewards():
    env, params = make("jaxmarl:SMAX", num_allies=2, num_enemies=2)
    _, state = env.reset_env(jax.random.key(0), params)
    health = state.inner.unit_health.at[0].set(0.0).at[2].set(1.0)
    inner = state.inner.replace(
        unit_health=health,
        unit_alive=health > 0,
        unit_positions=jnp.array([[1.0, 1.0], [10.0, 10.0], [11.0, 10.0], [20.0, 20.0]]),
    )
    state = state.replace(inner=inner)
    np.testing.assert_array_equal(acting_agents(env, state, params), [False, True, True, True])
    shoots = {agent: jnp.int32(4) for agent in env.agents} | {"ally_1": jnp.int32(5)}  # enemy_0
    raw = raw_step(env, jax.random.key(0), state, shoots, params)
    assert raw.reward[0] == raw.reward[1] > 0  # enemy_0 was hit
    assert not raw.terminated.any() and not raw.active[0]


def test_the_world_state_of_a_battle_is_what_a_critic_sees():
    env, params = make("jaxmarl:HeuristicEnemySMAX", scenario="3m")
    _, state = env.reset_env(jax.random.key(0), params)
    world_state = jaxmarl.make(
        "HeuristicEnemySMAX", scenario=MAP_NAME_TO_SCENARIO["3m"]
    ).get_world_state(state.inner)
    np.testing.assert_array_equal(env.global_state(state, params), world_state)
    config = PPOConfig(env=env, critic_observation="state")
    assert config.build().policy_specs[0].critic.space["observation"].shape == world_state.shape
    with pytest.raises(UsageError, match="MPE_simple_spread_v3 has no global_state"):
        PPOConfig(env="jaxmarl:MPE_simple_spread_v3", critic_observation="state").build()


def test_agents_of_a_kind_share_a_policy():
    assert constructor("MPE_simple_tag_v3")().default_policies == {
        "adversary": ("adversary_0", "adversary_1", "adversary_2"),
        "agent": ("agent_0",),
    }
    env = constructor("MPE_simple_spread_v3")()
    assert env.default_policies == {"default_policy": ("agent_0", "agent_1", "agent_2")}


def test_scenarios_and_layouts_are_given_by_name():
    env, params = make("jaxmarl:HeuristicEnemySMAX", scenario="3m", max_steps=50)
    assert len(env.agents) == 3 and params.max_steps_in_episode == 51
    assert env == constructor("HeuristicEnemySMAX")(scenario="3m", max_steps=50)
    with pytest.raises(UsageError, match="unknown scenario '3n' of environment 'jaxmarl:SMAX'"):
        make("jaxmarl:SMAX", scenario="3n")
    env, _ = make("jaxmarl:overcooked", layout="coord_ring")
    assert env.observation_space("agent_0").shape == (5, 5, 26)


def test_overcookeds_shaped_rewards_are_added_by_their_weight():
    plain, shaped = (constructor("overcooked")(shaped_reward=weight) for weight in (0.0, 0.5))
    inputs = jax.random.key(0), {"agent_0": jnp.int32(0), "agent_1": jnp.int32(5)}
    _, state = plain.reset_env(inputs[0], None)
    info = plain._env.step_env(jax.random.key_data(inputs[0]), state.inner, inputs[1])[-1]
    rewards = [env.step_env(inputs[0], state, inputs[1], None)[2] for env in (plain, shaped)]
    for agent in plain.agents:
        assert rewards[1][agent] == rewards[0][agent] + 0.5 * info["shaped_reward"][agent]


@pytest.mark.parametrize(
    ("name", "args", "shape"),
    [
        ("MPE_simple_tag_v3", {}, (400, 400)),
        ("HeuristicEnemySMAX", {"num_allies": 2, "num_enemies": 2}, (400, 400)),
        ("overcooked", {"layout": "cramped_room"}, (4 * 32, 5 * 32)),
        ("overcooked_v2", {}, (4 * 32, 5 * 32)),
        ("storm_2p", {}, (512, 320)),
        ("jaxnav", {}, (400, 400)),
    ],
)
def test_pictures_are_drawn_within_a_compiled_program(name, args, shape):
    env, params = make(f"jaxmarl:{name}", **args)
    _, states = jax.vmap(env.reset_env, (0, None))(jax.random.split(jax.random.key(0), 2), params)
    pictures = np.asarray(jax.jit(jax.vmap(env.render, (0, None)))(states, params))
    assert pictures.dtype == np.uint8 and pictures.shape == (2, *shape, 3)
    assert (pictures[0] != pictures[0, 0, 0]).any()


def test_discs_are_where_the_particles_are():
    env, params = make("jaxmarl:MPE_simple_spread_v3")
    _, state = env.reset_env(jax.random.key(0), params)
    places = jnp.full((6, 2), 9.0).at[0].set(jnp.array([1.0, 1.5]))  # the others are outside
    picture = env.render(state.replace(inner=state.inner.replace(p_pos=places)), params)
    rows, columns = np.nonzero((np.asarray(picture) != 255).any(-1))
    assert rows.mean() == pytest.approx(49.5) and columns.mean() == pytest.approx(299.5)
    assert np.ptp(rows) == pytest.approx(200 * env._env.rad[0], abs=2)


def test_coins_and_prisoners_have_the_colours_of_their_state():
    env, params = make("jaxmarl:coin_game")
    _, state = env.reset_env(jax.random.key(0), params)
    red, coin = (np.ravel(place) for place in (state.inner.red_pos, state.inner.blue_coin_pos))
    picture = np.asarray(env.render(state, params))[::-1]  # y upwards

    def colour(place, beside):
        column, row = ((place + 0.5) * 400 / 3 + beside).astype(int)
        return tuple(picture[row, column])

    assert colour(red, 33) == (214, 39, 40) and colour(coin, 0) == (174, 199, 232)
    env, params = make("jaxmarl:switch_riddle")
    _, state = env.reset_env(jax.random.key(0), params)
    inner = state.inner.replace(bulb_state=jnp.array(True), has_been=jnp.array([1, 0, 0]))
    picture = np.asarray(env.render(state.replace(inner=inner), params))[::-1]
    assert tuple(picture[300, 200]) == (255, 200, 0)
    assert tuple(picture[133, 66]) == (214, 39, 40) and tuple(picture[133, 200]) == (190, 190, 190)


def test_games_that_the_library_only_prints_have_no_pictures():
    assert not hasattr(constructor("hanabi")(**HANABI), "render")


def test_unknown_and_refused_names_are_told_in_one_line():
    with pytest.raises(UsageError, match="did you mean 'MPE_simple_spread_v3'"):
        make("jaxmarl:MPE_simple_spread")
    refused = {
        "LearnedPolicyEnemySMAX": "needs a trained policy",
        "ant_4x2": "is one of MABrax",
        "JaxRobotarium_rware": "needs jaxrobotarium",
        "storm": "storm_2p and storm_np do",
    }
    for name, why in refused.items():
        with pytest.raises(UsageError, match=f"'{name}' .*{why}"):
            make(f"jaxmarl:{name}")
    with pytest.raises(UsageError, match=r"jaxmarl:switch_riddle: \{'num_agents': 2\} are refused"):
        make("jaxmarl:switch_riddle", num_agents=2)


@struct.dataclass
class Places:
    places: jax.Array
    step: int


class Race(MultiAgentEnv):
    """A user's own environment: two walk to place 3, each until it is there, for 6 steps."""

    def __init__(self, max_steps=6):
        super().__init__(num_agents=2)
        self.max_steps = max_steps
        self.observation_spaces = {each: spaces.Box(-9.0, 9.0, (2,)) for each in self.agents}
        self.action_spaces = {each: spaces.Discrete(2) for each in self.agents}

    def reset(self, key):
        state = Places(jnp.zeros(2, jnp.int32), 0)
        return self.get_obs(state), state

    def step_env(self, key, state, actions):
        moves = jnp.array([actions[each] for each in self.agents])
        state = Places(state.places + moves, state.step + 1)
        home, late = state.places >= 3, state.step >= self.max_steps
        done = {each: home[i] | late for i, each in enumerate(self.agents)}
        reward = {each: jnp.where(home[i], 1, 0) for i, each in enumerate(self.agents)}
        return self.get_obs(state), state, reward, {**done, ALL: home.all() | late}, {}

    def get_obs(self, state):
        row = lambda i: jnp.array([state.places[i], state.step], jnp.float32)
        return {each: row(i) for i, each in enumerate(self.agents)}


class MaskedRace(Race):
    def get_avail_actions(self, state):
        return {each: jnp.array([0, 1]) for each in self.agents}


def raced(moves):
    """(ended by the rules, cut by the clock, active) of the last step of an episode."""
    env, params = make(Race())
    _, state = env.reset_env(jax.random.key(0), params)
    action = dict(zip(env.agents, moves, strict=True))
    step = jax.jit(lambda state: env.step_env(jax.random.key(0), state, action, params))
    for _ in range(6):
        _, state, _, terminated, info = step(state)
        cut = env.is_truncated(state, params)
        if terminated[ALL] | cut:
            break
    flags = jax.tree.map(bool, (terminated, cut, info["active"]))
    return [list(flags[0].values()), flags[1], list(flags[2].values())]


def test_a_users_agents_end_by_themselves_and_the_time_limit_truncates_the_others():
    check_env(Race(), steps=16)
    assert raced((1, 1)) == [[True, True, True], False, [True, True]]
    assert raced((1, 0)) == [[False, False, False], True, [False, True]]
    assert raced((0, 0)) == [[False, False, False], True, [True, True]]


def test_users_and_the_librarys_objects_train_in_the_librarys_log_too():
    assert PPOConfig(env=LogWrapper(Race())).setup().env.agents == ("agent_0", "agent_1")
    _, params = make(LogWrapper(jaxmarl.make("switch_riddle")))
    assert params == make("jaxmarl:switch_riddle")[1]
    assert make(MaskedRace)[0].action_mask(*_first(MaskedRace))["agent_0"].tolist() == [False, True]
    with pytest.raises(UsageError, match="the wrapper CTRolloutManager changes `step`"):
        make(CTRolloutManager(jaxmarl.make("switch_riddle"), batch_size=2))


def _first(kind):
    env, params = make(kind)
    return env.reset_env(jax.random.key(0), params)[1], params
