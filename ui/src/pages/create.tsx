import { useState, type FormEvent } from "react";
import { api, sandboxPage, type Network, type NewSandbox, type Pool } from "../api";
import { ErrorNote } from "../components/feedback";
import { AreaField, Choice, SelectField, TextField } from "../components/fields";
import { environment } from "../environment";
import { invalidate, useResource } from "../live";
import { Link, navigate } from "../router";

type From = "default" | "image" | "pool" | "template";

const FROM = [
  { value: "default", label: "Default", hint: "as the settings say" },
  { value: "image", label: "Image", hint: "any OCI image" },
  { value: "pool", label: "Warm pool", hint: "ready at once" },
  { value: "template", label: "Template", hint: "one of this namespace" },
] as const;

const NETWORKS = [
  { value: "restricted", label: "Restricted", hint: "only named hosts, through a proxy" },
  { value: "none", label: "None", hint: "no way out" },
  { value: "full", label: "Full", hint: "everything but this machine" },
] as const;

interface Form {
  projectId: string;
  from: From;
  image: string;
  pool: string;
  template: string;
  memoryMb: string;
  cpuCores: string;
  env: string;
  network: Network;
  allowedHosts: string;
}

const EMPTY: Form = {
  projectId: "", from: "default", image: "", pool: "", template: "", memoryMb: "", cpuCores: "", env: "",
  network: "restricted", allowedHosts: "",
};

/** Returns what is sent to the service, or the first line of `env` that is not `NAME=value`. */
function toRequest(form: Form, pool: string): { request: NewSandbox } | { wrong: string } {
  const request: NewSandbox = {};
  if (form.projectId.trim() !== "") request.projectId = form.projectId.trim();
  if (form.from === "image") request.image = form.image.trim();
  if (form.from === "template") request.template = form.template.trim();
  if (form.from === "pool") request.pool = pool;
  if (isOwn(form.from)) {
    if (form.memoryMb !== "") request.memoryMb = Number(form.memoryMb);
    if (form.cpuCores !== "") request.cpuCores = Number(form.cpuCores);
    request.network = form.network;
    const hosts = form.allowedHosts.split(/[\s,]+/).filter(Boolean);
    if (form.network === "restricted" && hosts.length > 0) request.allowedHosts = hosts;
  }
  const env = environment(form.env);
  if ("wrong" in env) return env;
  if (Object.keys(env.variables).length > 0) request.env = env.variables;
  return { request };
}

/** Returns true if limits and network are ours to choose. Of pools and templates, the template says them. */
function isOwn(from: From): boolean {
  return from === "default" || from === "image";
}

/** A form for a new sandbox. Everything in it may be left as it is. */
export function CreatePage() {
  const [form, setForm] = useState(EMPTY);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const [envError, setEnvError] = useState<string | null>(null);
  const pools = useResource<Pool[]>("/api/pools", ["pools"]).data;
  const set = (change: Partial<Form>) => setForm((before) => ({ ...before, ...change }));
  const pool = form.pool || (pools?.[0]?.name ?? "");
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    const made = toRequest(form, pool);
    if ("wrong" in made) return setEnvError(`“${made.wrong}” is not NAME=value.`);
    setEnvError(null);
    setError(null);
    setBusy(true);
    try {
      const sandbox = await api.createSandbox(made.request);
      invalidate("sandboxes");
      navigate(sandboxPage(sandbox.id));
    } catch (refused) {
      setError(refused as Error);
      setBusy(false);
    }
  };
  const own = isOwn(form.from);
  return (
    <div className="page page-narrow">
      <title>Create a sandbox · Warren</title>
      <div className="page-head"><h1>Create a sandbox</h1></div>
      <form className="form" onSubmit={(event) => void submit(event)}>
        <TextField
          label="Project" hint="Optional. A name to find it by." value={form.projectId} maxLength={63}
          onChange={(event) => set({ projectId: event.target.value })}
        />
        <Choice label="Made from" value={form.from} options={FROM} onChange={(from) => set({ from })} />
        <Source form={form} set={set} pools={pools} pool={pool} />
        {own && (
          <>
            <Choice label="Network" value={form.network} options={NETWORKS} onChange={(network) => set({ network })} />
            {form.network === "restricted" && (
              <AreaField
                label="Allowed hosts" rows={3} placeholder={"github.com\n*.example.org"} value={form.allowedHosts}
                hint="One on each line. Empty: GitHub and jsDelivr." onChange={(allowedHosts) => set({ allowedHosts })}
              />
            )}
          </>
        )}
        <details className="more-options">
          <summary>{own ? "Limits and environment" : "Environment"}</summary>
          {own && (
            <div className="columns">
              <TextField
                label="Memory" unit="MiB" type="number" min={512} max={32768} step={1} placeholder="default"
                value={form.memoryMb} onChange={(event) => set({ memoryMb: event.target.value })}
              />
              <TextField
                label="Processors" unit="cores" type="number" min={0.5} max={16} step={0.5} placeholder="default"
                value={form.cpuCores} onChange={(event) => set({ cpuCores: event.target.value })}
              />
            </div>
          )}
          <AreaField
            label="Environment" rows={3} placeholder="NAME=value" hint="One variable on each line." value={form.env}
            error={envError} onChange={(env) => set({ env })}
          />
        </details>
        {error !== null && <ErrorNote title="The sandbox was not created" error={error} />}
        <div className="form-actions">
          <button type="submit" className="button button-primary" disabled={busy || (form.from === "pool" && pool === "")}>
            {busy ? "Creating…" : "Create the sandbox"}
          </button>
          <Link className="button" href="/">Cancel</Link>
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
    return <p className="note">There are no pools. Apply a SandboxWarmPool with kubectl first.</p>;
  }
  return (
    <SelectField label="Pool" value={pool} onChange={(event) => set({ pool: event.target.value })}>
      {pools?.map((one) => (
        <option key={one.name} value={one.name}>{`${one.name} (${one.ready} of ${one.replicas} ready)`}</option>
      ))}
    </SelectField>
  );
}
