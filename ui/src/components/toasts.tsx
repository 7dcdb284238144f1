import { useSyncExternalStore } from "react";
import { Icon } from "./icons";
import { Prose } from "./prose";

interface Toast {
  id: number;
  kind: "error" | "done";
  text: string;
}

let toasts: readonly Toast[] = [];
let next = 1;
const listeners = new Set<() => void>();

function set(changed: readonly Toast[]): void {
  toasts = changed;
  for (const listener of [...listeners]) listener();
}

/** Says what happened. Errors stay until they are closed. */
export function notify(kind: Toast["kind"], text: string): void {
  const id = next++;
  set([...toasts.slice(-3), { id, kind, text }]);
  if (kind === "done") setTimeout(() => set(toasts.filter((toast) => toast.id !== id)), 5_000);
}

/** Runs something for the user, and says so if it fails. Returns true if it did not. */
export async function attempt(what: string, run: () => Promise<unknown>): Promise<boolean> {
  try {
    await run();
    return true;
  } catch (error) {
    notify("error", `${what}: ${(error as Error).message}`);
    return false;
  }
}

export function Toasts() {
  const shown = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => toasts,
  );
  return (
    <div className="toasts" role="region" aria-label="Messages" aria-live="polite">
      {shown.map((toast) => (
        <div key={toast.id} className={`toast toast-${toast.kind}`}>
          <Icon name={toast.kind === "error" ? "warning" : "check"} />
          <p><Prose text={toast.text} /></p>
          <button
            type="button" className="button-icon" aria-label="Close this message"
            onClick={() => set(toasts.filter((other) => other.id !== toast.id))}
          >
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  );
}
