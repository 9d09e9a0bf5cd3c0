/** Asks before a key is revoked. */
import { useState } from "preact/hooks";
import type { ShownKey } from "../../../build/schema";
import { ApiError, requestJson } from "../../api/client";
import { ConfirmDialog } from "../../components/dialog";
import { ErrorNotice } from "../../components/notices";
import { useSession } from "../../session";

export function RevokeDialog(
  { apiKey, onClose, onRevoked }: { apiKey: ShownKey; onClose: () => void; onRevoked: () => void },
) {
  const session = useSession();
  const [error, setError] = useState<ApiError | null>(null);
  const revoke = async (): Promise<void> => {
    setError(null);
    try {
      await requestJson<ShownKey>(`/v1/admin/keys/${encodeURIComponent(apiKey.id)}/revoke`, { method: "POST", json: {} });
      onRevoked();
    } catch (caught) {
      if (!(caught instanceof ApiError)) throw caught;
      setError(caught);
    }
  };
  return (
    <ConfirmDialog
      title={`Revoke ${apiKey.name}?`} action="Revoke key" onConfirm={revoke} onClose={onClose}
    >
      <p>Programs that use this key get status 401 within a second. This cannot be undone.</p>
      {session.key_id === apiKey.id && (
        <p class="warning-text">This is the key of your own session. Revoking it logs you out.</p>
      )}
      {error && <ErrorNotice error={error} />}
    </ConfirmDialog>
  );
}
