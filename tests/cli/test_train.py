"""The command line: flags from the settings, mistakes in one line, a run a person can follow."""

import json

import pytest
from rich.console import Console

from jaxrl import PPOConfig, Trainer, UsageError
from jaxrl.cli.evaluate import RenderOptions
from jaxrl.cli.flags import flags_of, read_flags
from jaxrl.cli.train import begin, parse, train_flags, train_ppo
from jaxrl.run.logging.console import Progress
from tests.messages import refused_by
from tests.programs import SMALL_ARENA


def config_of(line):
    return parse(line.split()).config


def test_flags_say_every_kind_of_setting():
    config = config_of(
        "--env arena --env-args height=6 width=8 --num-envs 16 --rollout-length 32 "
        "--lr 0:1e-3 100000:0 --lambda 0.9 --fcnet-hiddens 32 16 --grad-clip None "
        "--use-kl-loss False --policies shared --seed 3 --total-env-steps 1_000 "
        "--value-clip None --per-policy default_policy.gamma=0.9 default_policy.fcnet_hiddens=8,4 "
        "--policies-to-train default_policy"
    )
    assert config.env_args == (("height", 6), ("width", 8))
    assert (config.num_envs, config.rollout_length, config.total_env_steps, config.seed) == (
        16,
        32,
        1000,
        3,
    )
    assert config.lr == ((0, 1e-3), (100000, 0))
    assert (config.lambda_, config.fcnet_hiddens, config.grad_clip) == (0.9, (32, 16), None)
    assert (config.use_kl_loss, config.value_clip, config.policies) == (False, None, "shared")
    assert config.for_policy("default_policy").gamma == 0.9
    assert config.for_policy("default_policy").fcnet_hiddens == (8, 4)


def test_a_count_may_be_written_as_a_power_of_ten():
    assert config_of("--total-env-steps 1e6").total_env_steps == 1_000_000


def test_the_tuned_settings_are_used_and_said_unless_declined():
    order = parse(["--env", "arena"])
    assert order.config == PPOConfig.tuned("arena")
    assert order.source == "tuned for arena"
    order = parse(["--env", "arena", "--tuned", "False", "--lr", "0.5"])
    assert order.config == PPOConfig(env="arena", lr=0.5)
    assert order.source == "RLlib's defaults, but lr=0.5"


def test_a_flag_of_the_built_in_networks_replaces_a_tuned_model():
    assert parse(["--env", "waterworld"]).config.model
    assert parse(["--env", "waterworld", "--use-gru"]).config.model is None


def test_flags_by_policy_stand_beside_the_tuned_settings_and_are_said_as_they_were_given():
    order = parse(["--env", "arena", "--per-policy", "pol1.lr=3e-4", "pol2.fcnet_hiddens=[8]"])
    given = {"pol1": {"lr": 3e-4}, "pol2": {"fcnet_hiddens": [8]}}
    assert order.config == PPOConfig.tuned("arena", per_policy=given)
    assert order.config.for_policy("pol1").model
    assert order.source == f"tuned for arena, but per_policy={given}"
    assert config_of("--env arena --per-policy pol1.use_gru=True").for_policy("pol1").model is None
    assert config_of("--env arena --policies shared") == PPOConfig.tuned("arena", policies="shared")
    assert config_of("--env arena --lr 0.5 --num-envs 8").for_policy("pol1").model


@pytest.mark.long
def test_cloning_has_the_tuned_networks_but_those_with_memory():
    line = "--algorithm bc --input data --env"
    config = config_of(f"{line} arena --per-policy pol2.lr=0.5")
    assert config.fcnet_hiddens == (64, 64)
    hunter = {"model": PPOConfig.tuned("arena").for_policy("pol2").model, "lr": 0.5}
    assert config.to_dict()["per_policy"] == {"pol2": hunter}
    assert config_of(f"{line} waterworld").model
    assert config_of(f"{line} waterworld --fcnet-hiddens 8").model is None
    model = PPOConfig.tuned("arena").for_policy("pol1").model
    asked = config_of(f"{line} arena --per-policy pol1.model={model.replace(' ', '')}")
    with pytest.raises(UsageError, match="takes no memory yet, and the model of policy 'pol1'"):
        asked.build()


