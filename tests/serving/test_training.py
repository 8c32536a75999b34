"""Training from clients: what is learned from, with which probabilities, and how a run resumes."""

import itertools
import threading
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from tests.messages import refused_by

pytest.importorskip("websockets", reason="the extra `serving`")
pytest.importorskip("msgspec", reason="the extra `serving`")

import jaxrl_client.client
from jaxrl_client import EpisodeLost, PolicyClient, ServerError

import jaxrl.serving.server
from jaxrl import PPOConfig
from jaxrl.cli.main import main
from jaxrl.cli.train import begin, parse
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from jaxrl.outside.learner import Learner
from jaxrl.outside.program import OutsideTraining
from jaxrl.run.settings import RunSettings
from jaxrl.serving.batched_inference import BatchedPolicy
from jaxrl.serving.episode_record import Experience
from jaxrl.serving.external_env import External, spaces_of
from jaxrl.serving.settings import ServerSettings
from jaxrl.serving.training import Clients
from tests.serving.served import Frames, serving, small_policy

pytestmark = pytest.mark.process  # a server and its clients wait for each other

SMALL = {
    "env_args": {"observation_space": "Box(-2, 2, 3)", "action_space": "Discrete(3)"},
    **{"num_envs": 2, "rollout_length": 8, "num_epochs": 1, "minibatch_size": 16},
    "fcnet_hiddens": (8, 8),
}


def config_of(**changes):
    return PPOConfig.tuned("external", **{**SMALL, **changes})


@pytest.fixture(autouse=True)
def _cold(monkeypatch):
    monkeypatch.setattr(BatchedPolicy, "warm_up", lambda self: None)


def chunks_of(experience):
    """Everything that waits."""
    chunks = []
    while (chunk := experience.get(0.01)) is not None:
        chunks.append(chunk)
    return chunks


def test_an_episode_is_recorded_with_the_probabilities_that_it_was_played_with():
    policy, experience, rng = small_policy(), Experience(100, 1000), np.random.default_rng(0)
    served = serving(policy, explore=True, experience=experience)
    with served as server, PolicyClient(server.address) as client:
        assert client.welcome["training"]
        episode, seen, actions = client.start_episode(), [], []
        for step in range(5):
            seen.append(rng.normal(size=3).astype(np.float32))
            actions.append(client.get_action(episode, seen[-1]))
            client.log_returns(episode, step)
            client.log_returns(episode, 0.5)
        client.end_episode(episode, np.ones(3), truncated=True)
    (chunk,) = chunks_of(experience)
    chunk = chunk.to_numpy()
    np.testing.assert_allclose(chunk.get_observations(), [*seen, np.ones(3)])
    np.testing.assert_array_equal(chunk.get_actions(), actions)
    np.testing.assert_allclose(chunk.get_rewards(), [0.5, 1.5, 2.5, 3.5, 4.5])
    assert chunk.is_truncated and not chunk.is_terminated
    expected = policy.distribution(np.array(seen)).log_prob(np.array(actions))
    logged = chunk.get_extra_model_outputs("action_logp")
    np.testing.assert_allclose(logged, expected, rtol=1e-5)


def test_long_episodes_come_in_chunks_and_dropped_ones_not_at_all():
    experience = Experience(max_steps=4, enough=1000)
    with serving(experience=experience) as server, Frames(server) as client:
        client.begin()
        for step in range(10):
            client.act([step / 10, 0, 0], reward=1.0)
        client.ask(type="end_episode", id=1, episode="e", obs=[2, 2, 2], reward=1.0)
        client.begin("dropped")
        client.act([0, 0, 0], name="dropped")
        client.act([0, 0], name="dropped")
    chunks = [chunk.to_numpy() for chunk in chunks_of(experience)]
    assert [len(chunk) for chunk in chunks] == [4, 4, 2]
    assert len({chunk.id_ for chunk in chunks}) == 1
    assert [chunk.is_terminated for chunk in chunks] == [False, False, True]
    first = np.concatenate([chunk.get_observations()[:-1, 0] for chunk in chunks])
    np.testing.assert_allclose(first, np.arange(10) / 10, rtol=1e-6)
    for before, after in itertools.pairwise(chunks):
        np.testing.assert_array_equal(before.get_observations()[-1], after.get_observations()[0])


