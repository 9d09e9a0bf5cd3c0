/** The status of a request as a badge. */
const LABELS: Record<string, string> = { ok: "OK", error: "Error", cut: "Interrupted", client_closed: "Client left", refused: "Refused" };

export const STATUS_LABELS = LABELS;

export function StatusBadge({ entry }: { entry: { status: string; http_status: number } }) {
  const kind = entry.status === "ok" ? "good" : entry.status === "client_closed" ? "warning" : "bad";
  const label = LABELS[entry.status] ?? entry.status;
  return <span class={`badge ${kind}`}>{entry.status === "ok" ? label : `${label} ${entry.http_status}`}</span>;
}
