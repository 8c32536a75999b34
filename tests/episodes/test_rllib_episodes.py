"""The episode classes beside RLlib's own, on random programs of calls.

The default suite replays RLlib's recorded answers. Where `ray[rllib]` is installed, `-m slow`
draws new programs.
"""

import gzip
import importlib
import json
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxrl import episodes
from jaxrl.core import spaces
from tests.episodes.episode_programs import agree, answers
from tests.episodes.program_drawing import draw_multi, draw_single
from tests.episodes.record_rllib_episodes import RECORDING, rllib

HERE = SimpleNamespace(
    spaces=spaces, **{name: getattr(episodes, name) for name in episodes.__all__}
)


@pytest.mark.parametrize("kind", ["draw_single", "draw_multi"])
def test_recorded_programs_give_rllibs_answers(kind):
    recorded = json.loads(gzip.decompress(RECORDING.read_bytes()))[kind]
    assert sum(len(case["answers"]) for case in recorded) > 1000
    for number, case in enumerate(recorded):
        given_here = answers(case["program"], HERE)
        calls = zip(case["program"]["calls"], given_here, case["answers"], strict=True)
        for call, answer, rllibs in calls:
            assert agree(answer, rllibs), f"program {number}: {call}"


@pytest.fixture(scope="module")
def rllib_library():
    pytest.importorskip("ray", reason="needs ray[rllib]")
    try:
        importlib.import_module("ray.rllib")
    except ImportError:
        pytest.skip("needs ray[rllib]")
    return rllib()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # RLlib's and Gymnasium's
@pytest.mark.parametrize("draw", [draw_single, draw_multi])
def test_new_programs_give_rllibs_answers(rllib_library, draw):
    @settings(max_examples=500, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def check(random):
        program = json.loads(json.dumps(draw(random)))
        pairs = zip(answers(program, HERE), answers(program, rllib_library), strict=True)
        assert all(agree(*pair) for pair in pairs)

    check()
