/** Splits text into server-sent events, independent of chunk boundaries (WHATWG HTML, section 9.2.6). */

import { ProviderFailed } from "./errors.js";

const MAX_EVENT_CHARS = 8 * 1024 * 1024;

export interface ServerSentEvent {
  /** The value of the last `event:` line. */
  name: string | undefined;
  /** The joined `data:` lines, or undefined if there are none. */
  data: string | undefined;
}

export class EventSplitter {
  private buffer = "";
  private started = false;
  private pendingCr = false;

  /** Return the events that the text completes. Throws ProviderFailed for an event that is too long. */
  feed(text: string): ServerSentEvent[] {
    let input = text;
    if (!this.started && input) {
      this.started = true;
      if (input.startsWith("\ufeff")) input = input.slice(1);
    }
    if (this.pendingCr) input = `\r${input}`;
    this.pendingCr = input.endsWith("\r"); // a line feed may follow
    if (this.pendingCr) input = input.slice(0, -1);
    // A blank line can begin in the buffer, at its last character.
    const from = Math.max(0, this.buffer.length - 1);
    this.buffer += input.includes("\r") ? input.replace(/\r\n?/g, "\n") : input;
    const end = this.buffer.lastIndexOf("\n\n");
    if (end < from) {
      if (this.buffer.length > MAX_EVENT_CHARS) throw new ProviderFailed("The provider sent an event that is too long.");
      return [];
    }
    const block = this.buffer.slice(0, end);
    this.buffer = this.buffer.slice(end + 2);
    return parseBlock(block);
  }

  /** Return the rest at the end of the stream: some servers omit the last blank line. */
  flush(): ServerSentEvent[] {
    const rest = this.buffer;
    this.buffer = "";
    return parseBlock(rest);
  }
}

function parseBlock(block: string): ServerSentEvent[] {
  return block
    .split("\n\n")
    .filter((event) => event.trim())
    .map(parseEvent);
}

function parseEvent(event: string): ServerSentEvent {
  let name: string | undefined;
  let data: string | undefined;
  for (const line of event.split("\n")) {
    if (line === "data" || line.startsWith("data:")) {
      const value = line.slice(5).replace(/^ /, "");
      data = data === undefined ? value : `${data}\n${value}`;
    } else if (line.startsWith("event:")) {
      name = line.slice(6).trim();
    }
  }
  return { name, data };
}
