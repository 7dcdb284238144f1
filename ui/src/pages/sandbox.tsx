import { useEffect, useState } from "react";
import { WarrenError } from "warren-react";
import { paths, sandboxPage, titleOf, type Metrics, type Sandbox } from "../api";
import { EmptyState, ErrorNote, Loading } from "../components/feedback";
import { DeleteSandbox, PowerButton, SandboxBadge } from "../components/sandboxes";
import { Ago } from "../components/time";
import { useResource } from "../live";
import { Link } from "../router";
import { EventsTab } from "./sandbox_events";
import { ExplainTab } from "./sandbox_explain";
import { FilesTab } from "./sandbox_files";
import { NetworkTab } from "./sandbox_network";
import { TerminalsTab } from "./sandbox_terminals";

const TABS = [
  { id: "terminal", label: "Terminal" },
  { id: "files", label: "Files" },
  { id: "network", label: "Network" },
  { id: "events", label: "Events" },
  { id: "explain", label: "Explain" },
] as const;

/** One sandbox. */
export function SandboxPage({ id, tab }: { id: string; tab: string }) {
  const { data: sandbox, error, reload } = useResource<Sandbox>(paths.sandbox(id), ["sandboxes"]);
  const [deleting, setDeleting] = useState(false);
  if (error instanceof WarrenError && error.status === 404) {
    return (
      <EmptyState title={`There is no sandbox ${id}`} text="It may have been deleted, or have reached its end. Its sessions are kept.">
        <Link className="button" href="/">Go to the sandboxes</Link>
        <Link className="button" href="/sessions">Its sessions</Link>
      </EmptyState>
    );
  }
  if (sandbox === undefined) {
    if (error === null) return <Loading page />;
    return <ErrorNote title="Could not read the sandbox" error={error} action={{ label: "Try again", run: reload }} />;
  }
  const known = TABS.find((one) => one.id === tab) ?? TABS[0];
  return (
    <div className="page page-wide">
      <title>{`${titleOf(sandbox)} · Warren`}</title>
      <div className="page-head">
        <div className="page-title">
          <div className="title-line">
            <h1>{titleOf(sandbox)}</h1>
            <SandboxBadge sandbox={sandbox} />
          </div>
          <p className="page-sub">
            {sandbox.projectId !== null && sandbox.projectId !== sandbox.name && <span>Project {sandbox.projectId}</span>}
            {sandbox.image !== null && <span className="mono">{sandbox.image}</span>}
            <span>created <Ago at={sandbox.createdAt} /></span>
            {sandbox.status === "running" && <Usage id={id} />}
          </p>
        </div>
        <div className="page-actions">
          <PowerButton sandbox={sandbox} />
          <button type="button" className="button button-quiet-danger" onClick={() => setDeleting(true)}>Delete</button>
        </div>
      </div>
      {sandbox.status === "error" && (
        <ErrorNote title="This sandbox cannot be used" error={new Error(sandbox.message ?? "The Explain tab says more.")} />
      )}
      <nav className="tabs" aria-label="Parts of the sandbox">
        {TABS.map((one) => (
          <Link key={one.id} href={sandboxPage(id, one.id)} className="tab" aria-current={one.id === known.id ? "page" : undefined}>
            {one.label}
          </Link>
        ))}
      </nav>
      {known.id === "terminal" && <TerminalsTab sandbox={sandbox} />}
      {known.id === "files" && <FilesTab sandbox={sandbox} />}
      {known.id === "network" && <NetworkTab sandbox={sandbox} />}
      {known.id === "events" && <EventsTab sandbox={sandbox} />}
      {known.id === "explain" && <ExplainTab sandbox={sandbox} />}
      {deleting && <DeleteSandbox sandbox={sandbox} onClose={() => setDeleting(false)} />}
    </div>
  );
}

const USAGE_EVERY_MS = 5_000;
const USAGE_AGAIN_MS = 20_000;

/** What it uses now. The service measures when it is asked, so the page asks now and then, while it is seen. */
function Usage({ id }: { id: string }) {
  const { data, error, reload } = useResource<Metrics>(paths.metrics(id));
  // A young sandbox has not been measured yet, and a home without cgroups measures nothing.
  const failed = error !== null;
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && reload(), failed ? USAGE_AGAIN_MS : USAGE_EVERY_MS);
    return () => clearInterval(timer);
  }, [reload, failed]);
  if (data === undefined || failed) return null;
  const facts = [
    data.cpuUsagePercent == null ? null : `processor ${Math.round(data.cpuUsagePercent)} %`,
    data.memoryUsageMb == null ? null : `memory ${Math.round(data.memoryUsageMb)} MiB`,
  ].filter((fact) => fact !== null);
  return <span className="numbers">{facts.join(", ")}</span>;
}
