import { useState } from "react";
import { api, taskPage, type Task } from "../api";
import { invalidate } from "../live";
import { Link, navigate } from "../router";
import { plainLine } from "../text";
import { Confirm } from "./dialog";
import { Badge } from "./feedback";
import { Ago, duration } from "./time";
import { attempt, notify } from "./toasts";

/** Returns true if a task has ended. */
export function hasEnded(task: Task): boolean {
  return task.state === "succeeded" || task.state === "failed";
}

/** A task's state in a word, and the class of its failure. */
export function TaskBadge({ task }: { task: Task }) {
  if (task.state === "succeeded") return <Badge tone="good">Succeeded</Badge>;
  if (task.state === "failed") {
    if (task.reason === "Cancelled") return <Badge tone="quiet">Cancelled</Badge>;
    const code = task.reason === "Application" && task.exitCode !== null ? `exit code ${task.exitCode}` : task.reason;
    return <Badge tone="bad">{code === null ? "Failed" : `Failed: ${code}`}</Badge>;
  }
  if (task.cancelled) return <Badge tone="busy">Cancelling</Badge>;
  return <Badge tone="busy">{task.state === "running" ? "Running" : "Waiting"}</Badge>;
}

/** How long a task took. */
export function TaskLength({ task }: { task: Task }) {
  if (task.startedAt === null || task.completedAt === null) return <span className="quiet">–</span>;
  return <>{duration(Date.parse(task.completedAt) - Date.parse(task.startedAt))}</>;
}

/** Asks, then cancels or deletes a task. */
export function TaskActions({ task, small = false }: { task: Task; small?: boolean }) {
  const [asking, setAsking] = useState<"cancel" | "delete" | null>(null);
  const close = () => setAsking(null);
  const cancel = async () => {
    close();
    await attempt(`Cancelling ${task.name} failed`, () => api.cancelTask(task.name));
    invalidate("tasks");
  };
  const remove = async () => {
    close();
    if (!(await attempt(`Deleting ${task.name} failed`, () => api.deleteTask(task.name)))) return;
    notify("done", `${task.name} was deleted.`);
    if (location.pathname === taskPage(task.name)) navigate("/tasks");
    invalidate("tasks");
  };
  const size = small ? "button button-small" : "button";
  return (
    <>
      {!hasEnded(task) && (
        <button
          type="button" className={size} disabled={task.cancelled} aria-label={`Cancel ${task.name}`}
          onClick={() => setAsking("cancel")}
        >
          Cancel
        </button>
      )}
      <button
        type="button" className={`${size} button-quiet-danger`} aria-label={`Delete ${task.name}`}
        onClick={() => setAsking("delete")}
      >
        Delete
      </button>
      {asking === "cancel" && (
        <Confirm
          title={`Cancel ${task.name}?`}
          text="Its command is ended, and is not run again. Its log stays."
          confirm={`Cancel ${task.name}`} dismiss="Let it run"
          onConfirm={() => void cancel()} onClose={close}
        />
      )}
      {asking === "delete" && (
        <Confirm
          title={`Delete ${task.name}?`}
          text="Its sandbox, its log and its result go with it, which cannot be undone."
          confirm={`Delete ${task.name}`} onConfirm={() => void remove()} onClose={close}
        />
      )}
    </>
  );
}

/** How many rows a list shows before it is asked for more. */
const ROWS = 100;

/** The list of tasks. */
export function TaskTable({ tasks }: { tasks: Task[] }) {
  const [shown, setShown] = useState(ROWS);
  return (
    <>
      <div className="table-frame">
        <table className="table table-cards" data-testid="tasks">
          <thead>
            <tr>
              <th scope="col">Task</th>
              <th scope="col">State</th>
              <th scope="col">Submitted</th>
              <th scope="col" className="number">Took</th>
              <th scope="col"><span className="hidden">Actions</span></th>
            </tr>
          </thead>
          <tbody>
            {tasks.slice(0, shown).map((task) => (
              <tr key={task.name}>
                <th scope="row">
                  <Link className="row-link" href={taskPage(task.name)}>{task.name}</Link>
                  {task.summary !== "" && <span className="row-note row-summary">{plainLine(task.summary)}</span>}
                </th>
                <td>
                  <TaskBadge task={task} />
                  {task.state === "pending" && task.message !== null && (
                    <p className="row-note row-reason">{plainLine(task.message)}</p>
                  )}
                </td>
                <td data-label="Submitted"><Ago at={task.createdAt} /></td>
                <td data-label="Took" className="number"><TaskLength task={task} /></td>
                <td className="row-actions"><TaskActions task={task} small /></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {tasks.length > shown && (
        <button type="button" className="button more" onClick={() => setShown(shown + ROWS)}>
          Show {Math.min(ROWS, tasks.length - shown)} more of {tasks.length}
        </button>
      )}
    </>
  );
}
