"""A library that an adapter needs and that is not installed is named in a line, with its extra."""

import sys

import pytest

import jaxrl
from jaxrl import UsageError
from jaxrl.adapters import to_ray_tune
from tests.messages import refusal
from tests.programs import SMALL_REINFORCE

ENVIRONMENTS = {  # {the adapter: (the call, the library, its extra)}
    "to_gymnasium": (lambda: jaxrl.to_gymnasium("cartpole"), "gymnasium", "gymnasium"),
    "vector": (lambda: jaxrl.to_gymnasium_vector("cartpole", 2), "gymnasium", "gymnasium"),
    "to_jaxmarl": (lambda: jaxrl.to_jaxmarl("arena"), "jaxmarl", "jaxmarl"),
    "to_pettingzoo": (lambda: jaxrl.to_pettingzoo("arena"), "pettingzoo", "pettingzoo"),
    "to_sb3_vec": (lambda: jaxrl.to_sb3_vec("cartpole", 2), "stable_baselines3", "sb3"),
    "to_rllib": (lambda: jaxrl.to_rllib("arena"), "RLlib", "rllib"),
    "rllib_env_runner": (jaxrl.rllib_env_runner, "RLlib", "rllib"),
}
RLLIB = ("ray", "ray.rllib.env.multi_agent_env", "ray.rllib.env.multi_agent_env_runner")


@pytest.mark.parametrize("adapter", ENVIRONMENTS)
def test_a_line_names_the_extra(adapter, monkeypatch):
    call, library, extra = ENVIRONMENTS[adapter]
    for module in RLLIB if library == "RLlib" else (library,):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=rf'needs {library}: pip install "jaxrl\[{extra}\]"'):
        call()


def test_gymnax_has_no_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with refusal("to_gymnax needs gymnax, which is not installed: pip install gymnax"):
        jaxrl.to_gymnax("cartpole")


def test_ray_is_asked_for_by_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'jaxrl\[ray\]'"):
        to_ray_tune.trainable(SMALL_REINFORCE)
