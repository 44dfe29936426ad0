"""The steps of `.ci/run`: everything that must hold before a change is merged.

    .ci/run                every step, from nothing, on a machine that has only Python >= 3.11
    .ci/run STEP [STEP..]  these steps alone, of the working tree as it is
    .ci/run --list         the steps, and what each shows
    .ci/run --keep-going   does not end with the first step that fails

Steps run side by side, one for each core, in the order of the list: what finds most faults comes
first. The two commands of README are taken from README.md itself and run in fresh copies of the
working tree, so that nothing a developer has installed can help them, nor what an earlier run has
compiled. The other steps run in the copy in which README's tests have run, and use what these have
compiled. What a run has compiled is kept in the user's cache folder for the next one, which only
compiles the kernels that a change reaches.

The first step that fails ends the run, and no step is skipped. The last line says how to repeat it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 3000  # seconds for one command
# One environment for all steps but README's own and the lowest versions; with which versions of the
# fronts' libraries, of which pyproject.toml takes many, CONSTRAINTS says.
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
EXTRAS = "test,torch,jax,dask,sklearn,arrays,compare,examples,bench,docs,dev,browser,ptx,simulator"
# Compiled code of earlier runs, in the same folders as in a working tree.
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "softtopk_nb-ci")
# What rests on the width of vectors: the order of sums, and what is done lane by lane.
LANES = (
    "tests/api/test_removal.py",
    "tests/threshold/test_equal_rows.py",
    "tests/threshold/test_lanes.py",
    *(
        f"tests/api/test_contract.py::test_{name}"
        for name in (
            "extreme_values_do_no_harm",
            "rows_are_independent_to_the_bit",
            "bits_do_not_depend_on_where_the_arrays_lie",
        )
    ),
)


class Failed(Exception):
    """A step has failed; the text says why."""


class Machine:
    """Where the steps of this run find the tree, the environment and the compiled code."""

    def __init__(self, work: Path, whole: bool):
        self.work, self.whole = work, whole
        self.tree = work / "tree" if whole else ROOT
        self.venv = work / "venv" if whole else ROOT / ".ci" / "venv"
        self.running: set[subprocess.Popen[str]] = set()
        self.stopped = False
        self.lock = threading.Lock()

    def stop(self) -> None:
        """End every command."""
        with self.lock:
            self.stopped = True
            for process in self.running:
                os.killpg(process.pid, signal.SIGKILL)

    def fresh_copy(self, name: str) -> Path:
        """The working tree as a clone would have it, with edits not yet committed."""
        target = self.work / name
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for file in filter(None, listed.split("\0")):
            if (ROOT / file).exists():
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, target / file)
        return target

    def give_compiled_code(self, site: Path) -> None:
        """Put what the tests have compiled where the package will be installed."""
        copy_compiled_code(self.tree, site)

    def keep_compiled_code(self) -> None:
        """Put what this run has compiled or used where the next one finds it."""
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT.parent) as folder:
            Path(folder, "new").mkdir()
            copy_compiled_code(self.tree, Path(folder, "new"))
            if KEPT.exists():
                KEPT.rename(Path(folder, "old"))
            Path(folder, "new").rename(KEPT)


def copy_compiled_code(tree: Path, target: Path) -> None:
    """Copy the files of compiled code of one tree to another."""
    for file in (tree / "softtopk_nb").rglob("*.nb[ci]"):
        place = target / file.relative_to(tree)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)


class Step:
    """One step as it runs: its commands, their output, and what is said of it at the end."""

    def __init__(self, name: str, machine: Machine, log: Path):
        self.name, self.machine, self.log = name, machine, log
        self.tree, self.work = machine.tree, machine.work
        self.python = str(machine.venv / "bin" / "python")
        self.closing: list[str] = []
        log.touch()

    def run(self, *command: str | Path, cwd: Path | None = None, **environment: str) -> str:
        """Run a command in the tree; what it has printed, which is added to the step's output."""
        machine = self.machine
        with self.log.open("a", encoding="utf-8") as log:
            print("$", *command, file=log, flush=True)
            start = log.tell()
            with machine.lock:
                if machine.stopped:
                    raise Failed("another step has failed")
                process = subprocess.Popen(
                    [str(word) for word in command],
                    cwd=cwd or self.tree,
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    text=True,
                )
                machine.running.add(process)
            try:
                code = process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise Failed(f"{command[0]} ran for more than {LIMIT} s") from None
            finally:
                with machine.lock:
                    machine.running.discard(process)
        if code:
            raise Failed(f"{Path(str(command[0])).name} has returned {code}")
        with self.log.open(encoding="utf-8", errors="replace") as log:
            log.seek(start)
            return log.read()

    def close_with_tests(self, printed: str, may_skip: bool = True) -> None:
        """Keep the line that says how many tests have passed, and see that there is one."""
        lines = re.findall(r"^.*\b\d+ passed.* in [\d.]+s.*$", printed, re.MULTILINE)
        if not lines:
            raise Failed("no test passed")
        if not may_skip and re.search(r"\b\d+ skipped", lines[-1]):
            raise Failed("tests were skipped that are the reason for the step")
        self.closing.append(lines[-1].strip("= "))

    def pytest(self, *arguments: str, may_skip: bool = True, **environment: str) -> None:
        """Run tests, in one process where other steps run beside it."""
        processes = "0" if self.machine.whole else "auto"
        command = (self.python, "-m", "pytest", "-n", processes, *arguments)
        self.close_with_tests(self.run(*command, **environment), may_skip)

    def install(self, venv: Path, python: str, *wanted: str | Path) -> None:
        """Make an environment with the package and these requirements."""
        self.run(python, "-m", "venv", "--upgrade-deps", venv)  # an old pip takes minutes more
        # Most of what is installed is never imported: what is, Python compiles then.
        self.run(venv / "bin" / "pip", "install", "-q", "--no-compile", *wanted)


