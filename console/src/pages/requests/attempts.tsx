/** The attempts of a request as a waterfall, which is also a table. */
import type { Entry } from "../../../build/schema";
import { formatMilliseconds } from "../../components/format";
import { TableScroll } from "../../components/table-scroll";

type AttemptEntry = NonNullable<Entry["attempts_detail"]>[number];
interface Bar {
  attempt: AttemptEntry;
  startPercent: number;
  widthPercent: number;
}

const OUTCOME_KINDS: Record<string, string> = { ok: "good", error: "bad", cancelled: "warning" };

/**
 * Places the attempts on the time of the request. The ledger has their durations in the order of their ends: the first
 * starts with the request, the last ends with it, and the others follow each other.
 */
function placeBars(attempts: AttemptEntry[], totalMilliseconds: number): Bar[] {
  const total = Math.max(totalMilliseconds, ...attempts.map((attempt) => attempt.ms), 1);
  let end = 0;
  return attempts.map((attempt, index) => {
    const isLast = index === attempts.length - 1;
    const start = isLast ? Math.max(0, total - attempt.ms) : Math.min(end, total - attempt.ms);
    end = start + attempt.ms;
    return { attempt, startPercent: (start / total) * 100, widthPercent: Math.max(0.5, (attempt.ms / total) * 100) };
  });
}

export function Attempts({ entry }: { entry: Entry }) {
  const attempts = entry.attempts_detail ?? [];
  if (!attempts.length) {
    return <p class="hint">{entry.attempts ? "The version that wrote this entry did not record attempts." : "Nothing was sent to a provider."}</p>;
  }
  return (
    <>
      {attempts.length > 1 && (
        <p class="hint">
          The ledger has how long each attempt took, and the order in which they ended, not when each began. The first bar
          begins with the request, and the last ends with it. {attempts.length > 2 && "The places of the others are estimates."}
        </p>
      )}
      <AttemptTable entry={entry} attempts={attempts} />
    </>
  );
}

function AttemptTable({ entry, attempts }: { entry: Entry; attempts: AttemptEntry[] }) {
  return (
    <TableScroll label="Attempts">
      <table class="waterfall">
        <thead>
          <tr><th>#</th><th>Provider</th><th>Outcome</th><th class="number">Time</th><th class="track-head">Of {formatMilliseconds(entry.latency_ms)}</th></tr>
        </thead>
        <tbody>
          {placeBars(attempts, entry.latency_ms).map(({ attempt, startPercent, widthPercent }, index) => (
            <tr key={index}>
              <td>{index + 1}</td>
              <td>{attempt.provider}<br /><span class="hint">{attempt.model}</span></td>
              <td><span class={`badge ${OUTCOME_KINDS[attempt.outcome] ?? ""}`}>{attempt.outcome}</span>{attempt.code && <><br /><code>{attempt.code}</code></>}</td>
              <td class="number">
                {formatMilliseconds(attempt.ms)}
                {attempt.connect_ms != null && <><br /><span class="hint">{formatMilliseconds(attempt.connect_ms)} to connect</span></>}
              </td>
              <td>
                <div class="track" aria-hidden="true">
                  <div class={`bar ${OUTCOME_KINDS[attempt.outcome] ?? ""}`} style={{ marginInlineStart: `${startPercent}%`, width: `${Math.min(widthPercent, 100 - startPercent)}%` }} />
                </div>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </TableScroll>
  );
}
