/**
 * The lines that connect a client. They are those of `docs/how-to/use-*.md`, with this gateway's address, a key and a
 * model. A test compares both.
 */

export interface ConnectValues {
  /** Such as `https://gateway.example.com`, without `/v1`. */
  origin: string;
  key: string;
  model: string;
  /** The model's limits in tokens. Null if the gateway does not know them. */
  limits: { context: number; output: number } | null;
}

export interface CodePart {
  title: string;
  code: string;
}

export interface ClientSetup {
  id: string;
  kind: "agent" | "library" | "sdk";
  name: string;
  summary: string;
  /** Which models it works best with. */
  preferredModel?: RegExp;
  parts: (values: ConnectValues) => CodePart[];
}

/** Quotes a word for a POSIX shell if it needs that. */
function shellWord(text: string): string {
  return /^[\w./:@%+,-]+$/.test(text) ? text : `'${text.replaceAll("'", String.raw`'\''`)}'`;
}

const quoted = (text: string): string => JSON.stringify(text);
const exportKey = (key: string): string => `export SVC_API_KEY=${shellWord(key)}`;
const CLAUDE = /claude/i;

/** Without limits, opencode does not shorten long conversations. */
function opencodeModel(limits: ConnectValues["limits"]): string {
  return limits ? `{ "limit": { "context": ${limits.context}, "output": ${limits.output} } }` : "{}";
}