def test_of_several_agents_each_has_its_rewards_and_its_own_steps():
    left, right = small_policy("left", ("l",)), small_policy("right", ("r",))
    experience = Experience(100, 1000)
    with serving(left, right, experience=experience) as server, Frames(server) as client:
        client.begin()
        client.act({"l": [1, 0, 0], "r": [0, 1, 0]})
        client.act({"l": [2, 0, 0]}, reward={"l": 1, "r": 10})  # r waits
        client.act({"l": [0, 0, 0], "r": [0, 2, 0]}, reward={"l": 2, "r": 20})
        client.ask(type="end_episode", id=1, episode="e", reward={"l": 3, "r": 30})
    (chunk,) = chunks_of(experience)
    agents = chunk.agent_episodes
    assert (len(agents["l"]), len(agents["r"])) == (3, 2) and chunk.is_terminated
    assert list(agents["l"].get_rewards()) == [1, 2, 3]
    assert list(agents["r"].get_rewards()) == [30, 30]


@pytest.mark.parametrize("mode", ["remote", "local"])
def test_an_agent_that_is_done_ends_with_its_reward_while_others_go_on(mode):
    left, right = small_policy("left", ("l",)), small_policy("right", ("r",))
    served = serving(left, right, explore=True, experience=(experience := Experience(100, 1000)))
    with served as server, PolicyClient(server.address, mode) as client:
        episode = client.start_episode()
        client.get_action(episode, {"l": np.zeros(3), "r": np.zeros(3)})
        client.log_returns(episode, {"l": 1, "r": 10}, {"l": {}}, {"l": False, "__all__": False})
        client.get_action(episode, {"l": np.ones(3), "r": np.ones(3)})
        client.log_returns(episode, {"l": 2, "r": 20}, multiagent_done_dict={"l": True})
        client.log_returns(episode, {"l": 0.5})
        acted = client.get_action(episode, {"l": np.full(3, 2.0), "r": np.ones(3)})
        assert list(acted) == ["r"]
        client.log_returns(episode, {"r": 30, "l": 0}, multiagent_done_dict={"l": True})
        assert list(client.get_action(episode, {"r": np.ones(3)})) == ["r"]
        last = {"l": np.zeros(3), "r": np.full(3, 2.0)}
        client.end_episode(episode, last, truncated=True)
    (chunk,) = chunks_of(experience)
    agents = chunk.to_numpy().agent_episodes
    assert (len(agents["l"]), len(agents["r"])) == (2, 4)
    np.testing.assert_array_equal(agents["l"].get_rewards(), [1, 2.5])
    np.testing.assert_array_equal(agents["l"].get_observations()[-1], [2, 2, 2])
    assert agents["l"].is_terminated and not agents["l"].is_truncated
    assert agents["r"].is_truncated and not agents["r"].is_terminated


