/** Builds the body of a chat request from a conversation. */
import { JsonSourceError, parseJson } from "./json-source";
import {
  type Answer, type ChatSettings, type Column, type Conversation, type Turn, finishedCalls, modelOf, toolResultKey,
} from "./types";

export type ChatBody = Record<string, unknown> & { model: string; messages: Message[] };

export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: string | ContentPart[] | null;
  tool_calls?: { id: string; type: "function"; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
}

type ContentPart = { type: "text"; text: string } | { type: "image_url"; image_url: { url: string } };

export interface SettingsProblem {
  field: keyof ChatSettings;
  message: string;
  /** Where in the field's text the problem is, for JSON. */
  offset?: number;
}

/** The parameters of the request that are numbers. */
export const NUMBERS = [
  { field: "temperature", parameter: "temperature", label: "Temperature", minimum: 0, maximum: 2, step: 0.1 },
  { field: "topP", parameter: "top_p", label: "Top p", minimum: 0, maximum: 1, step: 0.05 },
  { field: "maxTokens", parameter: "max_tokens", label: "Maximum tokens", minimum: 1, maximum: 10_000_000, step: 1 },
  { field: "seed", parameter: "seed", label: "Seed", minimum: 0, maximum: 2_147_483_647, step: 1 },
] as const;

/** Returns the parameters of a request, and what is wrong with the settings. */
export function readSettings(settings: ChatSettings): { parameters: Record<string, unknown>; problems: SettingsProblem[] } {
  const parameters: Record<string, unknown> = {};
  const problems: SettingsProblem[] = [];
  for (const { field, parameter, minimum, maximum, step } of NUMBERS) {
    const text = settings[field].trim();
    if (!text) continue;
    const value = Number(text);
    const isValid = value >= minimum && value <= maximum && (step < 1 || Number.isInteger(value));
    if (isValid) parameters[parameter] = value;
    else problems.push({ field, message: `Enter a${step < 1 ? " " : " whole "}number from ${minimum} to ${maximum}.` });
  }
  if (settings.reasoningEffort) parameters["reasoning_effort"] = settings.reasoningEffort;
  readJson(settings, "tools", problems, (source) => { parameters["tools"] = checkTools(source); });
  readJson(settings, "extra", problems, ({ value, offsets }) => {
    if (!isObject(value)) throw new JsonSourceError("Enter an object, such as {\"stop\": [\"END\"]}.", 0);
    for (const name of ["model", "messages", "stream", "stream_options"]) {
      if (name in value) throw new JsonSourceError(`The playground sets ${name} itself.`, offsets.get(`.${name}`) ?? 0);
    }
    Object.assign(parameters, value);
  });
  return { parameters, problems };
}

/** Returns the settings without the fields that are wrong. */
export function validSettings(settings: ChatSettings): ChatSettings {
  const { problems } = readSettings(settings);
  return { ...settings, ...Object.fromEntries(problems.map(({ field }) => [field, ""])) };
}

type Source = ReturnType<typeof parseJson>;

function readJson(
  settings: ChatSettings, field: "tools" | "extra", problems: SettingsProblem[], use: (source: Source) => void,
): void {
  if (!settings[field].trim()) return;
  try {
    use(parseJson(settings[field]));
  } catch (error) {
    if (!(error instanceof JsonSourceError)) throw error;
    problems.push({ field, message: error.message, offset: error.offset });
  }
}

/** Checks the form of https://platform.openai.com/docs/api-reference/chat/create, field `tools`. */
function checkTools({ value, offsets }: Source): unknown {
  const fail = (path: string, message: string): never => {
    let known = path;
    while (known && !offsets.has(known)) known = known.replace(/(\.[^.[]*|\[\d+\])$/, "");
    throw new JsonSourceError(`tools${path}: ${message}`, offsets.get(known) ?? 0);
  };
  if (!Array.isArray(value)) return fail("", "Enter a list of tools: [{\"type\": \"function\", …}].");
  value.forEach((tool: unknown, index) => {
    const path = `[${index}]`;
    if (!isObject(tool)) return fail(path, "A tool is an object.");
    if (tool["type"] !== "function") return fail(`${path}.type`, "The type is \"function\".");
    const declared = tool["function"];
    if (!isObject(declared)) return fail(`${path}.function`, "The function is an object with name and parameters.");
    if (typeof declared["name"] !== "string" || !/^[\w-]{1,64}$/.test(declared["name"])) {
      return fail(`${path}.function.name`, "The name has 1 to 64 letters, digits, - and _.");
    }
    if (declared["parameters"] !== undefined && !isObject(declared["parameters"])) {
      return fail(`${path}.function.parameters`, "The parameters are a JSON schema.");
    }
    return undefined;
  });
  return value.length ? value : undefined;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Returns the request that asks the model of `column` for its answer to the turn at `turnIndex`. */
export function buildRequest(conversation: Conversation, turnIndex: number, column: Column): ChatBody {
  const { parameters } = readSettings(conversation.settings);
  const messages: Message[] = [];
  if (conversation.settings.system.trim()) messages.push({ role: "system", content: conversation.settings.system });
  let source = column;
  for (const turn of conversation.turns.slice(0, turnIndex)) {
    const found = answerForHistory(turn, column, source);
    if (!found) continue; // a prompt that nobody has answered
    source = found.source;
    if (hasPrompt(turn)) messages.push({ role: "user", content: userContent(turn) });
    messages.push(...answerMessages(turn, found.answer, source));
  }
  const last = conversation.turns[turnIndex];
  if (last && hasPrompt(last)) messages.push({ role: "user", content: userContent(last) });
  return { model: modelOf(column), messages, ...parameters, stream: true, stream_options: { include_usage: true } };
}

/**
 * Returns the answer in `column`. If it has none, because it joined later, it continues from that of `source`, which it
 * already follows, or from the first one. Only the model that called tools has an answer to their results.
 */
function answerForHistory(turn: Turn, column: Column, source: Column): { source: Column; answer: Answer } | null {
  const names = hasPrompt(turn) ? [column, source, ...Object.keys(turn.answers)] : [column, source];
  for (const name of names) {
    const answer = turn.answers[name];
    if (answer && (answer.text || answer.refusal || finishedCalls(answer).length > 0)) return { source: name, answer };
  }
  return null;
}

function hasPrompt(turn: Turn): boolean {
  return turn.prompt !== "" || turn.images.length > 0;
}

function userContent(turn: Turn): string | ContentPart[] {
  if (!turn.images.length) return turn.prompt;
  const images = turn.images.map((url): ContentPart => ({ type: "image_url", image_url: { url } }));
  return turn.prompt ? [{ type: "text", text: turn.prompt }, ...images] : images;
}

function answerMessages(turn: Turn, answer: Answer, source: string): Message[] {
  const calls = finishedCalls(answer);
  // Providers other than OpenAI do not know the field `refusal` of a message.
  const text = answer.text || answer.refusal;
  if (!calls.length) return [{ role: "assistant", content: text }];
  const assistant: Message = {
    role: "assistant",
    content: text || null,
    tool_calls: calls.map((call) => ({
      id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
    })),
  };
  return [
    assistant,
    ...calls.map((call): Message => ({
      role: "tool", tool_call_id: call.id, content: turn.toolResults[toolResultKey(source, call)] ?? "",
    })),
  ];
}
