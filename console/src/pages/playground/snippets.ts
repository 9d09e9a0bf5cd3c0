/** A request of the playground as a command or a program. */
import type { ChatBody } from "./request";

export const LANGUAGES = ["curl", "Python", "TypeScript"] as const;
export type Language = (typeof LANGUAGES)[number];

/** Returns code that sends the request with the key in `SVC_API_KEY`. */
export function toCode(language: Language, body: ChatBody, origin: string): string {
  if (language === "curl") return toCurl(body, origin);
  return language === "Python" ? toPython(body, origin) : toTypeScript(body, origin);
}

function toCurl(body: ChatBody, origin: string): string {
  return `curl -N --fail-with-body -sS ${origin}/v1/chat/completions \\
  -H "Authorization: Bearer $SVC_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d @- <<'END_OF_BODY'
${JSON.stringify(body, null, 2)}
END_OF_BODY
`;
}

/** Fields that the SDK's methods do not know go through `extra_body`. */
const KNOWN_PARAMETERS = new Set([
  "model", "messages", "temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "reasoning_effort",
  "tools", "tool_choice", "parallel_tool_calls", "stop", "n", "presence_penalty", "frequency_penalty", "logit_bias",
  "logprobs", "top_logprobs", "response_format", "user", "metadata", "service_tier", "stream", "stream_options",
]);

function toPython(body: ChatBody, origin: string): string {
  const known = Object.entries(body).filter(([name]) => KNOWN_PARAMETERS.has(name));
  const others = Object.fromEntries(Object.entries(body).filter(([name]) => !KNOWN_PARAMETERS.has(name)));
  const parameters = known.map(([name, value]) => `    ${name}=${pythonLiteral(value, 1)},\n`);
  if (Object.keys(others).length) parameters.push(`    extra_body=${pythonLiteral(others, 1)},\n`);
  return `import os

import openai

client = openai.OpenAI(base_url="${origin}/v1", api_key=os.environ["SVC_API_KEY"])
stream = client.chat.completions.create(
${parameters.join("")})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    elif chunk.usage:
        print()
        print(chunk.usage)
`;
}

function pythonLiteral(value: unknown, depth: number): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value); // Python reads the escapes of JSON
  const indent = "    ".repeat(depth + 1);
  const lines = Array.isArray(value)
    ? value.map((item) => `${indent}${pythonLiteral(item, depth + 1)},\n`)
    : Object.entries(value).map(([name, item]) => `${indent}${JSON.stringify(name)}: ${pythonLiteral(item, depth + 1)},\n`);
  const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  return lines.length ? `${open}\n${lines.join("")}${"    ".repeat(depth)}${close}` : `${open}${close}`;
}

function toTypeScript(body: ChatBody, origin: string): string {
  return `import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${origin}/v1", apiKey: process.env.SVC_API_KEY });
const stream = await client.chat.completions.create(${JSON.stringify({ ...body, stream: true }, null, 2)});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta.content ?? "");
  if (chunk.usage) console.log("\\n", chunk.usage);
}
`;
}