def test_the_compile_cache_is_on_unless_declined_and_a_path_stays_as_it_is_written():
    assert parse(["--env", "arena"]).compile_cache == "auto"
    assert parse(["--compile-cache", "off"]).compile_cache == "off"
    assert parse(["--compile-cache", "007"]).compile_cache == "007"
    assert (
        "compile_cache" not in parse(["--compile-cache", "007"]).settings
    )  # of the process, not of the run


def test_policies_come_from_a_json_file(tmp_path):
    path = tmp_path / "policies.json"
    path.write_text('{"hunter": ["agent2"], "explorer": ["agent1"]}')
    assert set(parse(["--policies", str(path)]).config.setup().policies) == {"hunter", "explorer"}
    path.write_text("{")
    with pytest.raises(UsageError, match=r"policies file .* is not JSON"):
        parse(["--policies", str(path)])


test_a_mistake_is_refused_in_one_line = refused_by(
    lambda line: parse(line.split()).config.describe(),
    [
        ("--nun-envs 3", "unknown flag '--nun-envs'; did you mean '--num-envs'"),
        ("arena", "unexpected argument 'arena'"),
        ("--env aren", "unknown environment 'aren'; did you mean 'arena'"),
        (
            "--env gymnax:CartPole",
            "unknown gymnax environment 'CartPole'; did you mean 'CartPole-v1'",
        ),
        ("--num-envs", "--num-envs takes one value"),
        ("--lr 0.1 --lr 0.2", "--lr is given 2 times, as '0.1' and '0.2': give it once"),
        ("--env-args a=1 --env-args b=2", "--env-args .* give it once, with all its values"),
        ("--env-args a=1 a=2", "env_args names 'a' twice"),
        ("--run-dir=", "--run-dir has an empty text as its value"),
        ("--num-envs 3 4", "--num-envs takes one value, and '4' is a second one"),
        ("--env-args --lr 1", "--env-args takes values"),
        ("--debug --nun-envs=3", "unknown flag '--nun-envs'; did you mean '--num-envs'"),
        ("--num-envs three", "num_envs='three' must be an integer"),
        ("--lr fast", "lr='fast' must be a number"),
        ("--lr nan", "lr=nan must be a number"),
        ("--env-args height", "env_args takes NAME=VALUE, not 'height'"),
        ("--env-args height=0", "height=0"),
        ("--per-policy lr=3", "per_policy takes POLICY.SETTING=VALUE"),
        ("--policies nowhere.json", "policies='nowhere.json'"),
        ("--stop-return high", "stop_return='high' must be a finite number"),
        ("--stop-return nan", "stop_return=nan must be a finite number"),
        ("--tuned no", "tuned='no' must be True or False"),
        ("--fcnet-hiddens 64 x", "layer size='x' must be an integer"),
        ("--keep 0", "keep=0 must be an integer of at least 1"),
        ("--evaluation-interval often", "evaluation_interval='often' must be an integer"),
        ("--stop episode_return_mean", "stop takes NAME=VALUE, not 'episode_return_mean'"),
        ("--callbacks scripts.arena_callbacks:Arena", "unknown callbacks 'Arena'"),
        ("--resume nowhere", "nowhere does not exist"),
        ("--strict", "--strict goes with --resume RUN"),
        (
            "--profile --coordinator localhost:1234 --num-processes 2 --process-id 0",
            "--profile measures one process",
        ),
        ("--trust", "--trust goes with --resume RUN or --config RUN/config.json"),
        ("--run DQN --env cartpole", "unknown algorithm 'DQN'; known: bc, marwil, ppo"),
        ("-x", "unexpected argument '-x'"),
        ("-verbose", r"-verbose: did you mean --verbose\?"),
        ("-fcnet_hiddens 64", r"-fcnet_hiddens: did you mean --fcnet-hiddens\?"),
        ("--lr -inf", "^--lr takes values"),
        ("-v --quiet", "--quiet prints less and --verbose more: give one of the two"),
        ("--torch", "'--torch': RLlib's name; nothing to set: networks are JAX's"),
        ("--steps 100", "'--steps': RLlib's name for --total-env-steps"),
        ("--monitor", "'--monitor': RLlib's name; .* jaxrl render RUN any episode"),
        ("--render-env", "'--render-env': RLlib's name; .* jaxrl render RUN any episode"),
        ("--local-dir x", "for --run-dir; the folder of this run alone, which must not exist yet"),
        ("--json", "unknown flag '--json'"),
        ("--num-samples 2", "RLlib's name; .* jaxrl sweep --seeds 8"),
        ("--experiment-name x", "RLlib's name for --run-dir; .* --run-dir runs/NAME"),
        ("--scheduler PBT", "RLlib's name; of jaxrl.sweep: .* --halving 4, --pbt"),
        ("--ray-num-nodes 2", "RLlib's name; nothing to set"),
        ("--env CartPole-v1", "did you mean 'cartpole' or 'gym:CartPole-v1'?"),
        ("--run PPO --env aren", "unknown environment 'aren'; did you mean 'arena'"),
        ("--stop {training_iteration", "--stop: '{training_iteration' is not JSON such as"),
        ('--stop {"training_iteration":"x"}', "stop criterion training_iteration='x' must be"),
        ("-v -vv", "--verbose is given 2 times"),
    ],
)


