/** Keeps what only this page has, such as a secret, when the browser goes back or leaves the console. */
import { useEffect, useRef } from "preact/hooks";

/** The state of the history entry that Back removes first. */
const GUARD_STATE = "svc:back-guard";

/** Calls `onBack` when the browser goes back. It returns whether to go. Before a reload, the browser asks. */
export function useBackGuard(onBack: () => boolean): void {
  const latest = useRef(onBack);
  latest.current = onBack;
  useEffect(() => {
    const addEntry = (): void => history.pushState(GUARD_STATE, "");
    const askFirst = (event: BeforeUnloadEvent): void => event.preventDefault();
    const removeListeners = (): void => {
      window.removeEventListener("popstate", handleBack);
      window.removeEventListener("beforeunload", askFirst);
    };
    const handleBack = (): void => {
      if (history.state === GUARD_STATE) return;
      if (!latest.current()) {
        addEntry();
        return;
      }
      // The component can still exist at the next event.
      removeListeners();
      history.back();
    };
    addEntry();
    window.addEventListener("popstate", handleBack);
    window.addEventListener("beforeunload", askFirst);
    return () => {
      removeListeners();
      if (history.state === GUARD_STATE) history.back();
    };
  }, []);
}
