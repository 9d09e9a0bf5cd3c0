/** Asks before a bundle is withdrawn, or offered again. */
import { useState } from "preact/hooks";
import type { BundleState } from "../../../build/schema";
import { ApiError, requestJson } from "../../api/client";
import { ConfirmDialog } from "../../components/dialog";
import { ErrorNotice } from "../../components/notices";
import { bundlePath } from "./path";

export function YankDialog(
  { bundle, onClose, onChanged }: { bundle: BundleState; onClose: () => void; onChanged: () => void },
) {
  const [error, setError] = useState<ApiError | null>(null);
  const change = async (): Promise<void> => {
    setError(null);
    try {
      const action = bundle.yanked ? "unyank" : "yank";
      await requestJson<BundleState>(`${bundlePath(bundle)}/${action}`, { method: "POST" });
      onChanged();
    } catch (caught) {
      if (!(caught instanceof ApiError)) throw caught;
      setError(caught);
    }
  };
  const verb = bundle.yanked ? "Unyank" : "Yank";
  return (
    <ConfirmDialog
      title={`${verb} ${bundle.key}?`} action={`${verb} bundle`} onConfirm={change} onClose={onClose}
    >
      <p>
        {bundle.yanked
          ? "The bundle counts for latest and for version ranges again."
          : "The bundle no longer counts for latest and for version ranges. It still downloads when named exactly."}
      </p>
      {error && <ErrorNotice error={error} />}
    </ConfirmDialog>
  );
}