export const CLIENTS: ClientSetup[] = [
  {
    id: "claude-code",
    kind: "agent",
    name: "Claude Code",
    summary: "It uses Anthropic's Messages API. The address has no /v1.",
    preferredModel: CLAUDE,
    parts: ({ origin, key, model }) => [
      {
        title: "Set the variables",
        code: `export ANTHROPIC_BASE_URL=${origin}
export ANTHROPIC_AUTH_TOKEN=${shellWord(key)}
export ANTHROPIC_MODEL=${shellWord(model)}
export ANTHROPIC_DEFAULT_HAIKU_MODEL=${shellWord(model)}
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1`,
      },
      { title: "Run it", code: "claude" },
    ],
  },
  {
    id: "codex",
    kind: "agent",
    name: "Codex",
    summary: "It uses OpenAI's Responses API. These lines replace ~/.codex/config.toml.",
    parts: ({ origin, key, model }) => [
      {
        title: "Write the configuration",
        code: `mkdir -p ~/.codex
cat > ~/.codex/config.toml <<'END'
model = ${quoted(model)}
model_provider = "svc"
check_for_update_on_startup = false

[analytics]
enabled = false

[features]
apps = false
plugins = false

[model_providers.svc]
name = "svc"
base_url = "${origin}/v1"
env_key = "SVC_API_KEY"
wire_api = "responses"
END
${exportKey(key)}`,
      },
      { title: "Run it", code: "codex" },
    ],
  },
  {
    id: "opencode",
    kind: "agent",
    name: "opencode",
    summary: "It uses the chat completions API. These lines replace ~/.config/opencode/opencode.json.",
    parts: ({ origin, key, model, limits }) => [
      {
        title: "Write the configuration",
        code: `mkdir -p ~/.config/opencode
cat > ~/.config/opencode/opencode.json <<'END'
{
  "$schema": "https://opencode.ai/config.json",
  "autoupdate": false,
  "share": "disabled",
  "provider": {
    "svc": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "svc",
      "options": { "baseURL": "${origin}/v1", "apiKey": "{env:SVC_API_KEY}" },
      "models": { ${quoted(model)}: ${opencodeModel(limits)} }
    }
  }
}
END
${exportKey(key)}
export OPENCODE_DISABLE_MODELS_FETCH=1
export OPENCODE_DISABLE_LSP_DOWNLOAD=1`,
      },
      { title: "Run it", code: `opencode --model ${shellWord(`svc/${model}`)}` },
    ],
  },
  {
    id: "openai-python",
    kind: "library",
    name: "openai-python",
    summary: "OpenAI's SDK for Python, with any model. The address ends in /v1.",
    parts: ({ origin, key, model }) => [
      { title: "Install it and set the key", code: `pip install openai\n${exportKey(key)}` },
      {
        title: "Send a request",
        code: `import os

import openai

client = openai.OpenAI(base_url="${origin}/v1", api_key=os.environ["SVC_API_KEY"])
messages = [{"role": "user", "content": "What is a gateway?"}]

completion = client.chat.completions.create(model=${quoted(model)}, messages=messages, max_tokens=40)
print(completion.choices[0].message.content)`,
      },
    ],
  },
  {
    id: "openai-node",
    kind: "library",
    name: "openai-node",
    summary: "OpenAI's SDK for Node.js, with any model. Save the program as chat.mjs and run: node chat.mjs",
    parts: ({ origin, key, model }) => [
      { title: "Install it and set the key", code: `npm install openai\n${exportKey(key)}` },
      {
        title: "Send a request",
        code: `import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${origin}/v1", apiKey: process.env.SVC_API_KEY });
const messages = [{ role: "user", content: "What is a gateway?" }];

const completion = await client.chat.completions.create({ model: ${quoted(model)}, messages, max_tokens: 40 });
console.log(completion.choices[0].message.content);`,
      },
    ],
  },
  {
    id: "anthropic-python",
    kind: "library",
    name: "Anthropic, Python",
    summary: "Anthropic's SDK for Python, with any model. The address has no /v1.",
    preferredModel: CLAUDE,
    parts: ({ origin, key, model }) => [
      { title: "Install it and set the key", code: `pip install anthropic\n${exportKey(key)}` },
      {
        title: "Send a request",
        code: `import os

import anthropic

client = anthropic.Anthropic(base_url="${origin}", api_key=os.environ["SVC_API_KEY"])
messages = [{"role": "user", "content": "What is a gateway?"}]

message = client.messages.create(model=${quoted(model)}, messages=messages, max_tokens=40)
print(message.content[0].text, message.usage)`,
      },
    ],
  },
  {
    id: "anthropic-typescript",
    kind: "library",
    name: "Anthropic, TypeScript",
    summary: "Anthropic's SDK for TypeScript, with any model. Save the program as chat.mjs and run: node chat.mjs",
    preferredModel: CLAUDE,
    parts: ({ origin, key, model }) => [
      { title: "Install it and set the key", code: `npm install @anthropic-ai/sdk\n${exportKey(key)}` },
      {
        title: "Send a request",
        code: `import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: "${origin}", apiKey: process.env.SVC_API_KEY });
const messages = [{ role: "user", content: "What is a gateway?" }];

const message = await client.messages.create({ model: ${quoted(model)}, messages, max_tokens: 40 });
console.log(message.content[0].text, message.usage);`,
      },
    ],
  },
  {
    id: "langchain",
    kind: "library",
    name: "LangChain",
    summary: "ChatOpenAI works with any model. The address ends in /v1.",
    parts: ({ origin, key, model }) => [
      { title: "Install it and set the key", code: `pip install langchain-openai langchain-anthropic\n${exportKey(key)}` },
      {
        title: "Send a request",
        code: `import os

from langchain_openai import ChatOpenAI

chat = ChatOpenAI(
    model=${quoted(model)},
    base_url="${origin}/v1",
    api_key=os.environ["SVC_API_KEY"],
    max_tokens=40,
    stream_usage=True,
)
print(chat.invoke("What is a gateway?").text)`,
      },
    ],
  },
  {
    id: "vercel-ai-sdk",
    kind: "library",
    name: "Vercel AI SDK",
    summary: "The OpenAI-compatible provider, with any model. Save the program as chat.mjs and run: node chat.mjs",
    parts: ({ origin, key, model }) => [
      {
        title: "Install it and set the key",
        code: `npm install ai @ai-sdk/openai-compatible @ai-sdk/anthropic\n${exportKey(key)}`,
      },
      {
        title: "Send a request",
        code: `import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const svc = createOpenAICompatible({
  name: "svc",
  baseURL: "${origin}/v1",
  apiKey: process.env.SVC_API_KEY,
  includeUsage: true,
  supportsStructuredOutputs: true,
});

const prompt = "What is a gateway?";
const { text, usage } = await generateText({ model: svc(${quoted(model)}), prompt, maxOutputTokens: 40 });
console.log(text, usage.totalTokens);`,
      },
    ],
  },
  {
    id: "curl",
    kind: "library",
    name: "curl",
    summary: "The chat completions API. Anthropic's Messages API is at /v1/messages.",
    parts: ({ origin, key, model }) => [
      { title: "Set the key", code: exportKey(key) },
      {
        title: "Send a request",
        code: `curl --fail-with-body -sS ${origin}/v1/chat/completions \\
  -H "Authorization: Bearer $SVC_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{"model": ${quoted(model).replaceAll("'", String.raw`'\''`)}, "max_tokens": 40, "messages": [{"role": "user", "content": "What is a gateway?"}]}'`,
      },
    ],
  },
  {
    id: "svc-python",
    kind: "sdk",
    name: "svc SDK, Python",
    summary: "The SDK of this gateway for Python: chat, tools, embeddings, speech and bundles. It is in the package of the gateway.",
    parts: ({ origin, key, model }) => [
      {
        title: "Install it, and set the address and the key",
        code: `pip install svc-gateway\nexport SVC_GATEWAY_URL=${origin}/v1\n${exportKey(key)}`,
      },
      {
        title: "Send a request",
        code: `import svc

with svc.Client() as client:
    answer = client.chat("What is a gateway?", model=${quoted(model)}, max_tokens=40)
    print(answer.text, answer.usage)`,
      },
    ],
  },
  {
    id: "svc-typescript",
    kind: "sdk",
    name: "svc SDK, TypeScript",
    summary: "@svc/client, the SDK of this gateway for Node.js, browsers and React Native. Save the program as chat.mjs and run: node chat.mjs",
    parts: ({ origin, key, model }) => [
      {
        title: "Build the package, in the folder that has your clone of the repository",
        code: "(cd svc/sdk/typescript && npm ci --ignore-scripts && npm run build && npm pack)",
      },
      {
        title: "Install it in a project beside the clone, and set the address and the key",
        code: `npm install ../svc/sdk/typescript/svc-client-0.1.0.tgz\nexport SVC_GATEWAY_URL=${origin}/v1\n${exportKey(key)}`,
      },
      {
        title: "Send a request",
        code: `import { Client } from "@svc/client";

const stream = new Client().chat("What is a gateway?", { model: ${quoted(model)}, stream: true });
for await (const chunk of stream) process.stdout.write(chunk.text);`,
      },
    ],
  },
];

export const CLIENT_GROUPS = [
  { name: "Coding agents", clients: CLIENTS.filter(({ kind }) => kind === "agent") },
  { name: "Libraries and curl", clients: CLIENTS.filter(({ kind }) => kind === "library") },
  { name: "SDKs of this gateway", clients: CLIENTS.filter(({ kind }) => kind === "sdk") },
];
