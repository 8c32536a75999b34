"""A short training of a probe."""

import pytest

from jaxrl import PPOConfig, Trainer

SMALL = {
    "num_envs": 32,
    "rollout_length": 8,
    "minibatch_size": 64,
    "num_epochs": 4,
    "fcnet_hiddens": (32,),
    "lr": 1e-2,
    "lambda_": 0.95,
}


@pytest.fixture
def fitted():
    """fitted(num_updates, run_dir, env_params, **settings): (trainer, last result).

    Of so many iterations; what differs in numbers alone shares one program.
    """

    def fit(num_updates, run_dir=None, env_params=None, **settings):
        config = PPOConfig(**{**SMALL, **settings})
        config = config.replace(total_env_steps=num_updates * config.train_batch_size)
        trainer = Trainer(
            config, env_params=env_params, run_dir=run_dir, quiet=True, pictures=False
        )
        return trainer, trainer.fit()

    return fit
