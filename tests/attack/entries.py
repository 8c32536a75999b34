"""Every argument of every public entry, and the kinds of values that each takes."""

import dataclasses
from functools import partial

from jaxrl_client import PolicyClient

import jaxrl
from jaxrl.core import spaces
from jaxrl.core.errors import is_installed
from jaxrl.episodes import EpisodeWriter, MultiAgentEpisode, SingleAgentEpisode, read_episodes
from jaxrl.export.numpy_policy import NumpyPolicy
from jaxrl.ops import exploration
from jaxrl.serving.server import PolicyServer
from jaxrl.serving.settings import ServerSettings
from tests.attack.nonsense import (
    EMPTY,
    FLAG,
    MAPPING,
    NATURAL,
    NOTHING,
    NUMBER,
    PATH,
    POSITIVE,
    REAL,
    SEED,
    SHARE,
    TEXT,
    VALUES,
    WHOLE,
    WORD,
    cases,
    kind_of,
)
from tests.programs import SMALL_CARTPOLE as SMALL

LRS = {"lr": [1e-3, 1e-4]}
EVERY = set(VALUES)
ENDS = {"True", "0"}
ARRAYS = {"array", "f32 0.5", "f64 nan"}  # what a random key may be, by its kind
MAKERS = {"object", "class"}  # what may be called, or be an instance
PLAYED = {
    "episodes": WHOLE,
    "explore": FLAG,
    "seed": SEED | NOTHING,
    "checkpoint": {"5"},
    "env_args": EMPTY | NOTHING,
    "trust": FLAG,
    "config": NOTHING,
}


def config_kinds(cls, **by_name):
    """The values that each setting takes; those of no plain type are named."""
    fields = [f for f in dataclasses.fields(cls) if "Any" not in str(f.type) or f.name in by_name]
    return {field.name: by_name.get(field.name, kind_of(field)) for field in fields}


CONFIG = {
    "env": MAKERS | TEXT,
    "env_args": EMPTY,
    "policies": NOTHING | EMPTY,
    "policies_to_train": NOTHING | {"class"} | TEXT | EMPTY,
    "per_policy": EMPTY,
    "ignore_observations": EMPTY | TEXT | NOTHING,
    "fcnet_activation": NOTHING,
    "fcnet_kernel_initializer_kwargs": EMPTY,
    "fcnet_bias_initializer_kwargs": EMPTY,
    "conv_activation": NOTHING,
    "vf_clip_param": NUMBER | NOTHING | {"inf"},
    "grad_clip": NUMBER | NOTHING | {"inf"},
    "clip_rewards": NUMBER | NOTHING | {"True"},
    "dual_clip": NUMBER | NOTHING | {"inf"},
    "target_kl": NUMBER | NOTHING | {"inf"},
    "fcnet_hiddens": {"[]", "{}"},
    "head_fcnet_hiddens": {"[]", "{}"},
    "conv_filters": NOTHING,
    "callbacks": EMPTY | NOTHING,
    "curriculum": NOTHING,
    "env_task_fn": NOTHING,
    "opponents": EMPTY | NOTHING,
    "exploration_config": NOTHING | EMPTY,
    "model": NOTHING | EMPTY,
    "optimizer": NOTHING | MAKERS | EMPTY,
    "seed": SEED | NOTHING,
}
RUN = {
    "stop": EMPTY | NOTHING,
    "checkpoint_interval_s": NUMBER | NOTHING | {"inf"},
    "checkpoint_score_attribute": NOTHING,
    "evaluation_env_args": EMPTY,
    "output": PATH | NOTHING,
    "output_share": SHARE,
    "loggers": EMPTY | NOTHING,
    "hooks": EMPTY | NOTHING,
    "devices": WHOLE,
    "workers": NATURAL | NOTHING,
    "init_from": EMPTY,
    "quiet": FLAG,
    "env_params": NOTHING,
    "run_dir": PATH | NOTHING,
}


def reading(call):
    """The call, and then what a training begins with."""
    return lambda **given: jaxrl.Trainer(call(**given), run_dir=None, quiet=True)


