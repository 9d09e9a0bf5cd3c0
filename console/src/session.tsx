/** The session of the browser, for all pages. */
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Session } from "./api/client";

export const SessionContext = createContext<Session | null>(null);

/** Returns the session. Pages are rendered only with one. */
export function useSession(): Session {
  const session = useContext(SessionContext);
  if (!session) throw new Error("There is no session.");
  return session;
}

export function useIsAdmin(): boolean {
  return useSession().scopes.includes("admin");
}
