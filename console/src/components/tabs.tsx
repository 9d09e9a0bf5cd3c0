/** Tabs whose choice is in the address (https://www.w3.org/WAI/ARIA/apg/patterns/tabs/). */
import type { ComponentChildren } from "preact";
import { useId, useRef } from "preact/hooks";
import { useQueryParameter } from "../router";

export interface Tab {
  name: string;
  content: ComponentChildren;
}

export function Tabs({ label, parameter, tabs }: { label: string; parameter: string; tabs: Tab[] }) {
  const [selectedName, select] = useQueryParameter(parameter, slug(tabs[0]?.name ?? ""));
  const id = useId();
  const list = useRef<HTMLDivElement>(null);
  const selected = tabs.find((tab) => slug(tab.name) === selectedName) ?? tabs[0];
  if (!selected) return null;

  const onKeyDown = (event: KeyboardEvent): void => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    const next = (tabs.indexOf(selected) + step + tabs.length) % tabs.length;
    select(slug(tabs[next]?.name ?? ""));
    list.current?.querySelectorAll("button")[next]?.focus();
  };
  return (
    <>
      <div ref={list} role="tablist" aria-label={label} class="tabs" onKeyDown={onKeyDown}>
        {tabs.map((tab) => (
          <button
            key={tab.name} type="button" role="tab" id={`${id}-${slug(tab.name)}`} aria-selected={tab === selected}
            aria-controls={`${id}-panel`} tabIndex={tab === selected ? 0 : -1} onClick={() => select(slug(tab.name))}
          >
            {tab.name}
          </button>
        ))}
      </div>
      <div role="tabpanel" id={`${id}-panel`} aria-labelledby={`${id}-${slug(selected.name)}`} class="tab-panel">
        {selected.content}
      </div>
    </>
  );
}

function slug(name: string): string {
  return name.toLowerCase().replaceAll(" ", "-");
}
