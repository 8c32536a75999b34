// Client of a jaxrl policy server: RLlib's verbs over a WebSocket. One file, for pages and Node;
// before Node 22 with the package `ws`.
//
//   const client = await PolicyClient.connect("ws://127.0.0.1:9944");
//   const episode = await client.startEpisode();
//   const action = await client.getAction(episode, obs);
//   client.logReturns(episode, reward);
//   await client.endEpisode(episode, { obs: last, truncated: false });
//
// docs/serving.md of jaxrl has the protocol. Of several agents, observations, actions and rewards
// are objects by agent.

// The WebSocket of a page or of Node, or that of the package `ws`: beside this file, or in the
// project that runs.
function socketClass() {
  if (typeof WebSocket !== "undefined") return WebSocket;
  try {
    return require(require.resolve("ws", { paths: [__dirname, process.cwd()] }));
  } catch {
    throw new Error("there is no WebSocket, which Node has since version 22: npm install ws");
  }
}

class PolicyClient {
  // Connects. `welcome` then tells the agents, the policies and their spaces.
  static async connect(address = "ws://127.0.0.1:9944", { token = "", timeout = 60000 } = {}) {
    const client = new PolicyClient(new (socketClass())(address), timeout);
    await client.opened;
    client.send({ type: "hello", protocol: 1, token });
    client.welcome = await client.answer("welcome");
    return client;
  }

  constructor(socket, timeout) {
    this.socket = socket;
    this.timeout = timeout;
    this.count = 0;
    this.waiting = new Map(); // id of a request: its promise's ends
    this.rewards = new Map(); // episode: the reward that was not sent yet
    this.done = new Map(); // episode: the agents that ended with it
    this.refused = null; // the reason of an error that belongs to no request
    this.opened = new Promise((done, fail) => {
      socket.onopen = done;
      socket.onerror = () => fail(new Error(`${socket.url} cannot be reached`));
    });
    socket.onmessage = (event) => this.receive(JSON.parse(event.data));
    socket.onclose = (event) => this.fail(event.reason || "the connection was closed");
  }

  // Begins an episode; its name. `explore` says whether actions are sampled.
  async startEpisode({ episode, explore, trainingEnabled } = {}) {
    const fields = { episode, explore, training_enabled: trainingEnabled };
    const answer = await this.request({ type: "start_episode", ...fields });
    return answer.episode;
  }

  // The action for an observation. `mask` says which actions are possible, where it is needed.
  async getAction(episode, obs, { mask } = {}) {
    const returns = this.takeReturns(episode);
    return (await this.request({ type: "get_action", episode, obs, mask, ...returns })).action;
  }

  // Tells of an action that was chosen here, and with which log-probability.
  logAction(episode, obs, action, { mask, logProb } = {}) {
    const returns = this.takeReturns(episode);
    this.send({ type: "log_action", episode, obs, action, mask, ...returns, log_prob: logProb });
  }

  // Adds a reward since the last action; it is sent with the next message. `done`: of several
  // agents the names of those whose part in the episode ended with it, while others go on.
  logReturns(episode, reward, { done = [] } = {}) {
    const before = this.rewards.get(episode);
    const sum = (agent) => ((before || {})[agent] || 0) + reward[agent];
    const added =
      typeof reward === "number"
        ? (before || 0) + reward
        : { ...before, ...Object.fromEntries(Object.keys(reward).map((a) => [a, sum(a)])) };
    this.rewards.set(episode, added);
    if (done.length) this.done.set(episode, [...(this.done.get(episode) || []), ...done]);
  }

  // Ends an episode. `truncated`: a time limit ended it, and not the world.
  async endEpisode(episode, { obs, truncated } = {}) {
    const returns = this.takeReturns(episode);
    await this.request({ type: "end_episode", episode, obs, truncated, ...returns });
  }

  close() {
    this.socket.close();
  }

  takeReturns(episode) {
    const returns = { reward: this.rewards.get(episode), done: this.done.get(episode) };
    this.rewards.delete(episode);
    this.done.delete(episode);
    return returns; // JSON leaves out what is undefined
  }

  send(message) {
    if (this.socket.readyState !== 1) throw new Error("the connection is closed");
    this.socket.send(JSON.stringify(message));
  }

  request(message) {
    if (this.refused) {
      const reason = this.refused;
      this.refused = null;
      return Promise.reject(new Error(reason));
    }
    const id = this.count++;
    this.send({ ...message, id });
    return this.answer(id);
  }

  answer(id) {
    return new Promise((done, fail) => {
      const late = () => this.fail(`no answer in ${this.timeout / 1000} s`);
      this.waiting.set(id, { done, fail, timer: setTimeout(late, this.timeout) });
    });
  }

  receive(message) {
    if (message.type === "error" && message.closing) return this.fail(message.reason);
    const id = message.type === "welcome" ? "welcome" : message.id;
    const waiting = this.waiting.get(id);
    if (!waiting) {
      if (message.type === "error") this.refused = message.reason;
      return;
    }
    this.waiting.delete(id);
    clearTimeout(waiting.timer);
    if (message.type === "error") waiting.fail(new Error(message.reason));
    else waiting.done(message);
  }

  // Ends the connection and all requests.
  fail(reason) {
    for (const { fail, timer } of this.waiting.values()) {
      clearTimeout(timer);
      fail(new Error(reason));
    }
    this.waiting.clear();
    this.socket.close();
  }
}

if (typeof module !== "undefined") module.exports = { PolicyClient };
