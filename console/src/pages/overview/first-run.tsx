/** The first steps on an empty system, in order. */
import type { Overview } from "../../../build/schema";
import { pagePath } from "../../router";
import { useIsAdmin } from "../../session";

export function FirstRun({ overview }: { overview: Overview }) {
  const isAdmin = useIsAdmin();
  const hasProvider = overview.providers?.some((provider) => provider.has_key) ?? true;
  return (
    <section class="stack" aria-labelledby="first-run">
      <div>
        <h2 id="first-run">Welcome. Three steps to the first request</h2>
        <p class="hint">The numbers appear here by themselves when the first request ends.</p>
      </div>
      {!hasProvider && <NoProvider overview={overview} />}
      <ol class="cards steps">
        <Step title="Start a chat" page="Playground" action="Open the playground">
          Ask up to four models the same question, and compare their answers, speed and cost.
        </Step>
        <Step title={isAdmin ? "Make a key" : "Look at your key"} page="Keys" action="Open the keys">
          {isAdmin ? "Give each person or program a key of its own, with limits and a budget." : "See its limits, its budget, and what you have used."}
        </Step>
        <Step title="Connect a client" page="Connect" action="Show the lines to paste">
          Point Claude Code, Codex or an SDK to this gateway. Two lines are enough.
        </Step>
      </ol>
    </section>
  );
}

function Step({ title, page, action, children }: { title: string; page: "Playground" | "Keys" | "Connect"; action: string; children: string }) {
  return (
    <li class="card">
      <h3>{title}</h3>
      <p>{children}</p>
      <a class="button" href={pagePath(page)}>{action}</a>
    </li>
  );
}

function NoProvider({ overview }: { overview: Overview }) {
  const variables = (overview.providers ?? []).flatMap((provider) => provider.variables).slice(0, 3);
  return (
    <div class="notice warning">
      <p><strong>No provider has a key yet.</strong></p>
      <p>
        Set {variables.length ? variables.map((name, index) => <span key={name}>{index > 0 && ", "}<code>{name}</code></span>) : "a provider's key"}{" "}
        and restart the gateway. <a href={pagePath("Providers")}>The page Providers</a> lists all variables.
      </p>
    </div>
  );
}
