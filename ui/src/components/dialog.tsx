import { useEffect, useId, useRef, type ReactNode } from "react";

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ReactNode;
  /** Another look than the usual one. */
  className?: string;
}

/** A modal dialog. The browser keeps the focus in it and gives it back. */
export function Dialog({ title, onClose, children, className = "" }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useEffect(() => {
    const dialog = element.current;
    if (dialog !== null && !dialog.open) dialog.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog
      ref={element}
      className={`dialog ${className}`}
      aria-labelledby={heading}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => event.target === element.current && onClose()}
    >
      <div className="dialog-body">
        <h2 id={heading}>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

interface ConfirmProps {
  title: string;
  text: ReactNode;
  confirm: string;
  /** The other answer, where “Cancel” would be unclear. */
  dismiss?: string;
  /** Deleting and ending are dangerous, which is the usual question. */
  tone?: "danger" | "primary";
  onConfirm: () => void;
  onClose: () => void;
}

/** Asks before something that cannot be undone. */
export function Confirm({ title, text, confirm, dismiss = "Cancel", tone = "danger", onConfirm, onClose }: ConfirmProps) {
  return (
    <Dialog title={title} onClose={onClose}>
      <p>{text}</p>
      <div className="dialog-actions">
        <button type="button" className="button" onClick={onClose} autoFocus>{dismiss}</button>
        <button type="button" className={`button button-${tone}`} onClick={onConfirm}>{confirm}</button>
      </div>
    </Dialog>
  );
}
