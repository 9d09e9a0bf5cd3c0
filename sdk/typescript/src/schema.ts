/** Types of JSON schemas, and a check of values. It covers what models write: objects, lists, enumerations, scalars. */

import { ProviderFailed } from "./errors.js";

/** A JSON schema. Write it `as const`, so that its type is known. */
export interface JsonSchema {
  readonly type?: string | readonly string[];
  readonly description?: string;
  readonly properties?: Readonly<Record<string, JsonSchema>>;
  readonly required?: readonly string[];
  readonly items?: JsonSchema;
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly anyOf?: readonly JsonSchema[];
  readonly additionalProperties?: boolean | JsonSchema;
  readonly [keyword: string]: unknown;
}

type Flatten<T> = { [K in keyof T]: T[K] };
type ScalarOf<T> = T extends "string"
  ? string
  : T extends "number" | "integer"
    ? number
    : T extends "boolean"
      ? boolean
      : T extends "null"
        ? null
        : unknown;
type ObjectOf<P, R> = Flatten<
  { -readonly [K in keyof P as K extends R ? K : never]: FromSchema<P[K]> } & {
    -readonly [K in keyof P as K extends R ? never : K]?: FromSchema<P[K]>;
  }
>;

/** The type of the values of a schema. */
export type FromSchema<S> = S extends { readonly const: infer V }
  ? V
  : S extends { readonly enum: readonly (infer V)[] }
    ? V
    : S extends { readonly anyOf: readonly (infer A)[] }
      ? FromSchema<A>
      : S extends { readonly type: "object"; readonly properties: infer P }
        ? ObjectOf<P, S extends { readonly required: readonly (infer R)[] } ? R : never>
        : S extends { readonly type: "object" }
          ? Record<string, unknown>
          : S extends { readonly type: "array"; readonly items: infer I }
            ? FromSchema<I>[]
            : S extends { readonly type: "array" }
              ? unknown[]
              : S extends { readonly type: readonly (infer T)[] }
                ? ScalarOf<T>
                : S extends { readonly type: infer T }
                  ? ScalarOf<T>
                  : unknown;

/** Parse the JSON that a model wrote, and check it. Throws ProviderFailed that names the wrong place. */
export function parseWithSchema(text: string, schema: JsonSchema, what: string): unknown {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new ProviderFailed(`${what} is not complete JSON.`, { cause: error });
  }
  const problem = findProblem(value, schema, "");
  if (problem) throw new ProviderFailed(`${what} does not match the schema: ${problem}.`);
  return value;
}

function typeOf(value: unknown): string {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  return Number.isInteger(value) ? "integer" : typeof value;
}

function findProblem(value: unknown, schema: JsonSchema, path: string): string | undefined {
  const place = path || "the value";
  const types = schema.type === undefined ? [] : Array.isArray(schema.type) ? (schema.type as string[]) : [schema.type as string];
  const type = typeOf(value);
  if (types.length && !types.includes(type) && !(type === "integer" && types.includes("number"))) {
    return `${place} is ${type}, not ${types.join(" or ")}`;
  }
  if (schema.enum && !schema.enum.includes(value)) return `${place} is not one of the allowed values`;
  if (schema.const !== undefined && schema.const !== value) return `${place} is not ${JSON.stringify(schema.const)}`;
  if (schema.anyOf && schema.anyOf.every((option) => findProblem(value, option, path) !== undefined)) {
    return `${place} matches none of the alternatives`;
  }
  if (type === "array" && schema.items) {
    for (const [index, item] of (value as unknown[]).entries()) {
      const problem = findProblem(item, schema.items, `${path}[${index}]`);
      if (problem) return problem;
    }
  }
  if (type === "object") {
    const fields = value as Record<string, unknown>;
    for (const name of schema.required ?? []) {
      if (!Object.hasOwn(fields, name)) return `${path ? `${path}.` : ""}${name} is missing`;
    }
    for (const [name, property] of Object.entries(schema.properties ?? {})) {
      if (!Object.hasOwn(fields, name)) continue;
      const problem = findProblem(fields[name], property, path ? `${path}.${name}` : name);
      if (problem) return problem;
    }
  }
  return undefined;
}
