/** Keeps the end of a streaming answer in view, unless the reader has scrolled up. */
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

/** At most this far from the end of the page, the reader is taken to follow it. */
const NEAR_END_PIXELS = 80;

/** A new turn moves the page to its end, and its answers keep it there, also with what follows the last of them. `content` changes with each piece of them. */
export function useFollow(content: unknown, turns: number, isStreaming: boolean): void {
  const isFollowing = useRef(false);
  const previousTurns = useRef(turns);
  const wasStreaming = useRef(isStreaming);
  useEffect(() => {
    const measure = () => {
      const page = document.documentElement;
      isFollowing.current = page.scrollHeight - window.innerHeight - window.scrollY <= NEAR_END_PIXELS;
    };
    window.addEventListener("scroll", measure, { passive: true });
    return () => window.removeEventListener("scroll", measure);
  }, []);
  useLayoutEffect(() => {
    if (turns > previousTurns.current) isFollowing.current = true;
    previousTurns.current = turns;
    const mayGrow = isStreaming || wasStreaming.current;
    wasStreaming.current = isStreaming;
    if (mayGrow && isFollowing.current) window.scrollTo({ top: document.documentElement.scrollHeight });
  }, [content, turns, isStreaming]);
}
