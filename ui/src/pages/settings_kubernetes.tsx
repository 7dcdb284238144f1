import { useCallback, useEffect, useId, useRef, useState } from "react";
import { Icon } from "../components/icons";
import { SelectField, TextField } from "../components/fields";
import { Prose } from "../components/prose";
import { useResource } from "../live";
import {
  namesIn, testConnection, type ClusterStatus, type ControllerStatus, type Kubernetes, type RuntimeClass,
} from "../settings";

interface SectionProps {
  kubernetes: Kubernetes;
  set: (change: Kubernetes) => void;
}

interface Tested {
  cluster: ClusterStatus;
  controller: ControllerStatus;
  controllerError: string | null;
}

/** Where sandboxes are made: the controller, the cluster, the runtime class. */
export function KubernetesSection({ kubernetes, set }: SectionProps) {
  const [tested, setTested] = useState<Tested | null>(null);
  const [testing, setTesting] = useState(false);
  const asked = useRef(kubernetes);
  asked.current = kubernetes;
  const test = useCallback(async () => {
    setTesting(true);
    setTested(await testConnection(asked.current));
    setTesting(false);
  }, []);
  useEffect(() => void test(), [test]);
  return (
    <section className="panel">
      <div className="panel-head">
        <h2>Kubernetes configuration</h2>
        <button
          type="button" className="button button-small" onClick={() => void test()} disabled={testing}
          data-testid="k8s-test-connection"
        >
          {testing ? "Testing…" : "Test connection"}
        </button>
      </div>
      <Controller tested={tested} testing={testing} />
      {tested !== null && <Cluster cluster={tested.cluster} />}
      <Where kubernetes={kubernetes} set={set} />
      <SelectField
        id="k8s-runtime-class" label="Runtime class" data-testid="k8s-runtime-class-select"
        value={kubernetes.runtimeClassName ?? "none"}
        hint="gVisor isolates with a kernel in user space at low overhead. Kata uses small virtual machines. The default is the cluster's standard runtime."
        onChange={(event) => set({ runtimeClassName: event.target.value as RuntimeClass })}
      >
        <option value="none">Default (runc)</option>
        <option value="gvisor">gVisor (runsc) -- Recommended</option>
        <option value="kata">Kata Containers (VM isolation)</option>
      </SelectField>
    </section>
  );
}

function Controller({ tested, testing }: { tested: Tested | null; testing: boolean }) {
  if (tested === null || testing) {
    return <StatusLine tone="busy" title="Checking controller..." testId="k8s-controller-status" />;
  }
  const { controller, controllerError } = tested;
  if (!controller.installed) {
    return (
      <StatusLine
        tone="bad" title="Controller Not Installed" testId="k8s-controller-status"
        text={controllerError ?? "Install the Agent Sandbox CRD controller to use Kubernetes sandboxes"}
      />
    );
  }
  const version = controller.version == null ? null : `v${controller.version.replace(/^v/, "")}`;
  const facts = [version, controller.crdVersion == null ? null : `CRD ${controller.crdVersion}`];
  return (
    <StatusLine
      tone="good" title="Agent Sandbox Controller" testId="k8s-controller-status"
      text={facts.filter((fact) => fact !== null).join(" · ")}
    />
  );
}

function Cluster({ cluster }: { cluster: ClusterStatus }) {
  const facts = Object.entries(cluster).filter(
    ([name, value]) => !["healthy", "message"].includes(name) && (typeof value === "string" || typeof value === "number"),
  );
  return (
    <>
      <StatusLine
        tone={cluster.healthy ? "good" : "bad"} title={cluster.healthy ? "Cluster reached" : "Cluster not reached"}
        text={cluster.message ?? ""} testId="k8s-cluster-status"
      />
      {facts.length > 0 && (
        <dl className="facts">
          {facts.map(([name, value]) => (
            <div key={name}><dt>{spaced(name)}</dt><dd className="mono wrap">{String(value)}</dd></div>
          ))}
        </dl>
      )}
    </>
  );
}

/** Turns `serverVersion` into `Server version`. */
function spaced(name: string): string {
  const words = name.replace(/([a-z0-9])([A-Z])/g, "$1 $2").toLowerCase();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

interface LineProps {
  tone: "good" | "bad" | "busy";
  title: string;
  text?: string;
  testId: string;
}

function StatusLine({ tone, title, text = "", testId }: LineProps) {
  return (
    <div className={`status-line status-${tone}`} data-testid={testId} role="status">
      <span className="status-mark" aria-hidden="true">
        {tone === "busy" ? <span className="spinner" /> : <Icon name={tone === "good" ? "check" : "warning"} />}
      </span>
      <div>
        <p className="status-title">{title}</p>
        {text !== "" && <p className="status-text"><Prose text={text} /></p>}
      </div>
    </div>
  );
}

function Where({ kubernetes, set }: SectionProps) {
  const contexts = namesIn(useResource<unknown>("/api/sandbox/k8s/contexts").data);
  const namespaces = namesIn(useResource<unknown>("/api/sandbox/k8s/namespaces").data);
  const id = useId();
  return (
    <>
      <TextField
        label="Kubeconfig" value={kubernetes.kubeConfigPath ?? ""} placeholder="the usual places"
        hint="The path of a file on the machine of the service." onChange={(event) => set({ kubeConfigPath: event.target.value })}
      />
      <div className="columns">
        <TextField
          label="Context" value={kubernetes.kubeContext ?? ""} placeholder="the current one" list={`${id}-contexts`}
          onChange={(event) => set({ kubeContext: event.target.value })}
        />
        <TextField
          label="Namespace" value={kubernetes.namespace ?? ""} placeholder="default" list={`${id}-namespaces`}
          onChange={(event) => set({ namespace: event.target.value })}
        />
      </div>
      <datalist id={`${id}-contexts`}>{contexts.map((name) => <option key={name} value={name} />)}</datalist>
      <datalist id={`${id}-namespaces`}>{namespaces.map((name) => <option key={name} value={name} />)}</datalist>
    </>
  );
}
