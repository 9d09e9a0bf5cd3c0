/** UTF-8, also where `TextDecoder` is missing. */

/** Decodes chunks of UTF-8. Throws TypeError for bytes that are not UTF-8. */
export class Utf8Decoder {
  private readonly native = typeof TextDecoder === "function" ? new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }) : undefined;
  private rest: number[] = [];

  decode(bytes: Uint8Array): string {
    return this.native ? this.native.decode(bytes, { stream: true }) : this.decodeSlowly(bytes);
  }

  /** Throw TypeError if the last character is incomplete. */
  finish(): void {
    if (this.native) this.native.decode();
    else if (this.rest.length) throw new TypeError("The text is not UTF-8.");
  }

  private decodeSlowly(bytes: Uint8Array): string {
    const input = this.rest.length ? [...this.rest, ...bytes] : bytes;
    let text = "";
    let position = 0;
    while (position < input.length) {
      const first = input[position] ?? 0;
      const length = first < 0x80 ? 1 : first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xf0 && first < 0xf5 ? 4 : 0;
      if (!length) throw new TypeError("The text is not UTF-8.");
      if (position + length > input.length) break;
      let point = length === 1 ? first : first & (0xff >> (length + 1));
      for (let offset = 1; offset < length; offset++) {
        const next = input[position + offset] ?? 0;
        if (next >> 6 !== 2) throw new TypeError("The text is not UTF-8.");
        point = (point << 6) | (next & 0x3f);
      }
      text += String.fromCodePoint(point);
      position += length;
    }
    this.rest = Array.from(input.slice(position));
    return text;
  }
}

/** Return the text of bytes. Bytes that are not UTF-8 become U+FFFD. */
export function decodeUtf8(bytes: Uint8Array): string {
  if (typeof TextDecoder === "function") return new TextDecoder().decode(bytes);
  try {
    return new Utf8Decoder().decode(bytes).replace(/^\ufeff/, "");
  } catch {
    return Array.from(bytes, (byte) => (byte < 0x80 ? String.fromCharCode(byte) : "\ufffd")).join("");
  }
}
