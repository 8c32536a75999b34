"""Steps of agents as they were played: the one record that episodes and pictures are made of."""

from typing import Any, NamedTuple


class AgentSteps(NamedTuple):
    """The actions of agents in steps, and their results; arrays of JAX or NumPy.

    [..., N, E, M, ...] of one group; [T, ...] of one agent, with the steps in which it waits.
    """

    # That they acted on; of a whole episode [T + 1, ...]. None where the step before reached them.
    obs: Any
    action: Any  # as of `ActionForm.as_sampled`
    reward: Any  # f32  those too that come while the agent waits
    active: Any  # bool  whether the agent acted
    terminated: Any  # bool
    truncated: Any  # bool
    outputs: dict[str, Any]  # of its model, under RLlib's names
    reached: Any = None  # after the steps, before any reset; None where `obs` has the last one
