/** Notices in place of data: an error, no data yet, loading. */
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { ApiError } from "../api/client";

export function ErrorNotice({ error, onRetry }: { error: ApiError; onRetry?: () => void }) {
  return (
    <div class="notice error" role="alert">
      <p>{error.message}</p>
      <p class="hint">
        {error.status > 0 && `Status ${error.status}, code ${error.code}. `}
        {error.requestId && `Request ${error.requestId}.`}
      </p>
      {isMissingScope(error) && (
        <p class="hint">
          Log in with a key that has the scope, such as that of{" "}
          <code>svc keys create --name console --scope admin,chat,speech</code>, or with the link that{" "}
          <code>svc console</code> prints on the gateway's machine.
        </p>
      )}
      {onRetry && <button type="button" onClick={onRetry}>Try again</button>}
    </div>
  );
}

/** The scope `admin` does not include the others. */
function isMissingScope(error: ApiError): boolean {
  return error.status === 403 && error.code === "permission_denied" && error.message.includes("scope");
}

export function EmptyNotice({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="notice empty">
      <p><strong>{title}</strong></p>
      {children}
    </div>
  );
}

export function Loading({ label = "Loading…" }: { label?: string }) {
  return <p class="loading" role="status" aria-busy="true">{label}</p>;
}

const WAIT_MILLISECONDS = 1000;

/** Says that the page waits, unless it takes only a moment. */
export function Waiting({ label }: { label: string }) {
  const [isLong, setIsLong] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setIsLong(true), WAIT_MILLISECONDS);
    return () => clearTimeout(timer);
  }, []);
  return isLong ? <Loading label={label} /> : <div aria-busy="true" />;
}

/** For a page or an action that the session's key may not use. */
export function AdminOnly({ what }: { what: string }) {
  return (
    <EmptyNotice title="This needs the scope admin">
      <p>{what} Log in with a key that has the scope <code>admin</code>.</p>
    </EmptyNotice>
  );
}
