import { useId, type InputHTMLAttributes, type ReactNode, type SelectHTMLAttributes } from "react";

interface FieldProps {
  label: string;
  hint?: ReactNode;
  error?: string | null | undefined;
}

type InputProps = FieldProps & { unit?: string } & InputHTMLAttributes<HTMLInputElement>;

/** A line of input with its label, its hint and its error. */
export function TextField({ label, hint, error, unit, ...input }: InputProps) {
  const id = useId();
  return (
    <Frame id={id} label={label} hint={hint} error={error}>
      <span className={unit === undefined ? "input" : "input has-unit"}>
        <input id={id} aria-describedby={`${id}-note`} aria-invalid={error != null} spellCheck={false} {...input} />
        {unit !== undefined && <span className="unit" aria-hidden="true">{unit}</span>}
      </span>
    </Frame>
  );
}

interface AreaProps extends FieldProps {
  value: string;
  rows: number;
  placeholder?: string;
  required?: boolean;
  onChange: (value: string) => void;
}

/** Several lines of input. */
export function AreaField({ label, hint, error, onChange, ...area }: AreaProps) {
  const id = useId();
  return (
    <Frame id={id} label={label} hint={hint} error={error}>
      <textarea
        id={id} aria-describedby={`${id}-note`} aria-invalid={error != null} spellCheck={false} className="mono"
        onChange={(event) => onChange(event.target.value)} {...area}
      />
    </Frame>
  );
}

/** A choice from a list. */
export function SelectField({ label, hint, error, ...select }: FieldProps & SelectHTMLAttributes<HTMLSelectElement>) {
  const id = useId();
  return (
    <Frame id={select.id ?? id} label={label} hint={hint} error={error}>
      <select id={id} aria-describedby={`${select.id ?? id}-note`} {...select} />
    </Frame>
  );
}

function Frame({ id, label, hint, error, children }: FieldProps & { id: string; children: ReactNode }) {
  return (
    <div className="field">
      <label className="field-label" htmlFor={id}>{label}</label>
      {children}
      <p className={error == null ? "field-hint" : "field-error"} id={`${id}-note`}>{error ?? hint}</p>
    </div>
  );
}

interface ChoiceProps<T extends string> {
  label: string;
  value: T;
  options: readonly { value: T; label: string; hint?: string }[];
  onChange: (value: T) => void;
}

/** A choice of a few, all of them visible. */
export function Choice<T extends string>({ label, value, options, onChange }: ChoiceProps<T>) {
  const name = useId();
  return (
    <fieldset className="choice">
      <legend className="field-label">{label}</legend>
      <div className="choice-options">
        {options.map((option) => (
          <label key={option.value} className="choice-option">
            <input type="radio" name={name} checked={value === option.value} onChange={() => onChange(option.value)} />
            <span className="choice-label">{option.label}</span>
            {option.hint !== undefined && <span className="choice-hint">{option.hint}</span>}
          </label>
        ))}
      </div>
    </fieldset>
  );
}
