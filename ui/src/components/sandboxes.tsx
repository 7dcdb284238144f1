import { useState } from "react";
import { api, sandboxPage, titleOf, type Sandbox, type SandboxStatus } from "../api";
import { invalidate } from "../live";
import { Link, navigate } from "../router";
import { Confirm } from "./dialog";
import { Badge, type Tone } from "./feedback";
import { Prose } from "./prose";
import { Ago } from "./time";
import { attempt, notify } from "./toasts";

const TONES: Record<SandboxStatus, { tone: Tone; text: string }> = {
  running: { tone: "good", text: "Running" },
  creating: { tone: "busy", text: "Creating" },
  stopping: { tone: "busy", text: "Stopping" },
  stopped: { tone: "quiet", text: "Stopped" },
  error: { tone: "bad", text: "Error" },
};

/** A sandbox's status in a word. */
export function SandboxBadge({ sandbox }: { sandbox: Sandbox }) {
  const { tone, text } = TONES[sandbox.status] ?? { tone: "quiet", text: sandbox.status };
  return <Badge tone={tone}>{text}</Badge>;
}

/** Asks, then deletes a sandbox. */
export function DeleteSandbox({ sandbox, onClose }: { sandbox: Sandbox; onClose: () => void }) {
  const title = titleOf(sandbox);
  const remove = async () => {
    onClose();
    if (await attempt(`Deleting ${title} failed`, () => api.deleteSandbox(sandbox.id))) {
      notify("done", `${title} is being deleted.`);
      invalidate("sandboxes");
      if (location.pathname.startsWith("/sandboxes/")) navigate("/");
    }
  };
  return (
    <Confirm
      title={`Delete ${title}?`}
      text="Its processes and files go with it, which cannot be undone. The recordings of its terminals stay."
      confirm={`Delete ${title}`}
      onConfirm={() => void remove()}
      onClose={onClose}
    />
  );
}

/** Stop or start, whichever fits. */
export function PowerButton({ sandbox, small = false }: { sandbox: Sandbox; small?: boolean }) {
  const [busy, setBusy] = useState(false);
  const [asking, setAsking] = useState(false);
  const stops = sandbox.status === "running" || sandbox.status === "creating" || sandbox.status === "error";
  const title = titleOf(sandbox);
  const run = async () => {
    setAsking(false);
    setBusy(true);
    const call = stops ? api.stopSandbox : api.startSandbox;
    await attempt(`${stops ? "Stopping" : "Starting"} ${title} failed`, () => call(sandbox.id));
    invalidate("sandboxes");
    setBusy(false);
  };
  return (
    <>
      <button
        type="button" className={small ? "button button-small" : "button"}
        onClick={() => (stops ? setAsking(true) : void run())}
        disabled={busy || sandbox.status === "stopping"} aria-label={`${stops ? "Stop" : "Start"} ${title}`}
      >
        {stops ? "Stop" : "Start"}
      </button>
      {asking && (
        <Confirm
          title={`Stop ${title}?`}
          text="Its processes and terminals end, and files outside of its volumes are lost. It keeps its name and can be started again."
          confirm={`Stop ${title}`}
          onConfirm={() => void run()}
          onClose={() => setAsking(false)}
        />
      )}
    </>
  );
}

/** Returns true if a sandbox says why it is not running. */
export function tells(sandbox: Sandbox): boolean {
  return sandbox.message !== null && (sandbox.status === "error" || sandbox.status === "creating");
}

/** How many rows a list shows before it is asked for more. */
const ROWS = 100;

/** The list of sandboxes, newest first. */
export function SandboxTable({ sandboxes }: { sandboxes: Sandbox[] }) {
  const [deleting, setDeleting] = useState<Sandbox | null>(null);
  const [shown, setShown] = useState(ROWS);
  return (
    <>
      <div className="table-frame">
        <table className="table table-cards" data-testid="sandboxes">
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">Status</th>
              <th scope="col">Image</th>
              <th scope="col">Created</th>
              <th scope="col"><span className="hidden">Actions</span></th>
            </tr>
          </thead>
          <tbody>
            {sandboxes.slice(0, shown).map((sandbox) => (
              <tr key={sandbox.id}>
                <th scope="row">
                  <Link className="row-link" href={sandboxPage(sandbox.id)}>{titleOf(sandbox)}</Link>
                  {sandbox.projectId !== null && sandbox.projectId !== sandbox.name && (
                    <span className="row-note">{sandbox.projectId}</span>
                  )}
                </th>
                <td>
                  <SandboxBadge sandbox={sandbox} />
                  {tells(sandbox) && <p className="row-note row-reason"><Prose text={sandbox.message ?? ""} /></p>}
                </td>
                <td data-label="Image" className="mono clip">{sandbox.image ?? "–"}</td>
                <td data-label="Created"><Ago at={sandbox.createdAt} /></td>
                <td className="row-actions">
                  <PowerButton sandbox={sandbox} small />
                  <button
                    type="button" className="button button-small button-quiet-danger"
                    aria-label={`Delete ${titleOf(sandbox)}`} onClick={() => setDeleting(sandbox)}
                  >
                    Delete
                  </button>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {sandboxes.length > shown && (
        <button type="button" className="button more" onClick={() => setShown(shown + ROWS)}>
          Show {Math.min(ROWS, sandboxes.length - shown)} more of {sandboxes.length}
        </button>
      )}
      {deleting !== null && <DeleteSandbox sandbox={deleting} onClose={() => setDeleting(null)} />}
    </>
  );
}
