/** Tags as text: `name=value`, with the name in quotation marks if it has a separator itself. */

/** Formats a tag, such as `team=web` or `"a=b"=c`. */
export function formatTag(name: string, value: string): string {
  return `${/^"|[=:]/.test(name) ? JSON.stringify(name) : name}=${value}`;
}

/** Returns name and value, or null if the text is no tag. The separator comes after the name. */
export function parseTag(text: string, separator: RegExp): [string, string] | null {
  const trimmed = text.trim();
  const quoted = /^"(?:[^"\\]|\\.)*"/.exec(trimmed)?.[0];
  const name = quoted === undefined ? trimmed.split(separator, 1)[0] ?? "" : parseText(quoted);
  const rest = trimmed.slice(quoted?.length ?? name.length).trimStart();
  return name.trim() && rest.search(separator) === 0 ? [name.trim(), rest.slice(1).trim()] : null;
}

function parseText(json: string): string {
  try {
    return String(JSON.parse(json));
  } catch {
    return "";
  }
}