def trainer_with(**given):
    settings = {"quiet": True, "run_dir": None, **given}
    with jaxrl.Trainer(SMALL, **settings) as trainer:
        trainer.fit({"training_iteration": 1})


def written(path="x", **given):
    with EpisodeWriter(path, **given) as writer:
        return writer


episode = partial(SingleAgentEpisode, observations=[0, 1], actions=[0], rewards=[1.0])
multi = partial(
    MultiAgentEpisode, observations=[{"a": 0}, {"a": 1}], actions=[{"a": 0}], rewards=[{"a": 1.0}]
)


def configurations():
    ppo = config_kinds(jaxrl.PPOConfig, **CONFIG)
    make = partial(jaxrl.PPOConfig, env="cartpole")
    yield from cases("PPOConfig", reading(make), ppo, env="environment")
    bc = {name: kind for name, kind in config_kinds(jaxrl.BCConfig).items() if name not in ppo}
    make = partial(jaxrl.BCConfig, env="cartpole", input="x")
    yield from cases("BCConfig", make, bc)
    marwil = config_kinds(jaxrl.MARWILConfig)
    make = partial(jaxrl.MARWILConfig, env="cartpole", input="x")
    yield from cases("MARWILConfig", make, {k: v for k, v in marwil.items() if k not in bc | ppo})
    tuned = lambda **given: jaxrl.PPOConfig.tuned(given.get("env", "cartpole"))
    yield from cases("PPOConfig.tuned", tuned, {"env": MAKERS}, env="environment")
    yield from cases("make_train", jaxrl.make_train, {"config": set()}, config="make_train env")
    pool = {
        "size": WHOLE,
        "every": WHOLE | NOTHING,
        "at_win_rate": SHARE | NOTHING,
        "draw": WORD,
        "fixed": EMPTY,
        "policy": TEXT | NOTHING,
        "copies": TEXT | NOTHING,
        "window": WHOLE,
        "won_at": REAL | NOTHING,
    }
    yield from cases("OpponentPool", jaxrl.OpponentPool, pool)
    for kind in ("StochasticSampling", "EpsilonGreedy", "GaussianNoise", "SoftQ"):
        made = getattr(exploration, kind)
        arguments = config_kinds(made)
        for name, taken in arguments.items():
            first = {"warmup_timesteps", "random_timesteps"}
            arguments[name] = NATURAL if name in first else WHOLE if "steps" in name else taken
            if ("scale" in name and "steps" not in name) or name in ("stddev", "temperature"):
                arguments[name] = POSITIVE
            if "epsilon" in name and "steps" not in name:
                arguments[name] = SHARE | {"0"}
        yield from cases(kind, made, arguments)
    levels = partial(jaxrl.LevelsBySuccess, levels=[{}, {"gravity": 1.0}])
    arguments = {
        "levels": set(),
        "threshold": SHARE | {"0"},
        "window": WHOLE,
        "solved_at": REAL | NOTHING,
    }
    yield from cases("LevelsBySuccess", levels, arguments)
    curricula = {"curriculum": NOTHING}
    changed = lambda **given: jaxrl.Trainer(SMALL.replace(**given), run_dir=None, quiet=True)
    yield from cases("replace", changed, curricula)


