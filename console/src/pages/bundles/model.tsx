/** One model of the registry: what it is, and its versions. */
import type { BundleState } from "../../../build/schema";
import { CopyButton } from "../../components/copy";
import { formatBytes, formatTime } from "../../components/format";
import { TableScroll } from "../../components/table-scroll";
import type { BundleAction } from "../bundles";
import { reachableCommand } from "./pull";
import { SignatureBadge } from "./signature";

export function ModelCard(
  { modelId, bundles, mayWrite, onAction }: {
    modelId: string; bundles: BundleState[]; mayWrite: boolean;
    onAction: (action: BundleAction, bundle: BundleState) => void;
  },
) {
  const summary = bundles.find((bundle) => bundle.summary)?.summary;
  const facts = [
    ["Task", summary?.task], ["Languages", summary?.languages.join(", ")], ["License", summary?.license],
    ["Author", summary?.author], ["Type", summary?.type],
  ].filter(([, value]) => value);
  return (
    <li class="card stack bundle-card">
      <div>
        <h2 class="bundle-title">{modelId}</h2>
        {summary?.description && <p class="bundle-description">{summary.description}</p>}
        {facts.length > 0 && (
          <dl class="facts inline">
            {facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}
          </dl>
        )}
      </div>
      <TableScroll label={`Versions of ${modelId}`}>
        <table>
          <thead>
            <tr>
              <th scope="col">Version</th><th scope="col">Platform</th><th scope="col" class="number">Size</th>
              <th scope="col">Published</th><th scope="col">Signature</th><th scope="col">SHA-256</th>
              <th scope="col"><span class="visually-hidden">Actions</span></th>
            </tr>
          </thead>
          <tbody>
            {bundles.map((bundle) => (
              <tr key={bundle.key} class={bundle.yanked ? "yanked" : ""}>
                <th scope="row">
                  {bundle.version} {bundle.yanked && <span class="badge warning">Yanked</span>}
                </th>
                <td>{bundle.platform}</td>
                <td class="number">{formatBytes(bundle.size_bytes)}</td>
                <td>{bundle.created ? formatTime(bundle.created) : "–"}</td>
                <td><SignatureBadge state={bundle.signature} /></td>
                <td>{bundle.sha256 ? <code title={bundle.sha256}>{bundle.sha256.slice(0, 8)}…</code> : "–"}</td>
                <td><Actions bundle={bundle} mayWrite={mayWrite} onAction={onAction} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      </TableScroll>
    </li>
  );
}

function Actions(
  { bundle, mayWrite, onAction }: {
    bundle: BundleState; mayWrite: boolean; onAction: (action: BundleAction, bundle: BundleState) => void;
  },
) {
  const verb = bundle.yanked ? "Unyank" : "Yank";
  return (
    <div class="row bundle-actions">
      <CopyButton text={reachableCommand(bundle.pull_command)} label="Copy pull command" />
      <button type="button" aria-label={`Details of ${bundle.key}`} onClick={() => onAction("details", bundle)}>
        Details
      </button>
      {mayWrite && (
        <button
          type="button" class={bundle.yanked ? "" : "danger"} aria-label={`${verb} ${bundle.key}`}
          onClick={() => onAction("yank", bundle)}
        >
          {verb}
        </button>
      )}
    </div>
  );
}
