import { useState, type FormEvent } from "react";
import { api, paths, taskPage, type NewTask, type Pool, type TaskDetails } from "../api";
import { ErrorNote, Loading } from "../components/feedback";
import { AreaField, Choice, SelectField, TextField } from "../components/fields";
import { environment } from "../environment";
import { invalidate, useResource } from "../live";
import { Link, navigate, useLocation } from "../router";

type From = "default" | "image" | "template" | "pool";
type By = "shell" | "words";

const FROM = [
  { value: "default", label: "This machine", hint: "its own /usr" },
  { value: "image", label: "Image", hint: "any OCI image" },
  { value: "template", label: "Template", hint: "one of this namespace" },
  { value: "pool", label: "Warm pool", hint: "starts at once" },
] as const;

const BY = [
  { value: "shell", label: "Shell script", hint: "run by sh -c" },
  { value: "words", label: "Program", hint: "one argument on each line" },
] as const;

interface Form {
  name: string;
  description: string;
  from: From;
  image: string;
  template: string;
  pool: string;
  by: By;
  command: string;
  timeout: string;
  retries: string;
  env: string;
}

const EMPTY: Form = {
  name: "", description: "", from: "default", image: "", template: "", pool: "", by: "shell", command: "",
  timeout: "", retries: "", env: "",
};

/** A form for a new task; with `?like=NAME`, as that one was. Values of variables are not known to the page. */
export function CreateTaskPage() {
  const like = useLocation().query.get("like");
  const { data, error } = useResource<TaskDetails>(like === null ? null : paths.task(like));
  if (like !== null && data === undefined && error === null) return <Loading page />;
  return <TaskForm key={like} start={data === undefined ? EMPTY : formOf(data)} lost={data?.env ?? []} />;
}

function formOf(task: TaskDetails): Form {
  const [shell, flag, script] = task.command;
  const isScript = task.command.length === 3 && shell === "sh" && flag === "-c";
  // An argument of several lines would become several.
  const fits = isScript || !task.command.some((word) => word.includes("\n"));
  return {
    ...EMPTY,
    description: task.description,
    from: task.pool !== null ? "pool" : task.template !== null ? "template" : task.image !== null ? "image" : "default",
    image: task.image ?? "",
    template: task.template ?? "",
    pool: task.pool ?? "",
    by: isScript ? "shell" : "words",
    command: isScript ? (script ?? "") : fits ? task.command.join("\n") : "",
    timeout: task.timeout,
    retries: task.retries === 0 ? "" : String(task.retries),
    env: task.env.map((name) => `${name}=`).join("\n"),
  };
}

function toRequest(form: Form, pool: string): { request: NewTask } | { wrong: string } {
  const env = environment(form.env);
  if ("wrong" in env) return env;
  const request: NewTask = {};
  if (form.name.trim() !== "") request.name = form.name.trim();
  if (form.description.trim() !== "") request.description = form.description.trim();
  if (form.from === "image") request.image = form.image.trim();
  if (form.from === "template") request.template = form.template.trim();
  if (form.from === "pool") request.pool = pool;
  if (form.command.trim() !== "") {
    request.command = form.by === "shell" ? ["sh", "-c", form.command] : form.command.replace(/\n+$/, "").split("\n");
  }
  if (form.timeout.trim() !== "") request.timeout = form.timeout.trim();
  if (form.retries !== "") request.retries = Number(form.retries);
  if (Object.keys(env.variables).length > 0) request.env = env.variables;
  return { request };
}

