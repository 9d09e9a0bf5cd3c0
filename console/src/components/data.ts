/** Loads data for a component, and keeps the old data while it loads again. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError, onSessionStart } from "../api/client";

export interface Loaded<Data> {
  data: Data | null;
  error: ApiError | null;
  isLoading: boolean;
  reload: () => void;
}

/**
 * Calls `load` at the first render, when `dependencies` change, on `reload`, after a login, and each
 * `intervalMilliseconds` while the page is visible. New dependencies abort a call. A reload during a call follows it.
 */
export function useData<Data>(
  load: (signal: AbortSignal) => Promise<Data>, dependencies: unknown[], intervalMilliseconds = 0,
): Loaded<Data> {
  const [state, setState] = useState<Omit<Loaded<Data>, "reload">>({ data: null, error: null, isLoading: true });
  const controller = useRef<AbortController | null>(null);

  const isRepeated = useRef(false);

  const run = useCallback(() => {
    controller.current?.abort();
    const current = new AbortController();
    controller.current = current;
    isRepeated.current = false;
    setState((previous) => ({ ...previous, isLoading: true }));
    const finish = (): void => {
      controller.current = null;
      if (isRepeated.current) run();
    };
    load(current.signal).then(
      (data) => {
        if (current.signal.aborted) return;
        setState({ data, error: null, isLoading: false });
        finish();
      },
      (error: unknown) => {
        if (current.signal.aborted) return;
        if (!(error instanceof ApiError)) {
          controller.current = null;
          throw error;
        }
        setState((previous) => ({ data: previous.data, error, isLoading: false }));
        finish();
      },
    );
  }, dependencies);
  const reload = useCallback(() => {
    if (controller.current) isRepeated.current = true;
    else run();
  }, [run]);

  useEffect(() => {
    run();
    const removeListener = onSessionStart(run);
    return () => {
      removeListener();
      controller.current?.abort();
    };
  }, [run]);
  useEffect(() => {
    if (!intervalMilliseconds) return undefined;
    const timer = setInterval(() => { if (!document.hidden && !controller.current) run(); }, intervalMilliseconds);
    return () => clearInterval(timer);
  }, [run, intervalMilliseconds]);
  return { ...state, reload };
}