def environments():
    for name in ("cartpole", "arena", "pursuit", "waterworld"):
        env, params = jaxrl.make(name)
        numbers = {field.name: field.default for field in dataclasses.fields(params)}
        structure = {
            field.name: getattr(env, field.name)
            for field in dataclasses.fields(env)
            if hasattr(env, field.name) and field.init
        }
        arguments = {}
        for key, default in {**numbers, **structure}.items():
            kind = NATURAL if type(default) is int else REAL if type(default) is float else None
            arguments[key] = FLAG if isinstance(default, bool) else kind
        others = {
            "shared_reward": FLAG | SHARE | {"0"},
            "evader_controller": NOTHING | MAKERS,
            "obstacle_coord": NOTHING,
            "local_ratio": SHARE | {"0"},
        }
        arguments = {key: others.get(key, kind) for key, kind in arguments.items()}
        yield from cases(
            f"make({name})", lambda name=name, **given: jaxrl.make(name, **given), arguments
        )
        structural = {key: kind for key, kind in arguments.items() if key in structure}
        yield from cases(type(env).__name__, type(env), structural)
    yield from cases("make", jaxrl.make, {"name": set()}, name="environment env")
    registering = partial(jaxrl.register, name="nothing", constructor=int)
    arguments = {"name": TEXT, "constructor": {"class"}}
    yield from cases("register", registering, arguments)
    cartpole = jaxrl.make("cartpole")[0]
    checking = partial(jaxrl.check_env, cartpole)
    yield from cases(
        "check_env", checking, {"steps": WHOLE, "params": NOTHING, "key": NOTHING | ARRAYS}
    )
    yield from cases("check_env", jaxrl.check_env, {"env": set()}, env="method environment")
    yield from cases("ShuffledSeats", jaxrl.ShuffledSeats, {"env": set()}, env="environment")
    stacking = partial(jaxrl.frame_stack, env="cartpole")
    yield from cases("frame_stack", stacking, {"num_frames": WHOLE, "padding": set()})
    transforming = partial(jaxrl.transform, env="cartpole", observation=lambda obs: obs)
    functions = dict.fromkeys(("observation", "action", "reward"), NOTHING | {"class"})
    spaces = dict.fromkeys(("observation_space", "action_space"), NOTHING)
    yield from cases("transform", transforming, functions | spaces)


def adapters():
    arguments = {"env": set(), "params": NOTHING}
    for name in ("to_gymnasium", "to_pettingzoo", "to_jaxmarl", "to_gymnax"):
        if not is_installed(name.removeprefix("to_")):
            continue
        env = "arena" if name in ("to_pettingzoo", "to_jaxmarl") else "cartpole"
        made = partial(getattr(jaxrl, name), env=env)
        more = {} if name in ("to_jaxmarl", "to_gymnax") else {"render_mode": NOTHING}
        more |= {"legacy": FLAG} if name == "to_gymnax" else {}
        yield from cases(name, made, arguments | more, env="environment")
    vector = partial(jaxrl.to_gymnasium_vector, env="cartpole", num_envs=2)
    more = {"num_envs": WHOLE, "render_mode": NOTHING, "autoreset_mode": set(), "copy": FLAG}
    yield from cases("to_gymnasium_vector", vector, arguments | more, env="environment")


def of_spaces():
    box = partial(spaces.Box, low=0.0, high=1.0, shape=(2,))
    numbers = {"0", "-1", "0.5", "f32 0.5", "inf"}
    arguments = {
        "low": numbers,
        "high": (numbers - {"-1"}) | {"5"},
        "shape": {"[]", "None"},
        "dtype": {"class", "f32 0.5", "f64 nan"},
    }
    yield from cases("Box", box, arguments, low="bounds Box", high="bounds Box", dtype="Box type")
    discrete = partial(spaces.Discrete, n=2)
    arguments = {"n": WHOLE, "start": NATURAL | {"-1"}}
    yield from cases("Discrete", discrete, arguments)
    yield from cases("MultiDiscrete", spaces.MultiDiscrete, {"nvec": set()})
    yield from cases("Dict", spaces.Dict, {"parts": set()}, parts="Dict")
    yield from cases("Tuple", spaces.Tuple, {"spaces": set()}, spaces="Tuple")
    learner = partial(
        jaxrl.Learner,
        config=SMALL.replace(env="external", env_args={}),
        observation_space=spaces.Box(0.0, 1.0, (2,)),
        action_space=spaces.Discrete(2),
    )
    arguments = {"config": set(), "observation_space": set(), "action_space": set()}
    yield from cases("Learner", learner, arguments | {"masked": FLAG}, config="configuration")


