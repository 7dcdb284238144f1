import { WarrenError } from "warren-react";
import { type Task } from "../api";
import { EmptyState, ErrorNote, Loading } from "../components/feedback";
import { Icon } from "../components/icons";
import { hasEnded, TaskTable } from "../components/tasks";
import { useResource } from "../live";
import { Link } from "../router";

/** The tasks, newest first. */
export function TasksPage() {
  const { data, error, reload } = useResource<Task[]>("/api/tasks", ["tasks"]);
  const submit = <Link className="button button-primary" href="/new-task"><Icon name="plus" /> Submit a task</Link>;
  return (
    <div className="page">
      <title>Tasks · Warren</title>
      <div className="page-head">
        <div>
          <h1>Tasks</h1>
          {data !== undefined && <Summary tasks={data} />}
        </div>
        {submit}
      </div>
      {data === undefined && error === null && <Loading />}
      {data === undefined && error !== null && (
        <Refused error={error} reload={reload} />
      )}
      {data?.length === 0 && (
        <EmptyState
          title="No tasks yet"
          text={<>A task runs a command once, in a sandbox of its own, and keeps how it ended. Submit one here, or with{" "}
            <code>warren task submit -- COMMAND</code>.</>}
        >
          {submit}
        </EmptyState>
      )}
      {data !== undefined && data.length > 0 && <TaskTable tasks={data} />}
    </div>
  );
}

function Refused({ error, reload }: { error: Error; reload: () => void }) {
  if (error instanceof WarrenError && error.code === "TASKS_NOT_SERVED") {
    return (
      <EmptyState
        title="This cluster does not serve tasks"
        text={<>Apply <code>deploy/crds/warren.dev_agenttasks.yaml</code>, and run{" "}
          <code>warren controller --extensions --agent-tasks</code>.</>}
      >
        <button type="button" className="button" onClick={reload}>Ask again</button>
      </EmptyState>
    );
  }
  return <ErrorNote title="Could not read the tasks" error={error} action={{ label: "Try again", run: reload }} />;
}

function Summary({ tasks }: { tasks: Task[] }) {
  const open = tasks.filter((task) => !hasEnded(task)).length;
  const failed = tasks.filter((task) => task.state === "failed" && task.reason !== "Cancelled").length;
  if (tasks.length === 0) return <p className="page-sub">None</p>;
  return <p className="page-sub numbers"><span>{`${tasks.length} in all, ${open} not ended, ${failed} failed`}</span></p>;
}
