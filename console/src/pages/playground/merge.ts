/** Joins two versions of a conversation that two tabs have changed. */
import type { Answer, ChatSettings, Conversation, Turn } from "./types";

/**
 * Returns `mine` and `theirs` as one conversation, or null if that would lose something, such as the turns that both
 * tabs have added. `base` is the version from which `mine` comes.
 */
export function mergeVersions(base: Conversation, mine: Conversation, theirs: Conversation): Conversation | null {
  const longer = mine.turns.length >= theirs.turns.length ? mine : theirs;
  const turns: Turn[] = [];
  for (const [index, turn] of longer.turns.entries()) {
    const [own, other] = [mine.turns[index], theirs.turns[index]];
    const merged = own && other ? mergeTurns(base.turns[index], own, other) : turn;
    if (!merged) return null;
    turns.push(merged);
  }
  const settings = mergeSettings(base.settings, mine.settings, theirs.settings);
  return settings && {
    ...theirs,
    title: choose(base.title, mine.title, theirs.title),
    models: choose(base.models, mine.models, theirs.models),
    updated: Math.max(mine.updated, theirs.updated),
    settings, turns,
  };
}

/** Objects that a tab has not changed are the same objects. */
function choose<T>(base: T, mine: T, theirs: T): T {
  return mine === base ? theirs : mine;
}

function mergeSettings(base: ChatSettings, mine: ChatSettings, theirs: ChatSettings): ChatSettings | null {
  const merged = { ...theirs };
  for (const name of Object.keys(mine) as (keyof ChatSettings)[]) {
    if (mine[name] === base[name] || mine[name] === theirs[name]) continue;
    if (theirs[name] !== base[name]) return null;
    merged[name] = mine[name];
  }
  return merged;
}

function mergeTurns(base: Turn | undefined, mine: Turn, theirs: Turn): Turn | null {
  if (mine.id !== theirs.id) return null;
  const answers = { ...theirs.answers };
  for (const [column, own] of Object.entries(mine.answers)) {
    const merged = mergeAnswers(base?.answers[column], own, theirs.answers[column]);
    if (!merged) return null;
    answers[column] = merged;
  }
  const toolResults = { ...theirs.toolResults };
  for (const [key, result] of Object.entries(mine.toolResults)) {
    if (result !== base?.toolResults[key]) toolResults[key] = result;
  }
  // The browser may not have kept the images of the stored version.
  return { ...mine, answers, toolResults };
}

function mergeAnswers(base: Answer | undefined, mine: Answer, theirs: Answer | undefined): Answer | null {
  if (!theirs || JSON.stringify(theirs) === JSON.stringify(base)) return mine;
  if (mine === base) return theirs;
  const isSameRequest = mine.requestId === theirs.requestId || mine.requestId === null || theirs.requestId === null;
  if (!isSameRequest) return null;
  return progress(theirs) > progress(mine) ? theirs : mine;
}

/** Another tab takes a running answer for one whose page was closed. The tab in which it runs knows more. */
function progress(answer: Answer): number {
  if (answer.status === "complete") return answer.costUsd === undefined ? 3 : 4;
  if (answer.status === "streaming") return 1;
  return answer.error?.code === "page_closed" ? 0 : 2;
}