def sweeping():
    call = partial(jaxrl.sweep, config=SMALL, space=LRS, run_dir=None, quiet=True)
    arguments = {
        "config": set(),
        "space": set(),
        "seeds": WHOLE,
        "num_samples": WHOLE,
        "stop": MAPPING | NOTHING,
        "metric": NOTHING | TEXT,
        "mode": set(),
        "halving": WHOLE | NOTHING,
        "search": NOTHING,
        "trials": NOTHING,
        "scheduler": NOTHING,
        "devices": WHOLE,
        "batch_size": WHOLE,
        "run_dir": PATH | NOTHING,
        "quiet": FLAG,
        "evaluation_interval": WHOLE | NOTHING,
        "loggers": EMPTY | NOTHING,
    }
    also = {"config": "configuration", "space": "space nothing", "loggers": "log"}
    yield from cases("sweep", call, arguments, **also)
    resume = partial(jaxrl.resume_sweep, path="nowhere")
    arguments = {"path": set(), "quiet": FLAG, "trust": FLAG}
    yield from cases("resume_sweep", resume, arguments, path="folder run")
    for draw in ("uniform", "loguniform", "randint"):
        made = getattr(jaxrl, draw)
        least = POSITIVE if draw == "loguniform" else REAL
        whole = {"0", "5", "-1"}
        bounds = partial(made, low=1, high=10)
        arguments = {"low": whole if draw == "randint" else least, "high": {"5"}}
        yield from cases(draw, bounds, arguments, low=draw, high=draw)
    integers = partial(jaxrl.lograndint, low=1, high=10)
    bounds = {"low": {"5"}, "high": {"5"}}
    yield from cases("lograndint", integers, bounds, low="lograndint", high="lograndint")
    steps = partial(jaxrl.quniform, low=0, high=10, q=5)
    bounds = {"low": {"0", "5", "-5"}, "high": {"5"}, "q": POSITIVE}
    also = dict.fromkeys(("low", "high", "q"), "quniform")
    yield from cases("quniform", steps, bounds, **also)
    for draw in ("choice", "grid_search"):
        many = {"array", "ragged", "[object]"}
        yield from cases(draw, getattr(jaxrl, draw), {"values": many}, values="choice grid")
    population = jaxrl.PopulationBasedTraining
    arguments = {
        "perturbation_interval": WHOLE,
        "hyperparam_mutations": NOTHING,
        "quantile_fraction": SHARE | {"0"},
        "resample_probability": SHARE | {"0"},
        "perturbation_factors": set(),
        "burn_in_period": NATURAL,
    }
    yield from cases("PopulationBasedTraining", population, arguments)


def serving():
    arguments = config_kinds(
        ServerSettings,
        **{name: PATH | NOTHING for name in ("token_file", "certificate", "private_key")},
        origins=EMPTY | NOTHING | {"''"},
        port=NATURAL,
        godot_port=NATURAL | NOTHING,
        host=set(),
    )
    for name in ("max_clients", "max_clients_per_address", "max_episodes", "max_message_bytes"):
        arguments[name] = WHOLE
    arguments |= {"max_messages_per_second": WHOLE, "episode_timeout": WHOLE}
    yield from cases("ServerSettings", ServerSettings, arguments)
    server = partial(PolicyServer, policies={"pol": 5})
    arguments = {"policies": set(), "settings": NOTHING, "explore": FLAG, "seed": SEED}
    yield from cases("PolicyServer", server, arguments, policies="policy")
    client = partial(PolicyClient, reconnect_seconds=0, timeout=0.1)
    arguments = {
        "address": set(),
        "inference_mode": set(),
        "update_interval": NUMBER | NOTHING,
        "token": TEXT | {"''"},
        "text": FLAG,
        "timeout": POSITIVE,
        "reconnect_seconds": NUMBER,
    }
    yield from cases("PolicyClient", client, arguments)


