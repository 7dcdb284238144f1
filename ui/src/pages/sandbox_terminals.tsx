import { useEffect, useMemo, useRef, useState } from "react";
import { Terminal, useSession, type Session, type SessionConnection } from "warren-react";
import { api, sandboxPage, sessionPage, titleOf, type Sandbox } from "../api";
import { Confirm } from "../components/dialog";
import { EmptyState, ErrorNote, Loading } from "../components/feedback";
import { Icon } from "../components/icons";
import { sessionTitle } from "../components/sessions";
import { attempt } from "../components/toasts";
import { invalidate, useResource } from "../live";
import { useScreenReader, useTheme } from "../preferences";
import { Link, navigate, useLocation } from "../router";

/** The terminals of a sandbox, one of them on the screen. */
export function TerminalsTab({ sandbox }: { sandbox: Sandbox }) {
  const { data, error, reload } = useResource<Session[]>("/api/sessions", ["sessions"]);
  const { query } = useLocation();
  const asked = query.get("terminal");
  const [opening, setOpening] = useState(false);
  // Those that were opened here stay when they end: their last words matter.
  const [opened, setOpened] = useState<Session[]>([]);
  const focusNext = useRef<string | null>(null);
  const terminals = useMemo(() => {
    const known = (data ?? []).filter((session) => session.sandboxId === sandbox.id);
    const kept = known.filter((session) => session.state === "active" || session.id === asked || has(opened, session.id));
    const missing = opened.filter((session) => !has(data ?? [], session.id) && data !== undefined && isNew(session));
    return [...kept, ...missing].sort((one, other) => one.createdAt.localeCompare(other.createdAt));
  }, [data, opened, asked, sandbox.id]);
  const current = terminals.find((session) => session.id === asked) ?? terminals[0];

  const open = async () => {
    setOpening(true);
    await attempt("The terminal was not opened", async () => {
      const session = await api.openTerminal(sandbox.id, 80, 24);
      focusNext.current = session.id;
      setOpened((before) => [...before, session]);
      show(sandbox.id, session.id);
      invalidate("sessions");
    });
    setOpening(false);
  };

  if (data === undefined) {
    if (error === null) return <Loading />;
    return <ErrorNote title="Could not read the terminals" error={error} action={{ label: "Try again", run: reload }} />;
  }
  if (current === undefined) return <NoTerminal sandbox={sandbox} opening={opening} open={() => void open()} />;
  return (
    <div className="terminals">
      <div className="terminal-tabs">
        <div className="terminal-tab-list" role="group" aria-label="Terminals">
          {terminals.map((session, index) => (
            <button
              key={session.id} type="button" className="terminal-tab" aria-pressed={session.id === current.id}
              onClick={() => show(sandbox.id, session.id)}
            >
              <Icon name="terminal" />
              <span className="clip">{tabTitle(session, index)}</span>
              {session.state === "ended" && <span className="row-note">ended</span>}
            </button>
          ))}
        </div>
        <button
          type="button" className="button button-small" onClick={() => void open()}
          disabled={opening || sandbox.status !== "running"}
        >
          <Icon name="plus" /> New terminal
        </button>
      </div>
      {terminals.map((session) => (
        <OneTerminal
          key={session.id} listed={session} hidden={session.id !== current.id}
          autoFocus={focusNext.current === session.id}
          onClosed={() => setOpened((before) => before.filter((other) => other.id !== session.id))}
        />
      ))}
    </div>
  );
}

/** Returns what its tab says. The service's own titles name the sandbox, which the page does already. */
function tabTitle(session: Session, index: number): string {
  const own = session.title !== "" && session.title !== `Terminal in ${session.sandboxId}`;
  return own ? session.title : `Terminal ${index + 1}`;
}

function has(sessions: Session[], id: string): boolean {
  return sessions.some((session) => session.id === id);
}

/** Returns true for a session that the list may not have yet. */
function isNew(session: Session): boolean {
  return Date.now() - Date.parse(session.createdAt) < 10_000;
}

