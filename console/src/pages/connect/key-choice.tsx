/** The choice of the key for the lines: a new one, or one that exists. The page keeps it only in memory. */
import { useId, useState } from "preact/hooks";
import type { MadeKey } from "../../../build/schema";
import { useIsAdmin } from "../../session";
import { KeyForm } from "../keys/form";
import { CreatedKey } from "./created-key";
import { type KeyCheck, useKeyCheck } from "./models";

/** The scopes that clients need. */
const KEY_SCOPES = ["chat", "speech"];

type KeySource = "new" | "existing";

export interface ChosenKey {
  source: KeySource;
  setSource: (source: KeySource) => void;
  created: MadeKey | null;
  setCreated: (created: MadeKey | null) => void;
  /** The content of the field. */
  typed: string;
  setTyped: (typed: string) => void;
  /** Asks the gateway about the key in the field. */
  checkTyped: () => void;
  /** The key for the lines. Empty if there is none yet. */
  secret: string;
  check: KeyCheck;
}

export function useChosenKey(): ChosenKey {
  const [source, setSource] = useState<KeySource>(useIsAdmin() ? "new" : "existing");
  const [created, setCreated] = useState<MadeKey | null>(null);
  const [typed, setTyped] = useState("");
  // A key is complete when the field loses the focus. Each part of it would be a request with a wrong key.
  const [complete, setComplete] = useState("");
  const secret = source === "new" ? created?.key ?? "" : typed.trim();
  const check = useKeyCheck(source === "new" || complete === secret ? secret : "");
  return { source, setSource, created, setCreated, typed, setTyped, checkTyped: () => setComplete(typed.trim()), secret, check };
}

export function KeyChoice({ chosen, clientId }: { chosen: ChosenKey; clientId: string }) {
  const isAdmin = useIsAdmin();
  const { source, setSource, created, setCreated } = chosen;
  if (!isAdmin) return <ExistingKey chosen={chosen} hint="Only a key with the scope admin can make others. " />;
  return (
    <>
      <fieldset class="row source-choice">
        <legend>Key</legend>
        <label class="row checkbox">
          <input type="radio" name="key-source" checked={source === "new"} onChange={() => setSource("new")} />
          Make a new key
        </label>
        <label class="row checkbox">
          <input type="radio" name="key-source" checked={source === "existing"} onChange={() => setSource("existing")} />
          Use a key that exists
        </label>
      </fieldset>
      {source === "existing" && <ExistingKey chosen={chosen} />}
      {source === "new" && !created && (
        <KeyForm<MadeKey>
          isShort suggested={{ name: clientId, scopes: KEY_SCOPES }} action="Make a key" busyAction="Making the key…"
          onSaved={setCreated}
        />
      )}
      {source === "new" && created && (
        <>
          <CreatedKey created={created} />
          <div><button type="button" class="quiet" onClick={() => setCreated(null)}>Make another key</button></div>
        </>
      )}
    </>
  );
}

function ExistingKey({ chosen, hint = "" }: { chosen: ChosenKey; hint?: string }) {
  const id = useId();
  const { typed, setTyped, checkTyped, check } = chosen;
  return (
    <div class="field existing-key">
      <label for={id}>Existing API key</label>
      <input
        // Not a password, which a browser offers to store. The lines show the key anyway.
        id={id} type="text" autocomplete="off" spellcheck={false} value={typed} aria-describedby={`${id}-hint`}
        aria-invalid={check.error ? "true" : undefined} onInput={(event) => setTyped(event.currentTarget.value)}
        onChange={checkTyped}
      />
      <p class="field-hint" id={`${id}-hint`}>
        {hint}The key completes the lines of step 3. This page keeps it only in memory, until you leave or reload the page.
      </p>
      {check.error && <p class="field-error" role="alert">{check.error.message}</p>}
      {check.models && (
        <p class="field-hint" role="status">
          The gateway accepts the key. {check.models.length === 0 ? "It may use no chat model" : check.models.length === 1 ? "It may use one chat model" : `It may use ${check.models.length} chat models`}.
        </p>
      )}
    </div>
  );
}
