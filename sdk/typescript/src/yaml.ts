/** Parses the YAML of pipelines: mappings, lists, texts, numbers, booleans, null, and comments. */

import { UsageError } from "./errors.js";

export type YamlValue = string | number | boolean | null | YamlValue[] | { [key: string]: YamlValue };

/** The deepest nesting, in blocks or in brackets. */
const MAX_DEPTH = 16;

interface Line {
  indent: number;
  text: string;
  number: number;
}

/** Return the value of a document. Throws UsageError that names the line. */
export function parseYaml(text: string): YamlValue {
  return new YamlParser(text.replace(/^\ufeff/, "")).parse();
}

class YamlParser {
  private readonly lines: Line[] = [];
  private at = 0;
  private depth = 0;

  constructor(private readonly source: string) {
    for (const [index, raw] of source.split(/\r?\n/).entries()) {
      const text = raw.trim();
      if (/^\s*\t/.test(raw)) throw failure(index + 1, "a tab indents the line: use spaces");
      if (text && !text.startsWith("#") && text !== "---") this.lines.push({ indent: raw.search(/\S/), text: stripComment(text), number: index + 1 });
    }
  }

  parse(): YamlValue {
    if (!this.lines.length) throw new UsageError("The pipeline is empty. A pipeline has a name and stages.");
    const value = this.parseBlock(this.lines[0]?.indent ?? 0);
    const rest = this.lines[this.at];
    if (rest) throw failure(rest.number, "the line is not expected here");
    return value;
  }

  private parseBlock(indent: number): YamlValue {
    const first = this.lines[this.at];
    if (!first) return null;
    const isList = /^-(\s|$)/.test(first.text);
    if (isList || splitKey(first)) {
      if (++this.depth > MAX_DEPTH) throw tooDeep(first.number);
      const value = isList ? this.parseList(indent) : this.parseMapping(indent);
      this.depth--;
      return value;
    }
    this.at++;
    return parseScalar(first.text, first.number);
  }

  private parseList(indent: number): YamlValue[] {
    const items: YamlValue[] = [];
    for (let line = this.lines[this.at]; line?.indent === indent && /^-(\s|$)/.test(line.text); line = this.lines[this.at]) {
      const rest = line.text.slice(1).trimStart();
      if (!rest) {
        this.at++;
        items.push(this.parseNested(indent));
      } else {
        // The item continues as a block that begins after the dash.
        this.lines[this.at] = { ...line, indent: indent + line.text.length - rest.length, text: rest };
        items.push(this.parseBlock(indent + line.text.length - rest.length));
      }
    }
    return items;
  }

  private parseMapping(indent: number): Record<string, YamlValue> {
    const mapping: Record<string, YamlValue> = {};
    for (let line = this.lines[this.at]; line?.indent === indent; line = this.lines[this.at]) {
      const pair = splitKey(line);
      if (!pair) throw failure(line.number, "a line `key: value` is expected");
      const [key, rest] = pair;
      if (Object.hasOwn(mapping, key)) throw failure(line.number, `\`${key}\` is repeated`);
      this.at++;
      if (/^[|>][+-]?$/.test(rest)) mapping[key] = this.parseBlockText(line, rest);
      else if (rest) mapping[key] = parseScalar(rest, line.number);
      else mapping[key] = this.parseNested(indent, true);
    }
    return mapping;
  }

  private parseNested(indent: number, isMapping = false): YamlValue {
    const next = this.lines[this.at];
    if (next && (next.indent > indent || (isMapping && next.indent === indent && /^-(\s|$)/.test(next.text)))) return this.parseBlock(next.indent);
    return null;
  }

  private parseBlockText(line: Line, style: string): string {
    const raw = this.source.split(/\r?\n/).slice(line.number);
    const end = raw.findIndex((each) => each.trim() && each.search(/\S/) <= line.indent);
    const block = raw.slice(0, end < 0 ? raw.length : end);
    const margin = Math.min(...block.filter((each) => each.trim()).map((each) => each.search(/\S/)));
    while (this.lines[this.at] && (this.lines[this.at]?.number ?? 0) <= line.number + block.length) this.at++;
    const texts = block.map((each) => each.slice(margin));
    while (texts.length && !texts[texts.length - 1]) texts.pop();
    const joined = style.startsWith("|") ? texts.join("\n") : texts.join(" ").replace(/ {2,}/g, "\n");
    return style.endsWith("-") || !joined ? joined : `${joined}\n`;
  }
}

