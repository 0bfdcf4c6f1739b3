// A word diff of two texts, inline or side by side; long unchanged stretches are folded.
import { diffArrays } from "diff";
import { useMemo, useState } from "preact/hooks";

interface Part {
  value: string;
  added?: boolean;
  removed?: boolean;
}
interface Raw {
  value: string[];
  added?: boolean;
  removed?: boolean;
}

const KEPT = 3; // unchanged lines shown around a change
const FOLDED = 12; // a stretch of more unchanged lines is folded

/** Words, numbers with their sign and digits, signs, and the white space between them. */
const TOKENS = /[+-]?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?|[\p{L}\p{N}\p{M}_'’-]+|\s+|./gisu;

/** The parts of a diff by words; texts too different to compare in a second are one removal and one addition. */
export function wordDiff(before: string, after: string): Part[] {
  const parts = diffArrays(before.match(TOKENS) ?? [], after.match(TOKENS) ?? [], { timeout: 1000 } as object) as Raw[] | undefined;
  if (!parts)
    return [
      { value: before, removed: true },
      { value: after, added: true },
    ];
  return tidied(parts.map(({ value, added, removed }) => ({ value: value.join(""), added, removed })));
}

/** One removal and one addition where several are only a space apart, so that a phrase reads as one change. */
function tidied(parts: Part[]): Part[] {
  const tidy: Part[] = [];
  let [removed, added] = ["", ""];
  const flush = () => {
    if (removed) tidy.push({ value: removed, removed: true });
    if (added) tidy.push({ value: added, added: true });
    [removed, added] = ["", ""];
  };
  parts.forEach((part, at) => {
    if (part.removed) removed += part.value;
    else if (part.added) added += part.value;
    else if (removed && added && parts[at + 1] && /^[^\S\n]+$/.test(part.value))
      [removed, added] = [removed + part.value, added + part.value];
    else {
      flush();
      tidy.push(part);
    }
  });
  flush();
  return tidy;
}

const words = (parts: Part[], kind: "added" | "removed") =>
  parts.filter((part) => part[kind]).reduce((sum, part) => sum + (part.value.match(/\S+/g)?.length ?? 0), 0);

export function WordDiff({
  before,
  after,
  beforeName = "before",
  afterName = "after",
}: {
  before: string;
  after: string;
  beforeName?: string;
  afterName?: string;
}) {
  const [side, setSide] = useState(false);
  const parts = useMemo(() => wordDiff(before, after), [before, after]);
  const [added, removed] = [words(parts, "added"), words(parts, "removed")];
  const count = (n: number) => `${n} ${n === 1 ? "word" : "words"}`;
  const says = before === after ? "The texts are equal." : `${count(added)} added, ${count(removed)} removed.`;
  return (
    <figure class="diff">
      <figcaption>
        <span>
          {says} <del>{beforeName}</del> <ins>{afterName}</ins>
        </span>
        <span class="choice" role="group" aria-label="Layout of the comparison">
          <button type="button" aria-pressed={!side} onClick={() => setSide(false)}>
            Inline
          </button>
          <button type="button" aria-pressed={side} onClick={() => setSide(true)}>
            Side by side
          </button>
        </span>
      </figcaption>
      {side ? (
        <div class="diff-sides">
          <Text label={beforeName} parts={parts.filter((part) => !part.added)} />
          <Text label={afterName} parts={parts.filter((part) => !part.removed)} />
        </div>
      ) : (
        <Text label={`${beforeName} to ${afterName}`} parts={parts} />
      )}
    </figure>
  );
}

function Text({ label, parts }: { label: string; parts: Part[] }) {
  return (
    <div class="diff-text" tabIndex={0} role="region" aria-label={label}>
      {parts.map((part, index) =>
        part.added ? (
          <ins key={index}>{part.value}</ins>
        ) : part.removed ? (
          <del key={index}>{part.value}</del>
        ) : (
          <Unchanged key={index} text={part.value} first={index === 0} last={index === parts.length - 1} />
        ),
      )}
    </div>
  );
}

function Unchanged({ text, first, last }: { text: string; first: boolean; last: boolean }) {
  const [open, setOpen] = useState(false);
  const lines = text.split("\n");
  const [head, tail] = [first && !last ? 0 : KEPT, last && !first ? 0 : KEPT];
  if (open || lines.length <= FOLDED || (first && last)) return <>{text}</>;
  const hidden = lines.length - head - tail;
  return (
    <>
      {lines.slice(0, head).join("\n") + (head ? "\n" : "")}
      <button type="button" class="fold" onClick={() => setOpen(true)}>
        {hidden} unchanged lines
      </button>
      {(tail ? "\n" : "") + lines.slice(lines.length - tail).join("\n")}
    </>
  );
}
