"""Policies in plain NumPy: a reader of the .npz files that jaxrl's `policy.export` writes.

It imports nothing of jaxrl, so this one file can be copied into any program:

    policy = NumpyPolicy("model.npz")
    action = policy.act(obs)
"""

import io
import json
import math
from pathlib import Path

import numpy as np

FORMATS, MOST_BYTES = (1, 2), 2**31  # of the arrays, uncompressed
STATE_IN, STATE_OUT = "state_in_", "state_out_"
MAX_LOG_STD = 20.0
MIN_BETA_LOGIT, MAX_CONCENTRATION, GAMMA_ATTEMPTS = -9.0, 1e3, 4
IMPOSSIBLE, MASKED_SCORE = np.float32(0.5) * np.finfo(np.float32).min, np.float32(-1e30)


def sigmoid(x):
    return np.float32(0.5) * (np.tanh(np.float32(0.5) * x) + np.float32(1))


def gelu(x):
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


ACTIVATIONS = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, np.float32(0)))),
    "gelu": gelu,
    "silu": lambda x: x * sigmoid(x),
    "linear": lambda x: x,
}


class NumpyPolicy:
    """A policy from a file.

    Calling it is one pure step, {name of an input: array} to {name of an output: array}, as the
    other formats compute it. `act` remembers the state and draws the random numbers.

    Args:
        path: the .npz file, or a stream of its bytes.
        seed: of the actions, if the file samples them.
    """

    def __init__(self, path, seed=0):
        arrays, self.metadata = _stored(path)
        if self.metadata["format"] not in FORMATS:
            raise ValueError(f"{path} has format {self.metadata['format']}, this reads {FORMATS}")
        self._arrays, self._network = arrays, self.metadata["network"]
        self._rng, self._state = np.random.default_rng(seed), {}
        self.action_dist_inputs = None  # of the actions that `act` chose last, [B, K]

    def reset(self):
        """Forgets the episodes so far; only a policy with memory has anything to forget."""
        self._state = {}

    def act(self, obs=None, *, begins=False, **others):
        """The action for one observation, or for a batch.

        Args:
            obs: the observation; of one in parts each is an argument, `obs_image` and so on.
            begins: whether an episode begins, a bool or one for each of the batch.
            **others: the inputs `mask`, `agent` and `prev_reward` (0 if it is left out), where the
                file has them.
        """
        if obs is not None:
            others["obs"] = obs
        inputs, is_batch = self._read(others)
        size = len(next(iter(inputs.values())))
        begins = np.broadcast_to(np.asarray(begins, bool), (size,))
        for field in self.metadata["inputs"]:
            name, shape = field["name"], (size, *field["shape"])
            if name.startswith(STATE_IN):
                before = self._state.get(name)
                if before is None or before.shape != shape:
                    before = np.zeros(shape, field["dtype"])
                fresh = begins.reshape(-1, *[1] * (before.ndim - 1))
                inputs[name] = np.where(fresh, np.zeros_like(before), before)
            elif name == "noise":
                inputs[name] = self._noise(shape)
        outputs = self(inputs)
        self.action_dist_inputs = outputs["action_dist_inputs"]
        self._state = {}
        for name, values in outputs.items():
            if name.startswith(STATE_OUT):
                self._state[STATE_IN + name[len(STATE_OUT) :]] = values
        actions = []
        for plan in _plans(self._network):
            action = outputs[plan.get("output", "action")]
            # A copy: whoever acts may change it, and the state has its own.
            actions.append((action if is_batch else action[0]).copy())
        if "actions" not in self._network:
            return actions[0]
        return _structured(self.metadata["action_space"], iter(actions))

    def __call__(self, inputs):
        network, params = self._network, self._arrays
        x = _first_layer(network, params, self._filtered(inputs))
        activation = ACTIVATIONS[network["activation"]]
        for i in range(1, network["num_layers"]):
            x = _dense(params, f"layers/{i}", activation(x))
        after = {}
        if network["core"] is not None:
            run = CORES[network["core"]["kind"]]
            x, after = run(network["core"], params, activation(x), inputs)
            x = _dense(params, "head/0", x)
            for i in range(1, network.get("num_head_layers", 1)):
                x = _dense(params, f"head/{i}", activation(x))
        if network["free_log_std"]:
            x = _with_log_stds(network, x, params["log_std"])
        plans = _plans(network)
        numbers, actions = _chosen(plans, x, inputs.get("mask"), inputs.get("noise"))
        outputs = {}
        for plan, action in zip(plans, actions, strict=True):
            outputs[plan.get("output", "action")] = _to_env(plan, action)
        outputs["action_dist_inputs"] = np.concatenate(numbers, axis=-1)
        for name, values in after.items():
            outputs[f"{STATE_OUT}{name}"] = values
        if f"{STATE_IN}prev_action" in inputs:
            outputs[f"{STATE_OUT}prev_action"] = _kept_action(network, actions)
        return outputs

    def _read(self, values):
        """(inputs with a batch's axis, whether they came with it)."""
        fields = {}
        for field in self.metadata["inputs"]:
            if not field["name"].startswith(STATE_IN) and field["name"] != "noise":
                fields[field["name"]] = field
        if "prev_reward" in fields:
            values = {"prev_reward": 0.0, **values}
        if set(values) != set(fields):
            raise ValueError(f"the policy takes {', '.join(fields)}, not {', '.join(values)}")
        first_name = next(iter(fields))
        first = np.asarray(values[first_name])
        is_batch = first.ndim > len(fields[first_name]["shape"])
        inputs = {}
        for name, field in fields.items():
            shape = tuple(field["shape"])
            array, expected = _typed(name, values[name], field["dtype"]), shape
            if is_batch:
                expected = (len(first), *shape)
                if array.ndim == 0:
                    array = np.broadcast_to(array, expected)
            if array.shape != expected:
                raise ValueError(f"{name} must have the shape {expected}, not {array.shape}")
            inputs[name] = array if is_batch else array[None]
        return inputs, is_batch

    def _noise(self, shape):
        if self.metadata["noise"] == "joint":
            kinds = {"categorical": "gumbel", "beta": "beta"}
            parts = []
            for plan in _plans(self._network):
                kind = kinds.get(plan["distribution"], "normal")
                parts.append(self._noise_of(kind, (*shape[:-1], plan["num_noise"])))
            return np.concatenate(parts, axis=-1)
        return self._noise_of(self.metadata["noise"], shape)

    def _noise_of(self, kind, shape):
        if kind == "gumbel":
            noise = self._rng.gumbel(size=shape)
        elif kind == "normal":
            noise = self._rng.normal(size=shape)
        else:
            half = (*shape[:-1], shape[-1] // 2)
            both = self._rng.normal(size=half), self._rng.exponential(size=half)
            noise = np.concatenate(both, axis=-1)
        return noise.astype(np.float32)

    def _filtered(self, inputs):
        """The inputs, with numbers by their statistics and pictures scaled."""
        arrays, filtered = self._arrays, dict(inputs)
        for name, values in inputs.items():
            is_alone = name == "obs" and "filter/mean" in arrays  # not a part of a Dict or Tuple
            of_input = "" if is_alone else f"/{name}"
            if f"filter/mean{of_input}" in arrays:
                variance = arrays[f"filter/variance{of_input}"] + np.float32(1e-8)
                away = (values.astype(np.float32) - arrays[f"filter/mean{of_input}"]) / np.sqrt(
                    variance
                )
                filtered[name] = np.clip(away, np.float32(-10), np.float32(10))
        for part in self._network["parts"]:
            if "scale" in part:
                low, width = (np.asarray(limit, np.float32) for limit in part["scale"])
                name = part["input"]
                filtered[name] = (inputs[name].astype(np.float32) - low) / width
        return filtered


def _typed(name, value, dtype):
    """An input as an array of its type; ValueError for a number that the type cannot hold."""
    raw, dtype = np.asarray(value), np.dtype(dtype)
    if raw.dtype == dtype:
        return raw
    if raw.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be numbers of {dtype}, not {value!r:.60}")
    with np.errstate(over="ignore", invalid="ignore"):
        array = raw.astype(dtype)
    lost = array != raw if dtype.kind != "f" else np.isinf(array) & np.isfinite(raw)
    if lost.any():
        raise ValueError(f"{name} holds {raw[lost][0]}, which {dtype} cannot hold")
    return array


def _stored(path):
    """(arrays by name, metadata) of a file; ValueError where it is damaged, or something else."""
    try:
        stream = path if hasattr(path, "read") else io.BytesIO(Path(path).read_bytes())
        with np.load(stream) as file:
            if sum(part.file_size for part in file.zip.infolist()) > MOST_BYTES:
                raise ValueError(f"it would take more than {MOST_BYTES} bytes")
            arrays = {name: file[name] for name in file.files}
        metadata = json.loads(str(arrays.pop("metadata")))
        if not {"format", "network", "inputs"} <= metadata.keys():
            raise ValueError("its metadata are of something else")
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise errors of many kinds
        why = " ".join(str(error).split())[:200]
        raise ValueError(f"{path!s:.200} is damaged, or no exported policy: {why}") from None
    return arrays, metadata


def _first_layer(network, params, inputs):
    """The first layer: numbers are multiplied by rows of the kernel, integers look rows up."""
    kernel, total, first = params["layers/0/kernel"], params["layers/0/bias"], 0
    for i, part in enumerate(network["parts"]):
        values, counts = inputs[part["input"]], part["counts"]
        if part.get("channels") == "first":
            values = np.moveaxis(values, 1, -1)
        if part["conv"]:
            values = _convolved(network, params, f"conv/{i}", part["conv"], values)
        values = values.reshape(len(values), -1)
        if "columns" in part:
            values = values[:, slice(*part["columns"])]
            if counts is not None:
                values = values.astype(np.int32)
        if counts is None:
            total = total + values.astype(np.float32) @ kernel[first : first + values.shape[1]]
            first += values.shape[1]
        else:
            values = values - np.array(part.get("start", 0))
            if np.any((values < 0) | (values >= np.array(counts))):
                raise ValueError(f"{part['input']} holds an integer out of its range")
            rows = values + np.cumsum([0, *counts[:-1]])
            total = total + kernel[first + rows].sum(axis=1)
            first += sum(counts)
    return total


def _convolved(network, params, name, layers, images):
    activation, images = ACTIVATIONS[network["conv_activation"]], images.astype(np.float32)
    for i, (kernel, stride) in enumerate(layers):
        images = activation(_dense(params, f"{name}/{i}", _patches(images, kernel, stride)))
    return images


def _patches(images, kernel, stride):
    """[B, H, W, C] to [B, H', W', kernel * kernel * C], with zeros around ("same" padding)."""
    extents, padding = [], [(0, 0)]
    for length in images.shape[1:3]:
        extent = (-(-length // stride) - 1) * stride + 1
        missing = max(extent - 1 + kernel - length, 0)
        extents.append(extent)
        padding.append((missing // 2, missing - missing // 2))
    images = np.pad(images, [*padding, (0, 0)])
    rows, columns = extents
    shifted = []
    for y in range(kernel):
        for x in range(kernel):
            shifted.append(images[:, y : y + rows : stride, x : x + columns : stride])
    return np.concatenate(shifted, axis=-1)


def _dense(params, name, x):
    return x @ params[f"{name}/kernel"] + params[f"{name}/bias"]


def _gru(core, params, x, inputs):
    name = core["state"]
    h = inputs[STATE_IN + name]
    x_r, x_z, x_n = np.split(x @ params["core/input"] + params["core/bias"], 3, axis=-1)
    h_r, h_z, h_n = np.split(h @ params["core/hidden"], 3, axis=-1)
    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
    n = np.tanh(x_n + r * (h_n + params["core/candidate_bias"]))
    h = n + z * (h - n)
    return h, {name: h}


def _lstm(core, params, x, inputs):
    name = core["state"]
    c, h = inputs[f"{STATE_IN}{name}_c"], inputs[f"{STATE_IN}{name}_h"]
    gates = x @ params["core/input"] + params["core/bias"] + h @ params["core/hidden"]
    i, f, g, o = np.split(gates, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return h, {f"{name}_c": c, f"{name}_h": h}


def _attention(core, params, x, inputs):
    """Gated transformer blocks over the inputs of this step and the last ones."""
    name, memory = core["state"], core["memory"]
    past, count = inputs[f"{STATE_IN}{name}_past"], inputs[f"{STATE_IN}{name}_count"]
    visible = np.arange(memory + 1) >= memory - count[:, None]  # this step comes last
    x, memories = _dense(params, "core/embedding", x), []
    for i in range(core["num_units"]):
        unit = f"core/units/{i}"
        keys = np.concatenate([past[:, :, i], x[:, None]], axis=1)
        memories.append(keys[:, 1:])
        normed = _normed(keys, params[f"{unit}/attention_norm"])
        attended = _attended(core, params, unit, normed, visible)
        x = _gated(core, params, f"{unit}/attention_gate", x, np.maximum(attended, 0))
        inner = _dense(params, f"{unit}/mlp_in", _normed(x, params[f"{unit}/mlp_norm"]))
        outer = _dense(params, f"{unit}/mlp_out", np.maximum(inner, 0))
        x = _gated(core, params, f"{unit}/mlp_gate", x, np.maximum(outer, 0))
    count = np.minimum(count + 1, memory).astype(np.int32)
    return x, {f"{name}_past": np.stack(memories, axis=2), f"{name}_count": count}


def _attended(core, params, unit, normed, visible):
    """The attention of the last of `normed`, f32[B, memory + 1, out], to all of them."""
    heads, size = core["num_heads"], core["head_dim"]
    length = normed.shape[1]
    query = _dense(params, f"{unit}/query", normed[:, -1]).reshape(-1, heads, size)
    key_value = _dense(params, f"{unit}/key_value", normed).reshape(-1, length, 2 * heads, size)
    key, value = np.split(key_value, 2, axis=2)
    position = _sinusoids(length, normed.shape[-1]) @ params[f"{unit}/position"]
    position = position.reshape(length, heads, size)[::-1]  # by key: the last is at distance 0
    scores = np.einsum("bhd,bjhd->bhj", query + params[f"{unit}/content_bias"], key)
    scores = scores + np.einsum("bhd,jhd->bhj", query + params[f"{unit}/position_bias"], position)
    scores = np.where(visible[:, None], scores / np.float32(math.sqrt(size)), MASKED_SCORE)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    mixed = np.einsum("bhj,bjhd->bhd", weights, value)
    return _dense(params, f"{unit}/output", mixed.reshape(len(mixed), -1))


def _gated(core, params, name, x, y):
    r, z = np.split(_dense(params, name, np.concatenate([y, x], axis=-1)), 2, axis=-1)
    r, z = sigmoid(r), sigmoid(z - np.float32(core["gate_bias"]))
    h = np.tanh(_dense(params, f"{name}_candidate", np.concatenate([y, r * x], axis=-1)))
    return x + z * (h - x)


def _normed(x, scale):
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.mean(centred**2, axis=-1, keepdims=True)
    return centred / np.sqrt(variance + np.float32(1e-5)) * scale


def _sinusoids(number, size):
    rates = 1 / 10_000 ** (np.arange(0, size, 2) / size)
    angles = np.arange(number)[:, None] * rates[None]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :size].astype(np.float32)


CORES = {"GRU": _gru, "LSTM": _lstm, "Attention": _attention}


def _plans(network):
    """The plans of an action's parts from the network's outputs; a plain action is one part."""
    return network.get("actions", [network])


def _structured(space, actions):
    """The dict or tuple of an action's parts."""
    if space["space"] == "Dict":
        return {name: _structured(part, actions) for name, part in sorted(space["spaces"].items())}
    if space["space"] == "Tuple":
        return tuple(_structured(part, actions) for part in space["spaces"])
    return next(actions)


def _with_log_stds(network, x, log_std):
    """The outputs with standard deviations, which are parameters, behind the means of each Box."""
    found, first, first_std = [], 0, 0
    for plan in _plans(network):
        is_choice = plan["distribution"] == "categorical"
        size = sum(plan["action_counts"]) if is_choice else math.prod(plan["action_shape"])
        found.append(x[:, first : first + size])
        first += size
        if not is_choice:
            part = log_std[first_std : first_std + size]
            found.append(np.broadcast_to(part, (len(x), size)))
            first_std += size
    return np.concatenate(found, axis=-1)


def _chosen(plans, x, mask, noise):
    """([numbers of the distribution], [action]) of each part, as the policy has them."""
    numbers, actions, first, first_noise, first_choice = [], [], 0, 0, 0
    for plan in plans:
        kind, drawn, possible, logits = plan["distribution"], noise, mask, x
        if len(plans) > 1 or "num_logits" in plan:
            logits = x[:, first : first + plan["num_logits"]]
            first += plan["num_logits"]
            if noise is not None:
                drawn = noise[:, first_noise : first_noise + plan["num_noise"]]
                first_noise += plan["num_noise"]
            if kind != "categorical":
                possible = None
            elif mask is not None:
                possible = mask[:, first_choice : first_choice + plan["num_logits"]]
                first_choice += plan["num_logits"]
        numbers.append(_distribution(kind, plan, logits, possible))
        actions.append(_sampled(kind, plan, numbers[-1], drawn))
    return numbers, actions


def _kept_action(network, actions):
    """The last action as the network reads it: of several parts one row of numbers."""
    if "actions" not in network:
        return actions[0]
    rows = [action.reshape(len(action), -1).astype(np.float32) for action in actions]
    return np.concatenate(rows, axis=-1)


def _distribution(kind, network, logits, mask):
    """The numbers of the distribution, f32[B, K]."""
    if kind == "beta":
        above = np.logaddexp(np.maximum(logits, np.float32(MIN_BETA_LOGIT)), np.float32(0))
        return 1 + np.minimum(above, np.float32(MAX_CONCENTRATION - 1))
    if kind != "categorical":
        mean, log_std = np.split(logits, 2, axis=-1)
        log_std = np.clip(log_std, np.float32(-MAX_LOG_STD), np.float32(MAX_LOG_STD))
        return np.concatenate([mean, log_std], axis=-1)
    if mask is None:
        return logits
    parts = []
    for part, possible in zip(_entries(network, logits), _entries(network, mask), strict=True):
        possible = possible | ~possible.any(axis=-1, keepdims=True)
        parts.append(np.where(possible, part, IMPOSSIBLE))
    return np.concatenate(parts, axis=-1)


def _sampled(kind, network, dist_inputs, noise):
    """The likeliest action, or one by random numbers, as the policy has it."""
    if kind == "categorical":
        scores = dist_inputs if noise is None else dist_inputs + noise
        chosen = [part.argmax(axis=-1) for part in _entries(network, scores)]
        action = np.stack(chosen, axis=-1).astype(np.int32)
        return action if len(network["action_shape"]) else action[:, 0]
    first, second = np.split(dist_inputs, 2, axis=-1)
    if kind == "beta" and noise is None:
        action = 2 * (first - 1) / (first + second - 2) - 1
    elif kind == "beta":
        noise = noise.reshape(len(noise), 2, GAMMA_ATTEMPTS, 2, -1)
        gammas = _gamma(np.stack([first, second], axis=-2), noise[:, 0], noise[:, 1])
        action = 2 * gammas[:, 0] / gammas.sum(axis=-2) - 1
    else:
        action = first if noise is None else first + np.exp(second) * noise
    return action.reshape(len(action), *network["action_shape"])


def _gamma(concentration, normal, exponential):
    """Gamma numbers by rejection, with a fixed number of attempts (Marsaglia and Tsang 2000)."""
    scale = concentration - np.float32(1 / 3)
    drawn = None
    for k in reversed(range(GAMMA_ATTEMPTS)):
        x = normal[:, k]
        root = 1 + x / (3 * np.sqrt(scale))
        cube = np.maximum(root, np.float32(1e-6)) ** 3
        bound = np.float32(0.5) * x**2 + scale * (1 - cube + np.log(cube))
        accepted = (root > 0) & (-exponential[:, k] < bound)
        drawn = cube if drawn is None else np.where(accepted, cube, drawn)
    return scale * drawn


def _entries(network, values):
    """The parts [B, A] of each integer of an action."""
    return np.split(values, np.cumsum(network["action_counts"])[:-1], axis=-1)


def _to_env(network, action):
    """The action in the environment's units."""
    if network["distribution"] == "categorical":
        start = np.reshape(network.get("action_start", 0), (-1,))
        dtype = network.get("action_dtype", "int32")
        action = (action.reshape(len(action), -1) + start).astype(dtype)
        return action.reshape(len(action), *network["action_shape"])
    low, high = (np.asarray(network[bound], np.float32) for bound in ("low", "high"))
    if network["distribution"] == "squashed_gaussian":
        action = np.tanh(action)
    stretched = np.asarray(network.get("stretched", network["conversion"] == "stretch"))
    if stretched.any():
        start, end = np.where(stretched, low, 0), np.where(stretched, high, 0)
        half = np.float32(0.5) * (end - start).astype(np.float32)
        action = np.where(stretched, start.astype(np.float32) + (action + 1) * half, action)
        action = np.clip(action, low, high)
    elif network["conversion"] == "clip":
        action = np.clip(action, low, high)
    return action.astype(network["action_dtype"])
