"""A user's program, never run: mypy checks that jaxrl's public names have their types."""

from pathlib import Path
from typing import Any, assert_type

import jax

import jaxrl
from jaxrl.rllib import PPOConfig


class Pole(jaxrl.Environment):
    """An environment from outside."""


def training() -> None:
    config = jaxrl.PPOConfig.tuned("arena", total_env_steps=1000)
    assert_type(config, jaxrl.PPOConfig)
    assert_type(config.replace(lr=3e-4), jaxrl.PPOConfig)
    jax.jit(jaxrl.make_train(config))(jax.random.key(0))
    with jaxrl.Trainer(config, run_dir=None, quiet=True) as trainer:
        assert_type(trainer.train(), dict[str, Any])
        assert_type(trainer.fit({"training_iteration": 3}), dict[str, Any] | None)
        assert_type(trainer.save(), Path | None)
        assert_type(trainer.get_policy("pol1"), jaxrl.Policy)
    assert_type(jaxrl.Trainer.from_checkpoint("runs/arena/latest"), jaxrl.Trainer)
    chain = PPOConfig().environment("CartPole-v1").training(lr=3e-4)
    assert_type(chain.build_algo(run_dir=None), jaxrl.Trainer)
    assert_type(jaxrl.from_rllib("params.json", ignore=["batch_mode"]).config, jaxrl.PPOConfig)


def running() -> None:
    policy = jaxrl.load_policy("runs/arena/latest", "pol1", checkpoint="best")
    assert_type(policy, jaxrl.Policy)
    policy.act([0, 99])
    assert_type(policy.export("model.onnx", names={"action": "actions"}).parity.error, float)
    assert_type(jaxrl.evaluate("runs/arena/latest", episodes=10), dict[str, Any])
    assert_type(jaxrl.estimate_return("data/arena", policy)["doubly_robust"].low, float)
    assert_type(jaxrl.load_run("runs/arena/latest").results(), list[dict[str, Any]])
    assert_type(jaxrl.use_compile_cache("off"), Path | None)


def sweeping(config: jaxrl.PPOConfig) -> None:
    space = {"lr": jaxrl.loguniform(1e-5, 1e-2), "gamma": jaxrl.grid_search([0.9, 0.99])}
    jaxrl.sweep(config, space, seeds=2)


def environments() -> None:
    assert_type(jaxrl.names(), list[str])
    env, params = jaxrl.make("arena", height=6)
    jaxrl.register("pole", Pole)
    jaxrl.check_env(env, params, steps=8)
    jaxrl.to_pettingzoo(env, params)
    jaxrl.to_gymnasium_vector("cartpole", 8, autoreset_mode="SameStep")


def mistakes() -> None:
    """Each is refused: were one accepted, mypy would call its remark unused."""
    jaxrl.names(1)  # type: ignore[call-arg]
    jaxrl.register(1, Pole)  # type: ignore[arg-type]
    jaxrl.load_policy(0.5)  # type: ignore[arg-type]
    print(jaxrl.PPOConfig.unknown)  # type: ignore[attr-defined]
    print(jaxrl.no_such_name)  # type: ignore[attr-defined]
