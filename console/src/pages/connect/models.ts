/** The chat models that a key may use here. A model whose provider has no key is not among them. */
import { type ApiError, type GetBody, get, getWithKey } from "../../api/client";
import { useData } from "../../components/data";

export interface UsableModel {
  id: string;
  /** Tokens of prompt and response together. */
  contextWindow: number;
  /** Null means unknown. */
  maxOutputTokens: number | null;
}

type ListedModel = Extract<GetBody<"/v1/models">, { object: string }>["data"][number];
type ListedGatewayModel = Extract<ListedModel, { context_window: number }>;

/** Returns the models of a key, or without one those of the session. */
export async function loadUsableModels(key: string, signal: AbortSignal): Promise<UsableModel[]> {
  const list = key ? await getWithKey("/v1/models", key, signal) : await get("/v1/models", {}, signal);
  return (list.data as ListedModel[]).filter(canChat).map((model) => ({
    id: model.id, contextWindow: model.context_window, maxOutputTokens: model.max_output_tokens,
  }));
}

function canChat(model: ListedModel): model is ListedGatewayModel {
  return "context_window" in model && (model.kind ?? "chat") === "chat";
}

/** The result of a check of a key: `models` and `error` are null until the gateway has responded. */
export interface KeyCheck {
  models: UsableModel[] | null;
  error: ApiError | null;
}

/** Asks the gateway what a key may use. Without a key, nothing is sent. */
export function useKeyCheck(key: string): KeyCheck {
  const { data, error } = useData(
    async (signal) => ({ key, models: key ? await loadUsableModels(key, signal) : null }), [key],
  );
  return { models: data?.key === key && !error ? data.models : null, error: key ? error : null };
}