def test_rllibs_words_are_other_spellings_of_the_flags():
    rllib = parse(["--run", "PPO", "--env", "arena", "-v"])
    jaxrl_words = parse(["--algorithm", "ppo", "--env", "arena", "--verbose", "True"])
    assert rllib.config == jaxrl_words.config and rllib.source == jaxrl_words.source
    assert rllib.verbose and jaxrl_words.verbose and not rllib.quiet
    assert parse(["--run=PPO", "--env=arena", "--quiet"]).quiet
    others = parse(["--algo", "PPO", "--env", "arena", "-vv", "--checkpoint-freq", "3"])
    assert (others.config, others.verbose) == (rllib.config, True)
    assert others.settings == {"checkpoint_frequency": 3}


def test_names_of_environments_and_results_may_be_rllibs_beside_its_own_flag():
    stop = '{"episode_reward_mean": 150, "episode_len_mean": 99, "training_iteration": 9}'
    order = parse(["--run", "PPO", "--env", "CartPole-v0", "--stop", stop])
    assert order.config == PPOConfig.tuned("cartpole", {"max_steps_in_episode": 200})
    assert order.settings["stop"] == {
        "env_runners/episode_return_mean": 150,
        "env_runners/episode_len_mean": 99,
        "training_iteration": 9,
    }
    note = "CartPole-v0 of RLlib is env='cartpole', env_args={'max_steps_in_episode': 200}"
    assert order.source.startswith(f"{note}; tuned for cartpole, but stop=")
    longer = parse(
        ["--algo", "PPO", "--env", "CartPole-v0", "--env-args", "max_steps_in_episode=300"]
    )
    assert dict(longer.config.env_args) == {"max_steps_in_episode": 300}
    # Steps of agents are another count: the run refuses that name, and says ours.
    counted = ["--run=PPO", "--env=cartpole", "--stop", "agent_timesteps_total=9"]
    assert parse(counted).settings["stop"] == {"agent_timesteps_total": 9}


def test_rllibs_settings_may_be_given_as_json_and_its_environments_by_their_names():
    text = '{"num_workers": 2, "train_batch_size": 400, "lr": 0.001}'
    order = parse(["--run", "PPO", "--env", "CartPole-v1", "--config", text, "--gamma", "0.9"])
    expected = {"env": "cartpole", "num_envs": 2, "rollout_length": 200, "lr": 0.001, "gamma": 0.9}
    assert order.config == PPOConfig(**expected)
    with pytest.raises(UsageError, match=r"--config '\{' is not JSON such as"):
        parse(["--env", "cartpole", "--config", "{"])
    with pytest.raises(UsageError, match=r"nlr=1 .* did you mean 'lr'"):
        parse(["--env", "cartpole", "--config", '{"nlr": 1}'])


