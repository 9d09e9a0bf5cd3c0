/**
 * Parses JSON (RFC 8259) and remembers where each value stands, for errors at their place. The errors of `JSON.parse`
 * differ between browsers, and some have no position.
 */

export class JsonSourceError extends Error {
  constructor(message: string, readonly offset: number) {
    super(message);
    this.name = "JsonSourceError";
  }
}

export interface JsonSource {
  value: unknown;
  /** The offset of each value by its path, such as `[0].function.name`. The whole has the empty path. */
  offsets: Map<string, number>;
}

const MAX_DEPTH = 100;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const WORD = /true|false|null/y;

export function parseJson(text: string): JsonSource {
  const offsets = new Map<string, number>();
  let at = 0;

  const fail = (message: string, offset = at): never => {
    throw new JsonSourceError(offset >= text.length ? `${message} The text ends here.` : message, offset);
  };
  const skipSpace = (): void => {
    while (/[ \t\r\n]/.test(text[at] ?? "")) at += 1;
  };
  const match = (pattern: RegExp): string | null => {
    pattern.lastIndex = at;
    const found = pattern.exec(text)?.[0] ?? null;
    at += found?.length ?? 0;
    return found;
  };
  const parseString = (): string => JSON.parse(match(STRING) ?? fail("This text is not complete, or has a wrong escape.")) as string;

  const parseItems = (close: string, parseItem: (index: number) => void): void => {
    at += 1;
    skipSpace();
    if (text[at] === close) {
      at += 1;
      return;
    }
    for (let index = 0; ; index += 1) {
      parseItem(index);
      skipSpace();
      if (text[at] === close) {
        at += 1;
        return;
      }
      if (text[at] !== ",") fail(`Expected , or ${close}.`);
      at += 1;
      skipSpace();
    }
  };

  const parseValue = (path: string, depth: number): unknown => {
    skipSpace();
    if (depth > MAX_DEPTH) fail("The values are nested too deeply.");
    offsets.set(path, at);
    const first = text[at];
    if (first === "[") {
      const items: unknown[] = [];
      parseItems("]", (index) => items.push(parseValue(`${path}[${index}]`, depth + 1)));
      return items;
    }
    if (first === "{") {
      const members: [string, unknown][] = [];
      parseItems("}", () => {
        if (text[at] !== "\"") fail("Expected a name in double quotes.");
        const name = parseString();
        skipSpace();
        if (text[at] !== ":") fail("Expected : after the name.");
        at += 1;
        members.push([name, parseValue(`${path}.${name}`, depth + 1)]);
      });
      return Object.fromEntries(members);
    }
    if (first === "\"") return parseString();
    const scalar = match(NUMBER) ?? match(WORD) ?? fail("Expected a value.");
    return JSON.parse(scalar);
  };

  const value = parseValue("", 0);
  skipSpace();
  if (at < text.length) fail("Nothing may follow the value.");
  return { value, offsets };
}

/** Returns the line and the column of an offset, from 1. */
export function lineAndColumn(text: string, offset: number): { line: number; column: number } {
  const lines = text.slice(0, offset).split("\n");
  return { line: lines.length, column: (lines.at(-1)?.length ?? 0) + 1 };
}
