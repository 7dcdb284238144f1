import { useEffect, type ReactNode } from "react";
import { WarrenError } from "warren-react";
import { paths, sandboxPage, type Condition, type TaskDetails, type TaskLog } from "../api";
import { Badge, EmptyState, ErrorNote, Loading } from "../components/feedback";
import { Output } from "../components/output";
import { hasEnded, TaskActions, TaskBadge, TaskLength } from "../components/tasks";
import { Ago } from "../components/time";
import { useResource } from "../live";
import { Link } from "../router";
import { plainLine, plainText } from "../text";

/** One task: how it goes, or how it ended. */
export function TaskPage({ name }: { name: string }) {
  const { data: task, error, reload } = useResource<TaskDetails>(paths.task(name), ["tasks"]);
  if (error instanceof WarrenError && error.status === 404) {
    return (
      <EmptyState title={`There is no task ${name}`} text="It may have been deleted, or its time to live is over.">
        <Link className="button" href="/tasks">Go to the tasks</Link>
      </EmptyState>
    );
  }
  if (task === undefined) {
    if (error === null) return <Loading page />;
    return <ErrorNote title="Could not read the task" error={error} action={{ label: "Try again", run: reload }} />;
  }
  return (
    <div className="page">
      <title>{`${task.name} · Warren`}</title>
      <div className="page-head">
        <div className="page-title">
          <div className="title-line">
            <h1>{task.name}</h1>
            <TaskBadge task={task} />
          </div>
          <p className="page-sub">
            <span>submitted <Ago at={task.createdAt} /></span>
            {task.completedAt !== null && <span>took <TaskLength task={task} /></span>}
            {task.attempts > 1 && <span>{task.attempts} attempts</span>}
          </p>
        </div>
        <div className="page-actions">
          <Link className="button" href={`/new-task?like=${encodeURIComponent(task.name)}`}>Submit again</Link>
          <TaskActions task={task} />
        </div>
      </div>
      <Outcome task={task} />
      <div className="task">
        <div className="task-main">
          <Result task={task} />
          <Log task={task} />
          <Conditions conditions={task.conditions} />
        </div>
        <Facts task={task} />
      </div>
    </div>
  );
}

/** How it ended if it failed, or what it waits for. */
function Outcome({ task }: { task: TaskDetails }) {
  const message = task.message === null ? "" : plainLine(task.message);
  if (task.state === "failed" && task.reason !== "Cancelled") {
    return <ErrorNote title={`The task failed: ${task.reason ?? "Unknown"}`} error={new Error(message)} />;
  }
  if (hasEnded(task) || message === "") return null;
  return <p className="note" role="status">{message}</p>;
}

function Result({ task }: { task: TaskDetails }) {
  if (task.result === null && !hasEnded(task)) return null;
  return (
    <section>
      <h2>Result</h2>
      {task.result === null ? (
        <p className="quiet">
          It left none. A command leaves one by writing to the file that <code>WARREN_TASK_RESULT</code> names.
        </p>
      ) : (
        <>
          <Output label="Result" text={task.result} testId="task-result" />
          <p className="field-hint">The command wrote this; do not take it for the service's word.</p>
        </>
      )}
    </section>
  );
}

const LOG_EVERY_MS = 2_000;

/** The end of the log. A running command's is read again and again while the page is seen. */
function Log({ task }: { task: TaskDetails }) {
  const { data, error, reload } = useResource<TaskLog>(paths.taskLog(task.name), ["tasks"]);
  const running = !hasEnded(task);
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(() => !document.hidden && reload(), LOG_EVERY_MS);
    return () => clearInterval(timer);
  }, [running, reload]);
  const missing = error instanceof WarrenError && error.code === "TASK_LOG_NOT_FOUND";
  return (
    <section>
      <h2>Log</h2>
      {data === undefined && error === null && <Loading />}
      {missing && data === undefined && <p className="quiet">{`None: ${plainLine(error.message)}.`}</p>}
      {error !== null && !missing && (
        <ErrorNote title="Could not read the log" error={error} action={{ label: "Try again", run: reload }} />
      )}
      {data?.truncated === true && <p className="quiet">The end of it; <code>warren task logs {task.name}</code> prints all.</p>}
      {data !== undefined && data.text !== "" && <Output label="Log" text={data.text} testId="task-log" follow />}
      {data?.text === "" && <p className="quiet">{running ? "Nothing was written yet." : "Nothing was written."}</p>}
    </section>
  );
}