def readme_command(name: str) -> str:
    """The one command in the code block that follows <!-- command: NAME -->."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(rf"^<!-- command: {name} -->\n```sh\n(.*?)^```", text, re.M | re.S)
    if len(found) != 1 or len(found[0].splitlines()) != 1:
        raise Failed(f"README.md has no block of one line that is marked '{name}'")
    return found[0].strip()


def readme_tests(step: Step) -> None:
    tree = step.tree if step.machine.whole else step.machine.fresh_copy("tests")
    step.close_with_tests(step.run("bash", "-c", readme_command("tests"), cwd=tree))
    if step.machine.whole:  # from here on, as this command is run by who has nothing
        copy_compiled_code(KEPT, tree)


def readme_main(step: Step) -> None:
    tree = step.machine.fresh_copy("main")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    step.machine.give_compiled_code(tree / ".venv" / "lib" / python / "site-packages")
    step.run("bash", "-c", readme_command("main"), cwd=tree)


def install(step: Step) -> None:
    wanted = "-e", f"{step.tree}[{EXTRAS}]", "-c", CONSTRAINTS
    step.install(step.machine.venv, sys.executable, *wanted)


def lint(step: Step) -> None:
    for program, *rest in (["ruff", "check", "."], ["ruff", "format", "--check"], ["codespell"]):
        step.run(Path(step.python).with_name(program), *rest)


def types(step: Step) -> None:
    step.run(step.python, "-m", "mypy")
    step.pytest("tests/test_types.py", may_skip=False)


# What rests on how a product and a sum are rounded: once here, and twice on older processors.
ROUNDING = (
    "tests/api/test_vectors.py",
    "tests/api/test_range.py",
    "tests/threshold/test_solver.py",
)


BOTH_TIERS = "full or not full"


def compiled_for(processor: str, step: Step, *tests: str) -> None:
    chosen = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": ""}
    step.pytest("-m", BOTH_TIERS, *tests, **chosen)


def generic(step: Step) -> None:
    compiled_for("generic", step, *LANES, *ROUNDING)


def haswell(step: Step) -> None:
    has_wider = (
        "from llvmlite import binding; print(binding.get_host_cpu_features().get('avx512f'))"
    )
    if step.run(step.python, "-c", has_wider).strip() == "True":
        compiled_for("haswell", step, *LANES)
    else:
        step.closing.append("the vectors of this processor are no wider: README's tests were it")


def lowest(step: Step) -> None:
    """With each run-time dependency at the lowest version that pyproject.toml declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    exact = [re.sub(r">=([\d.]+).*", r"==\1", each) for each in project["dependencies"]]
    if not all("==" in each for each in exact):
        raise Failed("pyproject.toml: a dependency declares no lowest version")
    found = interpreters()  # the lowest versions have wheels for 3.11 and 3.12 alone
    python = found.get("3.11") or found.get("3.12") or sys.executable
    venv = step.work / "lowest"
    step.install(venv, python, "-e", f"{step.tree}[test]", *exact)
    step.python = str(venv / "bin" / "python")
    step.run(step.python, "-m", "pip", "list")
    # Of the operators and kinds of curves: to an older release all curves are alike.
    some = ("-k", "laplace or normal or gradtopk or itertopk")
    step.pytest(
        "tests/api/test_vectors.py",
        "-m",
        BOTH_TIERS,
        *some,
        NUMBA_CACHE_DIR=str(step.work / "cache_lowest"),
    )


