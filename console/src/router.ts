/** The address of the page: its name in the path, its filters in the query. */
import { useLayoutEffect, useState } from "preact/hooks";

export const PAGE_NAMES = [
  "Overview", "Playground", "Speech", "Requests", "Usage", "Keys", "Providers", "Bundles", "Pipelines", "Connect",
] as const;
export type PageName = (typeof PAGE_NAMES)[number];

export function pagePath(name: PageName): string {
  return `/console/${name.toLowerCase()}`;
}

const NAVIGATION_EVENT = "svc:navigate";

/** Opens an address of the console without loading the page again. */
export function navigate(address: string, { replace = false, state = null }: { replace?: boolean; state?: unknown } = {}): void {
  if (replace) history.replaceState(state, "", address);
  else history.pushState(state, "", address);
  window.dispatchEvent(new Event(NAVIGATION_EVENT));
}

/** Returns the current address, and renders again when it changes. */
export function useAddress(): URL {
  const [address, setAddress] = useState(() => new URL(location.href));
  // A later effect would miss what is typed into a field as soon as it appears.
  useLayoutEffect(() => {
    const update = (): void => setAddress(new URL(location.href));
    window.addEventListener("popstate", update);
    window.addEventListener(NAVIGATION_EVENT, update);
    return () => {
      window.removeEventListener("popstate", update);
      window.removeEventListener(NAVIGATION_EVENT, update);
    };
  }, []);
  return address;
}

export function currentPage(address: URL): PageName | null {
  return PAGE_NAMES.find((name) => pagePath(name) === address.pathname.replace(/\/$/, "")) ?? null;
}

/** Returns the address of the current page with other parameters. An empty value removes a parameter. */
export function addressWith(parameters: Record<string, string>): string {
  const next = new URL(location.href);
  for (const [name, value] of Object.entries(parameters)) {
    if (value) next.searchParams.set(name, value);
    else next.searchParams.delete(name);
  }
  return next.pathname + next.search;
}

/** Returns a parameter of the query and a function that sets it. The default is not in the address. */
export function useQueryParameter(name: string, defaultValue = ""): [string, (value: string) => void] {
  const address = useAddress();
  const setValue = (value: string): void => {
    const next = new URL(location.href);
    if (value === defaultValue) next.searchParams.delete(name);
    else next.searchParams.set(name, value);
    navigate(next.pathname + next.search, { replace: true });
  };
  return [address.searchParams.get(name) ?? defaultValue, setValue];
}