def test_an_agent_that_is_done_may_end_without_an_observation_and_in_the_last_step():
    left, right = small_policy("left", ("l",)), small_policy("right", ("r",))
    experience = Experience(100, 1000)
    with serving(left, right, experience=experience) as server, Frames(server) as client:
        for name in ("middle", "end"):
            client.begin(name)
            client.act({"l": [1, 0, 0], "r": [0, 1, 0]}, name)
            gone = {"reward": {"l": 5, "r": 0}, "done": ["l"]}
            if name == "middle":
                client.act({"r": [0, 1, 0]}, name, **gone)
                gone = {}
            ends = {"obs": {"r": [0, 2, 0]}, "truncated": True, **gone}
            client.ask(type="end_episode", id=1, episode=name, **ends)
    for chunk in chunks_of(experience):
        agents = chunk.agent_episodes
        assert list(agents["l"].get_rewards()) == [5]
        assert agents["l"].is_terminated and not agents["r"].is_terminated


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ({"obs": {"l": [0, 0, 0], "r": [0, 0, 0]}}, "agent 'l' has ended in this episode"),
        ({"obs": {"r": [0, 0, 0]}, "reward": {"l": 1}}, "and earns no more"),
        ({"obs": {"r": [0, 0, 0]}, "done": ["r"]}, "end_episode ends the episode"),
        ({"obs": {"r": [0, 0, 0]}, "done": ["x"]}, "unknown agent 'x'"),
    ],
)
def test_an_agent_that_is_done_neither_acts_nor_earns_again(later, message):
    left, right = small_policy("left", ("l",)), small_policy("right", ("r",))
    with serving(left, right) as server, Frames(server) as client:
        client.begin()
        client.act({"l": [1, 0, 0], "r": [0, 1, 0]})
        assert list(client.act({"r": [0, 1, 0]}, done=["l"])["action"]) == ["r"]
        assert message in client.act(**later)["reason"]


def test_an_info_is_ignored_and_the_end_of_agents_refused_where_it_means_nothing():
    with serving() as server, PolicyClient(server.address) as client:
        episode = client.start_episode()
        client.get_action(episode, np.zeros(3))
        client.log_returns(episode, 1.0, {}, {})
        client.log_returns(episode, 1.0, info={"speed": 3, "why": "as RLlib's programs give it"})
        with pytest.raises(ValueError, match="the server has one: end_episode ends its episode"):
            client.log_returns(episode, 1.0, multiagent_done_dict={"a": True})
        with pytest.raises(ValueError, match=r"multiagent_done_dict=.*: 3"):
            client.log_returns(episode, 1.0, multiagent_done_dict={"a": 3})
        client.end_episode(episode)


def test_actions_of_the_client_are_learned_from_with_their_probability_alone():
    experience = Experience(100, 1000)
    with serving(experience=experience) as server, PolicyClient(server.address) as client:
        episode = client.start_episode()
        client.log_action(episode, np.zeros(3), 1, log_prob=-0.25)
        client.log_returns(episode, 1.0)
        client.get_action(episode, np.ones(3))
        client.end_episode(episode)
        episode = client.start_episode()
        client.log_action(episode, np.zeros(3), 1)
        with pytest.raises(ServerError, match="log_action needs log_prob"):
            client.end_episode(episode)
        episode = client.start_episode(training_enabled=False)
        client.log_action(episode, np.zeros(3), 1)
        client.end_episode(episode)
    (chunk,) = chunks_of(experience)
    assert chunk.to_numpy().get_actions()[0] == 1 and len(chunk) == 2
    assert chunk.get_extra_model_outputs("action_logp")[0] == -0.25


def test_a_probability_by_agent_is_one_of_the_only_agent():
    experience = Experience(100, 1000)
    step = {"type": "log_action", "episode": "e", "obs": [0, 0, 0], "action": 1}
    with serving(experience=experience) as server, Frames(server) as client:
        client.begin()
        client.send(**step, log_prob={"default_agent": -0.25}, reward={"default_agent": 1.0})
        assert client.ask(type="end_episode", id=1, episode="e")["type"] != "error"
        client.begin()
        client.send(**step, log_prob={"nobody": -0.25})
        assert (
            "unknown agent 'nobody'" in client.ask(type="end_episode", id=2, episode="e")["reason"]
        )
    (chunk,) = chunks_of(experience)
    assert chunk.get_extra_model_outputs("action_logp")[0] == -0.25


def test_a_time_limit_needs_the_last_observation():
    with serving(experience=Experience(100, 1000)) as server, Frames(server) as client:
        client.begin()
        client.act([0, 0, 0])
        answer = client.ask(type="end_episode", id=1, episode="e", truncated=True)
        assert answer["reason"].startswith("an episode that a time limit ends needs its last")


