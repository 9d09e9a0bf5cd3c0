/** The transcript of a file. */
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, requestWithHeaders } from "../../api/client";
import { CopyButton } from "../../components/copy";
import { DropZone } from "../../components/drop-zone";
import { formatBytes } from "../../components/format";
import { ErrorNotice } from "../../components/notices";

export function FilePanel({ models }: { models: string[] }) {
  const [model, setModel] = useState(models[0] ?? "");
  const [file, setFile] = useState<File | null>(null);
  const [text, setText] = useState<string | null>(null);
  /** Says which part of a damaged file was read. */
  const [warning, setWarning] = useState("");
  const [error, setError] = useState<ApiError | null>(null);
  const [controller, setController] = useState<AbortController | null>(null);
  const latest = useRef<AbortController | null>(null);
  useEffect(() => () => latest.current?.abort(), []);

  const transcribe = async (chosen: File): Promise<void> => {
    const current = new AbortController();
    latest.current = current;
    setFile(chosen);
    setText(null);
    setWarning("");
    setError(null);
    setController(current);
    const form = new FormData();
    form.set("file", chosen);
    form.set("model", model);
    try {
      const { body, headers } = await requestWithHeaders("/v1/audio/transcriptions", {
        method: "POST", body: form, signal: current.signal, timeoutSeconds: Infinity,
      });
      setText((body as { text: string }).text);
      setWarning(headers.get("x-svc-warning") ?? "");
    } catch (caught) {
      if (caught instanceof ApiError) setError(caught);
      else if (!current.signal.aborted) throw caught;
    }
    setController(null);
  };

  return (
    <div class="stack">
      <label class="field">
        Model
        <select value={model} disabled={controller !== null} onChange={(event) => setModel(event.currentTarget.value)}>
          {models.map((name) => <option key={name}>{name}</option>)}
        </select>
      </label>
      <DropZone label="Audio file" accept="audio/*" isDisabled={controller !== null} onFile={(chosen) => void transcribe(chosen)}>
        <p>Drop an audio file here: WAV, MP3, FLAC or Ogg</p>
      </DropZone>
      {file && (
        <div class="row">
          <span>{file.name} ({formatBytes(file.size)})</span>
          {controller && <span role="status">Transcribing…</span>}
          {controller && <button type="button" onClick={() => controller.abort()}>Cancel</button>}
        </div>
      )}
      {error && <ErrorNotice error={error} />}
      {error?.status === 413 && <p>A compressed file, such as MP3 or FLAC, has room for more.</p>}
      {warning && <p class="warning-text" role="status">{warning}</p>}
      {text !== null && (
        <div class="card" role="region" aria-label="Transcript of the file">
          <p class="transcript-text">{text || "Nobody spoke."}</p>
          {text && <CopyButton text={text} />}
        </div>
      )}
    </div>
  );
}