def test_a_tuned_file_of_rllib_is_read_by_its_short_flag(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "tuned.yaml"
    path.write_text(
        "cartpole-ppo:\n  env: CartPole-v1\n  run: PPO\n"
        "  stop:\n    episode_reward_mean: 150\n    timesteps_total: 100000\n"
        "  config:\n    framework: torch\n    lr: 0.0003\n    num_sgd_iter: 6\n"
    )
    order = parse(["-f", str(path)])
    assert (order.config.env, order.config.lr, order.config.num_epochs) == ("cartpole", 0.0003, 6)
    assert order.settings["stop"] == {"env_runners/episode_return_mean": 150}
    assert order.config.total_env_steps == 100000


def test_a_runs_own_configuration_is_given_back_to_a_new_run(tmp_path):
    config = PPOConfig(env="arena", lr=0.5, num_envs=4, rollout_length=8, minibatch_size=32)
    folder = tmp_path / "run"
    with Trainer(config, run_dir=folder, quiet=True, keep=1):
        pass
    line = ["--config", str(folder / "config.json")]
    order = parse([*line, "--gamma", "0.9"])
    assert order.config == config.replace(gamma=0.9)
    assert (order.resume, order.run_dir, order.settings) == (None, "auto", {})
    assert order.source == f"those of {folder}, but gamma=0.9"
    for flag in ("--tuned", "--algorithm=ppo", "--ignore=lr", f"--resume={folder}"):
        name = flag.partition("=")[0]
        with pytest.raises(UsageError, match=f"begins a new run .*: leave out {name}"):
            parse([*line, flag])


def test_a_quiet_run_prints_nothing_and_a_verbose_one_a_line_for_each_chunk(tmp_path, capsys):
    progress = Progress(console=Console(force_terminal=False))
    progress.is_verbose = True
    with progress:
        for line in ("one", "two", "three"):
            progress.show_line(line)
    assert capsys.readouterr().out == "one\ntwo\nthree\n"
    progress.is_verbose = False
    with progress:
        for line in ("one", "two", "three"):
            progress.show_line(line)
    assert capsys.readouterr().out == "one\nthree\n"
    order = parse(["--env", "arena", "--quiet", "--run-dir", str(tmp_path / "run")])
    with begin(order) as trainer:
        trainer.progress.say("something")
    assert capsys.readouterr().out == ""


def test_settings_of_the_run_are_flags_too_and_a_switch_may_stand_alone():
    line = (
        "--debug --evaluation-interval 5 --loggers jsonl csv --pictures False "
        "--stop env_runners/num_episodes=7 --stop-return 3 --init-from pol1=runs/a#pol2 "
        "--callbacks scripts.arena_callbacks:ArenaMetrics"
    )
    order = parse(line.split())
    assert order.settings == {
        "debug": True,
        "evaluation_interval": 5,
        "loggers": ("jsonl", "csv"),
        "pictures": False,
        "stop": {"env_runners/num_episodes": 7, "env_runners/episode_return_mean": 3},
        "init_from": {"pol1": "runs/a#pol2"},
    }
    assert order.config.callbacks == ("scripts.arena_callbacks:ArenaMetrics",)


def test_paths_are_taken_as_they_are_written():
    assert parse(["--run-dir", "000003"]).run_dir == "000003"
    assert parse([]).run_dir == parse(["--run-dir", "auto"]).run_dir == "auto"
    flags = {**train_flags(), **flags_of(RenderOptions())}
    for name, word, value in (
        ("resume", "20261121", "20261121"),
        ("out", "1e3", "1e3"),
        ("run_dir", "None", None),
        ("checkpoint", "000003", 3),
        ("checkpoint", "best", "best"),
        ("stop", "None", {}),
    ):
        assert read_flags({name: [word]}, flags) == {name: value}


def test_a_run_begins_with_rllibs_configuration_and_flags_win(tmp_path):
    path = tmp_path / "params.json"
    rllib = {"env": "MultiAgentArena", "env_config": {"width": 6}, "lr": 0.1, "gamma": 0.9}
    path.write_text(json.dumps({**rllib, "num_workers": 4, "soft_horizon": True}))
    line = ["--rllib-config", str(path), "--ignore", "soft_horizon", "--lr", "0.2"]
    order = parse([*line, "--env-args", "height=5", "--stop-return", "9", "--keep", "1"])
    expected = {"num_envs": 4, "rollout_length": 1000, "lr": 0.2, "gamma": 0.9}
    assert order.config == PPOConfig(
        env="arena",
        env_args={"width": 6, "height": 5},
        policies={"default_policy": ["agent1", "agent2"]},
        **expected,
    )
    assert order.settings == {"keep": 1, "stop": {"env_runners/episode_return_mean": 9}}
    assert "soft_horizon=True" in order.table
    assert order.source == f"RLlib's of {path}, but lr=0.2, keep=1, stop_return=9"
    for words, message in (
        (["--rllib-config", str(path)], "it changes the result: soft_horizon=True"),
        (["--ignore", "soft_horizon"], "--ignore goes with --rllib-config FILE"),
        (["file", "tuned.yaml"], "unexpected argument 'file'; -f FILE reads an experiment"),
        ([*line, "--resume", "run"], "begins a run of PPO: leave out --resume"),
        ([*line, "--tuned"], "begins a run of PPO: leave out --tuned"),
        ([*line, "--algorithm", "bc"], "begins a run of PPO: leave out --algorithm"),
    ):
        with pytest.raises(UsageError, match=message):
            parse(words)


@pytest.mark.long
def test_a_resumed_run_is_as_long_as_its_new_flags_say(tmp_path):
    small = PPOConfig(
        env="arena", num_envs=4, rollout_length=16, minibatch_size=32, total_env_steps=640
    )
    stop = {"training_iteration": 1, "env_runners/episode_return_mean": 1e9}
    path = tmp_path / "20261121"
    Trainer(small, run_dir=path, quiet=True, pictures=False, loggers=(), stop=stop).stop()
    resume = ["--resume", str(path)]
    assert (parse(resume).run_dir, parse(resume).settings) == ("same", {})
    assert parse([*resume, "--run-dir", "auto"]).run_dir == "auto"
    goal = {"env_runners/episode_return_mean": 1e9}
    assert parse([*resume, "--total-env-steps", "1280"]).settings == {"stop": goal}
    assert parse([*resume, "--stop-return", "5"]).settings["stop"] == {
        **stop,
        "env_runners/episode_return_mean": 5,
    }
    assert parse(
        [*resume, "--stop", "training_iteration=3", "--total-env-steps", "1280"]
    ).settings == {"stop": {"training_iteration": 3}}
    assert parse([*resume, "--stop", "None"]).settings == {"stop": {}}
    assert parse([*resume, "--stop-return", "None"]).settings == {"stop": {"training_iteration": 1}}


@pytest.mark.long
def test_criteria_that_a_run_has_met_are_cleared_when_it_is_resumed(tmp_path, capsys):
    small = SMALL_ARENA.replace(total_env_steps=640)
    stop, path = {"training_iteration": 1, "env_runners/episode_return_mean": 1e9}, tmp_path / "run"
    with Trainer(small, run_dir=path, quiet=True, pictures=False, loggers=(), stop=stop) as trainer:
        assert trainer.fit()["training_iteration"] == 1
    order = parse(["--resume", str(path)])
    assert order.settings == {}
    with begin(order) as resumed:
        assert (
            "cleared the stop criterion training_iteration=1, which the run had met"
            in capsys.readouterr().out
        )
        assert dict(resumed.settings.stop) == {"env_runners/episode_return_mean": 1e9}
        assert resumed.fit()["training_iteration"] == 10
    goal = parse(["--resume", str(path), "--stop-return", "None", "--total-env-steps", "1280"])
    with begin(goal) as resumed:
        assert resumed.fit()["training_iteration"] == 20
    met = parse(["--resume", str(path), "--stop", "training_iteration=20"])  # said now, so it holds
    assert met.settings == {"stop": {"training_iteration": 20}}
    with begin(met) as resumed:
        assert resumed.fit()["training_iteration"] == 20
    assert "20 of 20 iterations are trained; a larger stop criterion" in capsys.readouterr().out


@pytest.mark.long
def test_a_run_shows_its_plan_its_progress_and_where_things_lie(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = "--env arena --total-env-steps 2560 --num-envs 8 --rollout-length 32"
    small += " --minibatch-size 64 --num-epochs 1 --fcnet-hiddens 8"
    small += " --pictures False --compile-cache off"
    train_ppo([*small.split(), "--run-dir", "out/run"])
    shown = capsys.readouterr().out
    for part in (
        "pol1 plays agent1",
        "8 environments x 32 steps",
        "tuned for arena, but",
        "compiling",
        "steps/s",
    ):
        assert part in shown
    assert "iter    10" in shown
    assert "2,560 steps in" in shown and "s in all, " in shown
    assert len((tmp_path / "out" / "run" / "metrics.jsonl").read_text().splitlines()) == 10
    with pytest.raises(SystemExit) as again:
        train_ppo([*small.split(), "--run-dir", str(tmp_path / "out" / "run")])
    refused = capsys.readouterr().err
    assert (again.value.code, refused.count("\n")) == (2, 1)
    assert "exists already" in refused
    train_ppo(["--resume", "out/run", "--compile-cache", "off"])
    resumed = capsys.readouterr().out
    assert "2,560 steps in" in resumed and "s since it was resumed, " in resumed


def test_lists_and_convolutions_are_read_from_their_flags():
    points = "obstacle_coord=[[0.3,0.3],[0.7,0.7]]"
    config = config_of(
        f"--env waterworld --env-args n_obstacles=2 {points} --observation-filter None"
    )
    coordinates = {"n_obstacles": 2, "obstacle_coord": [[0.3, 0.3], [0.7, 0.7]]}
    assert config.to_dict()["env_args"] == coordinates
    assert config.setup().env.obstacle_coord == ((0.3, 0.3), (0.7, 0.7))
    assert config.setup().env.obstacle_coord == ((0.3, 0.3), (0.7, 0.7))
    config = config_of("--env pursuit --conv-filters 16,3,2 8,2,1")
    assert config.conv_filters == ((16, 3, 2), (8, 2, 1))
    assert "convolutions 16 of 3x3 by 2, 8 of 2x2 by 1 relu, then" in config.describe()
    for words in (
        ["--conv-filters", "[[16,3,2]]"],
        ["--per-policy", "pursuer.conv_filters=[[16,3,2]]"],
    ):
        assert parse(["--env", "pursuit", *words]).config.for_policy("pursuer").conv_filters == (
            (16, 3, 2),
        )
    with pytest.raises(UsageError, match=r"'\[\[0.3' is not a list such as"):
        parse(["--env", "waterworld", "--env-args", "obstacle_coord=[[0.3"])
    with pytest.raises(UsageError, match="obstacle_coord has 1 points, but n_obstacles=2"):
        parse(["--env", "waterworld", "--env-args", "n_obstacles=2"])


def test_a_cloned_policy_has_the_network_and_the_filter_that_ppo_has_for_its_spaces():
    """Of three agents one gets a filter by `fast`; batch sizes and the like are left out."""
    words = ["--env", "tests.probes:Leavers", "--algorithm", "bc", "--input", "data"]
    cloned, ppo = parse(words).config, parse(words[:2]).config
    assert cloned.for_policy("wide").observation_filter == "MeanStdFilter"
    for policy in ("short", "long", "wide"):
        seen = cloned.for_policy(policy), ppo.for_policy(policy)
        assert len({(each.observation_filter, each.fcnet_hiddens) for each in seen}) == 1
    assert cloned.train_batch_size == cloned.rollout_length != ppo.train_batch_size
