"""A model as a table: its layers, their shapes and their numbers."""

import jax

from jaxrl.models.model import Model, RecurrentModel, num_parameters, parameter_shapes


def model_table(model: Model | RecurrentModel) -> str:
    """A line for each array of parameters, and their sum; nothing is computed."""
    rows = [("parameters", "shape", "numbers")]
    for path, leaf in jax.tree.leaves_with_path(parameter_shapes(model)):
        shape = " x ".join(map(str, leaf.shape)) or "one"
        rows.append(
            (jax.tree_util.keystr(path, simple=True, separator="."), shape, f"{leaf.size:,}")
        )
    rows.append(("in all", "", f"{num_parameters(model):,}"))
    name, shape, number = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(f"{row[0]:<{name}}  {row[1]:>{shape}}  {row[2]:>{number}}" for row in rows)
