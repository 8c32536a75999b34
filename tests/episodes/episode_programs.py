"""Random programs of episode calls, and what an episode class answers to them.

A program is plain JSON: calls with integers, from which observations and actions are made. So one
program runs on this package's classes and on RLlib's, and its answers can be kept in a file.
Programs avoid what RLlib's classes answer in two ways; docs/rllib-episodes.md lists it.
"""

import numpy as np

KINDS = ("discrete", "box", "multi", "dict", "tuple")
NESTED = ("dict", "tuple")


def value_of(kind, number):
    """The value of a space of some kind that belongs to a number."""
    box = np.array([number, -0.5 * number], np.float32)
    if kind == "discrete":
        return number % 5
    if kind == "box":
        return box
    if kind == "multi":
        return np.array([number % 2, number % 3])
    parts = number % 5, box
    return dict(zip(("color", "place"), parts, strict=True)) if kind == "dict" else parts


def space_of(kind, spaces):
    """The space of some kind; spaces: the module of Gymnasium or of this package."""
    box = spaces.Box(-np.inf, np.inf, (2,), "float32")
    if kind == "discrete":
        return spaces.Discrete(5)
    if kind == "box":
        return box
    if kind == "multi":
        return spaces.MultiDiscrete([2, 3])
    if kind == "dict":
        return spaces.Dict({"color": spaces.Discrete(5), "place": box})
    return spaces.Tuple((spaces.Discrete(5), box))


def plain(answer):
    """An answer as JSON has it: arrays as lists, numbers rounded as float32 are."""
    if isinstance(answer, dict):
        return {str(key): plain(answer[key]) for key in sorted(answer, key=str)}
    if isinstance(answer, set):
        return sorted(map(str, answer))
    if isinstance(answer, list | tuple) or np.ndim(answer):
        return [plain(part) for part in answer]
    if isinstance(answer, str | bool | np.bool_ | None):
        return bool(answer) if isinstance(answer, np.bool_) else answer
    return round(float(answer), 4) + 0.0


def answers(program, library):
    """What each call of a program answered; its `refusal` where it raised an error.

    Args:
        library: `spaces`, `SingleAgentEpisode` and `MultiAgentEpisode`.
    """
    player = Player(program, library)
    given = []
    for name, arguments in program["calls"]:
        try:
            answer = getattr(player, name)(**arguments)
        except Exception as error:
            given.append(refusal(error))
        else:
            given.append(plain(answer))
    return given


def refusal(error):
    """The answer of a call that raised an error: the kinds that RLlib's users catch."""
    kinds = [kind.__name__ for kind in (AssertionError, IndexError) if isinstance(error, kind)]
    return {"refused": kinds}


def agree(here, rllibs):
    """Whether two answers are equal, where a refusal may be of more kinds than RLlib's."""
    are_refused = [isinstance(answer, dict) and "refused" in answer for answer in (here, rllibs)]
    if all(are_refused):
        return set(here["refused"]) >= set(rllibs["refused"])
    return here == rllibs


def indices_of(indices):
    return slice(*indices["slice"]) if isinstance(indices, dict) else indices