def of_episodes():
    arguments = {
        "observations": {"ragged"},
        "infos": {"None", "[]", "{}", "''"},
        "actions": {"[object]"},
        "rewards": set(),
        "terminated": ENDS,
        "truncated": ENDS,
        "extra_model_outputs": EMPTY | NOTHING,
        "t_started": NATURAL | NOTHING,
        "len_lookback_buffer": NATURAL | {"10**400"},
        "copy": FLAG,
        "id_": TEXT | NOTHING | {"''", "NUL"},
        "agent_id": EVERY,
        "module_id": EVERY,
        "multi_agent_episode_id": EVERY,
        "observation_space": NOTHING,
        "action_space": NOTHING,
    }
    yield from cases("SingleAgentEpisode", episode, arguments, rewards="reward")
    getters = {"indices": {"0", "None", "[]", "-1"}, "neg_index_as_lookback": FLAG}
    for getter in ("get_observations", "get_actions", "get_rewards", "get_infos"):
        yield from cases(getter, getattr(episode(), getter), getters, indices="index")
    outputs = episode().get_extra_model_outputs
    yield from cases("get_extra_model_outputs", outputs, {"key": set()}, key="output")
    step = lambda **given: episode(len_lookback_buffer=0).add_env_step(
        **{"observation": 1, "action": 1, "reward": 1.0, **given}
    )
    arguments = {
        "reward": REAL | {"True", "inf"},
        "terminated": ENDS,
        "truncated": ENDS,
        "infos": MAPPING | NOTHING | {"{5: 5}"},
        "extra_model_outputs": MAPPING | NOTHING,
    }
    yield from cases("add_env_step", step, arguments)
    cut = lambda **given: episode(len_lookback_buffer=0).cut(**given)
    yield from cases("cut", cut, {"len_lookback_buffer": NATURAL | NOTHING | {"10**400"}})
    arguments = {
        "observations": set(),
        "actions": set(),
        "rewards": set(),
        "terminateds": ENDS | MAPPING | NOTHING,
        "truncateds": ENDS | MAPPING | NOTHING,
        "env_t_started": NATURAL | NOTHING,
        "len_lookback_buffer": NATURAL | {"10**400"},
        "agent_t_started": MAPPING | NOTHING | {"{5: 5}"},
    }
    yield from cases("MultiAgentEpisode", multi, arguments)
    arguments = {"path": PATH, "max_rows": WHOLE, "max_bytes": WHOLE, "max_seconds": NUMBER}
    yield from cases("EpisodeWriter", written, arguments)
    reader = lambda path="nowhere", **given: list(read_episodes(path, **given))
    arguments = {"path": set(), "skip_damaged": FLAG}
    yield from cases("read_episodes", reader, arguments, path="episodes")
    estimate = partial(jaxrl.estimate_return, episodes=[episode()], policy=5)
    arguments = {
        "episodes": set(),
        "policy": EVERY,
        "gamma": SHARE | {"0"},
        "level": SHARE,
        "resamples": WHOLE,
        "folds": WHOLE,
        "seed": SEED,
        "interval": set(),
        "method": NOTHING,
    }
    yield from cases("estimate_return", estimate, arguments)
    yield from cases("replay_episode", jaxrl.replay_episode, {"episode": set()})
    yield from cases("NumpyPolicy", NumpyPolicy, {"path": TEXT}, path="file policy 1000")


def trainings():
    arguments = config_kinds(jaxrl.RunSettings, **RUN) | {
        name: RUN[name] for name in ("quiet", "env_params", "run_dir")
    }
    for name, taken in arguments.items():
        if name in ("evaluation_duration", "sampling_duration", "keep", "evaluation_max_steps"):
            arguments[name] = taken - {"0"}
    yield from cases("Trainer", trainer_with, arguments, loggers="log", hooks="hook")
    yield from cases(
        "Trainer", lambda config: jaxrl.Trainer(config, run_dir=None), {"config": set()}
    )