function failure(line: number, problem: string): UsageError {
  return new UsageError(`pipeline:${line}: ${problem}.`);
}

function tooDeep(line: number): UsageError {
  return failure(line, "the nesting is too deep");
}

function stripComment(text: string): string {
  let quote = "";
  for (let index = 0; index < text.length; index++) {
    const character = text.charAt(index);
    if (quote) {
      if (character === "\\" && quote === '"') index++;
      else if (character === quote) quote = "";
    } else if ((character === '"' || character === "'") && (index === 0 || /[\s:,[{]/.test(text.charAt(index - 1)))) quote = character;
    else if (character === "#" && /\s/.test(text.charAt(index - 1))) return text.slice(0, index).trimEnd();
  }
  return text;
}

function splitKey(line: Line): [string, string] | undefined {
  const match = /^("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s"'[\]{},&*!|>%@`#-][^:#]*?|-[^\s:]+)\s*:(?:\s+(.*))?$/.exec(line.text);
  return match ? [toKey(parseScalar(match[1] ?? "", line.number)), match[2]?.trim() ?? ""] : undefined;
}

function toKey(value: YamlValue): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function parseScalar(text: string, line: number): YamlValue {
  const first = text.charAt(0);
  if (first === "{" || first === "[") {
    const flow = new FlowParser(text, line);
    return flow.parse();
  }
  if (first === '"' || first === "'") return parseQuoted(text, line);
  if (first === "&" || first === "*" || first === "!") throw failure(line, "aliases and tags are not supported: repeat the value");
  if (text === "" || text === "~" || /^null$/i.test(text)) return null;
  if (/^true$/i.test(text)) return true;
  if (/^false$/i.test(text)) return false;
  if (/^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text)) return Number(text);
  return text;
}

function parseQuoted(text: string, line: number): string {
  try {
    if (/^"(?:[^"\\]|\\.)*"$/.test(text)) return JSON.parse(text) as string;
  } catch {
    // An escape that JSON does not have.
  }
  if (/^'(?:[^']|'')*'$/.test(text)) return text.slice(1, -1).replaceAll("''", "'");
  throw failure(line, "the quotes are not valid");
}

/** Parses `{a: 1, b: [x, y]}` on one line. */
class FlowParser {
  private at = 0;
  private depth = 0;

  constructor(
    private readonly text: string,
    private readonly line: number,
  ) {}

  parse(): YamlValue {
    const value = this.parseValue();
    this.skipSpace();
    if (this.at < this.text.length) throw failure(this.line, "the brackets are not balanced");
    return value;
  }

  private parseValue(): YamlValue {
    this.skipSpace();
    const first = this.text.charAt(this.at);
    if (first === "[") return this.parseItems("]", () => this.parseValue());
    if (first === "{") {
      return Object.fromEntries(
        this.parseItems("}", () => {
          const key = toKey(parseScalar(this.token(/^(?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^,:{}[\]]+)/).trim(), this.line));
          this.skipSpace();
          if (this.text.charAt(this.at) !== ":") throw failure(this.line, "a `:` is missing in the braces");
          this.at++;
          return [key, this.parseValue()] as const;
        }),
      );
    }
    return parseScalar(this.token(/^(?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^,{}[\]]*)/).trim(), this.line);
  }

  private parseItems<T>(end: string, parseItem: () => T): T[] {
    const items: T[] = [];
    this.at++;
    if (++this.depth > MAX_DEPTH) throw tooDeep(this.line);
    for (;;) {
      this.skipSpace();
      if (this.text.charAt(this.at) === end) break;
      items.push(parseItem());
      this.skipSpace();
      if (this.text.charAt(this.at) === ",") this.at++;
      else if (this.text.charAt(this.at) !== end) throw failure(this.line, "the brackets are not balanced");
    }
    this.at++;
    this.depth--;
    return items;
  }

  private token(pattern: RegExp): string {
    this.skipSpace();
    const match = pattern.exec(this.text.slice(this.at));
    this.at += match?.[0].length ?? 0;
    return match?.[0] ?? "";
  }

  private skipSpace(): void {
    while (/\s/.test(this.text.charAt(this.at))) this.at++;
  }
}
