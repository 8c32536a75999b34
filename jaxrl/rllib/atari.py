"""The wrappers that RLlib's old stack puts around Atari's games: their keys, and arguments here."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxrl.rllib.context import Context
from jaxrl.rllib.env_names import PREFERRED, wraps_games
from jaxrl.rllib.rows import Row, changes, harmless, taken

OF_ATARI = (
    *(PREFERRED, "is_atari", "model/framestack", "model/num_framestacks"),
    *("model/dim", "model/grayscale", "model/zero_mean"),
)
OF_LIVES = "of single lives, RLlib's of whole games"
WHOLE_GAMES = {"terminal_on_life_loss": False}  # of an evaluation
SCREENS = ((210, 160, 3), (250, 160, 3))  # of the emulator


def atari(values: Mapping[str, Any], context: Context) -> Iterator[Row]:
    """The wrappers of a game that has a name; one that a user's function makes has to say so."""
    is_wrapped_there = wraps_games(values, new_stack=context.new_stack)
    if context.wrappers:
        why = f"RLlib's wrappers of Atari's games; training's returns and lengths are {OF_LIVES}"
        yield taken(values, why, env_args=context.wrappers)
    elif is_wrapped_there and context.image_shape in SCREENS:
        why = (
            "RLlib wraps this game: give its name, such as env='ALE/Pong-v5', for the same here, "
            "or preprocessor_pref=None for the game as your function makes it"
        )
        yield changes({PREFERRED: "deepmind", **values}, why)
    elif values:
        yield harmless(values, "for Atari's images")


def clipping(values: Mapping[str, Any], context: Context) -> Iterator[Row]:
    """Rewards are clipped in the games that RLlib wraps, unless a value says otherwise."""
    (value,) = values.values() or [None]
    if value is None and context.wrappers:
        yield taken(values, "as RLlib does in Atari's games", clip_rewards=True)
    elif values:
        yield taken(values, clip_rewards=value)
