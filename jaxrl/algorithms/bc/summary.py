"""Summary of a configuration that learns from recorded episodes, in a few lines."""

from jaxrl.algorithms.bc.config import BCConfig, MARWILConfig
from jaxrl.models.model import num_parameters


def describe(config: BCConfig) -> str:
    """Environment, data, sizes, policies and the loss."""
    algorithm = config.build()
    env_args = "".join(f"  {name}={value}" for name, value in config.env_args)
    steps, size = config.train_batch_size, config.minibatch_size
    loss = "-log pi(a | s)"
    if isinstance(config, MARWILConfig):
        weight = f"exp({config.beta:g} A / c)"
        loss = f"-{weight} log pi(a | s) + {config.vf_coeff:g} (V - R)^2 / 2"
    lines = [
        f"environment  {config.env_name}{env_args}",
        f"episodes     {', '.join(config.input)}",
        f"batch        {steps // size:,} minibatches of {size:,} drawn steps = {steps:,} steps an "
        f"iteration; {config.num_updates:,} iterations, {config.num_updates * steps:,} steps",
    ]
    for group, policy_spec in zip(algorithm.grouping.groups, algorithm.policy_specs, strict=True):
        parameters = f"{num_parameters(policy_spec.model):,} parameters"
        for policy, agents in zip(group.policies, group.agents, strict=True):
            what = f"loss = {loss}" if policy in algorithm.trained else "not trained"
            lines.append(f"policy       {policy} plays {', '.join(agents)}: {parameters}, {what}")
    return "\n".join(lines)
