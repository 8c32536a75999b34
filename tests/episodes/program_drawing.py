"""Random programs of episode calls, as JSON; `episode_programs` runs them.

Programs avoid what RLlib's classes answer in two ways; docs/rllib-episodes.md lists it.
"""

from types import SimpleNamespace

from tests.episodes.episode_programs import KINDS, NESTED

AGENTS = ("a", "b", "c", "d")


def draw_single(random):
    """A program of calls of one agent's episode; random: as `random.Random`."""
    kinds = [random.choice(KINDS), random.choice(KINDS)]
    program = {"kinds": {"agent": kinds}, "spaces": random.random() < 0.7, "calls": []}
    drawn = SingleDrawing(random, program)
    drawn.begin()
    for _ in range(random.randint(3, 14)):
        drawn.call()
    drawn.add("look")
    return program


class SingleDrawing:
    """The calls of a program, and what is known of the episode in hand meanwhile."""

    def __init__(self, random, program):
        self.random, self.program = random, program
        self.outputs = random.random() < 0.5
        self.number = 0
        self.now = SimpleNamespace(
            steps=0, lookback=0, is_reset=False, done=False, numpy=False, changed=False
        )
        self.former = []

    def add(self, name, **arguments):
        self.program["calls"].append([name, arguments])

    def begin(self):
        if self.random.random() < 0.4:
            count = self.random.randint(0, 6)
            lookback = self.random.choice(["auto", 0, 1, 2, 9])
            taken = count if lookback == "auto" else min(lookback, count)
            started = self.random.choice([0, 3])
            self.add(
                "single",
                count=count,
                outputs=self.outputs and count > 0,
                len_lookback_buffer=lookback,
                t_started=started,
            )
            self.now.__dict__.update(steps=count - taken, lookback=taken, is_reset=True)
            self.number = count
        else:
            self.add("single", count=None, outputs=False)
            if self.random.random() < 0.95:
                self.reset()

    def reset(self):
        self.add("reset", number=0)
        self.now.is_reset = True

    def call(self):
        names = ["get"] * 6 + ["set", "slice", "to_numpy", "look"]
        names += ["step"] * (1 if self.now.done else 5) + ["cut"] * (not self.now.done)
        names += ["join"] * 2 * bool(self.former)
        if not self.now.is_reset:
            names = ["reset", "get", "cut"]
        getattr(self, self.random.choice(names))()

    def step(self):
        self.number += 1
        end = self.random.choice([{}] * 20 + [{"terminated": True}, {"truncated": True}])
        self.add(
            "step",
            number=self.number,
            action=self.number + 1,
            reward=self.random.choice([0.0, 1.0, -0.5]),
            outputs=self.outputs,
            **end,
        )
        if not self.now.done:
            self.now.steps += 1
            self.now.done = bool(end)

    def look(self):
        self.add("look")

    def to_numpy(self):
        if self.now.steps:  # RLlib leaves the lists of a chunk without steps
            self.add("to_numpy")
            self.now.numpy = True

    def is_capped(self):
        """RLlib's lookback of nested arrays is at most the number of their parts, here two."""
        kinds = self.program["kinds"]["agent"]
        return self.now.numpy and any(kind in NESTED for kind in kinds)

    def cut(self):
        lookback = self.random.choice([0, 0, 1, 2, 2 if self.is_capped() else 5])
        self.add("cut", lookback=lookback)
        if not self.now.done:
            self.former.append(self.now)
            taken = min(lookback, self.now.steps + self.now.lookback)
            self.now = SimpleNamespace(
                **{**self.now.__dict__, "steps": 0, "lookback": taken, "changed": False}
            )

    def join(self):
        former = self.former[-1] if self.former else None
        is_mixed = former is not None and (former.numpy or self.now.numpy)
        has_steps = former is not None and former.steps + former.lookback > 0
        if former is None or is_mixed or not has_steps or self.now.changed:
            return
        self.add("join")
        self.former.pop()
        self.now, steps = former, self.now
        self.now.steps += steps.steps
        self.now.done = steps.done

    def slice(self):
        length = self.now.steps
        start = self.random.randint(0, length)
        stop = self.random.randint(start, length)
        if self.is_capped() and self.now.lookback > 2:
            return
        lookback = self.random.choice([None, 0, 1, 2 if self.is_capped() else 3])
        bounds = [start, stop]
        if self.random.random() < 0.3 and start > 0 and stop < length:
            bounds = [start - length, stop - length]
        elif stop == length:
            bounds[1] = None
        self.add("slice", bounds=bounds, lookback=lookback)
        wanted = self.now.lookback if lookback is None else lookback
        taken = min(wanted, self.now.lookback + start)
        done = self.now.done and stop == length
        self.now.__dict__.update(steps=stop - start, lookback=taken, done=done, changed=True)

    def indices(self, what, fill, neg_index_as_lookback):
        """Indices that RLlib answers in one way, inside of the data and around them.

        None has a step, goes over both ends with `fill`, or is left of the lookback in arrays.
        """
        random = self.random
        length = self.now.steps + (what in ("observations", "infos") and self.now.is_reset)
        low = -self.now.lookback - (0 if neg_index_as_lookback else length)
        least = low - (0 if fill is None and self.now.numpy else 2)
        most = length + 2
        choice = random.random()
        if choice < 0.1 or least > most:
            return None
        if choice < 0.4:
            return random.randint(least, most)
        if choice < 0.6:
            return [random.randint(least, most) for _ in range(random.randint(1, 3))]
        start, stop = sorted(random.randint(least, most + 1) for _ in range(2))
        positions = [self.position(i, length, neg_index_as_lookback) for i in (start, stop)]
        over_both = positions[0] < 0 and positions[1] > self.now.lookback + length
        if positions[0] > positions[1] or over_both:
            return None
        is_open = positions[1] >= self.now.lookback and random.random() < 0.2
        return {"slice": [None if is_open else start, stop]}

    def position(self, index, length, neg_index_as_lookback):
        total = self.now.lookback + length
        return index + (self.now.lookback if index >= 0 or neg_index_as_lookback else total)

    def get(self):
        random = self.random
        what = random.choice(["observations", "infos", "actions", "rewards", "extra_model_outputs"])
        if what == "extra_model_outputs" and not (self.outputs and self.now.steps):
            return
        neg_index_as_lookback = random.random() < 0.5
        kind = {"observations": 0, "actions": 1}.get(what)
        kind = self.program["kinds"]["agent"][kind] if kind is not None else "number"
        has_space = self.program["spaces"] and what in ("observations", "actions")
        can_fill = not self.now.numpy or has_space or kind in ("number", "discrete")
        fill = random.choice([None, 0, 2]) if can_fill else None
        options = {"neg_index_as_lookback": neg_index_as_lookback}
        if fill is not None:
            options["fill"] = fill
        if has_space and self.now.steps and random.random() < 0.4:
            options["one_hot_discrete"] = True
        if what == "extra_model_outputs":
            options["key"] = "logp"
        indices = self.indices(what, fill, neg_index_as_lookback)
        self.add("get", what=what, indices=indices, **options)

    def set(self):
        random = self.random
        what = random.choice(["observations", "actions", "rewards"])
        kind = self.program["kinds"]["agent"][what == "actions"]
        if what != "rewards" and kind in NESTED and self.now.numpy:
            return
        neg_index_as_lookback = random.random() < 0.5
        length = self.now.steps + (what == "observations")
        low = -self.now.lookback - (0 if neg_index_as_lookback else length)
        if random.random() < 0.5:
            indices = random.randint(low - 1, length)
            new = random.randint(0, 9)
        else:
            start, stop = sorted(random.randint(max(low, -length), length) for _ in range(2))
            positions = [self.position(i, length, neg_index_as_lookback) for i in (start, stop)]
            count = positions[1] - positions[0]
            if count < 1:
                return
            indices, new = {"slice": [start, stop]}, [random.randint(0, 9) for _ in range(count)]
        self.now.changed |= what == "observations"  # maybe where the former chunk ends
        self.add(
            "set",
            what=what,
            new=new,
            at_indices=indices,
            neg_index_as_lookback=neg_index_as_lookback,
            is_numpy=self.now.numpy,
        )


