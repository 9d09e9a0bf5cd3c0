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
  /** The text of the event that is incomplete, in parts: joining them at each call would take quadratic time. */
  private parts: string[] = [];
  private length = 0;
  private endsLine = false;
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
    if (input.includes("\r")) input = input.replace(/\r\n?/g, "\n");
    // A blank line can begin at the end of the text before.
    const isEnd = input.includes("\n\n") || (this.endsLine && input.startsWith("\n"));
    this.push(input);
    if (!isEnd) {
      if (this.length > MAX_EVENT_CHARS) throw new ProviderFailed("The provider sent an event that is too long.");
      return [];
    }
    const whole = this.take();
    const end = whole.lastIndexOf("\n\n");
    this.push(whole.slice(end + 2));
    return parseBlock(whole.slice(0, end));
  }

  /** Return the rest at the end of the stream: some servers omit the last blank line. */
  flush(): ServerSentEvent[] {
    return parseBlock(this.take());
  }

  private push(text: string): void {
    if (!text) return;
    this.parts.push(text);
    this.length += text.length;
    this.endsLine = text.endsWith("\n");
  }

  private take(): string {
    const whole = this.parts.join("");
    this.parts = [];
    this.length = 0;
    this.endsLine = false;
    return whole;
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