function TaskForm({ start, lost }: { start: Form; lost: string[] }) {
  const [form, setForm] = useState(start);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const [envError, setEnvError] = useState<string | null>(null);
  const set = (change: Partial<Form>) => setForm((before) => ({ ...before, ...change }));
  const pools = useResource<Pool[]>("/api/pools", ["pools"]).data;
  const pool = form.pool || (pools?.[0]?.name ?? "");
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    const made = toRequest(form, pool);
    if ("wrong" in made) return setEnvError(`“${made.wrong}” is not NAME=value.`);
    setEnvError(null);
    setError(null);
    setBusy(true);
    try {
      const task = await api.createTask(made.request);
      invalidate("tasks");
      navigate(taskPage(task.name));
    } catch (refused) {
      setError(refused as Error);
      setBusy(false);
    }
  };
  const optional = form.from === "image" || form.from === "template";
  return (
    <div className="page page-narrow">
      <title>Submit a task · Warren</title>
      <div className="page-head"><h1>Submit a task</h1></div>
      <form className="form" onSubmit={(event) => void submit(event)}>
        <TextField
          label="Name" hint="Optional. Lower-case letters, digits and dashes." value={form.name} maxLength={253}
          onChange={(event) => set({ name: event.target.value })}
        />
        <Choice label="Made from" value={form.from} options={FROM} onChange={(from) => set({ from })} />
        <Source form={form} set={set} pools={pools} pool={pool} />
        <Choice label="The command is a" value={form.by} options={BY} onChange={(by) => set({ by })} />
        <AreaField
          label="Command" rows={6} required={!optional} value={form.command}
          placeholder={form.by === "shell" ? "echo working\nuname -a > \"$WARREN_TASK_RESULT\"" : "uname\n-a"}
          hint={optional ? "Empty: the program of the image or template." : "What it writes to the file $WARREN_TASK_RESULT is its result."}
          onChange={(command) => set({ command })}
        />
        <AreaField
          label="Description" rows={3} value={form.description}
          hint="Optional. The command finds it in $WARREN_TASK_DESCRIPTION." onChange={(description) => set({ description })}
        />
        <div className="columns">
          <TextField
            label="Timeout" placeholder="30m" pattern="([0-9]+[hms])+" title="Whole hours, minutes and seconds: 90s, 30m, 1h30m"
            hint="Such as 90s, 30m or 1h30m, over all attempts." value={form.timeout}
            onChange={(event) => set({ timeout: event.target.value })}
          />
          <TextField
            label="Retries" type="number" min={0} max={10} step={1} placeholder="0" hint="After failures that may pass."
            value={form.retries} onChange={(event) => set({ retries: event.target.value })}
          />
        </div>
        <details className="more-options" open={lost.length > 0}>
          <summary>Environment</summary>
          <AreaField
            label="Environment" rows={3} placeholder="NAME=value" value={form.env} error={envError}
            hint={lost.length > 0 ? "The values of the other task are not shown here: fill them in again." : "One variable on each line."}
            onChange={(env) => set({ env })}
          />
        </details>
        {error !== null && <ErrorNote title="The task was not submitted" error={error} />}
        <div className="form-actions">
          <button type="submit" className="button button-primary" disabled={busy || (form.from === "pool" && pool === "")}>
            {busy ? "Submitting…" : "Submit the task"}
          </button>
          <Link className="button" href="/tasks">Back</Link>
        </div>
      </form>
    </div>
  );
}

interface SourceProps {
  form: Form;
  set: (change: Partial<Form>) => void;
  pools: Pool[] | undefined;
  pool: string;
}

function Source({ form, set, pools, pool }: SourceProps) {
  if (form.from === "image") {
    return (
      <TextField
        label="Image" required placeholder="docker.io/library/debian:12" value={form.image}
        hint="Pulled from its registry if it is not here." onChange={(event) => set({ image: event.target.value })}
      />
    );
  }
  if (form.from === "template") {
    return (
      <TextField
        label="Template" required value={form.template} hint="The name of a SandboxTemplate in this namespace."
        onChange={(event) => set({ template: event.target.value })}
      />
    );
  }
  if (form.from !== "pool") return null;
  if (pools?.length === 0) {
    return <p className="note">There are no pools. Apply <code>examples/warm-tasks.yaml</code> with kubectl first.</p>;
  }
  return (
    <SelectField
      label="Pool" value={pool} hint="A pool whose sandboxes wait for tasks." onChange={(event) => set({ pool: event.target.value })}
    >
      {pools?.map((one) => (
        <option key={one.name} value={one.name}>{`${one.name} (${one.ready} of ${one.replicas} ready)`}</option>
      ))}
    </SelectField>
  );
}