FRONTS = ("torch", "jax", "dask", "sklearn")


def without(*fronts: str) -> list[str]:
    """Options of pytest: do not read the tests of these fronts, and those for a device.

    All of these have a marker that is not asked for, and to read them takes a quarter of a minute.
    """
    files = (f"--ignore-glob=tests/fronts/test_{front}*" for front in fronts)
    return ["--ignore=tests/device", *files]


def full(step: Step) -> None:
    step.pytest("-m", "full", *without(*FRONTS), may_skip=False)


def slow(step: Step) -> None:
    others = (*FRONTS, "device", "ptx")
    step.pytest("-m", " and not ".join(("slow", *others)), *without(*FRONTS))
    # In a front the other curves differ in which code is called, and in nothing else.
    calls = ("-k", "test_values_are_those_of_numpy or test_gradients")
    step.pytest("-m", "slow and (torch or jax)", *calls, "tests/fronts", may_skip=False)


def front(marker: str, *options: str) -> Callable[[Step], None]:
    others = without(*(name for name in FRONTS if name != marker))
    return lambda step: step.pytest("-m", marker, *options, *others, may_skip=False)


def sklearn(step: Step) -> None:
    # One of scikit-learn's own checks needs another library, and is skipped.
    step.pytest("-m", "sklearn", *without("torch", "jax", "dask"))


def examples(step: Step) -> None:
    folder = step.tree / "examples"
    for example in sorted((*folder.glob("*.py"), *folder.glob("recipes/*.py"))):
        if example.name not in readme_command("main"):
            # These take minutes: the first steps, or the first seed, run every line.
            fewer = {"torch_router": ("--steps", "50"), "feature_selection": ("--seeds", "1")}
            step.run(step.python, example, *fewer.get(example.stem, ()))


def docs(step: Step) -> None:
    step.run(step.python, "-m", "doctest", "README.md")
    sphinx = (step.python, "-m", "sphinx", "-W", "--keep-going", "-d", "docs/_build/doctrees")
    step.run(*sphinx, "-n", "-b", "html", "docs", "docs/_build/html")
    step.run(*sphinx, "-b", "doctest", "docs", "docs/_build/doctest")


def benchmarks(step: Step) -> None:
    step.pytest("benchmarks", "--benchmark-disable")


def release(step: Step) -> None:
    step.run(".ci/release", step.python, step.tree)


def wheels(step: Step) -> None:
    said = step.run(sys.executable, step.tree / ".ci" / "wheels", "--few")
    step.closing += re.findall("^(?:first |Python |x86-64-).*$", said, re.MULTILINE)


