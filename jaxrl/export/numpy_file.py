"""NumPy files: a policy's arrays in an .npz, for the reader in `numpy_policy.py`."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.core.program_spaces import countable, mask_length, num_chosen
from jaxrl.core.spaces import Box, Space, is_tree, parts_of, range_of, tree_of
from jaxrl.core.types import PyTree
from jaxrl.export.numpy_policy import NumpyPolicy
from jaxrl.export.policy_step import (
    AGENT,
    MASK_INPUT,
    PREV_REWARD,
    STATE_IN,
    Built,
    PolicyStep,
    Tensor,
    paths_of,
)
from jaxrl.models.attention import Attention
from jaxrl.models.cells import GRU, LSTM
from jaxrl.models.cnn import CNN
from jaxrl.models.mlp import MLP
from jaxrl.models.model import ActorCritic
from jaxrl.models.network_inputs import is_image, layout_of, scale_of
from jaxrl.models.policy_spec import PolicySpec, without_mask
from jaxrl.models.recurrent_network import RecurrentNetwork
from jaxrl.ops.distributions import noise_size, num_logits
from jaxrl.ops.running_stats import RunningMeanStd

SECOND_FORMAT = 2  # what readers of the first one would misread
READER = Path(__file__).with_name("numpy_policy.py")
# The inputs beside the observation, by the names of the model's parts.
OTHER_INPUTS = {
    "agent_id": AGENT,
    "prev_action": f"{STATE_IN}prev_action",
    "prev_reward": PREV_REWARD,
}


def build_npz(step: PolicyStep, batch: int | None) -> Built:
    """The arrays of a step, with its metadata and the plan of its network as JSON."""
    network, arrays = _network(step)
    least = SECOND_FORMAT if _is_of_second_format(network, arrays) else 1

    def content(metadata: dict[str, Any]) -> bytes:
        details = {"format": max(metadata["format"], least), "network": network}
        text = json.dumps({**metadata, **details})
        file = io.BytesIO()
        np.savez(file, metadata=np.array(text), **arrays)
        return file.getvalue()

    fields = list(map(Tensor._asdict, step.inputs))
    run = NumpyPolicy(io.BytesIO(content({"format": 1, "inputs": fields})))
    return Built(run, lambda path, metadata: {path: content(metadata)})


def _is_of_second_format(network: dict[str, Any], arrays: dict[str, np.ndarray]) -> bool:
    """Returns whether readers of format 1 would misread a file, apart from its spaces."""
    has_new_parts = any("channels" in part or "scale" in part for part in network["parts"])
    has_filters = any(name.startswith("filter/mean/") for name in arrays)
    return has_new_parts or has_filters or "stretched" in network


def _network(step: PolicyStep) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(the plan of the network as plain values, its arrays by name)."""
    torso, params = step.policy_spec.model, step.weights.params
    plan, arrays = {**_action(step), "core": None}, {}
    if isinstance(torso, RecurrentNetwork):
        part = "shared" if torso.shared else "policy"
        plan["core"] = _core(torso.core, part)
        last = params["heads"]
        arrays |= _named("core", params[part]["core"]) | _named("head", last["policy"])
        plan["num_head_layers"] = len(last["policy"])
        torso, params = torso.torso, params[part]["torso"]
    mlp, convs = torso, None
    if isinstance(torso, CNN):
        mlp = torso.mlp
        plan["conv_activation"] = torso.conv_activation
        convs = params["conv"]["shared" if mlp.vf_share_layers else "policy"]
        params = params["mlp"]
    if not isinstance(mlp, MLP):
        raise _refused(getattr(mlp, "inner", mlp))
    layers = list(params.get("shared", ()))
    if plan["core"] is None:
        layers += params["policy"]
        last = params
    arrays |= _named("layers", layers)
    plan |= {"activation": mlp.activation, "num_layers": len(layers)}
    plan["parts"] = list(_parts(step, torso, convs, arrays))
    plan["free_log_std"] = "log_std" in last
    if plan["free_log_std"]:
        arrays["log_std"] = last["log_std"]
    moments = step.weights.filter
    if isinstance(moments, ActorCritic):
        moments = moments.policy
    if isinstance(moments, RunningMeanStd) and moments.count > 0:
        arrays |= _statistics(step, moments)
    return plan, {name: np.asarray(array) for name, array in arrays.items()}


def _refused(network: Any) -> UsageError:
    return UsageError(
        f"a .npz file holds the built-in networks only, not {type(network).__name__}: "
        "write .onnx or .stablehlo"
    )


