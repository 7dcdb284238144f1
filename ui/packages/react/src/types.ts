/** A terminal or an agent's run, as the API describes it. */
export interface Session {
  id: string;
  title: string;
  sandboxId: string | null;
  projectId: string | null;
  state: "active" | "ended";
  exitCode: number | null;
  columns: number | null;
  rows: number | null;
  createdAt: string;
  endedAt: string | null;
  /** The first offset that is kept. */
  firstOffset?: number;
  nextOffset: number;
  viewers?: number;
}

/** One event of a session. `bytes` is what the terminal printed or was sent; other kinds carry JSON in it. */
export interface SessionEvent {
  offset: number;
  at: string;
  kind: string;
  source: "agent" | "user" | "system";
  bytes: Uint8Array;
}

/** How a viewer is connected to a session. */
export type ConnectionState = "connecting" | "live" | "waiting" | "ended" | "failed";

/** The state of the agent that works in a session, from its `state` events. */
export interface AgentState {
  status: string;
  [field: string]: unknown;
}
