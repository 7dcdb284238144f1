import { useState } from "react";
import { paths, type FileEntry } from "../api";
import { useResource } from "../live";
import { Icon } from "./icons";
import { size } from "./time";

interface TreeProps {
  sandbox: string;
  /** The directory that uploads go to. */
  directory: string;
  open: string | null;
  onDirectory: (path: string) => void;
  onFile: (entry: FileEntry) => void;
}

/** How many entries of a directory are shown before it is asked for more. */
const MOST_ENTRIES = 500;

/** The directories and files, read one directory at a time. Nested lists and buttons: every screen reader knows them. */
export function FileTree(props: TreeProps) {
  return (
    <div className="tree" data-testid="tree">
      <Directory {...props} path="/" depth={0} />
    </div>
  );
}

function Directory({ path, depth, ...props }: TreeProps & { path: string; depth: number }) {
  const { data, error, reload } = useResource<FileEntry[]>(paths.files(props.sandbox, path), [`files:${props.sandbox}`]);
  const [most, setMost] = useState(MOST_ENTRIES);
  const indent = { paddingInlineStart: `${depth * 14 + 8}px` };
  if (data === undefined) {
    return (
      <p className="tree-note" style={indent}>
        {error === null ? "Loading…" : error.message}{" "}
        {error !== null && <button type="button" className="button-text" onClick={reload}>Try again</button>}
      </p>
    );
  }
  if (data.length === 0) return <p className="tree-note" style={indent}>Empty</p>;
  const sorted = [...data].sort(
    (one, other) => Number(other.type === "directory") - Number(one.type === "directory") || one.name.localeCompare(other.name),
  );
  return (
    <ul>
      {sorted.slice(0, most).map((entry) => (
        <Entry key={entry.path} {...props} entry={entry} depth={depth} />
      ))}
      {sorted.length > most && (
        <li>
          <button type="button" className="tree-row" style={indent} onClick={() => setMost(most + MOST_ENTRIES)}>
            {sorted.length - most} more…
          </button>
        </li>
      )}
    </ul>
  );
}

function Entry({ entry, depth, ...props }: TreeProps & { entry: FileEntry; depth: number }) {
  const [expanded, setExpanded] = useState(false);
  const style = { paddingInlineStart: `${depth * 14 + 8}px` };
  if (entry.type === "directory") {
    const toggle = () => {
      props.onDirectory(entry.path);
      setExpanded(!expanded);
    };
    return (
      <li>
        <button type="button" className="tree-row" style={style} aria-expanded={expanded} onClick={toggle}>
          <span className={expanded ? "chevron is-open" : "chevron"}><Icon name="chevron" /></span>
          <Icon name="folder" />
          <span className="clip">{entry.name}</span>
        </button>
        {expanded && <Directory {...props} path={entry.path} depth={depth + 1} />}
      </li>
    );
  }
  return (
    <li>
      <button
        type="button" className="tree-row" style={style} aria-current={props.open === entry.path ? "true" : undefined}
        onClick={() => props.onFile(entry)}
        // Reading a device or a pipe may never end.
        disabled={entry.type === "other"}
      >
        <span className="chevron" />
        <Icon name={entry.type === "symlink" ? "link" : "file"} />
        <span className="clip">{entry.name}</span>
        <span className="tree-size">{entry.type === "file" ? size(entry.size) : entry.type === "symlink" ? "link" : "special"}</span>
      </button>
    </li>
  );
}
