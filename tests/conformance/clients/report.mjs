// Reports of the JavaScript clients: one line of JSON for each check, as in report.py.
import assert from "node:assert/strict";

export const URL = process.env.SVC_URL, KEY = process.env.SVC_KEY, WEAK_KEY = process.env.SVC_WEAK_KEY;
export const GPT = "gpt-4o-mini", CLAUDE = "claude-3-5-sonnet-20241022", LOCAL = "smollm2-135m";
export const LLAMA = "llama-3.1-8b-instant";
export const EMBEDDINGS = ["text-embedding-3-small", "all-minilm-l6-v2"];
export const TEXTS = ["A man plays a guitar.", "Someone plays an instrument.", "The stock market fell today."];
export const WORDS = "The fake answers with, in ünïcode and 🦙, ten words.";
export const TOOL_SCHEMA = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" } },
  required: ["city", "days"],
};
export const WEATHER = "Weather in 'Oslo' for 3 days?";
export const ARGUMENTS = { city: "Oslo", days: 3 };
export const CODES = {
  401: [401, "authentication_error"],
  403: [403, "permission_denied"],
  404: [404, "model_not_found"],
  "[[400]]": [400, "invalid_request"],
  "[[429]]": [429, "rate_limit_exceeded"],
  "[[500]]": [502, "provider_error"],
};
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

const checks = [];
export const check = (name, run, models = [GPT, CLAUDE]) => checks.push([name, run, models]);

export async function run() {
  for (const [name, one, models] of checks) {
    for (const model of models) {
      let fault = null;
      try {
        await one(model);
      } catch (error) {
        fault = `${error.name}: ${error.message}`.replace(/\s+/g, " ").slice(0, 300);
      }
      console.log(JSON.stringify({ check: name, model, fault }));
    }
  }
}

export async function thrown(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  assert.fail("nothing was thrown");
}

// Checks that there is a vector for each of TEXTS. Those of the local model must show which texts are similar.
export function checkVectors(vectors, model) {
  const local = model === EMBEDDINGS[1];
  assert.deepEqual(vectors.map((vector) => vector.length), TEXTS.map(() => (local ? 384 : 3)));
  if (!local) return;
  const [near, far] = [1, 2].map((at) => vectors[0].reduce((sum, value, place) => sum + value * vectors[at][place], 0));
  assert.ok(near > 0.5 && far < 0.3, `${near} ${far}`);
}
