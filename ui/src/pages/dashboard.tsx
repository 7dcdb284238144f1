import { useMemo, type ReactNode } from "react";
import type { Session } from "warren-react";
import { titleOf, type Claim, type Pool, type Sandbox, type Status, type Task } from "../api";
import { Badge, EmptyState, ErrorNote, Loading, Meter } from "../components/feedback";
import { Icon } from "../components/icons";
import { Plot } from "../components/plot";
import { SandboxTable } from "../components/sandboxes";
import { SessionTable } from "../components/sessions";
import { TaskTable } from "../components/tasks";
import { Ago, useNow } from "../components/time";
import { useResource, type Resource } from "../live";
import { Link } from "../router";

/** How many tasks, sessions and claims the dashboard shows. */
const MOST_TASKS = 5;
const MOST_SESSIONS = 5;
const MOST_CLAIMS = 20;

/** What there is, and what needs attention. */
export function DashboardPage() {
  const sandboxes = useResource<Sandbox[]>("/api/sandboxes", ["sandboxes"]);
  const pools = useResource<Pool[]>("/api/pools", ["pools", "sandboxes"]);
  const claims = useResource<Claim[]>("/api/claims", ["claims"]);
  const sessions = useResource<Session[]>("/api/sessions", ["sessions"]);
  const tasks = useResource<Task[]>("/api/tasks", ["tasks"]);
  const names = useMemo(
    () => new Map(sandboxes.data?.map((sandbox) => [sandbox.id, titleOf(sandbox)])),
    [sandboxes.data],
  );
  return (
    <div className="page">
      <title>Sandboxes · Warren</title>
      <div className="page-head">
        <div>
          <h1>Sandboxes</h1>
          <Summary sandboxes={sandboxes.data} />
        </div>
        <Link className="button button-primary" href="/new"><Icon name="plus" /> Create a sandbox</Link>
      </div>
      <Health />
      <Part
        resource={sandboxes} what="the sandboxes"
        empty={
          <EmptyState
            title="No sandboxes yet"
            text={<>Create one here, or run <code>warren run --keep -- COMMAND</code> in a terminal.</>}
          >
            <Link className="button button-primary" href="/new"><Icon name="plus" /> Create a sandbox</Link>
          </EmptyState>
        }
      >
        {(list) => <SandboxTable sandboxes={newestFirst(list)} />}
      </Part>
      <Section title="Warm pools">
        <Part
          resource={pools} what="the pools"
          empty={
            <EmptyState
              title="No warm pools"
              text={<>A pool keeps sandboxes ready, so that one is taken in milliseconds. Apply a <code>SandboxWarmPool</code>{" "}
                with <code>kubectl</code>.</>}
            />
          }
        >
          {(list) => <Pools pools={list} />}
        </Part>
      </Section>
      {claims.data !== undefined && claims.data.length > 0 && (
        <Section title="Claims"><Claims claims={claims.data} /></Section>
      )}
      {tasks.data !== undefined && tasks.data.length > 0 && (
        <Section title="Last tasks" more={<Link href="/tasks">All tasks</Link>}>
          <TaskTable tasks={tasks.data.slice(0, MOST_TASKS)} />
        </Section>
      )}
      <Section title="Last sessions" more={<Link href="/sessions">All sessions</Link>}>
        <Part
          resource={sessions} what="the sessions"
          empty={<EmptyState title="No sessions yet" text="Open a terminal in a sandbox: all that happens in it is kept here." />}
        >
          {(list) => <SessionTable sessions={list.slice(0, MOST_SESSIONS)} names={names} />}
        </Part>
      </Section>
    </div>
  );
}

function newestFirst(list: Sandbox[]): Sandbox[] {
  return [...list].sort((one, other) => other.createdAt.localeCompare(one.createdAt));
}

function Summary({ sandboxes }: { sandboxes: Sandbox[] | undefined }) {
  const { data: status } = useResource<Status>("/api/status");
  const count = sandboxes?.length ?? 0;
  const running = sandboxes?.filter((sandbox) => sandbox.status === "running").length ?? 0;
  return (
    <p className="page-sub numbers">
      {sandboxes !== undefined && (
        <span>{count === 0 ? "None" : `${count} in all, ${running} running`}</span>
      )}
      {status !== undefined && (
        <span>{status.provider.name} · namespace {status.namespace} · version {status.version}</span>
      )}
    </p>
  );
}

