// Parts of the pages about candidates: their scores as bars, links to them, steps to the next.
import { type Num, runPath, saved, type TrialBrief } from "./api";
import { heatColour } from "./colours";
import { number } from "./format";
import { useKeys } from "./keys";
import { go, type Route } from "./router";
import { type Loaded, overview, useLoad } from "./store";

/** "Candidate" in the words of the study. */
export function unitName(upper = true): string {
  const unit = overview.value?.unit || "candidate";
  return upper ? unit[0].toUpperCase() + unit.slice(1) : unit;
}

export const scoreText = (trial: TrialBrief): string => trial.score_text || number(trial.score);

/** A way of making as words: `crossover+swap` as "crossover, swap". */
export const wayText = (by: string): string => by.split("+").join(", ");

/** The scale of scores: the study's own, else that of the values at hand. */
export function scaleOf(scores: Num[]): [number, number] | null {
  if (overview.value?.scale) return overview.value.scale;
  const known = scores.filter((score): score is number => score !== null && Number.isFinite(score));
  return known.length ? [Math.min(...known), Math.max(...known)] : null;
}

export function partOf(score: number, [low, high]: [number, number]): number {
  return high > low ? Math.min(1, Math.max(0, (score - low) / (high - low))) : 0.5;
}

/** Candidates as texts; a saved page has all its texts under one path. */
export function useTexts(route: Route, trials: number[] | null): Loaded<{ texts: { [trial: string]: string } }> {
  const path = `${runPath(route.ledger, route.run)}/text`;
  return useLoad(trials && (saved ? path : `${path}?trials=${trials.join(",")}`));
}

/** Where a score lies on the scale, as a bar in the colours of the matrix. */
export function ScoreBar({ score, scale }: { score: Num; scale: [number, number] | null }) {
  if (score === null || !scale) return null;
  const part = partOf(score, scale);
  return (
    <svg class="score-bar" width="60" height="10" aria-hidden="true">
      <rect class="rail" width="60" height="10" rx="2" />
      <rect width={Math.max(2, 60 * part)} height="10" rx="2" fill={heatColour(part)} />
    </svg>
  );
}

/** A candidate's number, score and line, linking to its page. */
export function TrialLink({ base, trial }: { base: string; trial: TrialBrief }) {
  return (
    <a class="trial-link" href={`${base}/trial/${trial.trial}`}>
      <b>
        {unitName()} {trial.trial}
      </b>{" "}
      <span>{trial.dropped ? "dropped" : scoreText(trial)}</span> <span class="brief">{trial.brief}</span>
    </a>
  );
}

/** Previous and next, by link and by the keys k and j. */
export function Steps({ previous, following, address }: { previous: Num; following: Num; address: (place: number) => string }) {
  const keys: Record<string, () => void> = {};
  if (previous !== null) keys.k = () => go(address(previous));
  if (following !== null) keys.j = () => go(address(following));
  useKeys(keys);
  return (
    <nav class="previous-next" aria-label="Previous and next">
      {previous === null ? (
        <span class="quiet">Previous</span>
      ) : (
        <a href={address(previous)}>
          Previous <kbd>k</kbd>
        </a>
      )}
      {following === null ? (
        <span class="quiet">Next</span>
      ) : (
        <a href={address(following)}>
          Next <kbd>j</kbd>
        </a>
      )}
    </nav>
  );
}
