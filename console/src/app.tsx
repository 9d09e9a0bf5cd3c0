/** The frame of all pages: session, navigation, theme. Each page is loaded when it is first opened. */
import type { ComponentType } from "preact";
import { useCallback, useEffect, useState } from "preact/hooks";
import { ApiError, loadSession, logOut, onOtherSession, onSessionChange, onSessionEnd, type Session } from "./api/client";
import { ErrorNotice, Waiting } from "./components/notices";
import { Login } from "./login";
import { PAGE_NAMES, type PageName, currentPage, navigate, pagePath, useAddress } from "./router";
import { SessionContext } from "./session";
import { applyTheme, nextTheme, storedTheme } from "./theme";

const RECONNECT_MILLISECONDS = 2000;

const LOADERS: Record<PageName, () => Promise<{ default: ComponentType }>> = {
  Overview: () => import("./pages/overview"),
  Playground: () => import("./pages/playground"),
  Speech: () => import("./pages/speech"),
  Requests: () => import("./pages/requests"),
  Usage: () => import("./pages/usage"),
  Keys: () => import("./pages/keys"),
  Providers: () => import("./pages/providers"),
  Bundles: () => import("./pages/bundles"),
  Pipelines: () => import("./pages/pipelines"),
  Connect: () => import("./pages/connect"),
};

/** `undefined` while it is not known whether there is a session. */
type SessionState = Session | null | undefined;

export function App() {
  const [session, setSession] = useState<SessionState>(undefined);
  /** The session that ended while its page was open. The page stays, and with it what was typed, until the login. */
  const [endedSession, setEndedSession] = useState<Session | null>(null);
  const [error, setError] = useState<ApiError | null>(null);

  const load = useCallback(async () => {
    try {
      setSession(await loadSession());
      setError(null);
    } catch (caught) {
      if (!(caught instanceof ApiError)) throw caught;
      setError(caught);
      setTimeout(() => void load(), RECONNECT_MILLISECONDS);
    }
  }, []);

  useEffect(() => {
    void load();
    const removeChangeListener = onSessionChange((next) => {
      setEndedSession(null);
      setSession(next);
    });
    const removeEndListener = onSessionEnd(() => {
      setSession((current) => {
        if (current) setEndedSession(current);
        return null;
      });
    });
    return () => {
      removeChangeListener();
      removeEndListener();
    };
  }, [load]);

  if (session === undefined) {
    return <main class="centered">{error ? <ErrorNotice error={error} /> : <Waiting label="Waiting for the gateway…" />}</main>;
  }
  const shownSession = session ?? endedSession;
  return (
    <>
      {shownSession && (
        // Another key gets new pages, without the data of the key before it.
        <div key={shownSession.key_id} hidden={session === null}>
          <SessionContext.Provider value={shownSession}>
            <Frame session={shownSession} onLogout={() => setSession(null)} />
          </SessionContext.Provider>
        </div>
      )}
      {session === null && (
        <Login
          key="login" hasEnded={endedSession !== null}
          onLogin={(next) => { setEndedSession(null); setSession(next); }}
        />
      )}
    </>
  );
}

function Frame({ session, onLogout }: { session: Session; onLogout: () => void }) {
  const address = useAddress();
  const page = currentPage(address);
  const [isMenuOpen, setIsMenuOpen] = useState(false);
  useEffect(() => {
    document.title = page ? `${page} · Console` : "Console";
    setIsMenuOpen(false);
  }, [page]);
  return (
    <div class="frame">
      <a class="skip-link" href="#content">Skip to content</a>
      <header class="top-bar">
        <button
          type="button" class="menu-button" aria-expanded={isMenuOpen} aria-controls="navigation"
          onClick={() => setIsMenuOpen(!isMenuOpen)}
        >
          Menu
        </button>
        <span class="product">svc</span>
        <SessionMenu session={session} onLogout={onLogout} />
      </header>
      <nav id="navigation" aria-label="Pages" class={isMenuOpen ? "open" : ""}>
        <ul>
          {PAGE_NAMES.map((name) => (
            <li key={name}>
              <PageLink name={name} isCurrent={name === page} />
            </li>
          ))}
        </ul>
      </nav>
      <main id="content" tabIndex={-1}>
        <OtherSessionNotice session={session} />
        {page ? <LazyPage key={page} name={page} /> : <UnknownPage />}
      </main>
    </div>
  );
}

function PageLink({ name, isCurrent }: { name: PageName; isCurrent: boolean }) {
  const onClick = (event: MouseEvent): void => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    navigate(pagePath(name));
    document.getElementById("content")?.focus();
  };
  return (
    <a href={pagePath(name)} aria-current={isCurrent ? "page" : undefined} onClick={onClick}>{name}</a>
  );
}

function SessionMenu({ session, onLogout }: { session: Session; onLogout: () => void }) {
  const [theme, setTheme] = useState(storedTheme);
  useEffect(() => applyTheme(theme), [theme]);
  const [error, setError] = useState("");
  const end = async (): Promise<void> => {
    try {
      await logOut();
    } catch (caught) {
      if (!(caught instanceof ApiError)) throw caught;
      setError("You are still logged in. Try again.");
      return;
    }
    onLogout();
  };
  return (
    <div class="session-menu">
      <span class="key-name" title={session.key_id}>{session.key_name}</span>
      <button type="button" class="quiet" onClick={() => setTheme(nextTheme(theme))}>Theme: {theme}</button>
      <button type="button" class="quiet" onClick={() => void end()}>Log out</button>
      {error && <span role="alert" class="logout-error">{error}</span>}
    </div>
  );
}

/** The page stays until the reload: it can have input, or the secret of a new key. */
function OtherSessionNotice({ session }: { session: Session }) {
  const [other, setOther] = useState<Session | null>(null);
  useEffect(() => onOtherSession(setOther), []);
  if (!other) return null;
  return (
    <div class="notice warning other-session" role="alert">
      <p>
        Another tab has logged in with the key <strong>{other.key_name}</strong>. What this page loads is what that key may see,
        not <strong>{session.key_name}</strong>.
      </p>
      <button type="button" onClick={() => location.reload()}>Reload the page</button>
    </div>
  );
}

function LazyPage({ name }: { name: PageName }) {
  const [page, setPage] = useState<{ Component: ComponentType } | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  useEffect(() => {
    let isCurrent = true;
    LOADERS[name]().then(
      (module) => { if (isCurrent) setPage({ Component: module.default }); },
      () => {
        if (isCurrent) setError(new ApiError("The page could not be loaded. Reload it.", 0, "connection_error", null, null, null));
      },
    );
    return () => { isCurrent = false; };
  }, [name]);
  return (
    <>
      <h1>{name}</h1>
      {error && <ErrorNotice error={error} />}
      {page ? <page.Component /> : !error && <Waiting label="Loading the page…" />}
    </>
  );
}

function UnknownPage() {
  return (
    <>
      <h1>Not found</h1>
      <p>The console has no such page. <a href={pagePath("Overview")}>Go to the overview</a></p>
    </>
  );
}
