/** Shows an answer: code fences, code spans and bold text become elements, everything else stays text. Never HTML. */
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { CodeBlock } from "../../components/copy";

interface Block {
  /** `null` for text. */
  language: string | null;
  text: string;
}

export function Markdown({ text }: { text: string }) {
  const blocks = useMemo(() => splitBlocks(text), [text]);
  return (
    <div class="markdown">
      {blocks.map((block, index) => (
        block.language === null
          ? <p key={index}>{formatSpans(block.text)}</p>
          : <CodeBlock key={index} code={block.text} label={block.language ? `Code, ${block.language}` : "Code"} />
      ))}
    </div>
  );
}

/** A fence that is not closed yet runs to the end of the text. */
function splitBlocks(text: string): Block[] {
  const blocks: Block[] = [];
  let lines: string[] = [];
  let language: string | null = null;
  let fence = "";
  const push = (): void => {
    const content = language === null ? lines.join("\n").trim() : lines.join("\n");
    if (content || language !== null) blocks.push({ language, text: content });
    lines = [];
  };
  for (const line of text.split("\n")) {
    const marks = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/.exec(line);
    if (marks && language === null) {
      push();
      fence = marks[1] ?? "```";
      language = (marks[2] ?? "").trim();
    } else if (marks && marks[1]?.startsWith(fence) && !marks[2]) {
      push();
      language = null;
    } else {
      lines.push(line);
    }
  }
  push();
  return blocks;
}

const SPANS = /(`[^`\n]+`|\*\*[^*\n]+\*\*)/;

function formatSpans(text: string): ComponentChildren {
  return text.split(SPANS).map((part, index) => {
    if (index % 2 === 0) return part;
    return part.startsWith("`") ? <code key={index}>{part.slice(1, -1)}</code> : <strong key={index}>{part.slice(2, -2)}</strong>;
  });
}
