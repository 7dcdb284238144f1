import { useState, type FormEvent } from "react";
import { WarrenError } from "warren-react";
import { api, paths, type Network, type NetworkRules, type Refusal, type Sandbox } from "../api";
import { Confirm } from "../components/dialog";
import { Badge, EmptyState, ErrorNote, Loading } from "../components/feedback";
import { AreaField, Choice, TextField } from "../components/fields";
import { Ago } from "../components/time";
import { attempt, notify } from "../components/toasts";
import { invalidate, useResource } from "../live";
import { plainLine } from "../text";

const MODES = [
  { value: "restricted", label: "Restricted", hint: "only named hosts, through a proxy" },
  { value: "none", label: "None", hint: "no way out" },
  { value: "full", label: "Full", hint: "everything but this machine" },
] as const;

/** What a sandbox may reach, and what it was refused. */
export function NetworkTab({ sandbox }: { sandbox: Sandbox }) {
  const { data, error, reload } = useResource<NetworkRules>(paths.network(sandbox.id), ["network", "sandboxes"]);
  if (error instanceof WarrenError && error.code === "NETWORK_NOT_LIMITED") {
    return <EmptyState title="Nothing limits this network" text="The provider that runs this sandbox does not limit what it reaches." />;
  }
  if (data === undefined) {
    if (error === null) return <Loading />;
    return <ErrorNote title="Could not read the network" error={error} action={{ label: "Try again", run: reload }} />;
  }
  return (
    <div className="network">
      {data.template !== null && (
        <p className="note network-note">
          <span>
            This sandbox was made from the template <code>{data.template}</code> and follows it: what is changed here is
            changed for every sandbox of the template. Pools may replace members that wait.
          </span>
        </p>
      )}
      <section>
        <h2>Refused</h2>
        <Refusals sandbox={sandbox} rules={data} />
      </section>
      <section>
        <h2>What it may reach</h2>
        <Editor key={sandbox.id} sandbox={sandbox} rules={data} />
      </section>
    </div>
  );
}

const NOTHING: Record<Network, { title: string; text: string }> = {
  restricted: { title: "Nothing was refused", text: "A host that the egress proxy refuses to this sandbox appears here at once." },
  full: { title: "Nothing is refused", text: "With a full network no host is looked up in the lists." },
  none: { title: "There is no network", text: "Without a network no program gets as far as the proxy." },
};

