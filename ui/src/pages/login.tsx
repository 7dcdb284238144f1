import { useState, type FormEvent } from "react";
import { api, login } from "../api";
import { ErrorNote } from "../components/feedback";
import { Mark } from "../shell";

/** Asks for the key that `warren serve` has printed. */
export function LoginPage() {
  const [key, setKey] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await api.login(key.trim());
      login.set(true);
    } catch (refused) {
      setError(refused as Error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <main className="login">
      <form className="login-card" onSubmit={(event) => void submit(event)}>
        <Mark />
        <h1>Log in to Warren</h1>
        <p className="quiet">
          The first start of <code>warren serve</code> prints a link with a key. If it is lost,{" "}
          <code>warren serve --new-key</code> makes another one.
        </p>
        {error !== null && <ErrorNote title="You were not logged in" error={error} />}
        <label className="field">
          <span className="field-label">Key</span>
          <input
            type="password" name="key" autoComplete="current-password" required autoFocus spellCheck={false}
            value={key} onChange={(event) => setKey(event.target.value)}
          />
        </label>
        <button type="submit" className="button button-primary button-wide" disabled={busy || key.trim() === ""}>
          {busy ? "Logging in…" : "Log in"}
        </button>
      </form>
    </main>
  );
}
