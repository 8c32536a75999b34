// The arena's players: two exported policies, which onnxruntime-web runs in the page.

// One thread each, for a thread more would cost more than it computes.
ort.env.wasm.wasmPaths = new URL("ort/", location.href).href;
ort.env.wasm.numThreads = 1;

// What the tuned explorer remembers (`jaxrl.envs.networks.cell_memory`): zeros where an episode begins.
const memory = () => ({ state_in_time: zeros([1]), state_in_visited: zeros([1, CELLS]) });
const zeros = (shape) => new ort.Tensor("float32", new Float32Array(shape.at(-1)), shape);

async function makePlayer(file) {
  const session = await ort.InferenceSession.create(file);
  const remembered = Object.entries(memory()).filter(([name]) => session.inputNames.includes(name));
  const state = Object.fromEntries(remembered);
  return async (cells) => {
    const obs = new ort.Tensor("int32", Int32Array.from(cells), [1, 2]);
    const outputs = await session.run({ obs, ...state });
    for (const name in state) state[name] = outputs[name.replace("_in_", "_out_")];
    return outputs.action.data[0];
  };
}

async function makePlayers() {
  const players = await Promise.all(["pol1.onnx", "pol2.onnx"].map(makePlayer));
  return {
    act: (seen) => Promise.all(players.map((choose, i) => choose(seen[i]))),
    end: async () => {},
  };
}