class Player:
    """Runs the calls of a program on the episode in hand; `cut` lays the former one aside."""

    def __init__(self, program, library):
        self.library = library
        self.kinds = program["kinds"]  # of observations and actions, by agent
        spaces = program["spaces"]
        self.spaces = [
            {
                agent: space_of(kinds[i], library.spaces) if spaces else None
                for agent, kinds in self.kinds.items()
            }
            for i in (0, 1)
        ]
        self.episode, self.former = None, []

    # One agent

    def single(self, count, outputs, **arguments):
        """An episode from lists of `count` steps; None of them means an empty one."""
        observation, action = self.kinds["agent"]
        if count is not None:
            arguments |= {
                "observations": [value_of(observation, i) for i in range(count + 1)],
                "infos": [{"at": i} for i in range(count + 1)],
                "actions": [value_of(action, i) for i in range(count)],
                "rewards": [i + 0.5 for i in range(count)],
                "extra_model_outputs": {"logp": [-float(i) for i in range(count)]}
                if outputs
                else {},
            }
        self.episode = self.library.SingleAgentEpisode(
            "id",
            observation_space=self.spaces[0]["agent"],
            action_space=self.spaces[1]["agent"],
            **arguments,
        )

    def reset(self, number):
        self.episode.add_env_reset(value_of(self.kinds["agent"][0], number), {"at": number})

    def step(self, number, action, reward, outputs, **ends):
        observation_kind, action_kind = self.kinds["agent"]
        self.episode.add_env_step(
            value_of(observation_kind, number),
            value_of(action_kind, action),
            reward,
            {"at": number},
            extra_model_outputs={"logp": -float(action)} if outputs else None,
            **ends,
        )

    def set(self, what, new, at_indices, neg_index_as_lookback, is_numpy):
        def made(number):
            if what == "rewards":
                return number + 0.25
            return value_of(self.kinds["agent"][what == "actions"], number)

        values = [made(i) for i in new] if isinstance(new, list) else made(new)
        is_numpy = is_numpy and isinstance(new, list)
        getattr(self.episode, f"set_{what}")(
            new_data=np.array(values) if is_numpy else values,
            at_indices=indices_of(at_indices),
            neg_index_as_lookback=neg_index_as_lookback,
        )

    def look(self):
        """Everything that an episode of one agent says of itself."""
        episode = self.episode
        found = {
            "numbers": [len(episode), episode.t, episode.t_started, episode.agent_steps()],
            "flags": [episode.is_done, episode.is_terminated, episode.is_truncated],
            "return": episode.get_return(),
            "logp": episode.get_extra_model_outputs("logp") if episode.extra_model_outputs else 0,
        }
        for what in ("observations", "infos", "actions", "rewards"):
            column = getattr(episode, what)
            found[what] = [column.lookback, len(column), column.data]
        return found

    # Several agents

    def multi(self, steps, ends=None, **arguments):
        """An episode from lists: the observing agents at first, then the steps; or an empty one."""
        if steps:
            made = [self.env_step(**step) for step in steps[1:]]
            first = steps[0]["observations"]
            arguments |= {
                "observations": [self.made(first, 0), *(step[0] for step in made)],
                "infos": [{agent: {"at": i} for agent, i in first.items()}, *(s[3] for s in made)],
                "actions": [step[1] for step in made],
                "rewards": [step[2] for step in made],
                "extra_model_outputs": [step[4] or {} for step in made],
                **{f"{name}s": flags for name, flags in (ends or {}).items()},
            }
        self.episode = self.library.MultiAgentEpisode(
            "id",
            observation_space=self.spaces[0] if self.spaces[0]["a"] is not None else None,
            action_space=self.spaces[1] if self.spaces[1]["a"] is not None else None,
            agent_to_module_mapping_fn=lambda agent, episode: f"module of {agent}",
            **arguments,
        )

    def made(self, numbers, column):
        return {agent: value_of(self.kinds[agent][column], i) for agent, i in numbers.items()}

    def env_step(self, observations, actions, rewards, outputs):
        return (
            self.made(observations, 0),
            self.made(actions, 1),
            rewards,
            {agent: {"at": i} for agent, i in observations.items()},
            {agent: {"logp": -float(i)} for agent, i in actions.items()} if outputs else None,
        )

    def reset_all(self, observations):
        infos = {agent: {"at": i} for agent, i in observations.items()}
        self.episode.add_env_reset(observations=self.made(observations, 0), infos=infos)

    def step_all(self, terminated=None, truncated=None, **step):
        *arguments, outputs = self.env_step(**step)
        self.episode.add_env_step(
            *arguments,
            terminateds=terminated or {},
            truncateds=truncated or {},
            extra_model_outputs=outputs,
        )

    def set_all(self, agent, number, at_indices):
        self.episode.set_actions(
            new_data={agent: value_of(self.kinds[agent][1], number)}, at_indices=at_indices
        )

    def look_all(self, is_slice, is_whole):
        """What an episode of several agents says of itself and of each agent.

        Args:
            is_slice: leaves out what RLlib's slices lose: infos, starts and kinds of ends.
            is_whole: adds what RLlib only knows of episodes that were never cut.
        """
        episode, agents = self.episode, {}
        for agent, single in episode.agent_episodes.items():
            if is_slice and single.is_done and not len(single):
                continue
            agents[agent] = found = {
                "done": single.is_done,
                "return": single.get_return(),
                "logp": [
                    column.data
                    for column in single.extra_model_outputs.values()
                    if len(column.data)
                ],
            }
            for what in ("observations", "actions", "rewards"):
                column = getattr(single, what)
                found[what] = [column.lookback, len(column), column.data]
            if not is_slice:
                found["infos"] = single.infos.data
                found["ends"] = [single.is_terminated, single.is_truncated]
                found["names"] = [single.module_id, single.agent_id]
            if is_whole or not (is_slice or single.is_done):
                found["t"] = [single.t_started, single.t]
        found = {
            "agents": agents,
            "numbers": [len(episode), episode.env_t, episode.env_t_started, episode.agent_steps()],
            "return": episode.get_return(),
        }
        if not is_slice:
            found["ends"] = [episode.is_terminated, episode.is_truncated, episode.is_done]
            found["terminateds"] = episode.get_terminateds()
        if is_whole:
            found["acting"] = [episode.get_agents_to_act(), episode.get_agents_that_stepped()]
        return found

    def hanging(self):
        return self.episode.get_return(include_hanging_rewards=True)

    # Either

    def get(self, what, indices, **options):
        if "fill" in options and what == "infos":
            options["fill"] = {"fill": options["fill"]}
        getter = getattr(self.episode, f"get_{what}")
        return getter(indices=indices_of(indices), **options)

    def to_numpy(self):
        self.episode.to_numpy()

    def cut(self, lookback):
        successor = self.episode.cut(len_lookback_buffer=lookback)
        self.former.append(self.episode)
        self.episode = successor

    def join(self):
        """Concatenates the episode in hand to the one that `cut` laid aside."""
        former = self.former.pop()
        former.concat_episode(self.episode)
        self.episode = former

    def slice(self, bounds, lookback):
        self.episode = self.episode.slice(slice(*bounds), len_lookback_buffer=lookback)