def draw_multi(random):
    """A program of calls of several agents' episode; random: as `random.Random`."""
    kinds = {agent: [random.choice(KINDS), random.choice(KINDS)] for agent in AGENTS}
    program = {"kinds": kinds, "spaces": random.random() < 0.6, "calls": []}
    drawn = MultiDrawing(random, program)
    drawn.begin()
    for _ in range(random.randint(3, 16)):
        drawn.call()
    drawn.look_all()
    if not drawn.is_slice and not drawn.is_numpy:
        drawn.wrong()
    return program


class MultiDrawing:
    """The calls of a program of several agents, and what is known of the world meanwhile."""

    def __init__(self, random, program):
        self.random, self.program = random, program
        self.outputs = random.random() < 0.5
        self.number = 0
        self.times = {}  # of each agent's observations
        self.steps = dict.fromkeys(AGENTS, 0)  # completed ones
        self.waiting, self.done = set(), set()
        self.env_t = self.begin_t = 0  # the chunk's begin
        self.lookback = 0
        self.is_whole, self.is_slice, self.is_numpy = True, False, False
        self.is_over = False
        self.has_shifted = False  # RLlib's index of environment steps, after a repeated observation
        self.had_early = False
        self.cut_at = None  # who waited, when the episode was cut

    def add(self, name, **arguments):
        self.program["calls"].append([name, arguments])

    def some(self, agents, probability):
        return [agent for agent in agents if self.random.random() < probability]

    def alive(self):
        return [agent for agent in AGENTS if agent in self.times and agent not in self.done]

    def next_number(self):
        self.number += 1
        return self.number

    # The world

    def first(self):
        agents = self.some(AGENTS, 0.7) or ["a"]
        self.times = {agent: [0] for agent in agents}
        return {agent: self.next_number() for agent in agents}

    def world_step(self, is_listed=False):
        """A step that RLlib takes: who has an observation acts; (step, terminated, truncated)."""
        random = self.random
        acting = [agent for agent in self.alive() if agent not in self.waiting]
        known = self.alive()
        unseen = [agent for agent in AGENTS if agent not in self.times]
        end = random.choice([None] * 24 + ["terminated", "truncated"])
        is_recorded = self.is_whole and self.program["calls"][:1] == [["multi", {"steps": None}]]
        may_repeat = end == "terminated" and is_recorded and random.random() < 0.3
        observing = self.some(known, 0.6) if end is None or may_repeat else known
        leaving = self.some(observing, 0.1) if end is None else []
        if len(leaving) == len(known):
            leaving = leaving[1:]
        joining = self.some(unseen, 0.3) if end is None and self.is_whole else []
        rewarded = set(self.some(known, 0.7)) | set(observing)
        step = {
            "observations": {agent: self.next_number() for agent in [*observing, *joining]},
            "actions": {agent: self.next_number() for agent in acting},
            "rewards": {agent: random.choice([0.0, 1.0, -0.5, 2.0]) for agent in sorted(rewarded)},
            "outputs": self.outputs,
        }
        if not is_listed and end is None:
            early = [agent for agent in self.some(unseen, 0.2) if agent not in joining]
            step["rewards"] |= dict.fromkeys(early, 0.25)
            self.had_early |= bool(early)
        ends = {"terminated": {}, "truncated": {}}
        for agent in leaving:
            ends[random.choice(["terminated", "truncated"])][agent] = True
        if end is not None:
            ends[end]["__all__"] = True
        self.env_t += 1
        for agent in known:
            if agent in observing or may_repeat:
                self.steps[agent] += 1
                self.times[agent].append(self.env_t)
                self.waiting.discard(agent)
            else:
                self.waiting.add(agent)
        self.has_shifted |= may_repeat and set(observing) != set(known)
        self.times |= {agent: [self.env_t] for agent in joining}
        self.done |= set(known if end else leaving)
        self.is_over = end is not None
        return step, ends

    # Calls

    def begin(self):
        if self.random.random() < 0.6:
            self.add("multi", steps=None)
            self.add("reset_all", observations=self.first())
            return
        steps, flags = [{"observations": self.first()}], {"terminated": {}, "truncated": {}}
        for _ in range(self.random.randint(0, 5)):
            step, ends = self.world_step(is_listed=True)
            steps.append(step)
            for name, agents in ends.items():
                flags[name] |= agents
                if "__all__" in agents:
                    alive = [a for a in self.times if self.times[a][-1] == self.env_t]
                    before = set(flags["terminated"]) | set(flags["truncated"]) - {"__all__"}
                    flags[name] |= dict.fromkeys(set(alive) - before, True)
            if self.is_over:
                break
        lookback = self.random.choice(["auto", 0, 0, 1, 2])
        length = len(steps) - 1
        self.lookback = length if lookback == "auto" else min(lookback, length)
        started = self.random.choice([0, 0, 4])
        self.is_whole = self.lookback == 0 and started == 0
        self.begin_t = self.lookback
        lookback = lookback if lookback == "auto" else self.lookback
        self.add(
            "multi", steps=steps, ends=flags, len_lookback_buffer=lookback, env_t_started=started
        )

    def call(self):
        names = ["get_env"] * 4 + ["get_agent"] * 2 + ["look_all"]
        if not self.is_slice and not self.is_numpy:
            names += ["step_all"] * (0 if self.is_over else 6)
            names += ["cut", "cut", "slice", "set_all", "to_numpy", "hanging"]
            names += ["join"] * 3 * (self.cut_at is not None)
        getattr(self, self.random.choice(names))()

    def step_all(self):
        step, ends = self.world_step()
        self.add("step_all", **step, **{name: flags for name, flags in ends.items() if flags})

    def wrong(self):
        """A step that makes no sense; RLlib is in no defined state after that."""
        alive = self.alive()
        acting = [agent for agent in alive if agent not in self.waiting]
        step = {"observations": {}, "actions": {}, "rewards": {}, "outputs": False}
        kinds = (
            ["observed"] * bool(acting)
            + ["done"] * (bool(self.done) and self.cut_at is None)
            + ["over"] * self.is_over
        )
        kinds += ["truncated", "again"] * bool(self.waiting)
        kind = self.random.choice(kinds)
        if kind == "observed":  # again, without an action
            step["observations"][acting[0]] = 1
        elif kind == "again":
            step["actions"][min(self.waiting)] = 1
        elif kind == "done":
            step["rewards"][min(self.done)] = 1.0
        elif kind == "truncated":
            step["truncated"] = {min(self.waiting): True}
        self.add("step_all", **step)

    def look_all(self):
        acts = self.is_whole and not self.is_slice and not self.has_shifted
        self.add("look_all", is_slice=self.is_slice, is_whole=acts and not self.listed_ends())

    def listed_ends(self):
        """Whether agents ended in lists: RLlib's index of their environment steps is too short."""
        return bool(self.done) and self.program["calls"][0][1]["steps"] is not None

    def hanging(self):
        if self.is_whole and not self.done and not self.had_early:
            self.add("hanging")

    def set_all(self):
        agents = [agent for agent in self.times if self.steps[agent]] if self.is_whole else []
        if agents:
            agent = self.random.choice(agents)
            index = self.random.randint(-self.steps[agent], self.steps[agent] - 1)
            self.add("set_all", agent=agent, number=self.next_number(), at_indices=index)

    def to_numpy(self):
        if not self.waiting and self.is_whole and all(self.steps[agent] for agent in self.times):
            self.add("to_numpy")
            self.is_numpy = True

    def cut(self):
        if self.is_over:
            self.add("cut", lookback=1)
            return
        if self.is_slice or self.has_shifted or self.cut_at is not None or self.listed_ends():
            return
        most = self.env_t
        least = 1 if self.waiting else 0
        if most < least or not self.is_whole:
            return
        lookback = self.random.randint(least, min(most, 3)) if most else 0
        if any(self.is_misjudged(agent, lookback) for agent in self.waiting):
            return
        self.add("cut", lookback=lookback)
        self.cut_at = set(self.waiting)
        since = [self.env_t - self.times[agent][-1] for agent in self.waiting]
        self.lookback = max([lookback, *since])
        self.begin_t, self.is_whole = self.env_t, False

    def is_misjudged(self, agent, lookback):
        """Whether RLlib, where an agent waits, would look back further than it must."""
        times, first = self.times[agent], self.env_t - lookback
        return times[-1] >= first and not {first, first + 1} & set(times)

    def join(self):
        if self.cut_at is None or self.is_slice:
            return
        if self.outputs and not all(self.steps[agent] for agent in self.alive()):
            return
        if self.outputs and any(
            len([t for t in self.times[agent] if t <= self.begin_t]) < 2 for agent in self.times
        ):
            return
        self.add("join")
        self.look_joined()
        self.is_slice = True  # no more calls but to look

    def look_joined(self):
        self.add("look_all", is_slice=False, is_whole=False)

    def slice(self):
        if not self.is_whole or self.has_shifted or self.listed_ends():
            return
        start = self.random.randint(0, self.env_t)
        stop = self.random.randint(start, self.env_t)
        self.add("slice", bounds=[start, stop], lookback=self.random.choice([None, 0, 1, 2]))
        self.is_slice, self.is_whole = True, False

    # Getters

    def get_env(self):
        """A getter by environment steps, of the agents that RLlib's index is right for."""
        random = self.random
        if self.has_shifted or self.is_slice or self.listed_ends():
            return
        at_observations = not self.is_whole or random.random() < 0.5
        names = ["actions", "rewards", "extra_model_outputs"]
        what = random.choice(["observations", "infos"] if at_observations else names)
        has_outputs = self.outputs and all(self.steps[agent] for agent in self.times)
        if what == "extra_model_outputs" and not has_outputs:
            return
        options = self.options(what)
        agents = self.alive()
        if not agents:
            return
        options["agent_ids"] = random.choice([agents, agents[0]])
        total = self.env_t - self.begin_t + at_observations
        is_list = random.random() < 0.4
        indices = self.indices(total, options, is_open=is_list)
        if indices is not None and not isinstance(indices, int):
            options["return_list"] = is_list
        self.add("get", what=what, indices=indices, **options)

    def get_agent(self):
        """A getter by the agents' own steps."""
        random = self.random
        what = random.choice(["observations", "infos", "actions", "rewards"])
        if self.is_slice or (what not in ("observations", "infos") and self.waiting):
            return
        agents = [agent for agent in self.times if self.steps[agent]]
        if not agents or not self.is_whole:
            return
        agent = random.choice(agents)
        options = self.options(what) | {"agent_ids": [agent], "env_steps": False}
        if self.is_numpy:
            options.pop("fill", None)
        total = self.steps[agent] + (what in ("observations", "infos"))
        self.add("get", what=what, indices=self.indices(total, options, 0), **options)

    def options(self, what):
        random = self.random
        options = {"neg_index_as_lookback": random.random() < 0.4}
        if what == "extra_model_outputs":
            options["key"] = "logp"
        can_fill = what != "extra_model_outputs" and (not self.is_numpy or what == "rewards")
        if can_fill and random.random() < 0.4:
            options["fill"] = random.choice([0, 2])
        has_space = self.program["spaces"] and what in ("observations", "actions")
        if has_space and random.random() < 0.4:
            options["one_hot_discrete"] = True
        return options

    def indices(self, total, options, lookback=None, is_open=False):
        """Indices inside of the data, or with `fill` and `is_open` around them too."""
        random = self.random
        lookback = self.lookback if lookback is None else lookback
        low = -lookback - (0 if options["neg_index_as_lookback"] else total) - 2 * is_open
        high = total - 1 + (2 if is_open or "fill" in options else 0)
        if low > high or random.random() < 0.1:
            return None
        if random.random() < 0.4:
            return random.randint(low, high)
        if random.random() < 0.3:
            return [random.randint(low, high) for _ in range(random.randint(1, 3))]
        start, stop = sorted(random.randint(low, high + 1) for _ in range(2))
        first, last = (
            i + (lookback if i >= 0 or options["neg_index_as_lookback"] else lookback + total)
            for i in (start, stop)
        )
        is_around = first < 0 and last > lookback + total
        return {"slice": [start, stop]} if first < last and not is_around else None
