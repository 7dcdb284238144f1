import { useCallback, useEffect, useState, type FormEvent } from "react";
import { ErrorNote, Loading } from "../components/feedback";
import { Choice, TextField } from "../components/fields";
import { notify } from "../components/toasts";
import { invalidate, useResource } from "../live";
import { readSettings, saveSettings, type Defaults, type Kubernetes, type Settings } from "../settings";
import { KubernetesSection } from "./settings_kubernetes";

const MODES = [
  { value: "per-project", label: "Per project", hint: "each project has its own" },
  { value: "shared", label: "Shared", hint: "one sandbox for all projects" },
] as const;

const PROVIDERS = [
  { value: "warren", label: "Warren", hint: "on the machine of the service" },
  { value: "kubernetes", label: "Kubernetes", hint: "on a cluster" },
  { value: "docker", label: "Docker", hint: "on a Docker engine of the same machine" },
] as const;

/** What new sandboxes are made with, and where. */
export function SettingsPage() {
  const { data, error, reload } = useResource<unknown>("/api/settings");
  const [settings, setSettings] = useState<Settings | null>(null);
  const [saving, setSaving] = useState(false);
  const [saveError, setSaveError] = useState<Error | null>(null);
  useEffect(() => {
    // An answer that comes later does not overwrite a setting that is being edited.
    if (data !== undefined) setSettings((before) => before ?? readSettings(data));
  }, [data]);
  const setKubernetes = useCallback((change: Kubernetes) => {
    setSettings((before) => before && { ...before, kubernetes: { ...before.kubernetes, ...change } });
  }, []);
  if (settings === null) {
    if (error === null) return <Loading page />;
    return <ErrorNote title="Could not read the settings" error={error} action={{ label: "Try again", run: reload }} />;
  }
  const setDefaults = (change: Defaults) => setSettings({ ...settings, defaults: { ...settings.defaults, ...change } });
  const save = async (event: FormEvent) => {
    event.preventDefault();
    setSaving(true);
    setSaveError(null);
    try {
      await saveSettings(settings);
      notify("done", "The settings were saved.");
      reload();
      invalidate("pools");
    } catch (failed) {
      setSaveError(failed as Error);
    } finally {
      setSaving(false);
    }
  };
  return (
    <div className="page page-narrow">
      <title>Settings · Warren</title>
      <div className="page-head">
        <div>
          <h1>Settings</h1>
          <p className="page-sub">They apply to sandboxes that are made from now on.</p>
        </div>
      </div>
      <form className="form" onSubmit={(event) => void save(event)}>
        <DefaultsSection defaults={settings.defaults} set={setDefaults} />
        <section className="panel">
          <h2>Where sandboxes run</h2>
          <Choice
            label="Provider" value={settings.defaults.provider ?? "warren"} options={PROVIDERS}
            onChange={(provider) => setDefaults({ provider })}
          />
          <Choice
            label="Sandboxes of projects" value={settings.mode} options={MODES}
            onChange={(mode) => setSettings({ ...settings, mode })}
          />
          <p className="quiet">A change of the provider or the cluster takes effect when the service starts again.</p>
        </section>
        {settings.defaults.provider === "kubernetes" && (
          <KubernetesSection kubernetes={settings.kubernetes} set={setKubernetes} />
        )}
        {saveError !== null && <ErrorNote title="The settings were not saved" error={saveError} />}
        <div className="form-actions is-sticky">
          <button type="submit" className="button button-primary" disabled={saving}>
            {saving ? "Saving…" : "Save the settings"}
          </button>
        </div>
      </form>
    </div>
  );
}

function DefaultsSection({ defaults, set }: { defaults: Defaults; set: (change: Defaults) => void }) {
  const number = (text: string) => (text === "" ? Number.NaN : Number(text));
  const shown = (value: number | undefined) => (value === undefined || Number.isNaN(value) ? "" : String(value));
  return (
    <section className="panel">
      <h2>New sandboxes</h2>
      <TextField
        label="Image" value={defaults.image ?? ""} placeholder="warren.dev/host"
        hint="What is used where a sandbox names none." onChange={(event) => set({ image: event.target.value })}
      />
      <div className="columns">
        <TextField
          label="Memory" unit="MiB" type="number" min={512} max={32768} placeholder="default"
          value={shown(defaults.memoryMb)} onChange={(event) => set({ memoryMb: number(event.target.value) })}
        />
        <TextField
          label="Processors" unit="cores" type="number" min={0.5} max={16} step={0.5} placeholder="default"
          value={shown(defaults.cpuCores)} onChange={(event) => set({ cpuCores: number(event.target.value) })}
        />
      </div>
    </section>
  );
}
