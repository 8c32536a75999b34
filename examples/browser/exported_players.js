// The arena's players: two exported policies, which onnxruntime-web runs in the page.

// One thread each, for a thread more would cost more than it computes.
ort.env.wasm.wasmPaths = new URL("ort/", location.href).href;
ort.env.wasm.numThreads = 1;

async function chooseAction(session, cells) {
  const obs = new ort.Tensor("int32", Int32Array.from(cells), [1, 2]);
  const { action } = await session.run({ obs }, ["action"]);
  return action.data[0];
}

async function makePlayers() {
  const files = ["pol1.onnx", "pol2.onnx"];
  const sessions = await Promise.all(files.map((file) => ort.InferenceSession.create(file)));
  return {
    act: (seen) => Promise.all(sessions.map((session, i) => chooseAction(session, seen[i]))),
    end: async () => {},
  };
}