def playing(run):
    evaluating = partial(jaxrl.evaluate, run)
    more = {
        "episodes": WHOLE | NOTHING,
        "steps": WHOLE | NOTHING,
        "opponent": NOTHING,
        "max_steps": WHOLE | NOTHING,
        "return_episodes": FLAG,
        "output": PATH | NOTHING,
    }
    also = {"config": "configuration", "env_args": "environment", "checkpoint": "iteration"}
    yield from cases("evaluate", evaluating, PLAYED | more, **also)
    yield from cases("evaluate", jaxrl.evaluate, {"path": set()}, path="folder run")
    rendering = partial(jaxrl.render, path=run, out="x.gif")
    more = {
        "out": PATH | NOTHING,
        "episode": NATURAL,
        "max_steps": WHOLE,
        "fps": POSITIVE | NOTHING,
        "path": set(),
    }
    several = {name: kind for name, kind in PLAYED.items() if name != "episodes"}
    yield from cases("render", rendering, several | more, path="folder run", **also)
    replaying = partial(jaxrl.replay, source=run)
    more = {"source": set(), "runner": NOTHING, "episode": NATURAL, "max_steps": WHOLE}
    yield from cases("replay", replaying, PLAYED | more, source="folder run", **also)
    yield from cases("load_run", jaxrl.load_run, {"path": set()}, path="folder run")
    ignoring = partial(jaxrl.from_rllib, config={"env": "cartpole"})
    yield from cases(
        "from_rllib",
        ignoring,
        {"config": MAPPING | TEXT, "ignore": {"[]", "set", "'x'", "''", "NUL"}},
    )
    cache = {"folder": PATH}
    yield from cases("use_compile_cache", jaxrl.use_compile_cache, cache)
    joining = partial(jaxrl.join, coordinator="localhost:1", num_processes=2, process_id=0)
    arguments = {
        "coordinator": set(),
        "num_processes": WHOLE | NOTHING,
        "process_id": {"0"} | NOTHING,
        "seconds": POSITIVE,
    }
    yield from cases("join", joining, arguments)
    loaded = lambda **given: jaxrl.load_policy(run).export(**{"path": "x.npz", **given})
    arguments = {
        "path": set(),
        "explore": FLAG,
        "opset": WHOLE | NOTHING,
        "names": MAPPING | NOTHING,
    }
    yield from cases("export", loaded, arguments, path="ending")
    arguments = {
        "to": PATH,
        "checkpoint": set(),
        "episodes": WHOLE,
        **dict.fromkeys(("onnx", "private", "trust"), FLAG),
    }
    yield from cases("publish", partial(jaxrl.publish, run, to="x"), arguments)
    resuming = lambda path: jaxrl.Trainer.from_checkpoint(path)
    yield from cases("from_checkpoint", resuming, {"path": set()}, path="folder run")


def acting(run):
    trainer = jaxrl.Trainer.from_checkpoint(run, run_dir=None, quiet=True)
    for call, arguments in (
        ("fit", {"stop": MAPPING | NOTHING}),
        ("evaluate", PLAYED | {"opponent": NOTHING, "max_steps": WHOLE | NOTHING}),
        (
            "sample",
            {"num_episodes": WHOLE | NOTHING, "explore": FLAG | NOTHING, "seed": SEED | NOTHING},
        ),
        ("sample", {"num_timesteps": WHOLE | NOTHING, "first": NATURAL}),
        ("sample", {"env_args": EMPTY | NOTHING, "max_steps": WHOLE | NOTHING}),
        ("payoff_matrix", {"episodes": WHOLE}),
        ("get_policy", {"policy": NOTHING, "seed": SEED}),
        ("set_weights", {"weights": MAPPING}),
        ("compute_actions", {"observations": MAPPING}),
    ):
        plain = {k: v for k, v in arguments.items() if k not in ("config", "trust", "checkpoint")}
        kind = {"return_episodes": FLAG} if call == "evaluate" else {}
        if call in ("evaluate",):
            plain["explore"] = FLAG | NOTHING
            plain["episodes"] = WHOLE | NOTHING
        also = {"stop": "criteria", "weights": "policy", "observations": "agent"}
        yield from cases(f"Trainer.{call}", getattr(trainer, call), plain | kind, **also)


FAMILIES = {
    "configurations": configurations,
    "environments": environments,
    "adapters": adapters,
    "spaces": of_spaces,
    "sweeps": sweeping,
    "servers": serving,
    "episodes": of_episodes,
    "trainers": trainings,
}
OF_A_RUN = {"playing": playing, "acting": acting}
