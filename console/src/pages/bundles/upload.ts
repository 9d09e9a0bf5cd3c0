/** Uploads a bundle in chunks. An interrupted upload continues where the server has it. */
import type { BundleState, UploadState } from "../../../build/schema";
import { ApiError, request, requestJson } from "../../api/client";
import type { BundleName } from "./archive";

/** The gateway waits 60 s for a chunk, unless `gateway.body_timeout` differs. */
const CHUNK_TIMEOUT_SECONDS = 180;
const ENDING_CODES = new Set(["invalid_bundle", "already_exists", "not_found"]);

export class BundleUpload {
  private state: UploadState | null = null;
  private controller = new AbortController();

  constructor(
    private readonly file: File, private readonly name: BundleName,
    private readonly onProgress: (sentBytes: number) => void,
  ) {}

  /** Whether `run` can continue the upload after an error, rather than start again. */
  get isResumable(): boolean {
    return this.state !== null;
  }

  /** Sends the rest of the file and publishes it. Throws `ApiError`, and `AbortError` after `cancel`. */
  async run(): Promise<BundleState> {
    this.controller = new AbortController();
    const { signal } = this.controller;
    try {
      this.state = await this.announceOrFind(signal);
      while (this.state.offset < this.file.size) {
        this.onProgress(this.state.offset);
        this.state = await this.sendChunk(this.state, signal);
      }
      this.onProgress(this.file.size);
      const published = await requestJson<BundleState>(`${this.path(this.state)}/commit`, {
        method: "POST", signal, timeoutSeconds: Infinity, // the gateway reads the whole bundle
      });
      this.state = null; // The server has no upload any more.
      return published;
    } catch (error) {
      // After these, the server has no upload.
      if (error instanceof ApiError && ENDING_CODES.has(error.code)) this.state = null;
      throw error;
    }
  }

  /** Stops, and removes what the server has. */
  async cancel(): Promise<void> {
    this.controller.abort();
    if (this.state === null) return;
    const path = this.path(this.state);
    this.state = null;
    await request(path, { method: "DELETE" }).catch(() => undefined); // it expires by itself
  }

  private async announceOrFind(signal: AbortSignal): Promise<UploadState> {
    if (this.state !== null) return requestJson<UploadState>(this.path(this.state), { signal });
    return requestJson<UploadState>("/v1/admin/uploads", {
      method: "POST", json: { ...this.name, size_bytes: this.file.size }, signal,
    });
  }

  private async sendChunk(state: UploadState, signal: AbortSignal): Promise<UploadState> {
    const chunk = this.file.slice(state.offset, state.offset + state.chunk_bytes);
    return requestJson<UploadState>(this.path(state), {
      method: "PATCH", body: chunk, signal, timeoutSeconds: CHUNK_TIMEOUT_SECONDS,
      headers: { "upload-offset": String(state.offset), "content-type": "application/octet-stream" },
    });
  }

  private path(state: UploadState): string {
    return `/v1/admin/uploads/${encodeURIComponent(state.id)}`;
  }
}
