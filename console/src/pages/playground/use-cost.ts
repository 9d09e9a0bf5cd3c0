/** Reads cost and tokens of an answer from the ledger. */
import { useEffect, useState } from "preact/hooks";
import type { Entry } from "../../../build/schema";
import { get } from "../../api/client";
import type { Answer } from "./types";

/** The ledger has an entry within 2 s of the response. The later attempts are for a gateway that restarts. */
const DELAYS_MILLISECONDS = [400, 800, 1500, 2500, 5000, 10_000, 30_000, 60_000, 120_000, 240_000];

/**
 * Reads cost and tokens when the answer has ended. Returns whether the last attempt has failed, until the page is
 * opened again: the cost is unknown only if the ledger has an entry without a cost.
 */
export function useCost(answer: Answer, onChange: (patch: Partial<Answer>) => void): boolean {
  const isWanted = answer.status !== "streaming" && answer.requestId !== null && answer.costUsd === undefined;
  const { requestId } = answer;
  const [unreadId, setUnreadId] = useState<string | null>(null);
  useEffect(() => {
    if (!isWanted || requestId === null) return undefined;
    const controller = new AbortController();
    const isAborted = (): boolean => controller.signal.aborted;
    void (async () => {
      for (const delay of DELAYS_MILLISECONDS) {
        await new Promise((resolve) => { setTimeout(resolve, delay); });
        if (isAborted()) return;
        const patch = await readCost(answer, requestId, controller.signal).catch(() => null);
        if (isAborted()) return;
        if (patch) {
          onChange(patch);
          return;
        }
      }
      setUnreadId(requestId);
    })();
    return () => controller.abort();
  }, [isWanted, requestId]);
  return isWanted && unreadId === requestId;
}

/** Returns what the ledger adds to the answer, or null if it has no entry of the request yet. */
async function readCost(answer: Answer, requestId: string, signal: AbortSignal): Promise<Partial<Answer> | null> {
  const entry = await findEntry(requestId, signal);
  if (!entry) {
    const isRefused = answer.status === "failed" && await wasRefused(requestId, signal);
    return isRefused ? { isRefused, costUsd: 0 } : null;
  }
  return {
    costUsd: isFree(entry) ? 0 : entry.cost_usd ?? null,
    promptTokens: answer.promptTokens ?? entry.prompt_tokens ?? null,
    completionTokens: answer.completionTokens ?? entry.completion_tokens ?? null,
    isEstimated: entry.estimated,
  };
}

async function findEntry(requestId: string, signal: AbortSignal): Promise<Entry | null> {
  const { data } = await get("/v1/usage", { request: requestId }, signal);
  return (data[0] as Entry | undefined) ?? null; // totals come only with `by`
}

/** Whether the gateway refused the request, so that no provider received it. */
async function wasRefused(requestId: string, signal: AbortSignal): Promise<boolean> {
  const { data } = await get("/v1/requests/refused", { request: requestId }, signal);
  return data.length > 0;
}

/** Whether nothing was charged: a failed request without usage. */
function isFree(entry: Entry): boolean {
  return entry.status === "error" && entry.cost_usd === null && !entry.prompt_tokens && !entry.completion_tokens;
}
