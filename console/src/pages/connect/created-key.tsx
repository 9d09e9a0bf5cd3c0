/** The secret of a key that was made for a client. It is shown once, and this page alone has it. */
import type { MadeKey } from "../../../build/schema";
import { CodeBlock } from "../../components/copy";

export function CreatedKey({ created }: { created: MadeKey }) {
  return (
    <div class="stack" role="status">
      <p>
        The key <strong>{created.name}</strong> is in the lines of step 3. Copy it now: it is not shown again.
      </p>
      <CodeBlock code={created.key} label="API key" />
    </div>
  );
}
