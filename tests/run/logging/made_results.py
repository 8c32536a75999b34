"""Results of training made up by hand, for curves and figures."""

from jaxrl.algorithms.ppo.ppo import HEADLINE_METRICS
from jaxrl.run.logging.curves import Curves
from jaxrl.run.logging.panels import panel_facts, panels_of


def result(
    iteration, *, agents=("a",), returns=True, evaluated=False, vf_loss=1.0, policies=("p",)
):
    by_agent = {agent: float(iteration) for agent in agents}
    returned = (
        {"episode_return_mean": sum(by_agent.values()), "agent_episode_returns_mean": by_agent}
        if returns
        else {}
    )
    learner = {"mean_kl_loss": 0.01, "entropy": 1.0 / iteration, "vf_loss": vf_loss}
    tree = {
        "num_env_steps_sampled_lifetime": 100 * iteration,
        "env_runners": {**returned, "num_episodes": 3},
        "learners": {
            **dict.fromkeys(policies, learner),
            "__all_modules__": {"num_module_steps_trained": 5},
        },
    }
    if evaluated:
        tree["evaluation"] = {"env_runners": {"episode_return_mean": -5.0}}
    return tree


PANELS = panels_of({"panels": panel_facts(HEADLINE_METRICS), "config": {"kl_target": 0.01}})


def filled(count, chunk=7, **kwargs):
    curves = Curves(PANELS)
    results = [result(i, **kwargs) for i in range(1, count + 1)]
    for begin in range(0, count, chunk):
        curves.add(results[begin : begin + chunk])
    return curves


def against_opponents(iteration, **fixed):
    """A result against a pool of a copy and of `fixed` members, {name: win rate}."""
    members = {name: {"win_rate": rate, "num_episodes": 8.0} for name, rate in fixed.items()}
    tree = result(iteration)
    tree["env_runners"]["opponents"] = {
        "num_copies": 1,
        "win_rate": 0.5,
        "copy_0": {"win_rate": 0.25, "iteration": 0},
        "unmet": {"num_episodes": 0.0},
        **members,
    }
    return tree
