import type { ReactNode } from "react";
import { WarrenError } from "warren-react";
import { Icon } from "./icons";
import { Prose } from "./prose";

/** Says that something is on its way. */
export function Loading({ label = "Loading", page = false }: { label?: string; page?: boolean }) {
  return (
    <div className={page ? "loading loading-page" : "loading"} role="status">
      <span className="spinner" aria-hidden="true" />
      {label}…
    </div>
  );
}

/** A place with nothing in it yet, and the next step. */
export function EmptyState(props: { title: string; text?: ReactNode; children?: ReactNode }) {
  return (
    <div className="empty">
      <p className="empty-title">{props.title}</p>
      {props.text !== undefined && <p className="empty-text">{props.text}</p>}
      {props.children !== undefined && <div className="empty-actions">{props.children}</div>}
    </div>
  );
}

interface ErrorNoteProps {
  title: string;
  error: Error;
  action?: { label: string; run: () => void } | undefined;
}

/** What failed, why, and the way out. */
export function ErrorNote({ title, error, action }: ErrorNoteProps) {
  const code = error instanceof WarrenError ? error.code : null;
  const away = error instanceof WarrenError && error.status === 0;
  return (
    <div className="note note-error" role="alert">
      <Icon name="warning" />
      <div className="note-body">
        <p className="note-title">{title}</p>
        <p><Prose text={error.message} /></p>
        {away && <p>This page tries again by itself. Is <code>warren serve</code> running?</p>}
        {code !== null && !away && <p className="note-code">{code}</p>}
      </div>
      {action !== undefined && (
        <button type="button" className="button button-small" onClick={action.run}>{action.label}</button>
      )}
    </div>
  );
}

export type Tone = "good" | "busy" | "quiet" | "bad" | "warn";

/** A state in a word, with a colour that only repeats it. */
export function Badge({ tone, children }: { tone: Tone; children: ReactNode }) {
  return (
    <span className={`badge badge-${tone}`}>
      <span className="badge-dot" aria-hidden="true" />
      {children}
    </span>
  );
}

/** How much of something is there. */
export function Meter({ value, most, label }: { value: number; most: number; label: string }) {
  const share = most <= 0 ? 0 : Math.min(1, value / most);
  return (
    <div className="meter" role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={most} aria-valuenow={value}>
      <div className={share >= 1 ? "meter-fill is-full" : "meter-fill"} style={{ width: `${share * 100}%` }} />
    </div>
  );
}