function Conditions({ conditions }: { conditions: Condition[] }) {
  if (conditions.length === 0) return null;
  return (
    <section>
      <h2>Conditions</h2>
      <div className="table-frame">
        <table className="table table-cards" data-testid="task-conditions">
          <thead>
            <tr>
              <th scope="col">Condition</th>
              <th scope="col">Status</th>
              <th scope="col">Reason</th>
              <th scope="col">Since</th>
            </tr>
          </thead>
          <tbody>
            {conditions.map((condition) => (
              <tr key={condition.type}>
                <th scope="row">{condition.type}</th>
                <td><Badge tone={toneOf(condition)}>{condition.status}</Badge></td>
                <td className="wrap">
                  {condition.reason}
                  {condition.message !== "" && <span className="row-note">{plainLine(condition.message)}</span>}
                </td>
                <td data-label="Since"><Ago at={condition.at} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function toneOf(condition: Condition): "good" | "bad" | "quiet" {
  if (condition.status !== "True") return "quiet";
  return condition.type === "Failed" ? "bad" : "good";
}

function Facts({ task }: { task: TaskDetails }) {
  return (
    <dl className="panel task-facts">
      {task.description !== "" && <Fact name="Description"><span className="pre">{plainText(task.description)}</span></Fact>}
      <Fact name="Command">
        {task.command.length === 0 ? "the image's or template's own" : <Command words={task.command} />}
      </Fact>
      <Fact name="Made from"><Source task={task} /></Fact>
      {task.exitCode !== null && <Fact name="Exit code"><span className="numbers">{task.exitCode}</span></Fact>}
      <Fact name="Sandbox">
        {task.sandboxId === null ? "none yet" : <Link href={sandboxPage(task.sandboxId, "events")}>{task.sandboxId}</Link>}
      </Fact>
      {task.startedAt !== null && <Fact name="Started"><Ago at={task.startedAt} /></Fact>}
      {task.completedAt !== null && <Fact name="Ended"><Ago at={task.completedAt} /></Fact>}
      <Fact name="Timeout">{task.timeout}</Fact>
      <Fact name="Attempts">{`${task.attempts} of ${task.retries + 1}`}</Fact>
      {task.repository !== null && (
        <Fact name="Repository">{plainLine(`${task.repository.url} ${task.repository.ref ?? ""}`)}</Fact>
      )}
      {task.env.length > 0 && <Fact name="Variables"><span className="mono">{plainLine(task.env.join(" "))}</span></Fact>}
    </dl>
  );
}

function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd className="wrap">{children}</dd>
    </div>
  );
}

/** The command: a script of a shell by itself, anything else with quotes where they are needed. */
function Command({ words }: { words: string[] }) {
  const [shell, flag, script] = words;
  const isScript = words.length === 3 && flag === "-c" && script !== undefined;
  const text = isScript ? script : words.map(quoted).join(" ");
  return (
    <>
      {isScript && <span className="quiet">by <code>{`${shell} -c`}</code></span>}
      <Output label="Command" text={text} testId="task-command" />
    </>
  );
}

function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

function Source({ task }: { task: TaskDetails }) {
  if (task.pool !== null) return <>pool <span className="mono">{task.pool}</span></>;
  if (task.template !== null) return <>template <span className="mono">{task.template}</span></>;
  if (task.image !== null) return <span className="mono">{task.image}</span>;
  return <>this machine's own <code>/usr</code></>;
}
