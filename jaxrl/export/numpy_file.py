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
from jaxrl.export.policy_step import AGENT, MASK_INPUT, PREV_REWARD, STATE_IN, Built, PolicyStep
from jaxrl.models.attention import Attention
from jaxrl.models.cells import GRU, LSTM
from jaxrl.models.cnn import CNN
from jaxrl.models.mlp import MLP
from jaxrl.models.model import ActorCritic
from jaxrl.models.network_inputs import ObservationFilter, is_image, layout_of, scale_of
from jaxrl.models.policy_spec import PolicySpec, without_mask
from jaxrl.models.recurrent_network import RecurrentNetwork
from jaxrl.ops.distributions import noise_size, num_logits
from jaxrl.ops.running_stats import RunningMeanStd

SECOND_FORMAT = 2  # what readers of the first one would misread
READER = Path(__file__).with_name("numpy_policy.py")
# The inputs that a model is told beside the observation, by the names of its parts.
TOLD = {"agent_id": AGENT, "prev_action": f"{STATE_IN}prev_action", "prev_reward": PREV_REWARD}


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

    fields = [tensor._asdict() for tensor in step.inputs]
    run = NumpyPolicy(io.BytesIO(content({"format": 1, "inputs": fields})))
    return Built(run, lambda path, metadata: {path: content(metadata)})


def _is_of_second_format(network: dict[str, Any], arrays: dict[str, np.ndarray]) -> bool:
    """Returns whether readers of format 1 would misread a file, apart from its spaces."""
    parts = {key for part in network["parts"] for key in part}
    has_filters = any(name.startswith("filter/mean/") for name in arrays)
    return bool(parts & {"channels", "scale"}) or has_filters or "stretched" in network


def _network(step: PolicyStep) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(the plan of the network as plain values, its arrays by name)."""
    torso, params = step.policy_spec.model, step.weights.params
    plan, arrays, last = {**_action(step), "core": None}, {}, params
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
        last = params if plan["core"] is None else last
    if not isinstance(mlp, MLP):
        raise _refused(getattr(mlp, "inner", mlp))
    layers = [*params.get("shared", ()), *(params["policy"] if plan["core"] is None else ())]
    arrays |= _named("layers", layers)
    plan |= {"activation": mlp.activation, "num_layers": len(layers)}
    plan["parts"] = list(_parts(step, torso, convs, arrays))
    plan["free_log_std"] = "log_std" in last
    if plan["free_log_std"]:
        arrays["log_std"] = last["log_std"]
    moments = step.weights.filter
    moments = moments.policy if isinstance(moments, ActorCritic) else moments
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
    is_told = bool(spec.inputs_spec.spaces(spec.action_space))
    # The environment's own parts, beside those of `space`, whose integers count from 0.
    observed = zip(
        [tensor.name for tensor in step.obs_tensors if tensor.name != MASK_INPUT],
        jax.tree.leaves(tree_of(without_mask(spec.observation_space))),
        strict=True,
    )
    paths = parts_of(space, tree_of(space)) if is_tree(space) else [("", space, None)]
    column = 0  # of the last action, which is one row
    for i, (path, part, _) in enumerate(paths):
        layers, more = [], {}
        if isinstance(torso, CNN) and is_image(part):
            params = convs[path] if is_tree(space) else convs
            arrays |= _named(f"conv/{i}", params)
            layers = [[kernel, stride] for _, kernel, stride in torso.conv_filters]
            if layout_of(part, torso.conv_channels).is_first:
                more["channels"] = "first"
        prefix, _, inner = path.partition("/")
        if is_told and prefix in TOLD:
            name, source = TOLD[prefix], part
            if inner:
                more["columns"] = [column, column + num_chosen(part)]
                column += num_chosen(part)
        else:
            name, source = next(observed)
            more |= _filter(spec.filters.policy, part)
        more |= _start("start", source)
        yield {"input": name, "counts": _counts(part), "conv": layers, **more}


def _filter(observation_filter: ObservationFilter, part: Space) -> dict[str, Any]:
    """The change of a part's numbers before the network reads them; {} if there is none."""
    if observation_filter.is_scaled(part):
        low, width = scale_of(part)
        return {"scale": [low.tolist(), width.tolist()]}
    return {}


def _statistics(step: PolicyStep, moments: RunningMeanStd) -> dict[str, np.ndarray]:
    """The filter's arrays: those of one Box alone, or of each part by the name of its input."""
    if not isinstance(moments.mean, dict):
        return {"filter/mean": moments.mean, "filter/variance": moments.variance}
    space = without_mask(step.policy_spec.observation_space)
    paths = [path for path, _, _ in parts_of(space, tree_of(space))]
    inputs = [tensor.name for tensor in step.obs_tensors if tensor.name != MASK_INPUT]
    arrays = {}
    for path, name in zip(paths, inputs, strict=True):
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
    if mask_length(space):
        choices = countable(space)
        return {
            "distribution": "categorical",
            "action_counts": _counts(choices),
            **_start("action_start", choices),
            "action_shape": list(space.shape),
            **({"action_dtype": np.dtype(space.dtype).name} if isinstance(space, Box) else {}),
        }
    bounds = spec.action_form.bounds(space)
    clipped = "clip" if bounds.are_kept else None
    is_mixed = bounds.stretched.any() and not bounds.stretched.all()
    texts = lambda bounds: np.vectorize(str, otypes=[object])(bounds).tolist()
    return {
        "distribution": spec.action_distribution,
        "conversion": "stretch" if bounds.stretched.all() else clipped,
        **({"stretched": bounds.stretched.tolist()} if is_mixed else {}),
        "low": texts(bounds.low),  # as texts: strict JSON has no infinity
        "high": texts(bounds.high),
        "action_shape": list(space.shape),
        "action_dtype": jax.dtypes.canonicalize_dtype(space.dtype).name,
    }


def _named(prefix: str, tree: PyTree) -> dict[str, np.ndarray]:
    """The arrays of a tree, `prefix/0/kernel` and so on."""
    paths = jax.tree.leaves_with_path(tree)
    return {
        f"{prefix}/{jax.tree_util.keystr(path, simple=True, separator='/')}": leaf
        for path, leaf in paths
    }
