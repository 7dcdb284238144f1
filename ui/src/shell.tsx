import { useEffect, useState, type ReactNode } from "react";
import { api, login } from "./api";
import { Icon, type IconName } from "./components/icons";
import { attempt } from "./components/toasts";
import { useLiveStream, useStreamState, type StreamState } from "./live";
import { Palette } from "./palette";
import { setTheme, useTheme, type Theme } from "./preferences";
import { Link, useLocation } from "./router";

const PAGES: { href: string; label: string; icon: IconName; prefixes: string[] }[] = [
  { href: "/", label: "Sandboxes", icon: "sandbox", prefixes: ["/sandboxes", "/new"] },
  { href: "/tasks", label: "Tasks", icon: "task", prefixes: ["/tasks", "/new-task"] },
  { href: "/sessions", label: "Sessions", icon: "session", prefixes: ["/sessions"] },
  { href: "/settings", label: "Settings", icon: "settings", prefixes: ["/settings"] },
];

/** Logs out; the page asks for the key again. */
export function logOut(): void {
  void attempt("Logging out failed", api.logout).then((done) => done && login.set(false));
}

/** What is around every page: navigation, the connection's state, the palette. */
export function Shell({ children }: { children: ReactNode }) {
  useLiveStream();
  const [palette, setPalette] = useState(false);
  useEffect(() => {
    const key = (event: KeyboardEvent) => {
      const inTerminal = event.target instanceof Element && event.target.closest(".xterm") !== null;
      if (inTerminal || event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      setPalette((open) => !open);
    };
    window.addEventListener("keydown", key);
    return () => window.removeEventListener("keydown", key);
  }, []);
  return (
    <>
      <a className="skip" href="#main">Skip to the content</a>
      <header className="top">
        <div className="top-inner">
          <Link href="/" className="brand" aria-label="Warren: sandboxes">
            <Mark />
            <span>Warren</span>
          </Link>
          <Navigation />
          <div className="top-tools">
            <Connection />
            <button type="button" className="button-icon" onClick={() => setPalette(true)} title="Commands (Ctrl-K)">
              <Icon name="search" />
              <span className="hidden">Commands</span>
            </button>
            <ThemeSwitch />
            <button type="button" className="button-icon" onClick={logOut} title="Log out">
              <Icon name="logout" />
              <span className="hidden">Log out</span>
            </button>
          </div>
        </div>
      </header>
      <main id="main" tabIndex={-1}>{children}</main>
      {palette && <Palette onClose={() => setPalette(false)} />}
    </>
  );
}

export function Mark() {
  return (
    <svg className="mark" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" />
      <path d="M7 12.5 11.2 22 16 13.5 20.8 22 25 12.5" />
    </svg>
  );
}

function Navigation() {
  const { path } = useLocation();
  return (
    <nav className="nav" aria-label="Pages">
      {PAGES.map((page) => {
        const here = path === page.href || page.prefixes.some((prefix) => path === prefix || path.startsWith(`${prefix}/`));
        return (
          <Link key={page.href} href={page.href} className="nav-link" aria-current={here ? "page" : undefined}>
            <Icon name={page.icon} />
            {page.label}
          </Link>
        );
      })}
    </nav>
  );
}

const CONNECTION: Record<StreamState, { text: string; long: string }> = {
  live: { text: "Live", long: "Connected: changes appear by themselves" },
  connecting: { text: "Connecting", long: "Connecting to the service" },
  lost: { text: "Reconnecting", long: "The service does not answer. What you see is the last that was known." },
};

function Connection() {
  const state = useStreamState();
  const { text, long } = CONNECTION[state];
  return (
    <span className={`connection connection-${state}`} role="status" title={long} data-testid="connection">
      <span className="badge-dot" aria-hidden="true" />
      {text}
    </span>
  );
}

const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };
const THEME_ICON: Record<Theme, IconName> = { system: "system", light: "sun", dark: "moon" };

function ThemeSwitch() {
  const { theme } = useTheme();
  const label = `Theme: ${theme}. Change to ${NEXT[theme]}`;
  return (
    <button type="button" className="button-icon" onClick={() => setTheme(NEXT[theme])} title={label} aria-label={label}>
      <Icon name={THEME_ICON[theme]} />
    </button>
  );
}
