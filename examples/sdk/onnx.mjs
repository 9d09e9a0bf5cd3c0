// Runs the ONNX models of bundles on the device, with the package onnxruntime-web.
// A stage without preprocessing takes and gives a JSON array of numbers, as in `svc run`.
import { UsageError, registerRunner } from "@svc/client";
import { InferenceSession, Tensor } from "onnxruntime-web/wasm";

const sessions = new Map();

async function openSession(bundle) {
  const bytes = await bundle.read(bundle.metadata.execution_template.model_file);
  return InferenceSession.create(bytes, { executionProviders: ["wasm"] });
}

/** Register the runner. Later pipelines use it for bundles of the type `Onnx`. */
export function registerOnnx() {
  registerRunner("Onnx", async (bundle, input) => {
    if (bundle.metadata.preprocessing) throw new UsageError("This runner has no preprocessing. Add the steps of your model.");
    if (!sessions.has(bundle.reference)) sessions.set(bundle.reference, openSession(bundle));
    const session = await sessions.get(bundle.reference);
    const numbers = Float32Array.from(JSON.parse(String(input)));
    const tensor = new Tensor("float32", numbers, [1, numbers.length]);
    const outputs = await session.run({ [session.inputNames[0]]: tensor });
    return JSON.stringify([...outputs[session.outputNames[0]].data]);
  });
}
