// The settings as the service keeps them, and as the form has them.

import { api, client } from "./api";

export type RuntimeClass = "none" | "gvisor" | "kata";

export type Provider = "warren" | "kubernetes" | "docker";

export interface Defaults {
  provider?: Provider;
  image?: string;
  memoryMb?: number;
  cpuCores?: number;
  [other: string]: unknown;
}

export interface Kubernetes {
  namespace?: string;
  kubeConfigPath?: string;
  kubeContext?: string;
  runtimeClassName?: RuntimeClass;
  [other: string]: unknown;
}

export interface Settings {
  defaults: Defaults;
  kubernetes: Kubernetes;
  mode: "shared" | "per-project";
}

export interface ClusterStatus {
  healthy: boolean;
  message?: string | null;
  [other: string]: unknown;
}

export interface ControllerStatus {
  installed: boolean;
  version?: string | null;
  crdVersion?: string | null;
}

function object(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
}

/** Reads the answer of `GET /api/settings`. */
export function readSettings(answer: unknown): Settings {
  const outer = object(answer);
  const all = object(outer.settings ?? outer);
  return {
    defaults: object(all["sandbox.defaults"]) as Defaults,
    kubernetes: object(all["sandbox.kubernetes"]) as Kubernetes,
    mode: all["sandbox.mode"] === "shared" ? "shared" : "per-project",
  };
}

/** Drops what is not set, so that the service's own defaults apply. */
export function compact<T extends Record<string, unknown>>(value: T): T {
  const kept = Object.entries(value).filter(([, one]) => one !== undefined && one !== "" && !Number.isNaN(one));
  return Object.fromEntries(kept) as T;
}

/** Writes all settings. Those of the cluster only if it is what runs sandboxes. */
export async function saveSettings(settings: Settings): Promise<void> {
  await api.saveSetting("sandbox.defaults", compact(settings.defaults));
  await api.saveSetting("sandbox.mode", settings.mode);
  if (settings.defaults.provider === "kubernetes") {
    await api.saveSetting("sandbox.kubernetes", compact(settings.kubernetes));
  }
}

/** Asks for the cluster and for the controller at once. Neither waits for the other or hides its failure. */
export async function testConnection(
  kubernetes: Kubernetes,
): Promise<{ cluster: ClusterStatus; controller: ControllerStatus; controllerError: string | null }> {
  const query = new URLSearchParams();
  if (kubernetes.kubeConfigPath) query.set("kubeconfigPath", kubernetes.kubeConfigPath);
  if (kubernetes.kubeContext) query.set("context", kubernetes.kubeContext);
  const [cluster, controller] = await Promise.allSettled([
    client.request<ClusterStatus>("GET", `/api/sandbox/k8s/status?${query}`),
    client.request<ControllerStatus>("GET", "/api/sandbox/k8s/controller"),
  ]);
  return {
    cluster: cluster.status === "fulfilled" ? cluster.value : { healthy: false, message: reason(cluster.reason) },
    controller: controller.status === "fulfilled" ? controller.value : { installed: false },
    controllerError: controller.status === "fulfilled" ? null : reason(controller.reason),
  };
}

function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Returns the names in an answer that is a list, or an object with one list in it. */
export function namesIn(answer: unknown): string[] {
  const list = Array.isArray(answer) ? answer : Object.values(object(answer)).find(Array.isArray);
  const names = (list ?? []).map((one: unknown) => (typeof one === "string" ? one : object(one).name));
  return names.filter((name: unknown): name is string => typeof name === "string");
}