def install_programs(step: Step, *packages: str, programs: tuple[str, ...]) -> None:
    """Install packages of the system, if one of these programs is missing."""
    if all(map(shutil.which, programs)):
        return
    as_root = ["env", "DEBIAN_FRONTEND=noninteractive"]
    if os.getuid():
        as_root = ["sudo", "-n", *as_root]
    if not shutil.which(as_root[0]) or not shutil.which("apt-get"):
        raise Failed(f"one of {programs} is missing; installing it takes apt-get as root")
    step.run(*as_root, "apt-get", "update", "-qq")
    step.run(*as_root, "apt-get", "install", "-y", "-qq", *packages)


def pages(step: Step) -> None:
    install_programs(step, "chromium", "chromium-driver", programs=("chromium", "chromedriver"))
    step.pytest("docs", may_skip=False)


def ptx(step: Step) -> None:
    install_programs(step, "gcc", "libc6-dev", programs=("gcc",))  # for a driver without a device
    # One process: it compiles on all cores, and each of several would compile everything.
    step.pytest("-n", "0", "-m", "ptx", may_skip=False, STK_REQUIRE="ptx")


def simulator(step: Step) -> None:
    simulated = {"NUMBA_ENABLE_CUDASIM": "1", "STK_REQUIRE": "device"}
    step.pytest("-m", "device", may_skip=False, **simulated)


def interpreters() -> dict[str, str]:
    """The Pythons from 3.11 on that run, newest first: on the path, or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = {}
    for version in (f"3.{minor}" for minor in range(29, 10, -1)):
        installed = map(str, sorted(pyenv.glob(f"versions/{version}*/bin/python{version}")))
        for python in filter(None, (shutil.which(f"python{version}"), *installed)):
            if subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
                found[version] = python
                break
    return found


def jax_newest(step: Step) -> None:
    """With the newest JAX, which is for newer Pythons than the other steps'."""
    version, python = next(iter(interpreters().items()))
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        step.closing.append(f"no Python newer than {version} was found: the step jax was it")
        return
    venv = step.work / "jax-newest"
    step.install(venv, python, "-e", f"{step.tree}[test]", "jax")
    step.python = str(venv / "bin" / "python")
    listed = step.run(step.python, "-m", "pip", "list", "--format=freeze")
    newest = next(line for line in listed.splitlines() if line.startswith("jax=="))
    # To JAX a curve and an iteration are as the others of their kind, and a row is as any other.
    alike = "clip or entmax or normal or cauchy or sigmoid or wsoftmaxtopk or rows_of_every_kind"
    step.pytest("-m", "jax", "-k", f"not ({alike})", "tests/fronts/test_jax.py", may_skip=False)
    step.closing[-1] += f" ({newest}, Python {version})"


class Plan(NamedTuple):
    run: Callable[[Step], None]
    shows: str
    needs: tuple[str, ...] = ("readme-tests", "install")


# In the order in which they begin.
STEPS = {
    "readme-tests": Plan(readme_tests, "README's tests, the fast tier, from nothing", ()),
    "install": Plan(install, "every extra can be installed", ()),
    "lint": Plan(lint, "ruff and codespell find nothing", ("install",)),
    "types": Plan(types, "mypy finds nothing, but what users do wrong", ("install",)),
    "full": Plan(full, "the full tier of the tests"),
    "jax": Plan(front("jax"), "the JAX front"),
    "torch": Plan(front("torch"), "the PyTorch front, and comparisons with its libraries"),
    "generic": Plan(generic, "accuracy, compiled for SSE2", ("install",)),
    "haswell": Plan(haswell, "vectors of AVX2, where this processor has wider ones", ("install",)),
    "slow": Plan(slow, "what README's tests ask of some curves and types, of the others"),
    "dask": Plan(front("dask", "--dist", "loadgroup"), "the Dask front"),
    "sklearn": Plan(sklearn, "the selector for scikit-learn's pipelines"),
    "docs": Plan(docs, "pages, gallery and every example in them"),
    "simulator": Plan(simulator, "device kernels, run by the simulator"),
    "ptx": Plan(ptx, "device kernels, compiled to machine code"),
    "jax-newest": Plan(jax_newest, "the JAX front, with the newest JAX and Python", ("install",)),
    "lowest": Plan(lowest, "the lowest versions of the dependencies", ("install",)),
    "benchmarks": Plan(benchmarks, "each benchmark once, and their machinery"),
    "pages": Plan(pages, "what pages say and name, and how they look in chromium"),
    "examples": Plan(examples, "the example programs"),
    "release": Plan(release, "a wheel as a user gets it"),
    "wheels": Plan(wheels, "two operators in a wheel with machine code", ()),
    "readme-main": Plan(readme_main, "README's main job"),
}


