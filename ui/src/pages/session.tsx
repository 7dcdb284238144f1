import { useMemo, useState } from "react";
import { Terminal, useSession, WarrenError, type Session } from "warren-react";
import { api, paths, sandboxPage, sessionPage, titleOf, type Sandbox } from "../api";
import { Confirm } from "../components/dialog";
import { EmptyState, ErrorNote, Loading } from "../components/feedback";
import { Icon } from "../components/icons";
import { SessionBadge, SessionLength, sessionTitle } from "../components/sessions";
import { Ago } from "../components/time";
import { attempt, notify } from "../components/toasts";
import { invalidate, useResource } from "../live";
import { useScreenReader, useTheme } from "../preferences";
import { Link, navigate, useLocation } from "../router";
import { Recording } from "./recording";
import { stateText, useViewers } from "./sandbox_terminals";

/** One session: live while it goes on, and its recording. */
export function SessionPage({ id }: { id: string }) {
  const { data: session, error, reload } = useResource<Session>(paths.session(id), ["sessions"]);
  const { query } = useLocation();
  const [deleting, setDeleting] = useState(false);
  if (error instanceof WarrenError && error.status === 404) {
    return (
      <EmptyState title="There is no such session" text="It may have been deleted.">
        <Link className="button" href="/sessions">All sessions</Link>
      </EmptyState>
    );
  }
  if (session === undefined) {
    if (error === null) return <Loading page />;
    return <ErrorNote title="Could not read the session" error={error} action={{ label: "Try again", run: reload }} />;
  }
  const live = session.state === "active" && query.get("view") !== "replay";
  return (
    <div className="page page-wide">
      <title>{`${sessionTitle(session)} · Warren`}</title>
      <div className="page-head">
        <div className="page-title">
          <div className="title-line">
            <h1>{sessionTitle(session)}</h1>
            <SessionBadge session={session} />
          </div>
          <p className="page-sub">
            <SandboxName session={session} />
            <span>began <Ago at={session.createdAt} /></span>
            {session.endedAt !== null && <span>lasted <SessionLength session={session} /></span>}
          </p>
        </div>
        <div className="page-actions">
          <a className="button" href={paths.sessionExport(id, "asciicast")} download={`${id}.cast`}>
            <Icon name="download" /> asciicast
          </a>
          <a className="button" href={paths.sessionExport(id, "jsonl")} download={`${id}.jsonl`}>
            <Icon name="download" /> JSON lines
          </a>
          <button type="button" className="button button-quiet-danger" onClick={() => setDeleting(true)}>Delete</button>
        </div>
      </div>
      {session.state === "active" && (
        <nav className="tabs" aria-label="Views of the session">
          <Link className="tab" href={sessionPage(id)} aria-current={live ? "page" : undefined}>Live</Link>
          <Link className="tab" href={`${sessionPage(id)}?view=replay`} aria-current={live ? undefined : "page"}>Replay</Link>
        </nav>
      )}
      {live ? <LiveView session={session} /> : <Recording session={session} />}
      {deleting && <DeleteSession session={session} onClose={() => setDeleting(false)} />}
    </div>
  );
}

function SandboxName({ session }: { session: Session }) {
  const { data } = useResource<Sandbox[]>("/api/sandboxes", ["sandboxes"]);
  const sandbox = useMemo(() => data?.find((one) => one.id === session.sandboxId), [data, session.sandboxId]);
  if (session.sandboxId === null) return null;
  if (sandbox === undefined) return <span>sandbox {session.sandboxId}</span>;
  return <span>in <Link href={sandboxPage(sandbox.id)}>{titleOf(sandbox)}</Link></span>;
}

function LiveView({ session: listed }: { session: Session }) {
  const { connection, session, state, error } = useSession(listed.id);
  useViewers(connection, state === "live");
  const [typing, setTyping] = useState(false);
  const { dark } = useTheme();
  const screenReader = useScreenReader();
  const ended = (session ?? listed).state === "ended";
  return (
    <div className="terminal-frame">
      <Terminal
        key={String(typing)} connection={connection} session={session} readOnly={!typing} dark={dark}
        screenReader={screenReader} autoFocus={typing} label={sessionTitle(listed)}
      />
      <div className="terminal-foot">
        <span className="terminal-state" role="status">{stateText(state, ended, session, error)}</span>
        <span className="terminal-keys">{typing ? "Shift-Esc leaves the terminal" : "You are watching"}</span>
        <button type="button" className="button-text" onClick={() => setTyping(!typing)} disabled={ended}>
          {typing ? "Only watch" : "Type here"}
        </button>
      </div>
    </div>
  );
}

function DeleteSession({ session, onClose }: { session: Session; onClose: () => void }) {
  const title = sessionTitle(session);
  const remove = async () => {
    onClose();
    if (!(await attempt(`Deleting ${title} failed`, () => api.deleteSession(session.id)))) return;
    notify("done", `${title} was deleted.`);
    invalidate("sessions");
    navigate("/sessions");
  };
  const text = session.state === "active"
    ? "Its terminal ends, its processes are killed, and its recording is deleted. This cannot be undone."
    : "Its recording is deleted. This cannot be undone.";
  return (
    <Confirm title={`Delete ${title}?`} text={text} confirm={`Delete ${title}`} onConfirm={() => void remove()} onClose={onClose} />
  );
}
