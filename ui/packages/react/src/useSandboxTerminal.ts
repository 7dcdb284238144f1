import { useCallback, useMemo } from "react";
import { isOutput } from "./events";
import type { SessionEvent } from "./types";
import { useSession, type UseSessionOptions, type UseSessionResult } from "./useSession";

export interface UseSandboxTerminalResult extends UseSessionResult {
  /** What the terminal printed, oldest first; the last few thousand pieces. */
  lines: SessionEvent[];
  /** What was typed into it, a line each; the last few hundred. */
  inputHistory: string[];
  /** The agent's status, if one works in this terminal. */
  agentStatus: string | null;
  /** True while an agent runs here. Commands are not sent meanwhile. */
  isExecuting: boolean;
  /** Types a command and Enter. */
  sendCommand: (command: string) => void;
}

const MOST_HISTORY = 500;

/** The terminal of a sandbox, backed by its session: history, live output, and input. */
export function useSandboxTerminal(
  sessionId: string,
  options: UseSessionOptions = {},
): UseSandboxTerminalResult {
  const session = useSession(sessionId, { collect: true, ...options });
  const { events, agentState, sendInput } = session;
  const lines = useMemo(() => events.filter(isOutput), [events]);
  const inputHistory = useMemo(() => typedLines(events), [events]);
  const isExecuting = agentState?.status === "running";
  const sendCommand = useCallback(
    (command: string) => {
      if (!isExecuting) sendInput(`${command}\r`);
    },
    [isExecuting, sendInput],
  );
  return { ...session, lines, inputHistory, agentStatus: agentState?.status ?? null, isExecuting, sendCommand };
}

function typedLines(events: SessionEvent[]): string[] {
  const decoder = new TextDecoder();
  const text = events
    .filter((event) => event.kind === "terminal:input")
    .map((event) => decoder.decode(event.bytes, { stream: true }))
    .join("");
  return text.split(/[\r\n]+/).filter((line) => line !== "").slice(-MOST_HISTORY);
}
