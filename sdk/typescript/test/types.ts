/** The types of the package, checked in a fresh project. Nothing of it runs. */

import { Client, image, init, tool, type ChatOptions, type ChatResult, type LiveEvent } from "@svc/client";
import { Client as ChatOnly } from "@svc/client/chat";
import { useChat, useLiveTranscript } from "@svc/client/react";

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function expectType<Expected>() {
  return <Actual,>(_value: Actual, _isEqual: Equal<Actual, Expected>): void => undefined;
}

export async function check(): Promise<void> {
  init({ gatewayUrl: "https://gateway.example", apiKey: async () => "key" });
  const client = new Client();
  const weather = tool({
    name: "get_weather",
    parameters: { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } }, required: ["city"] },
  });
  const clock = tool({ name: "get_time", parameters: { type: "object", properties: {} } });
  const { toolCalls } = await client.chat("Hi", { tools: [weather, clock], temperature: 1 });
  for (const call of toolCalls) {
    expectType<"get_weather" | "get_time">()(call.name, true);
    if (call.name === "get_weather") expectType<{ city: string; days?: number }>()(call.arguments, true);
  }
  const code = { type: "custom", custom: { name: "run_code" } } as const;
  for (const call of (await client.chat("Hi", { tools: [weather, code] })).toolCalls) {
    if (call.name === "run_code") expectType<{ input: string }>()(call.arguments, true);
  }
  const schema = { type: "array", items: { enum: ["a", "b"] } } as const;
  const result = await client.chat([{ role: "user", content: [image("https://host/a.png")] }], { schema });
  expectType<("a" | "b")[]>()(result.parsed, true);
  const stream = client.chat("Hi", { stream: true, tools: [weather], signal: new AbortController().signal });
  for await (const chunk of stream) expectType<string>()(chunk.text, true);
  const whole: ChatResult<unknown> = await stream.result();
  void whole.text;
  // A wrapper passes options of which only the caller knows whether they stream.
  const options: ChatOptions = { stream: Math.random() > 0.5 };
  const answer = client.chat("Hi", options);
  if (answer instanceof Promise) expectType<string>()((await answer).text, true);
  else for await (const chunk of answer) expectType<string>()(chunk.text, true);
  const response = client.responses("Hi", { stream: Math.random() > 0.5 });
  if (response instanceof Promise) expectType<string>()((await response).text, true);
  const session = await client.live({ language: "en" });
  for await (const event of session) {
    expectType<LiveEvent>()(event, true);
    if (event.type === "final") expectType<number>()(event.durationMs, true);
  }
  const { vectors } = await client.embed(["a"]);
  expectType<number[][]>()(vectors, true);
  void new ChatOnly({ retries: 0 }).models();
  void useChat;
  void useLiveTranscript;
  // @ts-expect-error -- only `true` and `false`
  void client.chat("Hi", { stream: "yes" });
}