def _parts(
    step: PolicyStep, torso: MLP | CNN, convs: PyTree, arrays: dict[str, np.ndarray]
) -> Iterator[dict[str, Any]]:
    """The inputs of the first layer, in its order; the convolutions of images go to `arrays`."""
    spec = step.policy_spec
    space = spec.inputs_spec.input_space(spec.observation_space, spec.action_space)
    has_others = bool(spec.inputs_spec.spaces(spec.action_space))
    # The environment's own parts, beside those of `space`, whose integers count from 0.
    sources = jax.tree.leaves(tree_of(without_mask(spec.observation_space)))
    observed = zip(_observed_names(step), sources, strict=True)
    column = 0  # of the last action, which is one row
    for i, (path, part, _) in enumerate(parts_of(space, tree_of(space))):
        layers, more = [], {}
        if isinstance(torso, CNN) and is_image(part):
            params = convs[path] if is_tree(space) else convs
            arrays |= _named(f"conv/{i}", params)
            layers = [[kernel, stride] for _, kernel, stride in torso.conv_filters]
            if layout_of(part, torso.conv_channels).is_first:
                more["channels"] = "first"
        prefix, _, inner = path.partition("/")
        if has_others and prefix in OTHER_INPUTS:
            name, source = OTHER_INPUTS[prefix], part
            if inner:
                more["columns"] = [column, column + num_chosen(part)]
                column += num_chosen(part)
        else:
            name, source = next(observed)
            if spec.filters.policy.is_scaled(part):
                low, width = scale_of(part)
                more["scale"] = [low.tolist(), width.tolist()]
        more |= _start("start", source)
        yield {"input": name, "counts": _counts(part), "conv": layers, **more}


def _observed_names(step: PolicyStep) -> list[str]:
    """The names of the observation's inputs, but for the mask."""
    return [tensor.name for tensor in step.obs_tensors if tensor.name != MASK_INPUT]


def _statistics(step: PolicyStep, moments: RunningMeanStd) -> dict[str, np.ndarray]:
    """The filter's arrays: those of one Box alone, or of each part by the name of its input."""
    if not isinstance(moments.mean, dict):
        return {"filter/mean": moments.mean, "filter/variance": moments.variance}
    space = without_mask(step.policy_spec.observation_space)
    arrays = {}
    for path, name in zip(paths_of(space), _observed_names(step), strict=True):
        if path in moments.mean:
            arrays[f"filter/mean/{name}"] = moments.mean[path]
            arrays[f"filter/variance/{name}"] = moments.variance[path]
    return arrays


def _counts(part: Space) -> list[int] | None:
    """The numbers of values of integers; None for the numbers of a Box."""
    return None if isinstance(part, Box) else list(part.counts)


def _start(name: str, part: Space) -> dict[str, list[int]]:
    """The smallest values of the environment's integers in a row, under a name; {} where all are 0.

    Readers of format 1 do not know it.
    """
    if isinstance(part, Box) or not part.start:
        return {}
    return {name: np.ravel(range_of(part)[0]).tolist()}


def _core(core: Any, part: str) -> dict[str, Any]:
    if type(core) not in (GRU, LSTM, Attention):
        raise _refused(core)
    plan = {"kind": type(core).__name__, "state": part}
    if isinstance(core, Attention):
        names = ("memory", "num_units", "num_heads", "head_dim", "gate_bias")
        plan |= {name: getattr(core, name) for name in names}
    return plan


def _action(step: PolicyStep) -> dict[str, Any]:
    """The plan of an action from the network's outputs; of several parts "actions" has each."""
    spec = step.policy_spec
    parts = jax.tree.leaves(tree_of(spec.action_space))
    if not is_tree(spec.action_space):
        return _plan(spec, parts[0])
    plans = []
    for name, part in zip(step.action_names, parts, strict=True):
        plan = _plan(spec, part)
        kind = "gaussian" if plan["distribution"] == "categorical" else plan["distribution"]
        widths = {"num_logits": num_logits(part, kind), "num_noise": noise_size(part, kind)}
        plans.append({"output": name, **plan, **widths})
    return {"distribution": "joint", "actions": plans}


def _plan(spec: PolicySpec, space: Space) -> dict[str, Any]:
    """The plan of a plain part of an action."""
    plan: dict[str, Any] = {"action_shape": list(space.shape)}
    if mask_length(space):
        choices = countable(space)
        if isinstance(space, Box):
            plan["action_dtype"] = np.dtype(space.dtype).name
        plan |= {"distribution": "categorical", "action_counts": _counts(choices)}
        return plan | _start("action_start", choices)
    bounds = spec.action_form.bounds(space)
    conversion = "clip" if bounds.are_kept else None
    if bounds.stretched.all():
        conversion = "stretch"
    elif bounds.stretched.any():
        plan["stretched"] = bounds.stretched.tolist()
    texts = lambda bounds: np.vectorize(str, otypes=[object])(bounds).tolist()
    return plan | {
        "distribution": spec.action_distribution,
        "conversion": conversion,
        "low": texts(bounds.low),  # as texts: strict JSON has no infinity
        "high": texts(bounds.high),
        "action_dtype": jax.dtypes.canonicalize_dtype(space.dtype).name,
    }


def _named(prefix: str, tree: PyTree) -> dict[str, np.ndarray]:
    """The arrays of a tree, `prefix/0/kernel` and so on."""
    arrays = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        arrays[f"{prefix}/{jax.tree_util.keystr(path, simple=True, separator='/')}"] = leaf
    return arrays
