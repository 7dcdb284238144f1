import { paths, type Explanation, type Sandbox } from "../api";
import { Badge, ErrorNote, Loading } from "../components/feedback";
import { Prose } from "../components/prose";
import { useResource } from "../live";

/** Why a sandbox is as it is, and what to do about it. */
export function ExplainTab({ sandbox }: { sandbox: Sandbox }) {
  const { data, error, reload } = useResource<Explanation>(paths.explain(sandbox.id), ["sandboxes", "network"]);
  if (data === undefined) {
    if (error === null) return <Loading />;
    return <ErrorNote title="Could not explain the sandbox" error={error} action={{ label: "Try again", run: reload }} />;
  }
  return (
    <div className="explain" data-testid="explain">
      <div className="explain-head">
        <Badge tone={data.ready ? "good" : "warn"}>{data.ready ? "Ready" : "Not ready"}</Badge>
        <p className="explain-summary"><Prose text={data.summary} /></p>
        <button type="button" className="button button-small" onClick={reload}>Ask again</button>
      </div>
      {data.reasons.length > 0 && (
        <ol className="reasons">
          {data.reasons.map((reason, index) => (
            <li key={index} className="reason">
              <p className="reason-what"><Prose text={reason.what} /></p>
              {reason.why !== "" && <p><Prose text={reason.why} /></p>}
              {reason.next != null && reason.next !== "" && <p className="reason-next">Next: <Prose text={reason.next} /></p>}
            </li>
          ))}
        </ol>
      )}
    </div>
  );
}
