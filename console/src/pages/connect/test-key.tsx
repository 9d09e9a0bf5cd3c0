/** Sends one short request with the chosen key, as the client will. */
import { useEffect, useRef, useState } from "preact/hooks";
import { BusyButton } from "../../components/busy-button";
import { formatMilliseconds } from "../../components/format";

const TIMEOUT_MILLISECONDS = 60_000;

interface Result {
  isSuccess: boolean;
  text: string;
}

export function TestKey({ secret, model }: { secret: string; model: string }) {
  const [result, setResult] = useState<Result | null>(null);
  const [isBusy, setIsBusy] = useState(false);
  const controller = useRef<AbortController | null>(null);
  useEffect(() => () => controller.current?.abort(), []);
  const run = async (): Promise<void> => {
    setIsBusy(true);
    setResult(null);
    controller.current = new AbortController();
    const outcome = await sendTest(secret, model, controller.current.signal);
    setResult(outcome);
    setIsBusy(false);
  };
  return (
    <div class="row">
      <BusyButton type="button" isBusy={isBusy} onClick={() => void run()}>{isBusy ? "Testing…" : "Test the key"}</BusyButton>
      <span class={result ? `test-result ${result.isSuccess ? "good" : "bad"}` : "hint"} role="status">
        {result?.text ?? `It sends one short request to ${model}.`}
      </span>
    </div>
  );
}

async function sendTest(secret: string, model: string, signal: AbortSignal): Promise<Result> {
  const started = performance.now();
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      credentials: "omit", // the key is tested, not the session
      headers: { authorization: `Bearer ${secret}`, "content-type": "application/json" },
      body: JSON.stringify({ model, max_tokens: 16, messages: [{ role: "user", content: "Say hello." }] }),
      signal: AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MILLISECONDS)]),
    });
    const body = (await response.json()) as {
      choices?: { message?: { content?: string | null } }[]; error?: { message?: string; code?: string };
    };
    if (!response.ok) {
      return { isSuccess: false, text: `Status ${response.status}: ${body.error?.message ?? "no message"} (${body.error?.code ?? "unknown"})` };
    }
    const text = body.choices?.[0]?.message?.content ?? "";
    return { isSuccess: true, text: `It works: ${model} answered in ${formatMilliseconds(performance.now() - started)}. ${text}` };
  } catch {
    return { isSuccess: false, text: "The gateway did not answer. Check that it is running." };
  }
}
