/** The secret of a key that was made for a client. It is shown once, and this page alone has it. */
import type { MadeKey } from "../../../build/schema";
import { CodeBlock } from "../../components/copy";
import { KeyUseLinks } from "../keys/links";

export function CreatedKey({ created }: { created: MadeKey }) {
  return (
    <div class="stack" role="status">
      <p>
        The key <strong>{created.name}</strong> is in the lines of step 3. Copy it now: it is not shown again.
      </p>
      <CodeBlock code={created.key} label="API key" />
      <p class="hint"><KeyUseLinks id={created.id} name={created.name} isNewTab /> (in a new tab)</p>
    </div>
  );
}