function show(sandbox: string, session: string): void {
  navigate(`${sandboxPage(sandbox)}?terminal=${encodeURIComponent(session)}`, { replace: true });
}

function NoTerminal({ sandbox, opening, open }: { sandbox: Sandbox; opening: boolean; open: () => void }) {
  const title = titleOf(sandbox);
  if (sandbox.status === "creating") return <Loading label={`${title} is being created`} />;
  if (sandbox.status !== "running") {
    return <EmptyState title={`${title} is ${sandbox.status}`} text="Start it to open a terminal. Earlier terminals are in its sessions." />;
  }
  return (
    <EmptyState title="No terminal is open" text="A terminal goes on when you leave this page, and others can watch it.">
      <button type="button" className="button button-primary" onClick={open} disabled={opening}>
        <Icon name="terminal" /> {opening ? "Opening…" : "Open a terminal"}
      </button>
    </EmptyState>
  );
}

interface OneTerminalProps {
  listed: Session;
  hidden: boolean;
  autoFocus: boolean;
  onClosed: () => void;
}

function OneTerminal({ listed, hidden, autoFocus, onClosed }: OneTerminalProps) {
  // One terminal follows its session at a time: browsers allow six connections to a host.
  const { connection, session, state, error } = useSession(listed.id, { paused: hidden });
  useViewers(connection, state === "live");
  const { dark } = useTheme();
  const screenReader = useScreenReader();
  const [closing, setClosing] = useState(false);
  useEffect(() => {
    if (!hidden && listed.state === "ended") void connection.refresh();
  }, [hidden, listed.state, connection]);
  const close = async () => {
    setClosing(false);
    if (!(await attempt("The terminal was not closed", () => api.deleteSession(listed.id)))) return;
    onClosed();
    navigate(location.pathname, { replace: true });
    invalidate("sessions");
  };
  const ended = (session ?? listed).state === "ended";
  return (
    <div className="terminal-frame" hidden={hidden}>
      <Terminal
        connection={connection} session={session} hidden={hidden} dark={dark} screenReader={screenReader}
        autoFocus={autoFocus} label={`${sessionTitle(listed)}. Shift-Escape leaves the terminal.`}
      />
      <div className="terminal-foot">
        <span className="terminal-state" role="status">{stateText(state, ended, session, error)}</span>
        <span className="terminal-keys">Shift-Esc leaves the terminal</span>
        <Link href={sessionPage(listed.id)}>Session</Link>
        <button type="button" className="button-text" onClick={() => setClosing(true)}>Close</button>
      </div>
      {closing && (
        <Confirm
          title={`Close ${sessionTitle(listed)}?`}
          text="Its processes end, and its recording is deleted."
          confirm="Close the terminal"
          onConfirm={() => void close()}
          onClose={() => setClosing(false)}
        />
      )}
    </div>
  );
}

/** How often the number of viewers is asked for: the service does not tell of them. */
const VIEWERS_EVERY_MS = 10_000;

/** Keeps the number of viewers up to date while a session is followed. */
export function useViewers(connection: SessionConnection, live: boolean): void {
  useEffect(() => {
    if (!live) return;
    const timer = setInterval(() => !document.hidden && void connection.refresh(), VIEWERS_EVERY_MS);
    return () => clearInterval(timer);
  }, [connection, live]);
}

/** Returns in a few words how a viewer is connected. */
export function stateText(state: string, ended: boolean, session: Session | null, error: Error | null): string {
  if (ended) return session?.exitCode == null ? "Ended" : `Ended with exit code ${session.exitCode}`;
  if (error !== null && state === "live") return `Not sent: ${error.message}`;
  if (state === "waiting") return "Reconnecting…";
  if (state === "failed") return error?.message ?? "Lost";
  if (state === "connecting") return "Connecting…";
  const viewers = session?.viewers ?? 0;
  return viewers > 1 ? `Live, ${viewers} viewers` : "Live";
}
