/**
 * Pipelines: stages that run one after the other.
 *
 * A stage with `target: integration` calls a model of the gateway. Any other stage names a bundle, which a runner of the
 * app runs. Stages never call a provider directly, because an app has no keys of providers.
 */

import { withV1Suffix } from "./address.js";
import type { Bundle } from "./bundles.js";
import type { ChatUsage } from "./chat-client.js";
import { InvalidRequest, PipelineFailed, SvcError, UsageError } from "./errors.js";
import { checkTimeout, type RequestOptions } from "./http.js";
import { parseReference } from "./reference.js";
import { parseYaml } from "./yaml.js";

const MAX_STAGES = 100;
const INPUT_KINDS = ["text", "audioraw", "image"];

export interface StageOptions {
  system_prompt?: string;
  max_tokens?: number;
  temperature?: number;
  top_p?: number;
  timeout_s?: number;
  gateway_url?: string;
}

/** A stage. A device stage has a `reference`, a provider stage a `model`. */
export interface Stage {
  id: string;
  target: "device" | "integration";
  reference: string | undefined;
  provider: string | undefined;
  model: string | undefined;
  options: StageOptions;
}

/** What passes between stages: text, or the bytes of a WAV file. */
export type StageData = string | Uint8Array;

export interface PipelineDefinition {
  name: string;
  registry?: string | undefined;
  stages: readonly (string | Record<string, unknown>)[];
  [field: string]: unknown;
}

/** Runs a model of a bundle. */
export type Runner = (bundle: Bundle, input: StageData, options: StageOptions) => StageData | Promise<StageData>;

const runners = new Map<string, Runner>();

/** Register what runs bundles whose `execution_template` has this type, such as `Onnx`. */
export function registerRunner(type: string, runner: Runner): void {
  runners.set(type.toLowerCase(), runner);
}

export interface StageReport {
  id: string;
  route: "device" | "gateway";
  model: string;
  provider: string | undefined;
  ms: number;
  usage: ChatUsage | undefined;
  /** Why the model stopped, such as `length` for an output that is cut off. Undefined for a device stage. */
  finishReason: string | undefined;
  output: StageData;
}

export interface PipelineResult {
  pipeline: string;
  output: { kind: "text"; text: string } | { kind: "audio"; audio: Uint8Array };
  stages: StageReport[];
}

/** What a pipeline needs of a client. */
export interface PipelineClient {
  chat: (text: string, options: StageOptions, model: string, requestOptions: RequestOptions) => Promise<Pick<StageReport, "usage" | "finishReason"> & { text: string }>;
  bundle: (reference: string, registry: string | undefined, signal: AbortSignal | undefined) => Promise<Bundle>;
}

export class Pipeline {
  readonly name: string;
  readonly stages: readonly Stage[];
  private readonly registry: string | undefined;

  constructor(
    definition: string | PipelineDefinition,
    private readonly client: PipelineClient,
  ) {
    const fields = asObject(typeof definition === "string" ? parseYaml(definition) : definition, "The pipeline");
    checkKeys(fields, ["name", "registry", "input", "stages"], "The pipeline");
    this.name = requireText(fields["name"], "name");
    const kind = parseInputKind(fields["input"]);
    const registry = fields["registry"];
    this.registry = typeof registry === "string" && registry.startsWith("http") ? registry : undefined;
    this.stages = parseStages(fields["stages"]);
    const [first] = this.stages;
    if (kind !== "text" && first?.model !== undefined) throw new UsageError(`Stage ${JSON.stringify(first.id)}: it takes text, and \`input\` is of another kind.`);
  }

  /**
   * Run all stages. `timeoutMs` is the longest wait of a call for a byte. Throws PipelineFailed that names the stage,
   * and UsageError for an input that is neither a text nor bytes.
   */
  async run(input: StageData, options: RequestOptions = {}): Promise<PipelineResult> {
    if (typeof input !== "string" && !ArrayBuffer.isView(input)) throw new UsageError("The input is neither a text nor a Uint8Array.");
    if (options.timeoutMs !== undefined) checkTimeout(options.timeoutMs);
    const reports: StageReport[] = [];
    let data = input;
    for (const stage of this.stages) {
      const start = Date.now();
      try {
        const report = await this.runStage(stage, data, options);
        reports.push({ ...report, ms: Date.now() - start });
        data = report.output;
      } catch (cause) {
        if (!(cause instanceof SvcError)) throw cause;
        throw new PipelineFailed(`Stage ${JSON.stringify(stage.id)}: ${cause.message}`, { cause, requestId: cause.requestId });
      }
    }
    return { pipeline: this.name, output: typeof data === "string" ? { kind: "text", text: data } : { kind: "audio", audio: data }, stages: reports };
  }

  private async runStage(stage: Stage, input: StageData, requestOptions: RequestOptions): Promise<Omit<StageReport, "ms">> {
    const { id, provider, options, model, reference } = stage;
    if (model !== undefined) {
      if (typeof input !== "string") throw new PipelineFailed("A language model needs text, and gets audio.");
      const { text, usage, finishReason } = await this.client.chat(input, options, model, requestOptions);
      return { id, route: "gateway", model, provider, usage, finishReason, output: text };
    }
    const bundle = await this.client.bundle(reference ?? "", this.registry, requestOptions.signal);
    const { type } = bundle.metadata.execution_template;
    const runner = runners.get(type.toLowerCase());
    if (!runner) throw new PipelineFailed(`There is no runner for ${type}. Call registerRunner(${JSON.stringify(type)}, …).`);
    return { id, route: "device", model: bundle.reference, provider: undefined, usage: undefined, finishReason: undefined, output: await runner(bundle, input, options) };
  }
}

