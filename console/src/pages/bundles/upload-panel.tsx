/** The upload of a bundle: a file, its name, the progress, and the result. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { BundleState } from "../../../build/schema";
import { ApiError } from "../../api/client";
import { DropZone } from "../../components/drop-zone";
import { Field, focusFirstInvalid } from "../../components/field";
import { formatBytes } from "../../components/format";
import { type BundleName, NotABundle, readBundleName } from "./archive";
import { HowToPack } from "./pack";
import { PullCommand } from "./pull";
import { BundleUpload } from "./upload";

type Phase =
  | { kind: "idle" }
  | { kind: "naming"; file: File }
  | { kind: "sending"; file: File; sentBytes: number }
  | { kind: "published"; bundle: BundleState };

const EMPTY_NAME: BundleName = { model_id: "", version: "", platform: "any" };

export function UploadPanel({ onPublished }: { onPublished: () => void }) {
  const [phase, setPhase] = useState<Phase>({ kind: "idle" });
  const [name, setName] = useState<BundleName>(EMPTY_NAME);
  const [fileProblem, setFileProblem] = useState<string | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const upload = useRef<BundleUpload | null>(null);
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => () => void upload.current?.cancel(), []);
  useEffect(() => { if (error) focusFirstInvalid(form.current); }, [error]);

  const choose = async (file: File): Promise<void> => {
    upload.current = null;
    setError(null);
    setFileProblem(null);
    try {
      setName((await readBundleName(file)) ?? EMPTY_NAME);
      setPhase({ kind: "naming", file });
    } catch (caught) {
      if (!(caught instanceof NotABundle)) throw caught;
      setFileProblem(caught.message);
      setPhase({ kind: "idle" });
    }
  };
  const send = async (file: File): Promise<void> => {
    setError(null);
    if (!upload.current?.isResumable) {
      upload.current = new BundleUpload(file, name, (sentBytes) => setPhase({ kind: "sending", file, sentBytes }));
    }
    setPhase({ kind: "sending", file, sentBytes: 0 });
    try {
      setPhase({ kind: "published", bundle: await upload.current.run() });
      onPublished();
    } catch (caught) {
      if (!(caught instanceof ApiError)) return; // cancelled
      setError(caught);
      setPhase({ kind: "naming", file });
    }
  };
  const reset = (): void => {
    void upload.current?.cancel();
    upload.current = null;
    setError(null);
    setPhase({ kind: "idle" });
  };

  return (
    <section class="card stack" aria-labelledby="upload-title">
      <h2 id="upload-title" class="visually-hidden">Upload a bundle</h2>
      {(phase.kind === "idle" || phase.kind === "published") && (
        <DropZone label="Bundle file" accept=".xyb" onFile={(file) => void choose(file)}>
          <p>Drop a bundle here to publish it: a <code>.xyb</code> file of <code>svc bundle pack FOLDER</code></p>
        </DropZone>
      )}
      {phase.kind === "idle" && <HowToPack />}
      {fileProblem && <div class="notice error" role="alert"><p>{fileProblem}</p></div>}
      {phase.kind === "published" && <Published bundle={phase.bundle} />}
      {phase.kind === "sending" && <Sending file={phase.file} sentBytes={phase.sentBytes} onCancel={reset} />}
      {phase.kind === "naming" && (
        <form
          ref={form} class="form-grid" noValidate
          onSubmit={(event) => { event.preventDefault(); void send(phase.file); }}
        >
          <p><strong class="file-name">{phase.file.name}</strong> ({formatBytes(phase.file.size)})</p>
          <div class="form-columns">
            {(["model_id", "version", "platform"] as const).map((field) => (
              <Field key={field} name={field} label={LABELS[field]} error={error}>
                {(attributes) => (
                  <input {...attributes} value={name[field]} autocomplete="off"
                    onInput={(event) => {
                      upload.current = null;
                      setName({ ...name, [field]: event.currentTarget.value });
                    }} />
                )}
              </Field>
            ))}
          </div>
          {error && !((error.param ?? "") in LABELS) && <UploadError error={error} isResumable={upload.current?.isResumable ?? false} />}
          <div class="row">
            <button type="submit" class="primary">
              {error ? (upload.current?.isResumable ? "Continue the upload" : "Upload again") : "Upload"}
            </button>
            <button type="button" onClick={reset}>Cancel</button>
          </div>
        </form>
      )}
    </section>
  );
}

const LABELS = { model_id: "Model", version: "Version", platform: "Platform" };

function Sending({ file, sentBytes, onCancel }: { file: File; sentBytes: number; onCancel: () => void }) {
  const isChecking = sentBytes >= file.size;
  return (
    <div class="stack">
      <p role="status">
        {isChecking ? `Checking ${file.name}…` : `Uploading ${file.name}: ${formatBytes(sentBytes)} of ${formatBytes(file.size)}`}
      </p>
      <progress aria-label="Upload" max={file.size} {...(!isChecking && { value: sentBytes })} />
      <div class="row"><button type="button" onClick={onCancel}>Cancel</button></div>
    </div>
  );
}

function UploadError({ error, isResumable }: { error: ApiError; isResumable: boolean }) {
  return (
    <div class="notice error" role="alert">
      <p>{error.message}</p>
      <p class="hint">{adviceFor(error, isResumable)}</p>
    </div>
  );
}

function adviceFor(error: ApiError, isResumable: boolean): string {
  if (error.code === "already_exists") {
    return "Another bundle has this model, version and platform. A published bundle never changes: use another version.";
  }
  if (error.code === "invalid_bundle") return "Build the bundle again with svc bundle pack, then upload the new file.";
  if (error.code === "insufficient_storage") return "Free space on the server, then upload again.";
  if (error.status === 413) return "The server does not accept a file of this size.";
  return isResumable ? "What was sent is kept for an hour. Continue when the gateway is back." : "";
}

function Published({ bundle }: { bundle: BundleState }) {
  return (
    <div class="notice" role="status">
      <p><strong>{bundle.key} is published.</strong> Pull it with:</p>
      {bundle.yanked && (
        <p class="warning-text">
          It was published before and yanked, and it stays yanked: <code>latest</code> and version ranges leave it out. Unyank it
          in the list below.
        </p>
      )}
      <PullCommand command={bundle.pull_command} />
    </div>
  );
}