def say(*lines: object) -> None:
    print(*lines, sep="\n", flush=True)


def work_through(chosen: list[str], machine: Machine, at_a_time: int, keep_going: bool) -> int:
    """Run these steps, each as soon as those that it needs have passed; the exit status."""
    began, waiting, passed = time.monotonic(), list(chosen), set[str]()
    closing: list[str] = []
    failed: list[str] = []
    seconds: dict[str, float] = {}
    running: dict[concurrent.futures.Future[float], Step] = {}

    def timed(step: Step) -> float:
        start = time.monotonic()
        STEPS[step.name].run(step)
        return time.monotonic() - start

    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        while waiting or running:
            waiting = [name for name in waiting if not {*STEPS[name].needs} & {*failed}]
            for name in list(waiting):
                ready = passed.issuperset({*STEPS[name].needs} & {*chosen})
                if ready and len(running) < at_a_time:
                    waiting.remove(name)
                    step = Step(name, machine, machine.work / f"{name}.log")
                    running[pool.submit(timed, step)] = step
                    say(f"... {name}: {STEPS[name].shows}")
            ended, _ = concurrent.futures.wait(
                running, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for each in ended:
                step = running.pop(each)
                say(f"\n=== {step.name}", step.log.read_text("utf-8", errors="replace").rstrip())
                if error := each.exception():
                    say(f"\n{step.name} has FAILED: {error}", f"to repeat it: .ci/run {step.name}")
                    failed.append(step.name)
                    if keep_going and isinstance(error, Failed):
                        continue
                    machine.stop()
                    if isinstance(error, Failed):
                        return 1
                    raise error
                seconds[step.name] = each.result()
                say(f"--- {step.name}: passed in {seconds[step.name]:.0f} s\n")
                closing += [f"{step.name}: {line}" for line in step.closing]
                passed.add(step.name)
    say(*(f"{taken:6.0f} s  {name}" for name, taken in seconds.items()), *closing)
    whole = f"{len(passed)} of {len(chosen)} steps have passed in {time.monotonic() - began:.0f} s"
    say(f"{whole}; to repeat the others: .ci/run {' '.join(failed)}" if failed else whole)
    return int(bool(failed))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog=".ci/run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="*", metavar="STEP", help="all of them by default")
    parser.add_argument("--list", action="store_true", help="list the steps and run nothing")
    parser.add_argument("--keep-going", action="store_true", help="also after a step has failed")
    given = parser.parse_args()
    if unknown := [name for name in given.steps if name not in STEPS]:
        parser.error(f"there is no step {unknown[0]!r}; there are {', '.join(STEPS)}")
    if given.list:
        say(*(f"{name:<14}{plan.shows}" for name, plan in STEPS.items()))
        return 0
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        os.environ.pop(name, None)
    os.environ |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "MPLBACKEND": "Agg"}
    wanted = given.steps or list(STEPS)
    if any("install" in STEPS[name].needs for name in wanted):
        wanted = ["install", *wanted]
    with tempfile.TemporaryDirectory() as work:
        # What PyTorch compiled of an older version of the package would be used again.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(work, "inductor"))
        machine = Machine(Path(work), whole=not given.steps)
        if machine.whole:
            machine.fresh_copy("tree")
        chosen = [name for name in STEPS if name in wanted]
        try:
            lanes = (os.cpu_count() or 1) if machine.whole else 1
            return work_through(chosen, machine, lanes, given.keep_going)
        finally:
            machine.stop()
            if machine.whole:
                machine.keep_compiled_code()


if __name__ == "__main__":
    sys.exit(main())
