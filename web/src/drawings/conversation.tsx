// A conversation as bubbles; marked stretches say which rule found them, on hover and in words below.
import type { ComponentChildren } from "preact";

interface Mark {
  start: number;
  end: number;
  why: string;
}
interface Message {
  who: number;
  text: string;
  marks?: Mark[];
  note?: string;
}

export function Conversation({ people, messages }: { people: string[]; messages: Message[] }) {
  return (
    <ol class="talk">
      {messages.map((message, index) => (
        <li key={index} class={`turn side-${message.who % 2}`}>
          <b class="who">{people[message.who] ?? `Person ${message.who + 1}`}</b>
          <div class="bubble">{marked(message.text, message.marks ?? [])}</div>
          {message.marks?.length || message.note ? (
            <ul class="turn-notes">
              {message.marks?.map((mark, at) => (
                <li key={at} class="found">
                  <q>{stretch(message.text, mark)}</q> {mark.why}
                </li>
              ))}
              {message.note && <li>{message.note}</li>}
            </ul>
          ) : null}
        </li>
      ))}
    </ol>
  );
}

/** Marks count characters as Python does, so an emoji is one; strings here count two. */
const stretch = (text: string, mark: Mark) => Array.from(text).slice(mark.start, mark.end).join("");

/** The text in pieces, each marked with every rule that covers it. */
export function marked(text: string, marks: Mark[]): ComponentChildren {
  if (!marks.length) return text;
  const letters = Array.from(text);
  const edges = [...new Set([0, letters.length, ...marks.flatMap((mark) => [mark.start, mark.end])])]
    .filter((edge) => edge >= 0 && edge <= letters.length)
    .sort((a, b) => a - b);
  return edges.slice(1).map((end, index) => {
    const start = edges[index]!;
    const piece = letters.slice(start, end).join("");
    const why = marks.filter((mark) => mark.start <= start && mark.end >= end).map((mark) => mark.why);
    return why.length ? (
      <mark key={start} title={why.join("; ")}>
        {piece}
      </mark>
    ) : (
      piece
    );
  });
}
