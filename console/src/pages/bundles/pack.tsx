/** How to make a bundle of one's own. */
import { CodeBlock } from "../../components/copy";

const EXAMPLE = `{
  "model_id": "my-model",
  "version": "1.0",
  "execution_template": {"type": "Onnx", "model_file": "model.onnx"},
  "files": ["model.onnx"]
}`;

export function HowToPack() {
  return (
    <details class="how-to-pack">
      <summary>How to make a bundle of your own</summary>
      <p>
        A bundle is a folder in one file. Put a <code>model_metadata.json</code> next to the files of the model. It has the
        name, the version, the engine, and the files:
      </p>
      <CodeBlock code={EXAMPLE} label="model_metadata.json" />
      <p>Then pack the folder:</p>
      <CodeBlock code="svc bundle pack FOLDER -o my-model.xyb" label="Pack command" />
    </details>
  );
}
