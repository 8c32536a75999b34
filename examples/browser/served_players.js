// The arena's players: the policies of a server (`jaxrl serve RUN --origins ...`).

const AGENTS = ["agent1", "agent2"];
const byAgent = (values) => Object.fromEntries(AGENTS.map((agent, i) => [agent, values[i]]));

async function makePlayers() {
  const address = new URLSearchParams(location.search).get("server") || "ws://127.0.0.1:9944";
  const client = await PolicyClient.connect(address);
  const episode = await client.startEpisode();
  let returns = [0, 0];
  const logReturns = (state) => {
    client.logReturns(episode, byAgent(state.returns.map((sum, i) => sum - returns[i])));
    returns = state.returns;
  };
  return {
    act: async (seen, state) => {
      logReturns(state);
      const actions = await client.getAction(episode, byAgent(seen));
      return AGENTS.map((agent) => actions[agent]);
    },
    end: async (state) => {
      logReturns(state);
      await client.endEpisode(episode, { truncated: true });
      client.close();
    },
  };
}
