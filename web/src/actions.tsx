// What can be done from the page: stop, resume, raise the budget, retry, note, feedback.
import type { Overview } from "./api";

/** Buttons of the frame: stop a running run, resume one that does not run. */
export function RunActions(_: { overview: Overview }) {
  return null;
}

/** A field that adds a note to the run, or to one candidate of it. */
export function NoteForm(_: { overview: Overview; trial?: number }) {
  return null;
}
