"""Files as RLlib's `JsonWriter` writes them: rows of CartPole's shape, as JSON or packed."""

import base64
import json
import pickle

import numpy as np


def batch(first, count, *, last="terminateds", **columns):
    """`count` rows; observation t is (first + t, 0, 0, 0). `last` is the flag of the last row."""
    times = np.arange(first, first + count + 1, dtype=np.float32)
    obs = np.stack([times, *[np.zeros_like(times)] * 3], axis=1)
    ends = np.arange(count) == count - 1
    rows = {
        "obs": obs[:-1],
        "new_obs": obs[1:],
        "actions": np.arange(count) % 2,
        "rewards": np.ones(count, np.float32),
        "terminateds": ends & (last == "terminateds"),
        "truncateds": ends & (last == "truncateds"),
        "eps_id": np.full(count, 7),
        "t": np.arange(first, first + count),
        "infos": [{}] * count,
    }
    return rows | columns


def packed(values, compress=None):
    """An array as text; RLlib compresses by lz4."""
    if compress is None:
        import lz4.frame

        compress = lz4.frame.compress
    data = values if isinstance(values, bytes) else pickle.dumps(values)
    return base64.b64encode(compress(data)).decode("ascii")


def line(columns, pack=()):
    """A batch as a line of JSON."""
    row = {"type": "SampleBatch"}
    for name, values in columns.items():
        if values is not None:
            plain = values.tolist() if isinstance(values, np.ndarray) else values
            row[name] = packed(values) if name in pack else plain
    return json.dumps(row)


def written(folder, *lines, name="output-2026-01-01_00-00-00_worker-0_0.json"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(f"{text}\n" for text in lines))
    return str(folder)
