"""Messages between a policy server and its clients, each checked by its type; docs/serving.md.

A message is a JSON object in a text frame, or a msgpack map in a binary frame. A server answers in
the kind of a client's first message.
"""

import re
from typing import Annotated, Any

import msgspec

PROTOCOL = 1
MAX_EPISODE_NAME = 64

RequestId = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
EpisodeName = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_EPISODE_NAME)]
# Of one agent, or {agent: number}.
Numbers = float | dict[str, float]


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Message(msgspec.Struct, tag_field="type", tag=_tag, forbid_unknown_fields=True):
    """A message; its class's name is its `type`, as in "start_episode"."""


class Hello(Message):
    """The first message of a client."""

    protocol: int
    token: str = ""


class StartEpisode(Message):
    """Begins an episode; answered by `EpisodeStarted`."""

    id: RequestId
    episode: EpisodeName | None = None  # None: the server names it
    explore: bool | None = None  # whether actions are sampled; None: as the server does
    training_enabled: bool = True  # whether a server that trains learns from it


class GetAction(Message):
    """Asks for actions; answered by `Action`."""

    id: RequestId
    episode: EpisodeName
    obs: Any  # of one agent, or {agent: observation}
    mask: Any = None  # the possible actions, where the policy needs them
    reward: Numbers = 0.0  # since the last action
    done: list[str] = []  # the agents whose part ended with it; their observations are the last


class LogAction(Message):
    """An action that the client chose itself; not answered."""

    episode: EpisodeName
    obs: Any
    action: Any
    mask: Any = None
    reward: Numbers = 0.0
    done: list[str] = []
    log_prob: Numbers | None = None  # with which the client chose it
    weights_version: int | None = None  # of the policy that chose it, if that is the server's


class LogReturns(Message):
    """A reward since the last action; not answered."""

    episode: EpisodeName
    reward: Numbers
    done: list[str] = []


class EndEpisode(Message):
    """Ends an episode; answered by `EpisodeEnded`."""

    id: RequestId
    episode: EpisodeName
    obs: Any = None  # the last observation, which nobody acts on
    reward: Numbers = 0.0
    done: list[str] = []  # the agents that have terminated, where a time limit ends the others
    truncated: bool = False  # a time limit, and not the end of the world


class GetWeights(Message):
    """Asks for a policy's file; answered by `Weights`."""

    id: RequestId
    policy: str | None = None  # may be left out where there is one alone
    known: int = -1  # the version that the client has
    explore: bool | None = None  # whether the file samples actions; None: as the server does


class Welcome(Message):
    """The answer to `Hello`."""

    protocol: int
    agents: dict[str, str]  # the policy of each agent; one agent's name is left out of messages
    policies: dict[str, dict[str, Any]]  # {observation_space, action_space, mask} of each
    training: bool
    weights_version: int
    max_message_bytes: int


class EpisodeStarted(Message):
    """The answer to `StartEpisode`."""

    id: int
    episode: str


class Action(Message):
    """The answer to `GetAction`: an action in the environment's units, or {agent: action}."""

    id: int
    action: Any
    weights_version: int


class EpisodeEnded(Message):
    """The answer to `EndEpisode`."""

    id: int
    episode: str
    weights_version: int


class Weights(Message):
    """The answer to `GetWeights`: a policy's .npz, or None where the client has this version."""

    id: int
    policy: str
    weights_version: int
    npz: bytes | None


class Error(Message):
    """A message that was refused. The episode that it names has been dropped."""

    reason: str
    id: int | None = None
    episode: str | None = None
    closing: bool = False  # whether the connection is closed now


Request = Hello | StartEpisode | GetAction | LogAction | LogReturns | EndEpisode | GetWeights


class Malformed(ValueError):
    """A frame that holds no message; a line says why."""


class Codec:
    """Messages to frames and back, as JSON in text frames or as msgpack in binary ones."""

    def __init__(self, is_text: bool):
        self.is_text = is_text
        library = msgspec.json if is_text else msgspec.msgpack
        self._decoder, self._encoder = library.Decoder(Request), library.Encoder()

    def decode(self, frame: str | bytes) -> Request:
        """The message of a frame.

        Raises:
            Malformed: it is none.
        """
        if isinstance(frame, str) != self.is_text:
            kind = "text, JSON" if self.is_text else "binary, msgpack"
            raise Malformed(f"the connection began with {kind}, and every message must be that")
        try:
            return self._decoder.decode(frame)
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
            raise Malformed(f"no message: {error}"[:200]) from None

    def encode(self, message: Message) -> bytes:
        return self._encoder.encode(message)


class Unencoded:
    """Messages as they are, of a client in this process."""

    is_text = False

    def decode(self, message: Request) -> Request:
        return message

    def encode(self, message: Message) -> Message:
        return message


TEXT, BINARY = Codec(True), Codec(False)


def codec_of(frame: str | bytes) -> Codec:
    """The codec that a client's first frame chooses."""
    return TEXT if isinstance(frame, str) else BINARY
