import { useEffect, useState } from "react";
import { WarrenError } from "warren-react";
import { api, client, paths, type FileEntry } from "../api";
import { EmptyState, ErrorNote, Loading } from "../components/feedback";
import { Icon } from "../components/icons";
import { size } from "../components/time";
import { notify } from "../components/toasts";
import { invalidate } from "../live";
import { download } from "./sandbox_files";

/** The largest file that is edited in the browser. */
const LARGEST_EDITED = 1024 * 1024;

type Content =
  | { kind: "loading" }
  | { kind: "failed"; error: Error }
  | { kind: "large" }
  | { kind: "binary"; size: number }
  // Text areas know only `\n`; a file of `\r\n` lines is written as it was.
  | { kind: "text"; text: string; windowsLines: boolean };

interface FileViewProps {
  sandbox: string;
  entry: FileEntry;
  onDirty: (dirty: boolean) => void;
  onClose: () => void;
}

/** A file: its text to be edited, or what else it is. */
export function FileView({ sandbox, entry, onDirty, onClose }: FileViewProps) {
  const [content, setContent] = useState<Content>({ kind: "loading" });
  const [text, setText] = useState("");
  const [saving, setSaving] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const [attempts, setAttempts] = useState(0);
  useEffect(() => {
    const controller = new AbortController();
    void read(sandbox, entry, controller.signal).then((read) => {
      if (controller.signal.aborted) return;
      setContent(read);
      if (read.kind === "text") setText(read.text);
    });
    return () => controller.abort();
  }, [sandbox, entry, attempts]);

  const dirty = content.kind === "text" && text !== content.text;
  useEffect(() => {
    onDirty(dirty);
    if (!dirty) return;
    const ask = (event: BeforeUnloadEvent) => event.preventDefault();
    window.addEventListener("beforeunload", ask);
    return () => window.removeEventListener("beforeunload", ask);
  }, [dirty, onDirty]);

  const save = async () => {
    if (content.kind !== "text" || !dirty || saving) return;
    setSaving(true);
    setError(null);
    try {
      await api.writeFile(sandbox, entry.path, new Blob([content.windowsLines ? text.replaceAll("\n", "\r\n") : text]));
      setContent({ ...content, text });
      notify("done", `${entry.path} was saved.`);
      invalidate(`files:${sandbox}`);
    } catch (failed) {
      setError(failed as Error);
    } finally {
      setSaving(false);
    }
  };

  return (
    <>
      <div className="files-bar">
        <span className="mono clip" title={entry.path}>{entry.path}</span>
        {dirty && <span className="row-note" role="status">not saved</span>}
        <button type="button" className="button button-small" onClick={() => void download(sandbox, entry)}>
          <Icon name="download" /> Download
        </button>
        {content.kind === "text" && (
          <button
            type="button" className="button button-small button-primary" disabled={!dirty || saving}
            onClick={() => void save()} title="Ctrl-S"
          >
            {saving ? "Saving…" : "Save"}
          </button>
        )}
        <button type="button" className="button-icon" aria-label="Close the file" onClick={onClose}><Icon name="close" /></button>
      </div>
      {error !== null && <ErrorNote title={`${entry.name} was not saved`} error={error} action={{ label: "Try again", run: () => void save() }} />}
      {content.kind === "loading" && <Loading label={`Reading ${entry.name}`} />}
      {content.kind === "failed" && (
        <ErrorNote
          title={`${entry.name} could not be read`} error={content.error}
          action={{ label: "Try again", run: () => setAttempts(attempts + 1) }}
        />
      )}
      {content.kind === "large" && (
        <EmptyState title={`${entry.name} has ${size(entry.size)}`} text={`Files of up to ${size(LARGEST_EDITED)} are shown here. Download it instead.`} />
      )}
      {content.kind === "binary" && (
        <EmptyState title={`${entry.name} is not plain text`} text={`It has ${size(content.size)}, and bytes that this editor would change. Download it instead.`} />
      )}
      {content.kind === "text" && (
        <textarea
          className="editor mono" aria-label={`Content of ${entry.path}`} spellCheck={false} value={text} wrap="off"
          onChange={(event) => setText(event.target.value)}
          onKeyDown={(event) => {
            if (event.key.toLowerCase() !== "s" || !(event.ctrlKey || event.metaKey)) return;
            event.preventDefault();
            void save();
          }}
        />
      )}
    </>
  );
}

async function read(sandbox: string, entry: FileEntry, signal: AbortSignal): Promise<Content> {
  if (entry.type === "file" && entry.size > LARGEST_EDITED) return { kind: "large" };
  try {
    const blob = await client.download(paths.content(sandbox, entry.path), signal);
    const bytes = new Uint8Array(await blob.arrayBuffer());
    if (bytes.length > LARGEST_EDITED || bytes.includes(0)) return { kind: "binary", size: bytes.length };
    // Text that is not UTF-8 would come back changed.
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    const plain = text.replaceAll("\r\n", "\n");
    const windowsLines = plain !== text;
    const mixed = plain.includes("\r") || (windowsLines && plain.replaceAll("\n", "\r\n") !== text);
    return mixed ? { kind: "binary", size: bytes.length } : { kind: "text", text: plain, windowsLines };
  } catch (error) {
    if (error instanceof TypeError) return { kind: "binary", size: entry.size };
    return { kind: "failed", error: error instanceof WarrenError ? error : (error as Error) };
  }
}
