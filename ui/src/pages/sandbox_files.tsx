import { useRef, useState, type DragEvent } from "react";
import { api, client, paths, type FileEntry, type Sandbox } from "../api";
import { EmptyState } from "../components/feedback";
import { FileTree } from "../components/file_tree";
import { Icon } from "../components/icons";
import { size } from "../components/time";
import { attempt, notify } from "../components/toasts";
import { invalidate, useResource } from "../live";
import { FileView } from "./file_view";

/** The largest file that the service takes. */
const LARGEST_UPLOAD = 8 * 1024 * 1024;

/** Returns the path of a name in a directory. */
export function join(directory: string, name: string): string {
  return directory.endsWith("/") ? directory + name : `${directory}/${name}`;
}

/** The files of a sandbox: a tree, and the one that is open. */
export function FilesTab({ sandbox }: { sandbox: Sandbox }) {
  const [directory, setDirectory] = useState("/");
  const [open, setOpen] = useState<FileEntry | null>(null);
  const [dragging, setDragging] = useState(false);
  const [dirty, setDirty] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  if (sandbox.status !== "running") {
    return <EmptyState title={`The sandbox is ${sandbox.status}`} text="Its files can be read while it runs." />;
  }
  const leave = () => !dirty || window.confirm(`${open?.name ?? "The file"} has changes that are not saved. Leave it?`);
  const choose = (entry: FileEntry) => {
    if (entry.path === open?.path || !leave()) return;
    setDirty(false);
    setOpen(entry);
  };
  const upload = async (files: readonly File[]) => {
    for (const file of files) {
      if (file.size > LARGEST_UPLOAD) {
        notify("error", `${file.name} has ${size(file.size)}. Use \`warren cp\` for more than ${size(LARGEST_UPLOAD)}.`);
        continue;
      }
      const path = join(directory, file.name);
      if (await attempt(`Uploading ${file.name} failed`, () => api.writeFile(sandbox.id, path, file))) {
        notify("done", `${path} was uploaded, ${size(file.size)}.`);
      }
    }
    invalidate(`files:${sandbox.id}`);
  };
  const drop = (event: DragEvent) => {
    event.preventDefault();
    setDragging(false);
    void upload([...event.dataTransfer.files]);
  };
  return (
    <div className={open === null ? "files" : "files has-open"}>
      <section
        className={dragging ? "files-tree is-dragging" : "files-tree"} aria-label="Files" onDrop={drop}
        onDragOver={(event) => {
          event.preventDefault();
          setDragging(true);
        }}
        onDragLeave={() => setDragging(false)}
      >
        <div className="files-bar">
          <span className="mono clip" title={directory}>{directory}</span>
          <NewFile sandbox={sandbox} directory={directory} onMade={choose} />
          <button type="button" className="button button-small" onClick={() => input.current?.click()}>
            <Icon name="upload" /> Upload
          </button>
          <input
            ref={input} type="file" multiple hidden data-testid="upload"
            onChange={(event) => {
              void upload([...(event.target.files ?? [])]);
              event.target.value = "";
            }}
          />
        </div>
        <FileTree sandbox={sandbox.id} directory={directory} open={open?.path ?? null} onDirectory={setDirectory} onFile={choose} />
        {dragging && <p className="files-drop">Drop to upload to {directory}</p>}
      </section>
      <section className="files-view" aria-label="File">
        {open === null ? (
          <EmptyState title="No file is open" text="Choose one in the tree, or drop files on it to upload them." />
        ) : (
          <FileView
            key={open.path} sandbox={sandbox.id} entry={open} onDirty={setDirty}
            onClose={() => {
              if (!leave()) return;
              setDirty(false);
              setOpen(null);
            }}
          />
        )}
      </section>
    </div>
  );
}

interface NewFileProps {
  sandbox: Sandbox;
  directory: string;
  onMade: (entry: FileEntry) => void;
}

function NewFile({ sandbox, directory, onMade }: NewFileProps) {
  const { data } = useResource<FileEntry[]>(paths.files(sandbox.id, directory), [`files:${sandbox.id}`]);
  const make = async () => {
    const name = window.prompt(`Name of the new file in ${directory}`)?.trim();
    if (name === undefined || name === "") return;
    if (data?.some((entry) => entry.name === name) === true) return notify("error", `${name} is already there.`);
    const path = join(directory, name);
    if (!(await attempt(`${name} was not made`, () => api.writeFile(sandbox.id, path, new Blob([]))))) return;
    invalidate(`files:${sandbox.id}`);
    onMade({ name, path, type: "file", size: 0, modifiedAt: null });
  };
  return (
    <button type="button" className="button button-small" onClick={() => void make()}><Icon name="plus" /> New file</button>
  );
}

/** Gives a file to the browser's downloads. */
export async function download(sandbox: string, entry: FileEntry): Promise<void> {
  await attempt(`Downloading ${entry.name} failed`, async () => {
    const blob = await client.download(paths.content(sandbox, entry.path));
    const address = URL.createObjectURL(blob);
    const link = document.createElement("a");
    link.href = address;
    link.download = entry.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  });
}
