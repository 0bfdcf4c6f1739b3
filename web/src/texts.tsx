// Texts as they were written: long ones open on demand, all can be copied.
import { useState } from "preact/hooks";
import { count } from "./format";

/** Copies a text, and knows for a moment that it did. */
export function useCopy(text: string) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
      setTimeout(() => setCopied(false), 1500);
    } catch {
      // Without permission the text can still be selected.
    }
  };
  return { copied, copy };
}

export function CopyButton({ text }: { text: string }) {
  const { copied, copy } = useCopy(text);
  return (
    <button type="button" class="link" onClick={copy}>
      {copied ? "Copied" : "Copy"}
    </button>
  );
}

/** A long text inside a table or a line. */
export function Long({ text, most = 180 }: { text: string; most?: number }) {
  const [open, setOpen] = useState(false);
  if (text.length <= most * 1.2) return <>{text}</>;
  return (
    <>
      {open ? text : `${text.slice(0, most)}…`}{" "}
      <button type="button" class="link" aria-expanded={open} onClick={() => setOpen(!open)}>
        {open ? "less" : "more"}
      </button>
    </>
  );
}

/** A block of text, code or traceback. */
export function Block({ text, label, most = 3000 }: { text: string; label: string; most?: number }) {
  const [open, setOpen] = useState(false);
  const cut = !open && text.length > most * 1.2;
  return (
    <div class="block">
      <pre tabIndex={0} role="region" aria-label={label}>
        {cut ? `${text.slice(0, most)}…` : text}
      </pre>
      <p>
        {cut && (
          <button type="button" class="link" onClick={() => setOpen(true)}>
            Show all {count(text.length)} characters
          </button>
        )}
        <CopyButton text={text} />
      </p>
    </div>
  );
}
