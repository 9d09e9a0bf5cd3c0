/** The prompt with its images: typed, dropped, pasted or chosen. */
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { DraftStore } from "./draft";

const IMAGE_TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const MAX_IMAGES = 8;
/** The key of an input method. Safari says with nothing else that Enter ends a composition. */
const COMPOSITION_KEY_CODE = 229;
/** The gateway accepts bodies of 32 MiB, and base64 adds a third. */
const MAX_IMAGE_BYTES = 20 * 1024 * 1024;

export function Composer(
  { drafts, isStreaming, problem, onSend, onStop }: {
    drafts: DraftStore; isStreaming: boolean; problem: string | null;
    onSend: (prompt: string, images: string[]) => void; onStop: () => void;
  },
) {
  const [prompt, setPrompt] = useState(drafts.prompt);
  const [images, setImages] = useState(drafts.images);
  const [error, setError] = useState<string | null>(null);
  const textarea = useRef<HTMLTextAreaElement>(null);
  // The keyboard of a phone has no Shift+Enter.
  const isTouchOnly = useMemo(() => window.matchMedia("(hover: none) and (pointer: coarse)").matches, []);
  useLayoutEffect(() => { drafts.prompt = prompt; }, [drafts, prompt]);
  useLayoutEffect(() => { drafts.images = images; }, [drafts, images]);

  const canSend = !isStreaming && problem === null && (prompt.trim() !== "" || images.length > 0);
  const send = (): void => {
    if (!canSend) return;
    onSend(prompt, images);
    setPrompt("");
    setImages([]);
    setError(null);
    textarea.current?.focus();
  };
  const addFiles = async (files: File[]): Promise<void> => {
    const wrong = files.find((file) => !IMAGE_TYPES.includes(file.type));
    const bytes = files.reduce((sum, file) => sum + file.size, 0) + images.reduce((sum, url) => sum + url.length * 0.75, 0);
    if (wrong) setError(`${wrong.name} is not an image that models read: PNG, JPEG, WebP or GIF.`);
    else if (images.length + files.length > MAX_IMAGES) setError(`A prompt has at most ${MAX_IMAGES} images.`);
    else if (bytes > MAX_IMAGE_BYTES) setError("The images of a prompt have at most 20 MiB together.");
    else {
      setError(null);
      const urls = await Promise.all(files.map(readDataUrl)).catch(() => null);
      if (urls) setImages((previous) => [...previous, ...urls]);
      else setError("An image could not be read.");
    }
  };
  const isDropTarget = usePageDrop((files) => void addFiles(files));
  return (
    <form
      class={`composer card${isDropTarget ? " drop-target" : ""}`}
      onSubmit={(event) => { event.preventDefault(); send(); }}
    >
      <label class="visually-hidden" for="prompt">Prompt</label>
      <textarea
        id="prompt" ref={textarea} rows={Math.min(10, Math.max(2, prompt.split("\n").length))} value={prompt}
        placeholder="Ask the models" aria-describedby="prompt-help"
        onInput={(event) => setPrompt(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || event.shiftKey || isTouchOnly || isComposing(event)) return;
          event.preventDefault();
          send();
        }}
        onPaste={(event) => {
          const files = [...(event.clipboardData?.files ?? [])];
          if (!files.length || isFormattedText(event.clipboardData)) return;
          event.preventDefault();
          void addFiles(files);
        }}
      />
      <Thumbnails images={images} onRemove={(index) => setImages(images.filter((_, at) => at !== index))} />
      {(error ?? problem) && <p class="field-error" role="alert">{error ?? problem}</p>}
      <div class="row">
        <label class="file-button">
          <input
            type="file" class="visually-hidden" multiple accept={IMAGE_TYPES.join(",")}
            onChange={(event) => {
              void addFiles([...(event.currentTarget.files ?? [])]);
              event.currentTarget.value = "";
            }}
          />
          Add images
        </label>
        <span id="prompt-help" class="hint grow">{isTouchOnly ? "Enter starts a new line." : "Enter sends. Shift+Enter starts a new line."}</span>
        {isStreaming
          ? <button type="button" onClick={() => { onStop(); textarea.current?.focus(); }}>Stop</button>
          : <button type="submit" class="primary" disabled={!canSend}>Send</button>}
      </div>
    </form>
  );
}

function isComposing(event: KeyboardEvent): boolean {
  // eslint-disable-next-line @typescript-eslint/no-deprecated -- Safari has no other sign
  return event.isComposing || event.keyCode === COMPOSITION_KEY_CODE;
}

/** Office programs add a picture of the text that is copied. */
function isFormattedText(data: DataTransfer | null): boolean {
  return data !== null && data.types.includes("text/plain") && data.types.includes("text/html");
}

export function Thumbnails({ images, onRemove }: { images: string[]; onRemove?: (index: number) => void }) {
  if (!images.length) return null;
  return (
    <ul class="thumbnails" aria-label="Images">
      {images.map((url, index) => (
        <li key={index}>
          <img src={url} alt={`Image ${index + 1}`} />
          {onRemove && (
            <button type="button" aria-label={`Remove image ${index + 1}`} onClick={() => onRemove(index)}>×</button>
          )}
        </li>
      ))}
    </ul>
  );
}

/** Takes files that are dropped anywhere on the page. The browser would open them in place of the page. */
function usePageDrop(onFiles: (files: File[]) => void): boolean {
  const [isOver, setIsOver] = useState(false);
  const handler = useRef(onFiles);
  handler.current = onFiles;
  useEffect(() => {
    const over = (event: DragEvent): void => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      setIsOver(true);
    };
    const leave = (event: DragEvent): void => { if (event.relatedTarget === null) setIsOver(false); };
    const drop = (event: DragEvent): void => {
      const files = [...(event.dataTransfer?.files ?? [])];
      setIsOver(false);
      if (!files.length) return;
      event.preventDefault();
      handler.current(files);
    };
    window.addEventListener("dragover", over);
    window.addEventListener("dragleave", leave);
    window.addEventListener("drop", drop);
    return () => {
      window.removeEventListener("dragover", over);
      window.removeEventListener("dragleave", leave);
      window.removeEventListener("drop", drop);
    };
  }, []);
  return isOver;
}

function readDataUrl(file: File): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.onerror = () => reject(new Error("The file could not be read."));
    reader.readAsDataURL(file);
  });
}
