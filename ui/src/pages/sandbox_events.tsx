import { paths, type Sandbox, type SandboxEvent } from "../api";
import { Badge, EmptyState, ErrorNote, Loading } from "../components/feedback";
import { Prose } from "../components/prose";
import { Ago } from "../components/time";
import { useResource } from "../live";

/** What the controllers and the node have said about a sandbox. */
export function EventsTab({ sandbox }: { sandbox: Sandbox }) {
  const { data, error, reload } = useResource<SandboxEvent[]>(paths.events(sandbox.id), ["sandboxes", "network"]);
  if (data === undefined) {
    if (error === null) return <Loading />;
    return <ErrorNote title="Could not read the events" error={error} action={{ label: "Try again", run: reload }} />;
  }
  if (data.length === 0) {
    return <EmptyState title="No events" text="Events are kept for an hour. Explain says how things are now." />;
  }
  return (
    <div className="table-frame">
      <table className="table table-cards" data-testid="events">
        <thead>
          <tr>
            <th scope="col">Kind</th>
            <th scope="col">Reason</th>
            <th scope="col">Message</th>
            <th scope="col" className="number">Times</th>
            <th scope="col">Last</th>
          </tr>
        </thead>
        <tbody>
          {data.map((event, index) => (
            <tr key={`${event.reason} ${event.at} ${index}`}>
              <td><Badge tone={event.type === "Warning" ? "warn" : "quiet"}>{event.type}</Badge></td>
              <th scope="row">{event.reason}</th>
              <td className="wrap"><Prose text={event.message} /></td>
              <td data-label="Times" className="number">{event.count}</td>
              <td data-label="Last"><Ago at={event.at} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
