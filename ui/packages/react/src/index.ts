// Everything that a product needs to show Warren's sandboxes and sessions on its own pages.

export { WarrenClient, WarrenError, type WarrenClientOptions } from "./client";
export { SessionConnection, type ConnectionSnapshot, type EventListener, wait } from "./connection";
export { useWarren, WarrenProvider } from "./context";
export { agentStateOf, decodeEvent, fromBase64, isOutput, jsonOf, toBase64 } from "./events";
export { Replay, type ReplayProps } from "./Replay";
export type { StreamMessage } from "./sse";
export { Terminal, type TerminalProps } from "./Terminal";
export { DARK, LIGHT } from "./themes";
export type { AgentState, ConnectionState, Session, SessionEvent } from "./types";
export { useSandboxTerminal, type UseSandboxTerminalResult } from "./useSandboxTerminal";
export { useSession, type UseSessionOptions, type UseSessionResult } from "./useSession";
