/** Asks how long the previous secret stays valid, and replaces it. */
import { useState } from "preact/hooks";
import type { MadeKey, ShownKey } from "../../../build/schema";
import { ApiError, renewSession, requestJson } from "../../api/client";
import { BusyButton } from "../../components/busy-button";
import { Dialog } from "../../components/dialog";
import { Field } from "../../components/field";
import { ErrorNotice } from "../../components/notices";
import { useSession } from "../../session";

const GRACE_PERIODS = [
  { seconds: "0", label: "It ends now" },
  { seconds: "3600", label: "1 hour" },
  { seconds: "86400", label: "1 day" },
  { seconds: "604800", label: "1 week" },
];
const DEFAULT_GRACE = "86400";

export function RotateDialog(
  { apiKey, onClose, onRotated }: { apiKey: ShownKey; onClose: () => void; onRotated: (made: MadeKey) => void },
) {
  const session = useSession();
  const [grace, setGrace] = useState(DEFAULT_GRACE);
  const [error, setError] = useState<ApiError | null>(null);
  const [isBusy, setIsBusy] = useState(false);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setIsBusy(true);
    try {
      const made = await requestJson<MadeKey>(`/v1/admin/keys/${encodeURIComponent(apiKey.id)}/rotate`, {
        method: "POST", json: { grace: Number(grace) },
      });
      // The session ends with the secret that it was made from. Without another one, the login would cover the secret.
      if (session.key_id === apiKey.id) await renewSession(made.key).catch(() => undefined);
      onRotated(made);
    } catch (caught) {
      if (!(caught instanceof ApiError)) throw caught;
      setError(caught);
      setIsBusy(false);
    }
  };
  return (
    <Dialog title={`Rotate ${apiKey.name}`} onClose={onClose}>
      <form class="form-grid" onSubmit={submit}>
        <p>The key gets a new secret, and keeps its limits and its spend.</p>
        <Field name="grace" label="The previous secret stays valid for" error={error}>
          {(attributes) => (
            <select {...attributes} value={grace} onChange={(event) => setGrace(event.currentTarget.value)}>
              {GRACE_PERIODS.map(({ seconds, label }) => <option key={seconds} value={seconds}>{label}</option>)}
            </select>
          )}
        </Field>
        {error && error.param !== "grace" && <ErrorNotice error={error} />}
        <div class="dialog-actions">
          <button type="button" onClick={onClose}>Cancel</button>
          <BusyButton type="submit" class="primary" isBusy={isBusy}>{isBusy ? "Rotating…" : "Rotate key"}</BusyButton>
        </div>
      </form>
    </Dialog>
  );
}
