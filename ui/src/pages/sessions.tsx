import { useDeferredValue, useMemo, useState } from "react";
import type { Session } from "warren-react";
import { titleOf, type Sandbox } from "../api";
import { EmptyState, ErrorNote, Loading } from "../components/feedback";
import { SessionTable, sessionTitle } from "../components/sessions";
import { useResource } from "../live";
import { Link } from "../router";

const ROWS = 100;

/** Everything that was recorded. */
export function SessionsPage() {
  const { data, error, reload } = useResource<Session[]>("/api/sessions", ["sessions"]);
  const sandboxes = useResource<Sandbox[]>("/api/sandboxes", ["sandboxes"]).data;
  const [query, setQuery] = useState("");
  const [shown, setShown] = useState(ROWS);
  const words = useDeferredValue(query).toLowerCase();
  const names = useMemo(() => new Map(sandboxes?.map((sandbox) => [sandbox.id, titleOf(sandbox)])), [sandboxes]);
  const found = useMemo(() => {
    const text = (session: Session) =>
      `${sessionTitle(session)} ${session.sandboxId ?? ""} ${names.get(session.sandboxId ?? "") ?? ""}`.toLowerCase();
    return data?.filter((session) => text(session).includes(words)) ?? [];
  }, [data, words, names]);
  return (
    <div className="page">
      <title>Sessions · Warren</title>
      <div className="page-head">
        <div>
          <h1>Sessions</h1>
          <p className="page-sub">What happened in terminals, kept to be watched again.</p>
        </div>
        {data !== undefined && data.length > 0 && (
          <input
            type="search" className="search" placeholder="Find by title or sandbox" aria-label="Find sessions"
            value={query} onChange={(event) => setQuery(event.target.value)}
          />
        )}
      </div>
      {data === undefined && error === null && <Loading />}
      {data === undefined && error !== null && (
        <ErrorNote title="Could not read the sessions" error={error} action={{ label: "Try again", run: reload }} />
      )}
      {data?.length === 0 && (
        <EmptyState title="No sessions yet" text="Open a terminal in a sandbox: all that happens in it is kept here.">
          <Link className="button" href="/">Go to the sandboxes</Link>
        </EmptyState>
      )}
      {found.length > 0 && <SessionTable sessions={found.slice(0, shown)} names={names} />}
      {found.length > shown && (
        <button type="button" className="button more" onClick={() => setShown(shown + ROWS)}>
          Show {Math.min(ROWS, found.length - shown)} more of {found.length}
        </button>
      )}
      {data !== undefined && data.length > 0 && found.length === 0 && (
        <EmptyState title={`Nothing matches “${query}”`} />
      )}
    </div>
  );
}
