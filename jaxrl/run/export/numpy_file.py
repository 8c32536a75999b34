"""NumPy files: a policy's arrays in an .npz, for the reader in `numpy_policy.py`."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Space, is_tree, parts_of, range_of, tree_of
from jaxrl.core.types import PyTree
from jaxrl.models.attention import Attention
from jaxrl.models.cells import GRU, LSTM
from jaxrl.models.cnn import CNN, is_image
from jaxrl.models.mlp import MLP
from jaxrl.models.model import ActorCritic
from jaxrl.models.policy_spec import PolicySpec, without_mask
from jaxrl.models.recurrent_network import RecurrentNetwork
from jaxrl.run.export.numpy_policy import NumpyPolicy
from jaxrl.run.export.policy_step import AGENT, MASK_INPUT, PREV_REWARD, STATE_IN, Built, PolicyStep

READER = Path(__file__).with_name("numpy_policy.py")
# The inputs that a model is told beside the observation, by the names of its parts.
TOLD = {"agent_id": AGENT, "prev_action": f"{STATE_IN}prev_action", "prev_reward": PREV_REWARD}


def build_npz(step: PolicyStep, batch: int | None) -> Built:
    """The arrays of a step, with its metadata and the plan of its network as JSON."""
    network, arrays = _network(step)

    def content(metadata: dict[str, Any]) -> bytes:
        text = json.dumps({**metadata, "network": network})
        file = io.BytesIO()
        np.savez(file, metadata=np.array(text), **arrays)
        return file.getvalue()

    fields = [tensor._asdict() for tensor in step.inputs]
    run = NumpyPolicy(io.BytesIO(content({"format": 1, "inputs": fields})))
    return Built(run, lambda path, metadata: {path: content(metadata)})


def _network(step: PolicyStep) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(the plan of the network as plain values, its arrays by name)."""
    torso, params = step.policy_spec.model, step.weights.params
    plan, arrays, last = {**_action(step.policy_spec), "core": None}, {}, params
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
        raise _refused(getattr(mlp, "given", mlp))
    layers = [*params.get("shared", ()), *(params["policy"] if plan["core"] is None else ())]
    arrays |= _named("layers", layers)
    plan |= {"activation": mlp.activation, "num_layers": len(layers)}
    plan["parts"] = list(_parts(step, torso, convs, arrays))
    plan["free_log_std"] = "log_std" in last
    if plan["free_log_std"]:
        arrays["log_std"] = last["log_std"]
    moments = step.weights.filter
    moments = moments.policy if isinstance(moments, ActorCritic) else moments
    if step.policy_spec.observation_filter is not None and moments.count > 0:
        arrays |= {"filter/mean": moments.mean, "filter/variance": moments.variance}
    return plan, {name: np.asarray(array) for name, array in arrays.items()}


def _refused(network: Any) -> UsageError:
    return UsageError(
        f"a .npz file holds the built-in networks only, not {type(network).__name__}: "
        "write .onnx or .stablehlo"
    )


def _parts(
    step: PolicyStep, torso: MLP | CNN, convs: PyTree, arrays: dict[str, np.ndarray]
) -> Iterator[dict[str, Any]]:
    """What the first layer reads, in its order; the convolutions of images go to `arrays`."""
    spec = step.policy_spec
    space = spec.told.input_space(spec.observation_space, spec.action_space)
    is_told = bool(spec.told.spaces(spec.action_space))
    # The environment's own parts, beside those of `space`, whose integers count from 0.
    observed = zip(
        [tensor.name for tensor in step.obs_tensors if tensor.name != MASK_INPUT],
        jax.tree.leaves(tree_of(without_mask(spec.observation_space))),
        strict=True,
    )
    paths = parts_of(space, tree_of(space)) if is_tree(space) else [("", space, None)]
    for i, (path, part, _) in enumerate(paths):
        layers = []
        if isinstance(torso, CNN) and is_image(part):
            params = convs[path] if is_tree(space) else convs
            arrays |= _named(f"conv/{i}", params)
            layers = [[kernel, stride] for _, kernel, stride in torso.conv_filters]
        name, given = (TOLD[path], part) if is_told and path in TOLD else next(observed)
        yield {"input": name, "counts": _counts(part), **_start("start", given), "conv": layers}


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


def _action(spec: PolicySpec) -> dict[str, Any]:
    """How an action is made of the network's outputs."""
    space = spec.action_space
    if not isinstance(space, Box):
        return {
            "distribution": "categorical",
            "action_counts": _counts(space),
            **_start("action_start", space),
            "action_shape": list(space.shape),
        }
    low, high = (
        np.broadcast_to(np.float32(bound), space.shape) for bound in (space.low, space.high)
    )
    bounded = bool(np.all(np.abs([low, high]) < 1e30))
    stretched = bounded and (spec.normalize_actions or spec.action_distribution != "gaussian")
    clipped = "clip" if spec.clip_actions else None
    texts = lambda bounds: np.vectorize(str, otypes=[object])(bounds).tolist()
    return {
        "distribution": spec.action_distribution,
        "conversion": "stretch" if stretched else clipped,
        "low": texts(low),  # as texts: strict JSON has no infinity
        "high": texts(high),
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