def test_clients_wait_while_a_whole_batch_waits_to_be_learned_from():
    experience = Experience(max_steps=2, enough=4)
    with serving(experience=experience) as server, Frames(server) as client:
        client.begin()
        for _ in range(4):
            client.act([0, 0, 0])
        client.send(type="get_action", id=9, episode="e", obs=[0, 0, 0])
        with pytest.raises(TimeoutError):
            client.socket.recv(timeout=0.1)
        assert experience.is_full
        chunks_of(experience)
        assert client.receive()["id"] == 9


def test_clients_that_choose_their_actions_wait_with_the_next_episode():
    experience = Experience(max_steps=2, enough=2)
    with serving(experience=experience) as server, Frames(server) as client:
        client.begin()
        for _ in range(3):
            client.send(type="log_action", episode="e", obs=[0, 0, 0], action=1, log_prob=-1.0)
        client.send(type="end_episode", id=9, episode="e")
        with pytest.raises(TimeoutError):
            client.socket.recv(timeout=0.1)
        assert experience.is_full
        chunks_of(experience)
        assert client.receive()["id"] == 9


def test_of_a_client_whose_episode_never_ends_nothing_is_read_while_learning_is_behind():
    experience = Experience(max_steps=2, enough=1000)
    step = {"type": "log_action", "episode": "e", "obs": [0, 0, 0], "action": 1, "log_prob": -1.0}
    with serving(experience=experience) as server, Frames(server) as client:
        client.begin()
        experience.is_held = True
        for _ in range(101):
            client.send(**step)
        time.sleep(0.1)
        assert chunks_of(experience) == []
        experience.is_held, taken = False, 0
        while taken < 100:  # the last step is not complete before another observation
            taken += sum(map(len, chunks_of(experience)))


def test_clients_do_not_wait_for_an_update_that_was_interrupted():
    def interrupted(*batch):
        assert experience.is_full
        raise KeyboardInterrupt

    config = config_of()
    trainer = SimpleNamespace(config=config, settings=RunSettings(sync=True))
    clients = Clients(trainer, config.build())
    experience, clients.take = clients.experience, lambda runner, env_params: (runner, ())
    training = OutsideTraining(clients, ((), None, interrupted))
    assert training.counts == {}  # while nobody is served
    with pytest.raises(KeyboardInterrupt):
        training.chunk((), (), (), (), 1)
    assert not experience.is_full


def test_a_server_stops_though_a_client_waits_for_learning_in_an_episode_without_an_end():
    experience = Experience(max_steps=2, enough=1000)
    step = {"type": "log_action", "episode": "e", "obs": [0, 0, 0], "action": 1, "log_prob": -1.0}
    running = serving(experience=experience)
    server = running.__enter__()
    with Frames(server) as client:
        client.begin()
        experience.is_held = True
        for _ in range(100):
            client.send(**step)
        time.sleep(0.1)
        stopped = threading.Thread(target=running.__exit__, args=(None, None, None), daemon=True)
        stopped.start()
        stopped.join(10)
        assert not stopped.is_alive()


def test_a_client_that_waits_for_learning_is_not_cut_off_for_pings_without_an_answer(monkeypatch):
    def with_fast_pings(connect):
        def faster(*args, **options):
            names = "ping_interval", "ping_timeout"
            fast = {name: options.get(name, 20) / 200 for name in names}  # 20 s are theirs
            return connect(*args, **{**options, **fast})

        return faster

    for module in (jaxrl_client.client, jaxrl.serving.server):
        (name,) = {"connect", "serve_websockets"} & vars(module).keys()
        monkeypatch.setattr(module, name, with_fast_pings(getattr(module, name)))
    experience = Experience(max_steps=2, enough=1000)
    with serving(experience=experience) as server, PolicyClient(server.address) as client:
        episode = client.start_episode()
        experience.is_held = True
        for _ in range(100):
            client.log_action(episode, np.zeros(3), 1, log_prob=-1.0)
        time.sleep(1)
        experience.is_held = False
        client.end_episode(episode)
        assert sum(map(len, chunks_of(experience))) == 100


