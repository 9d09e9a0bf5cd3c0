/** Shows the secret of a key. The server does not store it, so it is shown once. */
import { useState } from "preact/hooks";
import type { MadeKey } from "../../../build/schema";
import { useBackGuard } from "../../components/back-guard";
import { CodeBlock } from "../../components/copy";
import { Dialog } from "../../components/dialog";
import { formatTime } from "../../components/format";
import { KeyUseLinks } from "./links";

export function SecretDialog({ made, title, onClose }: { made: MadeKey; title: string; onClose: () => void }) {
  const [isWarned, setIsWarned] = useState(false);
  /** The first time, it only warns. Returns whether the dialog closes. */
  const close = (): boolean => {
    if (isWarned) onClose();
    else setIsWarned(true);
    return isWarned;
  };
  useBackGuard(close);
  return (
    <Dialog title={title} onClose={close}>
      <p>The secret of <strong class="key-title">{made.name}</strong>:</p>
      <CodeBlock code={made.key} label="Secret" />
      <p class={isWarned ? "warning-text" : "hint"} role={isWarned ? "alert" : undefined}>
        {isWarned
          ? "The secret is never shown again. Copy it, then close this dialog."
          : "Copy it now: it is shown only once. If you lose it, rotate the key."}
      </p>
      <p class="hint"><KeyUseLinks id={made.id} name={made.name} isNewTab /> (in a new tab)</p>
      {made.old_until && <p class="hint">The previous secret stays valid until {formatTime(made.old_until)}.</p>}
      <div class="dialog-actions">
        <button type="button" class="primary" onClick={onClose}>Done</button>
      </div>
    </Dialog>
  );
}
