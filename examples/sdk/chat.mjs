// A streamed chat in Node: node chat.mjs "What is a gateway?"
// The gateway is the one of `svc up` on this machine, or that of SVC_GATEWAY_URL and SVC_API_KEY.
import { Client } from "@svc/client";

const stream = new Client().chat(process.argv[2] ?? "What is a gateway?", { stream: true, max_tokens: 200 });
for await (const chunk of stream) process.stdout.write(chunk.text);
process.stdout.write(`\n${stream.usage?.totalTokens ?? "unknown"} tokens\n`);
