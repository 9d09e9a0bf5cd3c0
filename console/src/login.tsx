/** The form that asks for an API key. The key is sent once, and not kept. */
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, type Session, logIn } from "./api/client";
import { BusyButton } from "./components/busy-button";
import { ErrorNotice } from "./components/notices";

/** The form has the hint already that the message ends with. */
function withoutHint(error: ApiError): ApiError {
  if (error.status !== 401) return error;
  const message = error.message.replace(/ The gateway's operator creates keys with: .*$/, "");
  return new ApiError(message, error.status, error.code, error.param, error.requestId, error.retryAfterSeconds);
}

export function Login({ hasEnded, onLogin }: { hasEnded: boolean; onLogin: (session: Session) => void }) {
  const [key, setKey] = useState("");
  const [error, setError] = useState<ApiError | null>(null);
  const [isBusy, setIsBusy] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  const isLinkUsed = new URL(location.href).searchParams.get("login") === "used";
  const overlay = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    overlay.current?.showModal();
    input.current?.focus();
    if (!hasEnded) return undefined;
    document.addEventListener("keydown", ignoreEscape, { capture: true });
    return () => document.removeEventListener("keydown", ignoreEscape, { capture: true });
  }, []);

  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setIsBusy(true);
    setError(null);
    try {
      onLogin(await logIn(key));
    } catch (caught) {
      if (!(caught instanceof ApiError)) throw caught;
      setError(caught);
      setIsBusy(false);
      input.current?.focus();
    }
  };
  const form = (
    <main class="centered">
      <form class="login card" onSubmit={submit}>
        <h1>Log in</h1>
        {hasEnded && <p role="status">The session has ended. Log in again.</p>}
        {isLinkUsed && <p role="status">This link has been used or is too old. <code>svc console</code> prints another.</p>}
        <label for="key">API key</label>
        <input
          id="key" ref={input} type="password" autocomplete="current-password" required value={key}
          aria-describedby="key-help" onInput={(event) => setKey(event.currentTarget.value)}
        />
        <p id="key-help" class="hint">
          A key with the scope <code>admin</code> shows everything, any other key its own data. The key that the gateway
          prints at its start is an ordinary one.
        </p>
        <p class="hint">
          On the gateway's machine, <code>svc console</code> prints a link that logs in without a key, with all permissions.
          In a clone of the repository: <code>.venv/bin/svc console</code>
        </p>
        <p class="hint">
          A key for all pages: <code>svc keys create --name console --scope admin,chat,speech,registry:read,registry:write</code>
        </p>
        {error && <ErrorNotice error={withoutHint(error)} />}
        <BusyButton type="submit" class="primary" isBusy={isBusy}>{isBusy ? "Logging in…" : "Log in"}</BusyButton>
      </form>
    </main>
  );
  if (!hasEnded) return form;
  // Over a page whose session ended: the page may have an open dialog, and only a newer one is above it.
  return (
    <dialog
      ref={overlay} class="login-overlay" aria-label="Log in" onCancel={(event) => event.preventDefault()}
      // A browser may close a dialog in spite of the handler above, for example with the back gesture of a phone.
      onClose={() => { overlay.current?.showModal(); input.current?.focus(); }}
    >
      {form}
    </dialog>
  );
}

/** The form must stay, and so must the dialogs below it: in Chromium, one Escape can close several dialogs. */
function ignoreEscape(event: KeyboardEvent): void {
  if (event.key === "Escape") event.preventDefault();
}
