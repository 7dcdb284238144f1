// The service's API as this page uses it.

import { WarrenClient, type Session } from "warren-react";

export interface Status {
  version: string;
  provider: { name: string; healthy: boolean; message: string | null };
  namespace: string;
}

export type SandboxStatus = "creating" | "running" | "stopped" | "stopping" | "error";
export type Network = "none" | "restricted" | "full";

export interface Sandbox {
  id: string;
  name: string;
  namespace: string;
  projectId: string | null;
  status: SandboxStatus;
  message: string | null;
  image: string | null;
  createdAt: string;
  lastActivityAt: string | null;
  network?: unknown;
}

export interface NewSandbox {
  projectId?: string;
  image?: string;
  pool?: string;
  template?: string;
  memoryMb?: number;
  cpuCores?: number;
  env?: Record<string, string>;
  network?: Network;
  allowedHosts?: string[];
}

export interface Pool {
  name: string;
  namespace: string;
  template: string | null;
  replicas: number;
  ready: number;
}

export interface Claim {
  name: string;
  namespace: string;
  pool: string | null;
  sandbox: string | null;
  ready: boolean;
  reason: string | null;
  createdAt: string;
}

export interface FileEntry {
  name: string;
  path: string;
  type: "file" | "directory" | "symlink" | "other";
  size: number;
  modifiedAt: string | null;
}

export interface SandboxEvent {
  type: string;
  reason: string;
  message: string;
  count: number;
  at: string | null;
}

export interface Explanation {
  ready: boolean;
  summary: string;
  reasons: { what: string; why: string; next: string | null }[];
}

export interface Metrics {
  cpuUsagePercent: number | null;
  memoryUsageMb: number | null;
}

export type TaskState = "pending" | "running" | "succeeded" | "failed";

export interface Task {
  name: string;
  namespace: string;
  state: TaskState;
  /** The class of the failure, or why the command does not run yet. */
  reason: string | null;
  message: string | null;
  exitCode: number | null;
  attempts: number;
  cancelled: boolean;
  /** The description or the command, in one line. */
  summary: string;
  createdAt: string;
  startedAt: string | null;
  completedAt: string | null;
}

export interface Condition {
  type: string;
  status: string;
  reason: string;
  message: string;
  at: string | null;
}

export interface TaskDetails extends Task {
  description: string;
  context: string;
  repository: { url: string; ref?: string } | null;
  image: string | null;
  template: string | null;
  pool: string | null;
  command: string[];
  env: string[];
  timeout: string;
  retries: number;
  ttlSeconds: number | null;
  sandboxId: string | null;
  result: string | null;
  conditions: Condition[];
}

export interface NewTask {
  name?: string;
  command?: string[];
  image?: string;
  template?: string;
  pool?: string;
  env?: Record<string, string>;
  timeout?: string;
  retries?: number;
  description?: string;
}

export interface TaskLog {
  text: string;
  truncated: boolean;
}

/** Something that the egress proxy refused, and what can be done about it. */
export interface Refusal {
  host: string;
  port: number;
  reason: string;
  at: string | null;
  remedy: "allow" | "address" | "policy" | "none";
  allowed: boolean;
}

export interface NetworkRules {
  mode: Network;
  allowedHosts: string[];
  allowedPorts: string[];
  defaultHosts: boolean;
  defaultPorts: boolean;
  /** The template that the sandbox follows, if it has no rules of its own. */
  template: string | null;
  refused: Refusal[];
}

type Scope = "sandbox" | "template";

/** The login state: unknown until the service was asked. */
let loggedIn: boolean | null = null;
const watchers = new Set<() => void>();

export const login = {
  get state(): boolean | null {
    return loggedIn;
  },
  set(state: boolean): void {
    if (loggedIn === state) return;
    loggedIn = state;
    for (const watcher of [...watchers]) watcher();
  },
  watch(watcher: () => void): () => void {
    watchers.add(watcher);
    return () => watchers.delete(watcher);
  },
};

export const client = new WarrenClient({ onUnauthorized: () => login.set(false) });

const part = encodeURIComponent;

export const paths = {
  sandbox: (id: string) => `/api/sandboxes/${part(id)}`,
  files: (id: string, path: string) => `/api/sandboxes/${part(id)}/files?path=${part(path)}`,
  content: (id: string, path: string) => `/api/sandboxes/${part(id)}/files/content?path=${part(path)}`,
  events: (id: string) => `/api/sandboxes/${part(id)}/events`,
  explain: (id: string) => `/api/sandboxes/${part(id)}/explain`,
  network: (id: string) => `/api/sandboxes/${part(id)}/network`,
  metrics: (id: string) => `/api/sandboxes/${part(id)}/metrics`,
  task: (name: string) => `/api/tasks/${part(name)}`,
  taskLog: (name: string) => `/api/tasks/${part(name)}/log`,
  session: (id: string) => `/api/sessions/${part(id)}`,
  sessionExport: (id: string, format: string) => `/api/sessions/${part(id)}/export?format=${format}`,
};

export const api = {
  login: (key: string) => client.request<unknown>("POST", "/api/login", { key }),
  logout: () => client.request<unknown>("POST", "/api/logout"),
  createSandbox: (sandbox: NewSandbox) => client.request<Sandbox>("POST", "/api/sandboxes", sandbox),
  deleteSandbox: (id: string) => client.request<unknown>("DELETE", paths.sandbox(id)),
  stopSandbox: (id: string) => client.request<Sandbox>("POST", `${paths.sandbox(id)}/stop`),
  startSandbox: (id: string) => client.request<Sandbox>("POST", `${paths.sandbox(id)}/start`),
  openTerminal: (id: string, columns: number, rows: number) =>
    client.request<Session>("POST", `${paths.sandbox(id)}/terminals`, { columns, rows }),
  allowHost: (id: string, host: string, port: number, scope: Scope) =>
    client.request<NetworkRules>("POST", `${paths.network(id)}/allow`, { host, port, scope }),
  setNetwork: (id: string, rules: { mode: Network; allowedHosts?: string[]; allowedPorts?: string[]; scope: Scope }) =>
    client.request<NetworkRules>("PUT", paths.network(id), rules),
  createTask: (task: NewTask) => client.request<TaskDetails>("POST", "/api/tasks", task),
  cancelTask: (name: string) => client.request<TaskDetails>("POST", `${paths.task(name)}/cancel`),
  deleteTask: (name: string) => client.request<unknown>("DELETE", paths.task(name)),
  deleteSession: (id: string) => client.request<unknown>("DELETE", paths.session(id)),
  writeFile: (id: string, path: string, content: Blob) =>
    client.request<{ path: string; size: number }>("PUT", paths.content(id, path), content),
  saveSetting: (key: string, value: unknown) =>
    client.request<unknown>("PUT", `/api/settings/${part(key)}`, { value }),
};

/** Returns how a sandbox is called on the page. */
export function titleOf(sandbox: Sandbox): string {
  return sandbox.name || sandbox.id;
}

/** Returns the page of a sandbox. */
export function sandboxPage(id: string, tab = "terminal"): string {
  return `/sandboxes/${part(id)}/${tab}`;
}

/** Returns the page of a task. */
export function taskPage(name: string): string {
  return `/tasks/${part(name)}`;
}

/** Returns the page of a session. */
export function sessionPage(id: string): string {
  return `/sessions/${part(id)}`;
}
