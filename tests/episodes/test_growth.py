"""Episodes as they looked along the way: at each step, the slice of what had happened."""

import pytest

from jaxrl.episodes.growth import growth_of
from tests.episodes.test_multi_agent_episode import drawn_world, played, state_of
from tests.episodes.test_single_agent_episode import episode_of


def of_numpy(episode):
    return episode.to_numpy()


def as_it_is(episode):
    return episode


@pytest.mark.parametrize("form", [of_numpy, as_it_is])
@pytest.mark.parametrize("seed", range(12))
def test_an_episode_of_several_agents_grows_by_its_slices(seed, form):
    whole = form(played(drawn_world(seed, steps=8)))
    parts = growth_of(whole)
    assert not next(parts).is_reset
    for steps, part in enumerate(parts):
        assert state_of(part) == state_of(whole[:steps])
    assert steps == len(whole) and part.is_done == whole.is_done


def test_an_episode_of_one_agent_grows_without_copies():
    whole = episode_of(3, terminated=True).to_numpy()
    whole.custom_data["seen"] = []
    parts = growth_of(whole)
    first = next(parts)
    assert (len(first), first.is_reset) == (0, False)
    for steps, part in enumerate(parts):
        assert part is first and part.custom_data is whole.custom_data
        assert (len(part), part.is_done) == (steps, steps == 3)
        assert part.observations.data.base is whole.observations.data
        assert part.get_rewards().tolist() == whole[:steps].get_rewards().tolist()
        assert part.get_infos() == whole[:steps].get_infos()


class Counted(list):
    """Counts how many of its values are copied."""

    copied = 0

    def __iter__(self):
        self.copied += len(self)
        return super().__iter__()

    def __getitem__(self, index):
        found = super().__getitem__(index)
        self.copied += len(found) if isinstance(index, slice) else 0
        return found


def test_an_episode_of_several_agents_grows_without_copies_of_its_times():
    whole = played(drawn_world(0, steps=8))
    for timeline in whole._timelines.values():
        timeline.times = Counted(timeline.times)
    *_, part = growth_of(whole)
    for agent, timeline in whole._timelines.items():
        assert timeline.times.copied == len(timeline.times) == len(part._timelines[agent].times)