function parseInputKind(value: unknown = "Text"): string {
  const kind = typeof value === "object" ? asObject(value, "input")["kind"] : value;
  const name = requireText(kind, "input.kind").toLowerCase();
  if (!INPUT_KINDS.includes(name)) throw new UsageError(`Unknown input kind ${JSON.stringify(kind)}. Use Text, AudioRaw or Image.`);
  return name;
}

function parseStages(value: unknown): Stage[] {
  if (!Array.isArray(value) || !value.length || value.length > MAX_STAGES) {
    throw new UsageError(`\`stages\` is not a list with 1 to ${MAX_STAGES} stages.`, { param: "stages" });
  }
  const stages = new Map<string, Stage>();
  for (const [index, item] of value.entries()) {
    const { stage, hasId } = parseStage(item, `stages[${index}]`);
    if (hasId && stages.has(stage.id)) throw new UsageError(`There are two stages ${JSON.stringify(stage.id)}.`);
    let id = stage.id;
    for (let count = 2; stages.has(id); count++) id = `${stage.id}-${count}`;
    stages.set(id, { ...stage, id });
  }
  return [...stages.values()];
}

/** Return a stage of a definition. Throws UsageError. */
export function parseStage(value: unknown, place: string): { stage: Stage; hasId: boolean } {
  if (typeof value === "string") {
    const reference = checkReference(value, place);
    return { stage: { id: parseReference(reference).modelId, target: "device", reference, provider: undefined, model: undefined, options: {} }, hasId: false };
  }
  const fields = asObject(value, place);
  checkKeys(fields, ["id", "name", "target", "provider", "model", "options"], place);
  const text = (name: string): string | undefined => (fields[name] === undefined ? undefined : requireText(fields[name], `${place}.${name}`));
  const [id, name, provider, model, target = "device"] = [text("id"), text("name"), text("provider"), text("model"), text("target")];
  const options = parseOptions(fields["options"] ?? {}, `${place}.options`);
  const hasId = id !== undefined;
  if (target === "integration") {
    if (model === undefined) throw new UsageError(`${place}: a stage with \`target: integration\` needs a \`model\`.`);
    return { stage: { id: id ?? name ?? model, target, reference: undefined, provider, model, options }, hasId };
  }
  if (target !== "device") throw new UsageError(`${place}: unknown target ${JSON.stringify(target)}. Use integration or device.`);
  const bundle = name ?? model ?? id;
  if (bundle === undefined) throw new UsageError(`${place}: a device stage needs the name of a bundle: \`name: ID@VERSION\`.`);
  if (provider !== undefined) throw new UsageError(`${place}: \`provider\` requires \`target: integration\`.`);
  if (options.gateway_url !== undefined) throw new UsageError(`${place}: \`gateway_url\` requires \`target: integration\`.`);
  const reference = checkReference(bundle, place);
  return { stage: { id: id ?? parseReference(reference).modelId, target, reference, provider: undefined, model: undefined, options }, hasId };
}

function parseOptions(value: unknown, place: string): StageOptions {
  const fields = asObject(value, place);
  checkKeys(fields, ["system_prompt", "max_tokens", "temperature", "top_p", "timeout_s", "gateway_url"], place);
  const ranges = { max_tokens: [1, 2 ** 31], temperature: [0, 2], top_p: [0, 1], timeout_s: [0.001, 86_400] } as const;
  for (const [name, [low, high]] of Object.entries(ranges)) {
    const number = fields[name];
    if (number === undefined) continue;
    const isWhole = name !== "max_tokens" || Number.isInteger(number);
    if (typeof number !== "number" || !isWhole || !(number >= low && number <= high)) {
      throw new UsageError(`${place}.${name} is not a number from ${low} to ${high}.`, { param: name });
    }
  }
  for (const name of ["system_prompt", "gateway_url"]) {
    if (fields[name] !== undefined && typeof fields[name] !== "string") throw new UsageError(`${place}.${name} is not a text.`, { param: name });
  }
  if (fields["gateway_url"] !== undefined) withV1Suffix(fields["gateway_url"] as string, "gateway_url");
  return fields;
}

function checkReference(text: string, place: string): string {
  try {
    const { modelId, version } = parseReference(text);
    return version === undefined ? modelId : `${modelId}@${version}`;
  } catch (cause) {
    throw new UsageError(`${place}: ${JSON.stringify(text.slice(0, 80))} is not a reference ID@VERSION: ${(cause as InvalidRequest).message}`, { cause });
  }
}

function asObject(value: unknown, place: string): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new UsageError(`${place} is not an object.`);
  return value as Record<string, unknown>;
}

function checkKeys(fields: Record<string, unknown>, known: readonly string[], place: string): void {
  const unknown = Object.keys(fields).find((key) => !known.includes(key));
  if (unknown !== undefined) throw new UsageError(`${place} has an unknown key ${JSON.stringify(unknown.slice(0, 40))}. Known: ${known.join(", ")}.`);
}

function requireText(value: unknown, place: string): string {
  if (typeof value !== "string" || !value.trim() || value.length > 4096) throw new UsageError(`${place} is not a text, or is empty or too long.`);
  return value;
}
