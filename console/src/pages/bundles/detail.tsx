/** Everything about one bundle: how to pull it, its digest, its signatures, its metadata, and its files. */
import type { BundleDetail, BundleState } from "../../../build/schema";
import { requestJson } from "../../api/client";
import { CodeBlock } from "../../components/copy";
import { useData } from "../../components/data";
import { Dialog } from "../../components/dialog";
import { formatBytes, formatCount } from "../../components/format";
import { ErrorNotice, Loading } from "../../components/notices";
import { bundlePathOfKey } from "./path";
import { PullCommand } from "./pull";
import { SignatureBadge, signatureMeaning } from "./signature";

/** `bundle` is null for an address of a bundle that the list does not have. */
export function DetailDialog(
  { bundleKey, bundle, onClose }: { bundleKey: string; bundle: BundleState | null; onClose: () => void },
) {
  const { data, error, reload } = useData(
    (signal) => requestJson<BundleDetail>(bundlePathOfKey(bundleKey), { signal }), [bundleKey],
  );
  const shown = bundle ?? data;
  return (
    <Dialog title={bundleKey} onClose={onClose}>
      <div class="stack">
        {shown && (
          <section>
            <h3>Pull</h3>
            <PullCommand command={shown.pull_command} />
          </section>
        )}
        {error && <ErrorNotice error={error} onRetry={reload} />}
        {!data && !error && <Loading />}
        {data && <Detail bundle={data} />}
      </div>
    </Dialog>
  );
}

function Detail({ bundle }: { bundle: BundleDetail }) {
  return (
    <>
      {bundle.problem && <p class="warning-text" role="alert">{bundle.problem}</p>}
      <section>
        <h3>Integrity</h3>
        <dl class="facts">
          <div><dt>SHA-256</dt><dd><code>{bundle.sha256 ?? "not computed yet"}</code></dd></div>
          <div><dt>Size</dt><dd>{formatBytes(bundle.size_bytes)}{unpacked(bundle)}</dd></div>
          <div>
            <dt>Signature</dt>
            <dd><SignatureBadge state={bundle.signature} /> {signatureMeaning(bundle.signature)}</dd>
          </div>
          {bundle.signature_keys.map((key) => <div key={key}><dt>Signed by</dt><dd><code>{key}</code></dd></div>)}
        </dl>
      </section>
      {bundle.files && (
        <section>
          <h3>Files ({formatCount(bundle.file_count ?? bundle.files.length)})</h3>
          <ul class="file-list" tabIndex={0} aria-label="Files">
            {bundle.files.map((file) => (
              <li key={file.path}><code>{file.path}</code><span>{formatBytes(file.size_bytes)}</span></li>
            ))}
          </ul>
        </section>
      )}
      {bundle.metadata && (
        <section>
          <h3>Metadata</h3>
          <CodeBlock code={JSON.stringify(bundle.metadata, null, 2)} label="Metadata" />
        </section>
      )}
    </>
  );
}

function unpacked(bundle: BundleDetail): string {
  return bundle.unpacked_bytes === null ? "" : `, ${formatBytes(bundle.unpacked_bytes)} unpacked`;
}
