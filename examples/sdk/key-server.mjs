// The server of an app: it serves the pages, and makes a short-lived key for each user. The long-lived key stays here.
// SVC_API_KEY=$(cat ~/.svc/api_key) node key-server.mjs
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";

const { SVC_GATEWAY_URL = "http://127.0.0.1:3000/v1", SVC_API_KEY, PORT = "8000" } = process.env;
const PAGES = { "/": "chat.html", "/chat.html": "chat.html", "/live.html": "live.html" };
const PACKAGE = new URL(".", import.meta.resolve("@svc/client"));

async function makeKey(user) {
  const response = await fetch(`${SVC_GATEWAY_URL}/ephemeral_keys`, {
    method: "POST",
    headers: { authorization: `Bearer ${SVC_API_KEY}`, "content-type": "application/json" },
    body: JSON.stringify({ expires_in: 600, rpm: 60, tags: { user } }),
  });
  if (!response.ok) throw new Error(`The gateway made no key: status ${response.status}.`);
  const { key } = await response.json();
  return { key, gatewayUrl: SVC_GATEWAY_URL };
}

const server = createServer(async (request, response) => {
  try {
    if (request.method === "POST" && request.url === "/key") {
      // Your app knows here who the user is, from its session. A stranger gets no key.
      response.setHeader("content-type", "application/json").end(JSON.stringify(await makeKey("demo")));
      return;
    }
    const [, name] = /^\/client\/([\w.-]+\.js)$/.exec(request.url) ?? [];
    const page = PAGES[request.url];
    if (request.method !== "GET" || !(name || page)) {
      response.writeHead(404).end();
      return;
    }
    response.setHeader("content-type", name ? "text/javascript" : "text/html; charset=utf-8");
    response.end(await readFile(name ? new URL(name, PACKAGE) : new URL(page, import.meta.url)));
  } catch (error) {
    console.error(error.message);
    response.writeHead(502).end();
  }
});
server.listen(Number(PORT), "127.0.0.1", () => {
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  console.log(`http://127.0.0.1:${port}`);
});
