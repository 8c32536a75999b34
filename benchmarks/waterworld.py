"""What can be earned in waterworld: a policy written by hand, and what its return is made of.

    python benchmarks/waterworld.py

Each pursuer coasts along a diagonal, at full speed, until food is within the sensors' range. It
pushes once, to meet that food, and again only where it would miss it. Poison is ignored. It knows
where that food is, how fast it swims, and its own speed: the sensors show the first, the speeds
relative to its own, and its own speed not at all.
"""

import jax
import jax.numpy as jnp
import numpy as np
import report

import jaxrl
from jaxrl.envs.waterworld_physics import SIZE

TIMES = np.linspace(0.05, 3.0, 60, dtype=np.float32)  # s in which food may be met
NEAR = 15.0  # px by which a pursuer may pass the middle of food without another push


def act(env, params, state) -> jax.Array:
    """The pushes of all pursuers, f32[P, 2] in units of the largest."""
    ends = env.n_pursuers, env.n_pursuers + env.n_evaders
    me, food, _ = jnp.split(state.position, ends, axis=1)
    my_velocity, food_velocity, _ = jnp.split(state.velocity, ends, axis=1)
    top_speed = params.pursuer_speed * SIZE
    offset = food[:, None, :] - me[:, :, None]  # [2, P, F]
    seen = jnp.sqrt(jnp.sum(offset**2, axis=0)) < params.sensor_range * SIZE
    touched = state.touched[:, ends[0] : ends[1]]
    reached = offset[..., None] + food_velocity[:, None, :, None] * TIMES  # [2, P, F, times]
    in_time = jnp.all(jnp.abs(reached) <= top_speed * TIMES, axis=0)
    seconds = jnp.where(seen & ~touched, jnp.asarray(TIMES)[jnp.argmax(in_time, axis=-1)], jnp.inf)
    target, seconds = jnp.argmin(seconds, axis=1), jnp.min(seconds, axis=1)
    chases = jnp.isfinite(seconds)
    seconds = jnp.where(chases, seconds, 1.0)
    offset = jnp.take_along_axis(offset, target[None, :, None], axis=2)[..., 0]
    swims = food_velocity[:, target]
    wanted = jnp.clip(offset / seconds + swims, -top_speed, top_speed)
    drift = swims - my_velocity
    nearest = -jnp.sum(offset * drift, axis=0) / jnp.maximum(jnp.sum(drift**2, axis=0), 1e-6)
    nearest = jnp.maximum(nearest, 0.0)  # s until food is nearest, without a push
    misses = jnp.sqrt(jnp.sum((offset + drift * nearest) ** 2, axis=0)) > NEAR
    misses |= nearest > seconds + 0.3
    is_slow = jnp.abs(my_velocity) < top_speed / 2
    diagonal = jnp.where(my_velocity >= 0, top_speed, -top_speed)
    starts = ~chases & ~jnp.any(touched, axis=1)
    change = jnp.where(chases & misses, wanted - my_velocity, 0.0)
    change += jnp.where(starts & is_slow, diagonal - my_velocity, 0.0)
    return change.T / (params.pursuer_max_accel * SIZE)


def episode(env, params, key) -> dict[str, jax.Array]:
    """The sums of one episode."""

    def step(state, key):
        action = act(env, params, state)
        _, after, reward, _, info = env.step_stacked(key, state, action, params)
        length = jnp.minimum(jnp.linalg.norm(jnp.clip(action, -1, 1), axis=1), 1.0)
        paid = length.at[-1].mul(2.0) * params.pursuer_max_accel * params.thrust_penalty
        return after, {"return": jnp.sum(reward), "for_pushes": jnp.sum(paid), **info["metrics"]}

    start_key, step_key = jax.random.split(key)
    keys = jax.random.split(step_key, params.max_cycles)
    _, steps = jax.lax.scan(step, env.start(start_key, params), keys)
    return jax.tree.map(jnp.sum, steps)


def main() -> None:
    parser = report.arguments_of("waterworld", __doc__, {"episodes": 2})
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    env, params = jaxrl.make("waterworld")
    play = jax.jit(jax.vmap(lambda key: episode(env, params, key)))
    sums = play(jax.random.split(jax.random.key(arguments.seed), arguments.episodes))
    means = {name: float(jnp.mean(values)) for name, values in sums.items()}
    report.keep(
        [{"episodes": arguments.episodes, **means, **report.circumstances()}], arguments.out
    )
    lines = [[f"{arguments.episodes:,}", *(f"{mean:.1f}" for mean in means.values())]]
    print(report.markdown(["episodes", *means], lines))


if __name__ == "__main__":
    main()