def test_an_episode_whose_client_waits_for_learning_is_not_dropped_as_unused(monkeypatch):
    monkeypatch.setattr(jaxrl.serving.server, "SWEEP_SECONDS", 0.05)
    experience = Experience(max_steps=2, enough=1000)
    served = serving(experience=experience, episode_timeout=1)
    with served as server, PolicyClient(server.address) as client:
        episode = client.start_episode()
        experience.is_held = True
        for _ in range(3):
            client.log_action(episode, np.zeros(3), 1, log_prob=-1.0)
        time.sleep(1.2)
        assert server.counts["dropped"] == 0
        experience.is_held = False
        client.end_episode(episode)
        assert sum(map(len, chunks_of(experience))) == 3


@pytest.mark.parametrize("mode", ["remote", "local"])
def test_clients_train_a_run_that_is_stopped_and_resumed_on_their_episodes(tmp_path, mode, capsys):
    """The reward is that of action 2, which becomes likely; the server goes away in between."""
    path, port = tmp_path / "run", []
    spaces = ["--observation-space", "Box(-2, 2, 3)", "--action-space", "Discrete(3)"]
    small = ["--num-envs", "2", "--rollout-length", "32", "--minibatch-size", "32"]
    small += ["--fcnet-hiddens", "8", "--num-epochs", "2", "--lr", "0.02", "--pictures", "False"]
    words = ["--env", "external", *spaces, *small, "--run-dir", str(path)]
    stopped = threading.Event()

    def live():
        address = f"ws://127.0.0.1:{port[0]}"
        with PolicyClient(address, mode, update_interval=0, reconnect_seconds=1) as client:
            while not stopped.is_set():
                try:
                    live_once(client)
                except (EpisodeLost, ConnectionError):
                    continue

    def live_once(client):
        episode = client.start_episode()
        for _ in range(8):
            client.log_returns(episode, float(client.get_action(episode, np.zeros(3)) == 2))
        client.end_episode(episode)

    def train(words, iterations):
        order = parse([*words, "--serve", f"port={port[0] if port else 0}"])
        with begin(order) as trainer:
            serve = trainer.progress.say
            trainer.progress.say = lambda line: (begin_clients(trainer), serve(line))
            return trainer.fit({"training_iteration": iterations})

    def begin_clients(trainer):
        if trainer.server is not None and not port:
            port.append(trainer.server.port)
            clients.append(threading.Thread(target=live))
            clients[0].start()

    clients = []
    try:
        first = train(words, 3)
        assert first["training_iteration"] == 3 and first["env_runners"]["num_episodes"] > 0
        last = train(["--resume", str(path)], 10)
    finally:
        stopped.set()
        clients[0].join()
    assert last["training_iteration"] == 10
    assert last["num_env_steps_sampled_lifetime"] == 640
    assert last["env_runners"]["episode_len_mean"] == 8
    before, after = (result["env_runners"]["episode_return_mean"] for result in (first, last))
    assert after > before + 0.5
    assert "resumed" not in capsys.readouterr().err


