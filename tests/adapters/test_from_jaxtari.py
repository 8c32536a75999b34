"""JAXtari's games, with sprites that are drawn here, since the library's own have to be fetched."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, check_env, make, make_train
from jaxrl.core.spaces import Box, Discrete
from tests.messages import refusal

pytest.importorskip("jaxtari", reason="the extra jaxtari is not installed")

pytestmark = [
    pytest.mark.usefixtures("rank_promotion"),
    pytest.mark.filterwarnings("ignore"),  # the library's
]


def rectangle(height, width, *colour):
    """u8[H, W, 4]: a sprite in one colour, without holes."""
    return np.broadcast_to(np.array([*colour, 255], np.uint8), (height, width, 4))


SPRITES = {
    "background": rectangle(210, 160, 144, 72, 17),
    "player": rectangle(16, 4, 92, 186, 92),
    "enemy": rectangle(16, 4, 213, 130, 74),
    "ball": rectangle(4, 2, 236, 236, 236),
    **{f"player_score_{digit}": rectangle(20, 12, 92, 186, 92) for digit in range(10)},
    **{f"enemy_score_{digit}": rectangle(20, 12, 213, 130, 74) for digit in range(10)},
}


@pytest.fixture
def sprites(tmp_path, monkeypatch):
    """A folder of data with sprites of Pong, as JAXtari's installer would leave it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("JAXTARI_SKIP_SPRITE_UPDATE", "1")
    pong = tmp_path / "jaxtari" / "sprites" / "pong"
    pong.mkdir(parents=True)
    (tmp_path / "jaxtari" / ".alternative_sprites_installed").touch()
    for name, sprite in SPRITES.items():
        np.save(pong / f"{name}.npy", sprite)


def test_without_sprites_a_line_says_how_to_fetch_them(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with refusal("its sprites are not here: fetch them by python -m jaxtari.install_sprites"):
        make("jaxtari:pong")
    with refusal("unknown jaxtari environment 'pog'; did you mean 'pong'"):
        make("jaxtari:pog")


def test_a_step_is_four_frames_of_the_library_until_the_episode_ends(sprites):
    from jaxtari.core import make as jaxtari_make
    from jaxtari.wrappers import AtariWrapper, ObjectCentricWrapper

    env, params = make("jaxtari:pong")
    atari = AtariWrapper(jaxtari_make("pong"), episodic_life=False)
    library = ObjectCentricWrapper(atari, clip_reward=False)
    key = jax.random.PRNGKey(3)
    actions = jax.random.randint(jax.random.key(1), (300,), 0, 6)

    def ours(state, action):
        obs, state, reward, terminated, _ = env.step_env(key, state, action, params)
        return state, (obs.T, reward, terminated)

    def theirs(state, action):
        obs, state, reward, terminated, _, _ = library.step(state, action)
        return state, (obs, jnp.float32(reward), terminated)

    first, state = env.reset_env(key, params)
    expected, other = library.reset(key)
    np.testing.assert_array_equal(first.T, expected)
    _, found = jax.jit(lambda: jax.lax.scan(ours, state, actions))()
    _, wanted = jax.jit(lambda: jax.lax.scan(theirs, other, actions))()
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    assert not found[2].any() and (found[1] == -1).sum() >= 3  # the other player scored


def test_an_episode_ends_at_twenty_one_points_or_by_the_clock(sprites):
    env, params = make("jaxtari:pong", noop_max=0, max_steps=2000, frame_stack=1)

    def step(carry, _):
        obs, state = carry
        obs, state, reward, terminated, _ = env.step_env(jax.random.key(0), state, 0, params)
        truncated = env.is_truncated(state, params)
        return (obs, state), (reward, terminated, truncated)

    start = env.reset_env(jax.random.key(0), params)
    _, (rewards, terminated, truncated) = jax.jit(lambda: jax.lax.scan(step, start, length=2000))()
    assert rewards[: int(terminated.argmax()) + 1].sum() == -21
    assert not truncated[:-1].any() and truncated[-1]


@pytest.mark.long
def test_objects_and_pixels_are_checked_and_train(sprites):
    objects, params = make("jaxtari:pong", frame_stack=2)
    assert objects.observation_space(params) == Box(-np.inf, np.inf, (26, 2))
    assert objects.action_space(params) == Discrete(6)
    check_env("jaxtari:pong")
    pixels, params = make("jaxtari:pong", observation="pixels")
    obs, state = pixels.reset(jax.random.key(0), params)
    assert obs.shape == (84, 84, 4) and obs.dtype == np.uint8 and 60 < obs.mean() < 110
    assert pixels.render(state, params).shape == (210, 160, 3)
    config = PPOConfig(
        **{"env": "jaxtari:pong", "num_envs": 4, "rollout_length": 8, "minibatch_size": 32},
        **{"fcnet_hiddens": (8,), "total_env_steps": 64, "num_epochs": 1},
    )
    jax.block_until_ready(jax.jit(make_train(config))(jax.random.key(0)))


def test_a_users_game_is_taken_without_its_wrappers(sprites):
    jaxtari = importlib.import_module("jaxtari")
    wrappers = importlib.import_module("jaxtari.wrappers")
    game = wrappers.ObjectCentricWrapper(wrappers.AtariWrapper(jaxtari.make("pong")))
    env, params = make(game)
    assert env.action_space(params) == Discrete(6)
    assert env == make(game)[0] != make("jaxtari:pong")[0]
