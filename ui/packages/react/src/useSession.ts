import { useCallback, useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";
import { SessionConnection } from "./connection";
import { useWarren } from "./context";
import { agentStateOf } from "./events";
import type { AgentState, ConnectionState, Session, SessionEvent } from "./types";

/** How often, at most, the lists of a hook change. */
const RENDER_EVERY_MS = 100;

/** How many events a hook keeps for rendering. */
const MOST_EVENTS = 5_000;

export interface UseSessionResult {
  /** The session, once it has been read. */
  session: Session | null;
  /** The last events, oldest first; none unless `collect` was asked for. */
  events: SessionEvent[];
  /** The agent's last reported state. */
  agentState: AgentState | null;
  connection: SessionConnection;
  state: ConnectionState;
  isConnected: boolean;
  error: Error | null;
  /** Types into the session's terminal. */
  sendInput: (data: string | Uint8Array) => void;
}

export interface UseSessionOptions {
  /** Keeps the last events in `events`. A terminal needs none of them. */
  collect?: boolean;
  /** Does not follow the session for now. A hidden page never does: browsers allow only a few connections. */
  paused?: boolean;
}

/** Follows a session with its history, and again after each loss of the connection. */
export function useSession(sessionId: string, options: UseSessionOptions = {}): UseSessionResult {
  const client = useWarren();
  const { collect = false, paused = false } = options;
  const connection = useMemo(() => new SessionConnection(client, sessionId), [client, sessionId]);
  const subscribe = useCallback((watcher: () => void) => connection.watch(watcher), [connection]);
  const { state, session, error } = useSyncExternalStore(subscribe, () => connection.snapshot);
  const { events, agentState } = useCollected(connection, collect);

  useEffect(() => {
    const follow = () => (paused || document.hidden ? connection.stop() : connection.start());
    follow();
    document.addEventListener("visibilitychange", follow);
    return () => {
      document.removeEventListener("visibilitychange", follow);
      connection.stop();
    };
  }, [connection, paused]);

  const sendInput = useCallback((data: string | Uint8Array) => void connection.input(data), [connection]);
  return { session, events, agentState, connection, state, isConnected: state === "live", error, sendInput };
}

function useCollected(connection: SessionConnection, collect: boolean) {
  const [events, setEvents] = useState<SessionEvent[]>([]);
  const [agentState, setAgentState] = useState<AgentState | null>(null);
  const pending = useRef<SessionEvent[]>([]);
  useEffect(() => {
    setEvents([]);
    setAgentState(null);
    pending.current = [];
    let timer: ReturnType<typeof setTimeout> | undefined;
    const flush = () => {
      timer = undefined;
      const arrived = pending.current.splice(0);
      setEvents((before) => [...before, ...arrived].slice(-MOST_EVENTS));
    };
    const unsubscribe = connection.subscribe((arrived) => {
      for (const event of arrived) {
        const told = agentStateOf(event);
        if (told !== null) setAgentState(told);
      }
      if (!collect) return;
      pending.current.push(...arrived.slice(-MOST_EVENTS));
      timer ??= setTimeout(flush, RENDER_EVERY_MS);
    });
    return () => {
      clearTimeout(timer);
      unsubscribe();
    };
  }, [connection, collect]);
  return { events, agentState };
}
