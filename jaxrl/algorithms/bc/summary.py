"""Summary of a configuration that learns from recorded episodes, in a few lines."""

from jaxrl.algorithms.base import environment_line, idle_lines, policy_lines
from jaxrl.algorithms.bc.config import BCConfig, MARWILConfig
from jaxrl.core.plan import Line


def describe(config: BCConfig) -> list[Line]:
    """Environment, data, sizes, policies and the loss."""
    steps, size = config.train_batch_size, config.minibatch_size
    loss = "-log pi(a | s)"
    if isinstance(config, MARWILConfig):
        weight = f"exp({config.beta:g} A / c)"
        loss = f"-{weight} log pi(a | s) + {config.vf_coeff:g} (V - R)^2 / 2"
    batch = (
        f"{steps // size:,} minibatches of {size:,} drawn steps = {steps:,} steps an iteration; "
        f"{config.num_updates:,} iterations, {config.num_updates * steps:,} steps"
    )
    sources = []
    for source, share in config.sources:
        sources.append(source if share is None else f"{share:.4g} of {source}")
    lines = [environment_line(config), ("episodes", ", ".join(sources)), ("batch", batch)]
    lines += policy_lines(config.build(), f", loss = {loss}")
    return [*lines, *idle_lines(config)]
