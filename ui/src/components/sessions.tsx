import type { Session } from "warren-react";
import { sessionPage } from "../api";
import { Link } from "../router";
import { Badge } from "./feedback";
import { Ago, duration } from "./time";

/** Returns how a session is called on the page. */
export function sessionTitle(session: Session): string {
  return session.title || `Session ${session.id.slice(0, 8)}`;
}

/** A session's state in a word. */
export function SessionBadge({ session }: { session: Session }) {
  if (session.state === "active") return <Badge tone="good">Live</Badge>;
  if (session.exitCode === null || session.exitCode === 0) return <Badge tone="quiet">Ended</Badge>;
  return <Badge tone="warn">{`Exit code ${session.exitCode}`}</Badge>;
}

/** How long a session has run. */
export function SessionLength({ session }: { session: Session }) {
  if (session.endedAt === null) return <span className="quiet">–</span>;
  return <>{duration(Date.parse(session.endedAt) - Date.parse(session.createdAt))}</>;
}

/** The list of sessions. */
export function SessionTable({ sessions, names }: { sessions: Session[]; names: Map<string, string> }) {
  return (
    <div className="table-frame">
      <table className="table table-cards" data-testid="sessions">
        <thead>
          <tr>
            <th scope="col">Session</th>
            <th scope="col">State</th>
            <th scope="col">Sandbox</th>
            <th scope="col">Began</th>
            <th scope="col" className="number">Length</th>
          </tr>
        </thead>
        <tbody>
          {sessions.map((session) => (
            <tr key={session.id}>
              <th scope="row">
                <Link className="row-link" href={sessionPage(session.id)}>{sessionTitle(session)}</Link>
              </th>
              <td><SessionBadge session={session} /></td>
              <td data-label="Sandbox" className="clip">
                {session.sandboxId === null ? "–" : (names.get(session.sandboxId) ?? session.sandboxId)}
              </td>
              <td data-label="Began"><Ago at={session.createdAt} /></td>
              <td data-label="Length" className="number"><SessionLength session={session} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
