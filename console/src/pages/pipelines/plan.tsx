/** The plan of a pipeline: the place of each stage. */
import type { PipelineCheck } from "../../../build/schema";

export function Plan({ check }: { check: PipelineCheck }) {
  return (
    <div class="notice" role="status">
      <p><strong>{check.name} can run.</strong></p>
      <ol class="plan">
        {check.stages.map((stage) => (
          <li key={stage.id}>
            <strong>{stage.id}</strong>: <code>{stage.model}</code> {describeRoute(stage.route)}
            <span class="hint plan-where">{stage.where}</span>
          </li>
        ))}
      </ol>
    </div>
  );
}

export function describeRoute(route: string): string {
  if (route === "device") return "on the gateway's machine";
  return route === "gateway" ? "through the gateway" : "directly at the provider";
}
