// The frame of every page: where one is, what the run does, and the way to everything else.
import "uplot/dist/uPlot.min.css";
import "./app.css";
import "./drawings.css";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { enter, load, type Runs, saved } from "./api";
import { Frame } from "./frame";
import { go, href, route } from "./router";
import { closeRun, openRun, overview, overviewError } from "./store";
import { Notice } from "./parts";
import { CandidatePage } from "./pages/candidate";
import { CellPage } from "./pages/cell";
import { ComparePage } from "./pages/compare";
import { FailuresPage } from "./pages/failures";
import { LineagePage } from "./pages/lineage";
import { MatrixPage } from "./pages/matrix";
import { OverviewPage } from "./pages/overview";
import { RunsPage } from "./pages/runs";
import { SettingsPage } from "./pages/settings";
import { TrialsPage } from "./pages/trials";
import { WorkPage } from "./pages/work";

const pages = {
  runs: RunsPage, compare: ComparePage, overview: OverviewPage, matrix: MatrixPage, trials: TrialsPage, trial: CandidatePage,
  cell: CellPage, lineage: LineagePage, work: WorkPage, failures: FailuresPage, settings: SettingsPage,
};

function App() {
  const here = route.value;
  useEffect(() => {
    if (here.run) void openRun(here.ledger, here.run);
    else closeRun();
  }, [here.ledger, here.run]);
  const Page = pages[here.page as keyof typeof pages];
  const run = overview.value;
  const ready = !here.run || (run !== null && run.ledger === here.ledger && run.name === here.run);
  return (
    <Frame route={here}>
      {!Page ? (
        <Notice kind="bad">There is no page “{here.page}”.</Notice>
      ) : ready ? (
        <Page route={here} key={`${here.ledger}/${here.run}/${here.page}`} />
      ) : overviewError.value ? (
        <Notice kind="bad">{overviewError.value}</Notice>
      ) : (
        <p class="quiet" role="status">Loading …</p>
      )}
    </Frame>
  );
}

const place = document.getElementById("app")!;

/** A saved page with one run opens on it. */
async function start(): Promise<void> {
  await enter();
  if (!saved || location.hash) return;
  const { runs } = await load<Runs>("/api/runs");
  if (runs.length === 1) go(href(runs[0].ledger, runs[0].name));
}

start()
  .then(() => render(<App />, place))
  .catch((error: Error) => render(<main class="alone"><Notice kind="bad">{error.message}</Notice></main>, place));
if (saved) document.documentElement.classList.add("saved");
