/** SHA-256 of data that arrives in parts (FIPS 180-4). WebCrypto needs all of it at once. */

import { nodeModule } from "./environment.js";

export interface Hash {
  update: (bytes: Uint8Array) => void;
  /** Return the hash in hex. */
  hex: () => string;
}

interface NodeHash {
  update(bytes: Uint8Array): unknown;
  digest(encoding: "hex"): string;
}

export function createSha256(): Hash {
  const native = nodeModule<{ createHash(name: string): NodeHash }>("crypto")?.createHash("sha256");
  return native ? { update: (bytes) => void native.update(bytes), hex: () => native.digest("hex") } : new Sha256();
}

/** The first 32 bits of the fractional parts of roots of the first primes. */
function fractions(count: number, root: (prime: number) => number): Uint32Array {
  const values: number[] = [];
  for (let number = 2; values.length < count; number++) {
    let isPrime = true;
    for (let divisor = 2; divisor * divisor <= number; divisor++) isPrime &&= number % divisor !== 0;
    if (isPrime) values.push((root(number) % 1) * 2 ** 32);
  }
  return Uint32Array.from(values);
}

export class Sha256 implements Hash {
  private readonly state = fractions(8, Math.sqrt);
  private readonly constants = fractions(64, Math.cbrt);
  private readonly schedule = new Uint32Array(64);
  private readonly block = new Uint8Array(64);
  private filled = 0;
  private total = 0;

  update(bytes: Uint8Array): void {
    this.total += bytes.length;
    for (let offset = 0; offset < bytes.length;) {
      const part = bytes.subarray(offset, offset + 64 - this.filled);
      this.block.set(part, this.filled);
      this.filled += part.length;
      offset += part.length;
      if (this.filled === 64) this.compress();
    }
  }

  hex(): string {
    const bits = this.total * 8;
    const padding = new Uint8Array(((119 - (this.total % 64)) % 64) + 9);
    padding[0] = 0x80;
    const view = new DataView(padding.buffer);
    view.setUint32(padding.length - 8, Math.floor(bits / 2 ** 32));
    view.setUint32(padding.length - 4, bits >>> 0);
    this.update(padding);
    return Array.from(this.state, (word) => word.toString(16).padStart(8, "0")).join("");
  }

  private compress(): void {
    const { state, schedule, constants } = this;
    const at = (index: number): number => schedule[index] as number;
    const rotate = (word: number, count: number): number => (word >>> count) | (word << (32 - count));
    const view = new DataView(this.block.buffer);
    for (let index = 0; index < 16; index++) schedule[index] = view.getUint32(index * 4);
    for (let index = 16; index < 64; index++) {
      const early = at(index - 15);
      const late = at(index - 2);
      const first = rotate(early, 7) ^ rotate(early, 18) ^ (early >>> 3);
      const second = rotate(late, 17) ^ rotate(late, 19) ^ (late >>> 10);
      schedule[index] = at(index - 16) + first + at(index - 7) + second;
    }
    let [a, b, c, d, e, f, g, h] = state as unknown as [number, number, number, number, number, number, number, number];
    for (let index = 0; index < 64; index++) {
      const sum = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
      const next = (h + sum + ((e & f) ^ (~e & g)) + (constants[index] as number) + at(index)) | 0;
      const other = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + next) | 0, c, b, a, (next + other) | 0];
    }
    for (const [index, word] of [a, b, c, d, e, f, g, h].entries()) state[index] = (state[index] as number) + word;
    this.filled = 0;
  }
}
