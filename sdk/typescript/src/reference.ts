/**
 * References to bundles, and the order of versions.
 *
 * <id>@<version>      exactly this version, even if it is yanked
 * <id>, <id>@latest   the newest version that is not yanked
 * <id>@1, <id>@1.2    the newest version with that prefix, unless a version has exactly that name
 */

import { InvalidRequest } from "./errors.js";

const MAX_NAME_LENGTH = 128;
const SEMVER = /^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?$/;

/** A model and a version. Without `version`: the newest. */
export interface BundleReference {
  modelId: string;
  version: string | undefined;
}

/** An entry of a registry's index. */
export interface BundleEntry {
  model_id: string;
  version: string;
  target: string;
  size_bytes: number;
  path: string;
  sha256?: string | null | undefined;
  created?: string | null | undefined;
  yanked?: boolean | undefined;
  signatures?: readonly { key: string; value: string }[] | undefined;
}

/** Return the name if it is a valid model id, version or platform. Throws InvalidRequest. */
export function checkName(field: string, name: string): string {
  if (name.length > MAX_NAME_LENGTH || !/^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(name)) {
    throw new InvalidRequest(
      `${field} ${JSON.stringify(name.slice(0, 64))} is not valid: use letters, digits, '.', '_' and '-', first a letter or digit, ` +
        `at most ${MAX_NAME_LENGTH} characters.`,
      { param: field },
    );
  }
  return name;
}

/** Parse a reference. Throws InvalidRequest. */
export function parseReference(text: string): BundleReference {
  const trimmed = text.trim();
  const at = trimmed.indexOf("@");
  const modelId = checkName("model_id", at < 0 ? trimmed : trimmed.slice(0, at));
  const version = at < 0 ? "latest" : trimmed.slice(at + 1);
  return { modelId, version: version === "latest" ? undefined : checkName("version", version) };
}

/** Return whether a version is a pre-release: by SemVer, else letters after digits (`1.0-rc1`, not `v1.0`). */
export function isPrerelease(version: string): boolean {
  const match = SEMVER.exec(version);
  if (match) return match[4] !== undefined;
  const runs = runsOf(version);
  const first = runs.findIndex(isDigits);
  return first >= 0 && runs.slice(first).some((run) => !isDigits(run));
}

/** Return a number below, equal to or above 0 if `left` sorts before, equal to or after `right`. */
export function compareVersions(left: string, right: string): number {
  const leftMatch = SEMVER.exec(left);
  const rightMatch = SEMVER.exec(right);
  return leftMatch && rightMatch ? compareSemver(leftMatch, rightMatch) : compareNaturally(left, right);
}

/** Sort versions, oldest first, without duplicates. */
export function sortVersions(versions: Iterable<string>): string[] {
  return [...new Set(versions)].sort(compareText).sort(compareVersions);
}

/** Return the newest version. Pre-releases count only if there is no other version. */
export function newestVersion(versions: Iterable<string>): string | undefined {
  const ordered = [...new Set(versions)].sort(compareText);
  const releases = ordered.filter((version) => !isPrerelease(version));
  const candidates = releases.length ? releases : ordered;
  return candidates.reduce<string | undefined>(
    (newest, version) => (newest === undefined || compareVersions(version, newest) > 0 ? version : newest),
    undefined,
  );
}

/** Select the entry of a reference, for the first of `platforms` that has one. */
export function selectEntry(
  reference: BundleReference,
  entries: readonly BundleEntry[],
  platforms: readonly string[],
): BundleEntry | undefined {
  const candidates = entries.filter((entry) => entry.model_id === reference.modelId && platforms.includes(entry.target));
  const version = resolveVersion(reference, candidates);
  const matches = candidates.filter((entry) => entry.version === version && (reference.version === version || !entry.yanked));
  return matches.sort((left, right) => platforms.indexOf(left.target) - platforms.indexOf(right.target))[0];
}

function resolveVersion({ version }: BundleReference, entries: readonly BundleEntry[]): string | undefined {
  if (version !== undefined) {
    if (entries.some((entry) => entry.version === version)) return version;
    if (!/^[vV]?\d+(\.\d+)*$/.test(version)) return undefined;
  }
  const versions = entries.filter((entry) => !entry.yanked).map((entry) => entry.version);
  return newestVersion(
    version === undefined ? versions : versions.filter((each) => each.startsWith(`${version}.`) || each.startsWith(`${version}-`)),
  );
}

function compareSemver(left: RegExpExecArray, right: RegExpExecArray): number {
  for (const group of [1, 2, 3]) {
    const order = compareDigits(left[group] ?? "", right[group] ?? "");
    if (order) return order;
  }
  const [leftPre, rightPre] = [left[4], right[4]];
  if (leftPre === undefined || rightPre === undefined) return Number(leftPre === undefined) - Number(rightPre === undefined);
  const rightParts = rightPre.split(".");
  const leftParts = leftPre.split(".");
  for (const [index, part] of leftParts.entries()) {
    const other = rightParts[index];
    if (other === undefined) return 1;
    const order =
      isDigits(part) && isDigits(other) ? compareDigits(part, other) : Number(isDigits(other)) - Number(isDigits(part)) || compareText(part, other);
    if (order) return order;
  }
  return leftParts.length - rightParts.length;
}

/** Compare runs of digits and letters. Digits sort after the end of the text, and letters before it. */
function compareNaturally(left: string, right: string): number {
  const leftRuns = runsOf(left);
  const rightRuns = runsOf(right);
  const rank = (run: string | undefined): number => (run === undefined ? 1 : isDigits(run) ? 2 : 0);
  for (let index = 0; ; index++) {
    const [one, other] = [leftRuns[index], rightRuns[index]];
    const order = rank(one) - rank(other);
    if (order) return order;
    if (one === undefined || other === undefined) return 0;
    const inner = isDigits(one) ? compareDigits(one, other) : compareText(one.toLowerCase(), other.toLowerCase());
    if (inner) return inner;
  }
}

function runsOf(version: string): string[] {
  return version.match(/\d+|[A-Za-z]+/g) ?? [];
}

function isDigits(text: string): boolean {
  return /^\d+$/.test(text);
}

/** Compare whole numbers of any length. */
function compareDigits(left: string, right: string): number {
  const [one, other] = [left.replace(/^0+/, ""), right.replace(/^0+/, "")];
  return one.length - other.length || compareText(one, other);
}

function compareText(left: string, right: string): number {
  return left < right ? -1 : Number(left > right);
}
