/** A conversation of the playground: turns, each with a prompt and the answers of up to four models. */

export const MAX_MODELS = 4;

/**
 * A column of answers: the name of its model, and for a further column of the same model also a line with its number.
 * A name has no line break.
 */
export type Column = string;

/** Returns the model of a column. */
export function modelOf(column: Column): string {
  return column.split("\n", 1)[0] ?? column;
}

/** Returns the name of a column as it is shown, such as `gpt-4o` and `gpt-4o (2)`. */
export function columnLabel(column: Column): string {
  const [model, number] = column.split("\n");
  return number === undefined ? column : `${model} (${number})`;
}

/** Returns a column of a model that is not among `columns`. */
export function newColumn(model: string, columns: Column[]): Column {
  let column = model;
  for (let number = 2; columns.includes(column); number += 1) column = `${model}\n${number}`;
  return column;
}

/** Returns a column for each model. A model can be among them more than once. */
export function toColumns(models: string[]): Column[] {
  return models.reduce<Column[]>((columns, model) => [...columns, newColumn(model, columns)], []);
}

/** `interrupted` has a part of the answer, `failed` has nothing. Neither is ever shown as complete. */
export type AnswerStatus = "streaming" | "complete" | "stopped" | "interrupted" | "failed";

export interface ToolCall {
  id: string;
  name: string;
  /** As the model wrote it, which need not be valid JSON. */
  arguments: string;
}

export interface AnswerError {
  message: string;
  /** 0 if there was no response. */
  status: number;
  code: string;
}

export interface Answer {
  status: AnswerStatus;
  text: string;
  reasoning: string;
  /** The words in which the model refused. */
  refusal: string;
  /** Addresses as the model sent them: data URLs, or those of other hosts. */
  images: string[];
  toolCalls: ToolCall[];
  finishReason: string | null;
  error: AnswerError | null;
  requestId: string | null;
  provider: string | null;
  promptTokens: number | null;
  completionTokens: number | null;
  /** The gateway counted the tokens itself, because the provider did not. */
  isEstimated: boolean;
  firstTokenMilliseconds: number | null;
  totalMilliseconds: number | null;
  /** `undefined` until the ledger has the request, `null` if the cost is unknown. */
  costUsd: number | null | undefined;
  /** The gateway refused the request, and no provider received it. Missing until this is known. */
  isRefused?: boolean;
}

export interface Turn {
  id: string;
  /** Empty if the turn sends the results of tools, or only images. */
  prompt: string;
  /** Data URLs. */
  images: string[];
  answers: Record<Column, Answer>;
  /** The results of the tools, by `toolResultKey`. */
  toolResults: Record<string, string>;
}

/** Two models may give their calls the same id. */
export function toolResultKey(column: Column, call: ToolCall): string {
  return `${column}\n${call.id}`;
}

/** Returns the conversation with each answer changed. */
export function mapAnswers(conversation: Conversation, change: (answer: Answer) => Answer): Conversation {
  return {
    ...conversation,
    turns: conversation.turns.map((turn) => ({
      ...turn,
      answers: Object.fromEntries(Object.entries(turn.answers).map(([column, answer]) => [column, change(answer)])),
    })),
  };
}

export function hasContent(answer: Answer): boolean {
  return answer.text !== "" || answer.reasoning !== "" || answer.refusal !== "" || answer.images.length > 0
    || answer.toolCalls.length > 0;
}

/** Returns the calls that can have results. A call that was cut off has broken arguments, and a provider rejects it. */
export function finishedCalls(answer: Answer): ToolCall[] {
  const isCutOff = answer.finishReason === "length" || answer.finishReason === "content_filter";
  return answer.status === "complete" && !isCutOff ? answer.toolCalls : [];
}

/** As typed: an empty text leaves the parameter out of the request. */
export interface ChatSettings {
  system: string;
  temperature: string;
  topP: string;
  maxTokens: string;
  seed: string;
  reasoningEffort: string;
  tools: string;
  extra: string;
}

export interface Conversation {
  id: string;
  title: string;
  /** Milliseconds since 1970. */
  updated: number;
  models: Column[];
  settings: ChatSettings;
  turns: Turn[];
  /** Changes with each save, so that a tab notices what another one has saved. */
  revision?: string;
}

export const NO_SETTINGS: ChatSettings = {
  system: "", temperature: "", topP: "", maxTokens: "", seed: "", reasoningEffort: "", tools: "", extra: "",
};

export function newId(): string {
  // `crypto.randomUUID` exists only in a secure context, and a gateway may be used over plain HTTP.
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(models: Column[], settings: ChatSettings = NO_SETTINGS): Conversation {
  return { id: newId(), title: "", updated: Date.now(), models, settings, turns: [] };
}

export function newAnswer(): Answer {
  return {
    status: "streaming", text: "", reasoning: "", refusal: "", images: [], toolCalls: [], finishReason: null, error: null,
    requestId: null, provider: null, promptTokens: null, completionTokens: null, isEstimated: false, firstTokenMilliseconds: null,
    totalMilliseconds: null, costUsd: undefined,
  };
}