function Refusals({ sandbox, rules }: { sandbox: Sandbox; rules: NetworkRules }) {
  if (rules.refused.length === 0) {
    const { title, text } = NOTHING[rules.mode] ?? NOTHING.restricted;
    return <EmptyState title={title} text={text} />;
  }
  return (
    <div className="table-frame">
      <table className="table table-cards" data-testid="refused">
        <thead>
          <tr>
            <th scope="col">Host</th>
            <th scope="col">Why</th>
            <th scope="col">First refused</th>
            <th scope="col"><span className="hidden">What can be done</span></th>
          </tr>
        </thead>
        <tbody>
          {rules.refused.map((refusal) => (
            <tr key={`${refusal.host} ${refusal.port}`}>
              <th scope="row" className="mono isolated">{targetOf(refusal)}</th>
              <td className="wrap">{plainLine(refusal.reason)}</td>
              <td data-label="First refused"><Ago at={refusal.at} /></td>
              <td className="row-actions"><Remedy sandbox={sandbox} rules={rules} refusal={refusal} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function targetOf(refusal: Refusal): string {
  return `${plainLine(refusal.host)}:${refusal.port}`;
}

const HELP: Record<Exclude<Refusal["remedy"], "allow">, string> = {
  address: "Allow its address below, not its name.",
  policy: "A NetworkPolicy denies it.",
  none: "Cannot be allowed.",
};

/** The one click, or why there is none. */
function Remedy({ sandbox, rules, refusal }: { sandbox: Sandbox; rules: NetworkRules; refusal: Refusal }) {
  const [busy, setBusy] = useState(false);
  const [asking, setAsking] = useState(false);
  const target = targetOf(refusal);
  if (refusal.allowed) return <Badge tone="good">Allowed now</Badge>;
  if (refusal.remedy !== "allow") return <span className="quiet network-help">{HELP[refusal.remedy]}</span>;
  const allow = async () => {
    setAsking(false);
    setBusy(true);
    const scope = rules.template === null ? "sandbox" : "template";
    const done = await attempt(`Allowing ${target} failed`, () => api.allowHost(sandbox.id, refusal.host, refusal.port, scope));
    if (done) notify("done", `${target} is allowed.`);
    invalidate("network");
    setBusy(false);
  };
  return (
    <>
      <button
        type="button" className="button button-small" disabled={busy} aria-label={`Allow ${target}`}
        onClick={() => (rules.template === null ? void allow() : setAsking(true))}
      >
        {rules.template === null ? "Allow" : "Allow for the template"}
      </button>
      {asking && (
        <Confirm
          title={`Allow ${target} for the template ${rules.template}?`}
          text="Every sandbox of this template may reach it then, those that run included."
          confirm={`Allow ${target}`} tone="primary" onConfirm={() => void allow()} onClose={() => setAsking(false)}
        />
      )}
    </>
  );
}

interface Draft {
  mode: Network;
  hosts: string;
  ports: string;
}

function draftOf(rules: NetworkRules): Draft {
  return { mode: rules.mode, hosts: rules.allowedHosts.join("\n"), ports: rules.allowedPorts.join(", ") };
}

function entries(text: string): string[] {
  return text.split(/[\s,]+/).filter(Boolean);
}

/** The lists. What others change is shown until the first edit. */
function Editor({ sandbox, rules }: { sandbox: Sandbox; rules: NetworkRules }) {
  const [draft, setDraft] = useState<Draft | null>(null);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const shown = draft ?? draftOf(rules);
  const set = (change: Partial<Draft>) => setDraft({ ...shown, ...change });
  const save = async (event: FormEvent) => {
    event.preventDefault();
    setError(null);
    setBusy(true);
    try {
      await api.setNetwork(sandbox.id, {
        mode: shown.mode,
        ...(shown.mode === "restricted" ? { allowedHosts: entries(shown.hosts), allowedPorts: entries(shown.ports) } : {}),
        scope: rules.template === null ? "sandbox" : "template",
      });
      const restart = shown.mode !== rules.mode && sandbox.status === "running";
      notify("done", restart ? "Saved. The mode applies when the sandbox was stopped and started." : "The network was saved.");
      invalidate("network");
      setDraft(null);
    } catch (refused) {
      setError(refused as Error);
    }
    setBusy(false);
  };
  return (
    <form className="form panel" onSubmit={(event) => void save(event)}>
      <Choice label="Mode" value={shown.mode} options={MODES} onChange={(mode) => set({ mode })} />
      {shown.mode !== rules.mode && sandbox.status === "running" && (
        <p className="field-hint">A running sandbox keeps its mode until it was stopped and started again.</p>
      )}
      {shown.mode === "restricted" && (
        <div className="columns network-lists">
          <AreaField
            label="Allowed hosts" rows={6} value={shown.hosts} onChange={(hosts) => set({ hosts })}
            hint={`Names, “*.” and a name, “*”, or blocks of addresses.${rules.defaultHosts ? " These are the defaults." : ""}`}
          />
          <TextField
            label="Allowed ports" value={shown.ports} onChange={(event) => set({ ports: event.target.value })}
            hint={`Such as 443, 8000-8100.${rules.defaultPorts ? " These are the defaults." : ""}`}
          />
        </div>
      )}
      {error !== null && <ErrorNote title="The network was not saved" error={error} />}
      <div className="form-actions">
        <button type="submit" className="button button-primary" disabled={busy || draft === null}>
          {busy ? "Saving…" : rules.template === null ? "Save the network" : "Save for the template"}
        </button>
        {draft !== null && <button type="button" className="button" onClick={() => setDraft(null)}>Discard</button>}
      </div>
      <p className="field-hint">Changed lists apply to new connections of running programs at once.</p>
    </form>
  );
}
