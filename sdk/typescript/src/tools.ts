/** Tools, the calls that a model makes, and their assembly from the deltas of a stream. */

import { ProviderFailed } from "./errors.js";
import { parseWithSchema, type FromSchema, type JsonSchema } from "./schema.js";

/** A function that the model may call. */
export interface Tool<Name extends string = string, Arguments = unknown> {
  readonly type: "function";
  readonly function: {
    readonly name: Name;
    readonly description?: string;
    readonly parameters?: JsonSchema;
    readonly strict?: boolean;
  };
  /** Only a type: the arguments of a call. */
  readonly argumentsType?: Arguments;
}

/** A tool that takes free text. The arguments of its calls are `{ input }`. */
export interface CustomTool<Name extends string = string> {
  readonly type: "custom";
  readonly custom: { readonly name: Name; readonly description?: string; readonly format?: unknown };
}

export interface ToolDefinition<Name extends string, Schema extends JsonSchema> {
  readonly name: Name;
  readonly description?: string;
  readonly parameters: Schema;
  readonly strict?: boolean;
}

/** Return a tool whose calls have typed arguments. */
export function tool<const Name extends string, const Schema extends JsonSchema>(
  definition: ToolDefinition<Name, Schema>,
): Tool<Name, FromSchema<Schema>> {
  return { type: "function", function: { ...definition } };
}

/** A call of a tool. */
export interface ToolCall<Name extends string = string, Arguments = Record<string, unknown>> {
  readonly id: string;
  readonly name: Name;
  /** The text that the model wrote. */
  readonly argumentsJson: string;
  /** The arguments. Throws ProviderFailed if the model did not write what the tool's parameters ask for. */
  readonly arguments: Arguments;
}

/** The calls that a list of tools can have. */
export type CallOf<Tools> = Tools extends readonly (infer T)[]
  ? T extends Tool<infer Name, infer Arguments>
    ? ToolCall<Name, Arguments>
    : T extends CustomTool<infer Name>
      ? ToolCall<Name, { input: string }>
      : ToolCall
  : ToolCall;

/** A part of a call in a stream. `argumentsJson` is the next part of the text. */
export interface ToolCallDelta {
  readonly index: number;
  readonly id: string;
  readonly name: string;
  readonly argumentsJson: string;
}

export class ChatToolCall implements ToolCall {
  constructor(
    readonly id: string,
    readonly name: string,
    readonly argumentsJson: string,
    private readonly schema?: JsonSchema,
  ) {}

  get arguments(): Record<string, unknown> {
    const what = `The text of the tool call ${JSON.stringify(this.name)}`;
    const value = parseWithSchema(this.argumentsJson.trim() || "{}", this.schema ?? { type: "object" }, what);
    if (typeof value !== "object" || value === null || Array.isArray(value)) throw new ProviderFailed(`${what} is not an object.`);
    return value as Record<string, unknown>;
  }
}

/** Return the arguments of a custom tool's call: an object with the text as `input`. */
export function inputArguments(input: string): string {
  return JSON.stringify({ input });
}

/** Return the calls of a complete response. Throws ProviderFailed for a call without a name. */
export function toToolCalls(calls: readonly WireToolCall[], tools: unknown, requestId: string | undefined): ChatToolCall[] {
  const assembler = new ToolCallAssembler();
  for (const [position, call] of calls.entries()) assembler.add({ ...call, index: position }, position);
  assembler.completeInputs();
  return assembler.finish(tools, requestId);
}

/** Return the parameters of a tool in a request's `tools`, if they are known. */
function toolSchema(tools: unknown, name: string): JsonSchema | undefined {
  if (!Array.isArray(tools)) return undefined;
  for (const each of tools as (Partial<Tool> | null)[]) {
    if (each?.function?.name === name) return each.function.parameters;
  }
  return undefined;
}

/** Return a response as the message that the next request repeats. */
export function assistantMessage(text: string, calls: readonly ToolCall<string, unknown>[]): AssistantMessage {
  if (!calls.length) return { role: "assistant", content: text };
  return {
    role: "assistant",
    content: text || null,
    tool_calls: calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.argumentsJson || "{}" },
    })),
  };
}

export interface AssistantMessage {
  role: "assistant";
  content: string | null;
  tool_calls?: { id: string; type: "function"; function: { name: string; arguments: string } }[];
}

/** The prefix and suffix of the escaped text in the arguments of a custom tool's call. */
const [INPUT_PREFIX, INPUT_SUFFIX] = ['{"input":"', '"}'];

interface OpenCall {
  id: string;
  name: string;
  text: string;
  isCustom: boolean;
}

/** Joins the deltas of the calls of one stream. */
export class ToolCallAssembler {
  private readonly calls = new Map<number, OpenCall>();

  /** Add a delta of the wire. Return the typed delta, or undefined while the call has no name. */
  add(delta: WireToolCall, position: number): ToolCallDelta | undefined {
    const index = typeof delta.index === "number" ? delta.index : position;
    let call = this.calls.get(index);
    if (!call) {
      call = { id: "", name: "", text: "", isCustom: false };
      this.calls.set(index, call);
    }
    const hadName = call.name !== "";
    call.id ||= delta.id ?? "";
    call.name ||= delta.function?.name ?? "";
    call.name ||= delta.custom?.name ?? "";
    let part = delta.function?.arguments ?? "";
    if (delta.custom) {
      const { input } = delta.custom;
      part = (call.isCustom ? "" : INPUT_PREFIX) + JSON.stringify(typeof input === "string" ? input : "").slice(1, -1);
      call.isCustom = true;
    }
    call.text += part;
    if (!call.name) return undefined;
    return { index, id: call.id, name: call.name, argumentsJson: hadName ? part : call.text };
  }

  /** End the arguments of the calls of custom tools. Return the deltas. */
  completeInputs(): ToolCallDelta[] {
    const deltas: ToolCallDelta[] = [];
    for (const [index, call] of this.calls) {
      if (!call.isCustom) continue;
      call.text += INPUT_SUFFIX;
      call.isCustom = false;
      if (call.name) deltas.push({ index, id: call.id, name: call.name, argumentsJson: INPUT_SUFFIX });
    }
    return deltas;
  }

  finish(tools: unknown, requestId: string | undefined): ChatToolCall[] {
    return [...this.calls.entries()]
      .sort(([left], [right]) => left - right)
      .map(([, call]) => {
        if (!call.name) throw new ProviderFailed("The provider sent a tool call without a name.", { requestId });
        return new ChatToolCall(call.id, call.name, call.text, toolSchema(tools, call.name));
      });
  }
}

export interface WireToolCall {
  index?: number;
  id?: string | null;
  function?: { name?: string | null; arguments?: string | null } | null;
  custom?: { name?: string | null; input?: unknown } | null;
}
