/** One prompt and the answers of the models, side by side. */
import { useState } from "preact/hooks";
import { formatCount } from "../../components/format";
import { AnswerCard } from "./answer";
import { Thumbnails } from "./composer";
import { type Column, type Turn, finishedCalls } from "./types";
import type { Chat } from "./use-chat";

/** A longer prompt is shown by its beginning. */
const MAX_PROMPT_CHARACTERS = 2000;
const SHORT_PROMPT_CHARACTERS = 600;

export function TurnView(
  { chat, turn, isLast, onShowCode }: { chat: Chat; turn: Turn; isLast: boolean; onShowCode: (column: Column) => void },
) {
  const answers = Object.entries(turn.answers);
  return (
    <section class="turn" aria-label={turn.prompt ? `Prompt: ${turn.prompt.slice(0, 60)}` : "Prompt"}>
      <div class="prompt">
        {turn.prompt ? <PromptText text={turn.prompt} /> : !turn.images.length && <p class="hint">Results of the tools</p>}
        <Thumbnails images={turn.images} />
      </div>
      <div class="answers">
        {answers.map(([column, answer]) => (
          <AnswerCard
            key={column} column={column} answer={answer} toolResults={turn.toolResults}
            actions={{
              onChange: (patch) => chat.updateAnswer(turn.id, column, patch),
              onToolResult: (key, result) => chat.setToolResult(turn.id, key, result),
              onStop: () => chat.stop(column),
              onRegenerate: isLast ? () => chat.regenerate([column]) : null,
              onShowCode: () => onShowCode(column),
            }}
          />
        ))}
      </div>
      {isLast && !chat.isStreaming && (
        <div class="row">
          {answers.some(([, answer]) => finishedCalls(answer).length > 0) && (
            <button type="button" onClick={chat.sendToolResults}>Send the results of the tools</button>
          )}
          {answers.length > 1 && (
            <button type="button" onClick={() => chat.regenerate(answers.map(([column]) => column))}>Regenerate all</button>
          )}
        </div>
      )}
    </section>
  );
}

function PromptText({ text }: { text: string }) {
  const [isWhole, setIsWhole] = useState(false);
  if (text.length <= MAX_PROMPT_CHARACTERS) return <p>{text}</p>;
  return (
    <>
      <p>{isWhole ? text : `${text.slice(0, SHORT_PROMPT_CHARACTERS)}…`}</p>
      <button type="button" class="link" aria-expanded={isWhole} onClick={() => setIsWhole(!isWhole)}>
        {isWhole ? "Show less" : `Show all ${formatCount(text.length)} characters`}
      </button>
    </>
  );
}
