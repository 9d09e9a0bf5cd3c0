/** A table that scrolls sideways where it is wider than its place. A hint and shadows show that it has more columns. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

/** Fractions of a pixel are no column. */
const TOLERANCE_PIXELS = 2;

interface HiddenSides {
  start: boolean;
  end: boolean;
}

export function TableScroll(
  { label, id, isStale = false, children }: {
    /** The accessible name of the region, which the keyboard scrolls. */
    label: string; id?: string; isStale?: boolean; children: ComponentChildren;
  },
) {
  const region = useRef<HTMLDivElement>(null);
  const [hidden, setHidden] = useState<HiddenSides>({ start: false, end: false });
  useEffect(() => {
    const element = region.current;
    if (!element) return undefined;
    const measure = (): void => {
      const start = element.scrollLeft > TOLERANCE_PIXELS;
      const end = element.scrollLeft + element.clientWidth < element.scrollWidth - TOLERANCE_PIXELS;
      setHidden((last) => (last.start === start && last.end === end ? last : { start, end }));
    };
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    if (element.firstElementChild) observer.observe(element.firstElementChild);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);
  return (
    <div>
      <div class={`table-frame${hidden.start ? " more-before" : ""}${hidden.end ? " more-after" : ""}`}>
        <div ref={region} {...(id && { id })} class={`table-scroll ${isStale ? "stale" : ""}`} tabIndex={0} role="region" aria-label={label}>
          {children}
        </div>
      </div>
      {(hidden.start || hidden.end) && <p class="hint scroll-hint">Scroll the table sideways for all columns.</p>}
    </div>
  );
}