/** Says so when the provider cannot make sandboxes. */
function Health() {
  const { data: status, reload } = useResource<Status>("/api/status", ["sandboxes"]);
  if (status === undefined || status.provider.healthy) return null;
  const message = status.provider.message ?? "It does not say why. Look at `warren doctor`.";
  return (
    <ErrorNote
      title={`The provider ${status.provider.name} is not healthy`}
      error={new Error(message)}
      action={{ label: "Ask again", run: reload }}
    />
  );
}

function Section({ title, more, children }: { title: string; more?: ReactNode; children: ReactNode }) {
  return (
    <section className="section">
      <div className="section-head">
        <h2>{title}</h2>
        {more}
      </div>
      {children}
    </section>
  );
}

interface PartProps<T> {
  resource: Resource<T[]> & { reload: () => void };
  what: string;
  empty: ReactNode;
  children: (list: T[]) => ReactNode;
}

/** A list in all its states. The last that is known stays when the service is away. */
function Part<T>({ resource, what, empty, children }: PartProps<T>) {
  const { data, error, reload } = resource;
  if (data === undefined && error === null) return <Loading />;
  return (
    <>
      {error !== null && data === undefined && (
        <ErrorNote title={`Could not read ${what}`} error={error} action={{ label: "Try again", run: reload }} />
      )}
      {data !== undefined && (data.length === 0 ? empty : children(data))}
    </>
  );
}

function Pools({ pools }: { pools: Pool[] }) {
  return (
    <ul className="cards" data-testid="pools">
      {pools.map((pool) => (
        <li key={`${pool.namespace}/${pool.name}`} className="card">
          <div className="card-head">
            <span className="card-title">{pool.name}</span>
            <span className="numbers">{pool.ready} of {pool.replicas} ready</span>
          </div>
          <Meter value={pool.ready} most={pool.replicas} label={`Ready sandboxes of ${pool.name}`} />
          <Filling pool={pool} />
          <p className="row-note">Template {pool.template ?? "–"}</p>
        </li>
      ))}
    </ul>
  );
}

/** The shortest and the longest span that is drawn. */
const SHORTEST_MS = 5 * 60_000;
const LONGEST_MS = 60 * 60_000;

/** How full a pool was, as far as the service has seen it. */
function Filling({ pool }: { pool: Pool }) {
  const now = useNow();
  const points = useMemo(() => pool.history.map((fill) => ({ at: Date.parse(fill.at), value: fill.ready })), [pool.history]);
  const [first, last] = [points[0], points.at(-1)];
  if (first === undefined || last === undefined) return null;
  const to = Math.max(now, last.at);
  const from = Math.max(to - LONGEST_MS, Math.min(first.at, to - SHORTEST_MS));
  const most = Math.max(1, pool.replicas, ...pool.history.map((fill) => fill.replicas));
  return (
    <Plot
      label="Ready over time" points={[...points, { at: to, value: last.value }]} from={from} to={to} most={most} steps small
      tone={pool.ready >= pool.replicas ? "good" : "busy"} testId={`plot-pool-${pool.name}`} name={`Ready sandboxes of ${pool.name}`}
      format={(value) => String(Math.round(value))}
    />
  );
}

function Claims({ claims }: { claims: Claim[] }) {
  return (
    <div className="table-frame">
      <table className="table table-cards" data-testid="claims">
        <thead>
          <tr>
            <th scope="col">Claim</th>
            <th scope="col">State</th>
            <th scope="col">Pool</th>
            <th scope="col">Sandbox</th>
            <th scope="col">Created</th>
          </tr>
        </thead>
        <tbody>
          {claims.slice(0, MOST_CLAIMS).map((claim) => (
            <tr key={`${claim.namespace}/${claim.name}`}>
              <th scope="row">{claim.name}</th>
              <td>
                <Badge tone={claim.ready ? "good" : "busy"}>{claim.ready ? "Ready" : (claim.reason ?? "Waiting")}</Badge>
              </td>
              <td data-label="Pool">{claim.pool ?? "–"}</td>
              <td data-label="Sandbox" className="clip">{claim.sandbox ?? "–"}</td>
              <td data-label="Created"><Ago at={claim.createdAt} /></td>
            </tr>
          ))}
        </tbody>
      </table>
      {claims.length > MOST_CLAIMS && <p className="table-more">and {claims.length - MOST_CLAIMS} more</p>}
    </div>
  );
}