def test_an_iteration_is_what_a_learner_makes_of_the_same_episodes():
    """The same chunks, added to `jaxrl.Learner`, give the same weights."""
    config = config_of(seed=3)
    experience, rng = Experience(config.rollout_length, 10_000), np.random.default_rng(0)
    learner = Learner(config)
    policy = learner.get_policy("default_policy")
    served = serving(policy, explore=True, experience=experience)
    with served as server, PolicyClient(server.address) as client:
        for length in (3, 9, 4):
            episode = client.start_episode()
            for _ in range(length):
                client.get_action(episode, rng.uniform(-2, 2, 3).astype(np.float32))
                client.log_returns(episode, rng.normal())
            client.end_episode(episode)
    for chunk in chunks_of(experience):
        learner.add(chunk)
    assert learner.ready
    result = learner.update()
    assert result["env_runners"]["num_episodes"] == 3
    kl = result["learners"]["default_policy"]["mean_kl_loss"]
    assert -1e-6 < kl < 0.1  # of the first update: the policies that played and learn are the same


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("Discrete(5)", Discrete(5)),
        ("Box(-1, 1, 4)", Box(-1.0, 1.0, (4,))),
        ("Box(-1, 1, (2, 3))", Box(-1.0, 1.0, (2, 3))),
        ("Box(-inf, inf, 2, 3)", Box(-np.inf, np.inf, (2, 3))),
        ("Box(0, 255, (4, 4, 3), dtype='uint8')", Box(0, 255, (4, 4, 3), "uint8")),
        ("Box([-1, 0], [1, 5])", Box((-1, 0), (1, 5))),
        ("MultiDiscrete(2, 3)", MultiDiscrete((2, 3))),
        ("MultiDiscrete([2, 3])", MultiDiscrete((2, 3))),
        ("Dict(a=Discrete(2), b=Box(0, 1, 2))", Dict({"a": Discrete(2), "b": Box(0, 1, (2,))})),
        ("Tuple(Discrete(2), Discrete(3))", Tuple((Discrete(2), Discrete(3)))),
    ],
)
def test_a_space_is_read_from_its_text(text, space):
    assert spaces_of("observation_space", text) == {"default_agent": space}
    assert spaces_of("action_space", f'{{"a": {text}, "b": Discrete(2)}}') == {
        "a": space,
        "b": Discrete(2),
    }


test_a_text_that_is_no_space_is_refused_and_never_run = refused_by(
    lambda text: spaces_of("observation_space", text),
    [
        ("Box(-1, 1", "is no space"),
        ("Discret(1)", "did you mean 'Discrete'"),
        ("Discrete(__import__('os'))", "is no number"),
        ("__import__('os').abort()", "is no space"),
        ("Box(-1, 1, 4).sample()", "is no space"),
        ("Discrete()", "missing"),
        ("{1: Discrete(2)}", "a name must be in quotes"),
        ("{}", "has no agent"),
        ("(" * 500, "is no space"),
    ],
)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env", "external"], "missing a required argument: 'observation_space'"),
        (["--env", "cartpole", "--serve", "port=1"], "--serve goes with --env external or godot"),
        (["--workers", "2"], "workers=2 changes nothing: clients own the episodes"),
        (["--evaluation-interval", "1"], "clients own the episodes"),
        (["--output", "steps"], "output: clients own the episodes, and their steps are not"),
        (["--exploration-config", "type=Random"], "leave out explore and exploration_config"),
        (["--serve", "prot=1"], "did you mean 'port'"),
        (["--serve", "host=0.0.0.0"], "can be reached from other machines"),
    ],
)
def test_what_cannot_train_from_clients_is_refused_in_one_line(words, message, tmp_path, capsys):
    spaces = ["--observation-space", "Box(-2, 2, 3)", "--action-space", "Discrete(3)"]
    words = words if "--env" in words else ["--env", "external", *spaces, *words]
    with pytest.raises(SystemExit):
        main(["train", *words, "--run-dir", str(tmp_path / "run"), "--compile-cache", "off"])
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "run").exists()


def test_settings_of_the_server_and_of_the_environment():
    config = config_of()
    env = config.setup().env.env
    assert isinstance(env, External) and env.observation_space() == Box(-2.0, 2.0, (3,))
    assert ServerSettings.named({"port": 1}).port == 1
    assert ServerSettings().flags == ()
    settings = ServerSettings(port=1, origins=["http://a", "http://b"])
    assert settings.flags == ("--serve", "port=1", "origins=http://a,http://b")
    assert ServerSettings.named({"port": 1, "origins": "http://a,http://b"}) == settings
    assert jax.tree.leaves(env.default_params) == []
