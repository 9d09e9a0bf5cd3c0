/** Copies a link to the models, the last prompt and the system prompt. */
import { useEffect, useState } from "preact/hooks";
import { CopyButton } from "../../components/copy";
import { formatCount } from "../../components/format";
import { pagePath } from "../../router";
import { MAX_SHARED_CHARACTERS, shareConversation } from "./share";
import type { Conversation } from "./types";

export function ShareButton({ conversation }: { conversation: Conversation }) {
  const { query, omitted } = shareConversation(conversation);
  const [isUsed, setIsUsed] = useState(false);
  useEffect(() => setIsUsed(false), [query]);
  return (
    <span onClick={() => setIsUsed(true)}>
      <CopyButton text={location.origin + pagePath("Playground") + query} label="Copy link" />
      {isUsed && omitted.length > 0 && (
        <span class="hint" role="status">
          {" "}The link is without {omitted.join(" and ")}. It has at most {formatCount(MAX_SHARED_CHARACTERS)} characters.
        </span>
      )}
    </span>
  );
}
