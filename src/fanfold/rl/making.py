"""How environments are made: by a Gymnasium id, a name or a function, with arguments and wrappers; and the refusals."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import math
import sys
import weakref
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fanfold.errors import ConfigError, MissingExtra, nearest
from fanfold.files import guarded, import_file

#: Steps after which episodes are cut off where an environment has no time limit, so that none is endless.
LONGEST = 10_000
#: Seeds on which a new kind of environment is tried before anything is played.
_TRIED = (0, 1, 2)


@dataclass(frozen=True, eq=False)
class Environment:
    """Makes environments that are all alike, as many as are wanted.

    `make` is the id of a registered Gymnasium environment, or a function or class that gives an environment; `kwargs`
    are its arguments.  `wrappers` are called with the environment, one after another.  All of it is part of a run's
    identity: the code of a function, too.  `name` is what it is called in messages and files.
    """

    make: str | Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Callable[[Any], Any], ...] = ()
    name: str = ""
    #: What Gymnasium's registry says of an id, for worker processes in which nobody registered it.
    spec: Any = None
    #: Steps after which an episode is cut off; none: the environment's own limit.
    max_steps: int | None = None
    #: The environments made here that are still there.
    _made: list[Any] = field(default_factory=list, init=False, repr=False)

    def __reduce__(self) -> Any:
        fields = (self.make, self.kwargs, self.wrappers, self.name, self.spec, self.max_steps)
        return Environment, fields

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Without the name: a file may be somewhere else when a run is resumed."""
        made: dict[str, Any] = {"make": self.make, "kwargs": dict(self.kwargs), "wrappers": self.wrappers}
        made |= {} if self.max_steps is None else {"max_steps": self.max_steps}
        return made if self.spec is None else {**made, "entry_point": _entry_point(self.spec)}

    @classmethod
    def of(
        cls,
        env: str | Callable[..., Any] | Environment,
        kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[str | Callable[[Any], Any]] = (),
        max_steps: int | None = None,
    ) -> Environment:
        """An environment from what a user writes: an id, `module:name`, `file.py:name`, or a callable."""
        if isinstance(env, Environment):
            return env
        if not isinstance(env, str) and not callable(env):
            raise ConfigError(f"env={env!r} is not an id and not callable: give a function, as in `lambda: MyEnv()`")
        made = named(env, "env") if isinstance(env, str) else env
        if isinstance(wrappers, str) or callable(wrappers):
            wrappers = (wrappers,)
        wrapped = tuple(_wrapper(each) if isinstance(each, str) else each for each in _whole(wrappers))
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise ConfigError(f"env_kwargs must be a mapping of names to values, not {kwargs!r:.80}")
        if odd := next((each for each in wrapped if not callable(each)), None):
            raise ConfigError(f"wrappers must be functions of an environment, and {odd!r} is not")
        name = env if isinstance(env, str) else name_of(env)
        return cls(made, dict(kwargs or {}), wrapped, name, _spec(made) if isinstance(made, str) else None, max_steps)

    def __call__(self, **more: Any) -> Any:
        """A new environment.  `more` are arguments beside `kwargs`, such as render_mode."""
        arguments = {**self.kwargs, **more}
        if self.spec is None:
            made = self._called(arguments)
        else:
            limit = {} if self.max_steps is None else {"max_episode_steps": self.max_steps}
            made = _from_spec(self.spec, self.name, arguments | limit)
        for wrapper in self.wrappers:
            made = _wrapped(made, wrapper, self.name)
        return self._checked(made)

    def takes(self, name: str) -> bool:
        """Whether an argument of that name can be given; every environment of Gymnasium's registry takes any."""
        if self.spec is not None:
            return True
        assert callable(self.make)
        parameters = inspect.signature(self.make).parameters
        return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())

    def longest(self, made: Any) -> float:
        """Steps after which an episode of `made` is cut off, beside the time limit that may be among its wrappers."""
        if self.max_steps is not None:
            return self.max_steps
        from gymnasium.wrappers import TimeLimit

        while made is not made.unwrapped:
            if isinstance(made, TimeLimit):
                return math.inf
            made = made.env
        return LONGEST

    def _called(self, arguments: Mapping[str, Any]) -> Any:
        assert callable(self.make)
        try:
            return self.make(**arguments)
        except ModuleNotFoundError as error:
            raise _missing(self.name, error) from error
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # of what the function itself called
            if arguments:
                raise ConfigError(f"env={self.name!r} does not take env_kwargs={dict(arguments)!r}: {error}") from error
            raise ConfigError(
                f"env={self.name!r} cannot be made without arguments: {error}. Give them as env_kwargs (--env-kwargs)"
            ) from error

    def _checked(self, made: Any) -> Any:
        """Refuse what is not one environment with the interface of Gymnasium."""
        from gymnasium import Env
        from gymnasium.spaces import Space

        if hasattr(made, "num_envs") and hasattr(made, "single_action_space"):
            raise ConfigError(f"env={self.name!r} is a vector of environments: give a single one, many are made of it")
        missing = [each for each in ("reset", "step", "observation_space", "action_space") if not hasattr(made, each)]
        if missing:
            raise ConfigError(
                f"env={self.name!r} gave {made!r}, which has no {' and no '.join(missing)}: it should be a "
                f"gymnasium.Env{_foreign(made)}"
            )
        if not isinstance(made, Env):
            remedy = _foreign(made) or ": let its class extend gymnasium.Env"
            raise ConfigError(f"env={self.name!r} gave {made!r}{remedy}")
        for what in ("observation_space", "action_space"):
            if not isinstance(space := getattr(made, what), Space):
                raise ConfigError(
                    f"env={self.name!r} has the {what} {space!r}, which is not one of gymnasium.spaces{_OLDER}"
                )
        if any(known() is made.unwrapped for known in self._made):
            raise ConfigError(
                f"env={self.name!r} gave the same environment twice: let the function make a new one at each call, as "
                "in `lambda: MyEnv()`. Many episodes are played side by side, each in its own"
            )
        self._made[:] = [*(known for known in self._made if known() is not None), weakref.ref(made.unwrapped)]
        return made

    def check(self, step: bool = True) -> Any:
        """Make an environment and begin an episode, so that what cannot work is an error before anything is played.

        Without `step`, none is taken: where workers play, a step that hangs or dies must not happen here.
        """
        made = guarded(f"env={self.name!r}", None, self)
        try:
            self._try(made, step)
        except BaseException:
            closed(made)
            raise
        return made

    def _try(self, made: Any, step: bool) -> None:
        for seed in _TRIED:
            try:
                begun = made.reset(seed=seed)
            except TypeError as error:
                if "seed" in str(error):
                    raise ConfigError(
                        f"env={self.name!r}: {error}. Episodes are seeded: write reset(self, *, seed=None, "
                        "options=None)"
                    ) from error
                problem: Exception | SystemExit = error
            except (Exception, SystemExit) as error:
                problem = error
            else:
                break
        else:
            words = f"{type(problem).__name__}: {problem}"
            raise ConfigError(f"env={self.name!r} cannot begin an episode: reset(seed={_TRIED[-1]}) raised {words}")
        if not (isinstance(begun, tuple) and len(begun) == 2 and isinstance(begun[1], Mapping)):
            raise ConfigError(
                f"env={self.name!r}: reset() must return an observation and a dict of further information, as "
                f"Gymnasium has it, not {type(begun).__name__}"
            )
        if not step:
            return
        try:
            taken = made.step(made.action_space.sample())
        except (Exception, SystemExit):  # such as an action that is not allowed now
            return
        if not (isinstance(taken, tuple) and len(taken) == 5):
            got = f"{len(taken)} values" if isinstance(taken, tuple) else type(taken).__name__
            raise ConfigError(
                f"env={self.name!r}: step() must return observation, reward, terminated, truncated and info, as "
                f"Gymnasium has it, not {got}"
            )


_OLDER = ": environments of the older package `gym` need a converter, such as shimmy's GymV21CompatibilityV0"


def _foreign(made: Any) -> str:
    """What to know about an environment of another interface than Gymnasium's."""
    if hasattr(made, "agents") or hasattr(made, "possible_agents"):
        return ". PettingZoo and other interfaces for several agents are not supported"
    return _OLDER if any(cls.__module__.partition(".")[0] == "gym" for cls in type(made).__mro__) else ""


def closed(made: Any) -> None:
    """Close an environment; one that cannot be closed is not needed any more either way."""
    with contextlib.suppress(Exception):
        made.close()


def name_of(made: Any) -> str:
    """What a function or class is called: `module:name` where it can be imported by that, else its own name."""
    if isinstance(made, Wrapping):
        return f"{name_of(made.wrapper)}?{made.query}"
    inner = made.func if isinstance(made, functools.partial) else made
    name = str(getattr(inner, "__qualname__", type(inner).__qualname__))
    module = getattr(inner, "__module__", "__main__")
    return name if inner is not made or module == "__main__" or "<" in name else f"{module}:{name}"


def named(text: str, what: str) -> str | Callable[..., Any]:
    """The function or class that `module:name` or `file.py:name` names; otherwise the text, an id of Gymnasium."""
    module, colon, name = text.rpartition(":")
    if not colon:
        if text.endswith(".py"):
            raise ConfigError(f"{what}={text!r} names a file: say which function in it, as in {text}:make_env")
        return text
    if module.endswith(".py"):
        holder = import_file(Path(module).resolve())
    else:
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)  # as `python -m` has it; worker processes get the same path
        try:
            holder = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
                raise ConfigError(
                    f"{what}={text!r}: there is no module {error.name!r}. Install the package that has it, or start "
                    "in the folder of the file"
                ) from error
            raise _missing(text, error) from error
        except Exception as error:
            raise ConfigError(f"{what}={text!r}: importing {module} raised {type(error).__name__}: {error}") from error
    named = functools.reduce(lambda value, part: getattr(value, part, None), name.split("."), holder)
    if callable(named):
        return named  # type: ignore[no-any-return]
    if named is not None:
        raise ConfigError(f"{what}={text!r} is {named!r}, and should be a function or a class")
    if what == "env" and not module.endswith(".py"):
        import gymnasium

        if name in gymnasium.registry:  # the module registers its environments when it is imported
            return text
        registered = [key for key, spec in gymnasium.registry.items() if module in str(spec.entry_point)]
    else:
        registered = []
    own = [key for key, value in vars(holder).items() if callable(value) and not key.startswith("_")]
    raise ConfigError(f"{what}={text!r}: {module} has no {name!r}{nearest(name, [*own, *registered])}")


@dataclass(frozen=True)
class Wrapping:
    """A wrapper with arguments of its own."""

    wrapper: Callable[..., Any]
    arguments: Mapping[str, Any]
    #: The arguments as they were written.
    query: str

    def __call__(self, env: Any) -> Any:
        return self.wrapper(env, **self.arguments)


def _wrapper(text: str) -> Any:
    """The wrapper that `module:name`, `file.py:name` or a dotted name names, with arguments behind a question mark."""
    name, asked, query = text.partition("?")
    if ":" not in name:
        module, dot, last = name.rpartition(".")
        name = f"{module}:{last}" if dot else f"gymnasium.wrappers:{last}"
    wrapper: Any = named(name, "wrappers")
    return Wrapping(wrapper, _arguments(query, text), query) if asked else wrapper


def _whole(wrappers: Sequence[Any]) -> list[Any]:
    """Wrappers without the cuts that a shell's list makes at the commas within brackets."""
    joined: list[Any] = []
    for each in wrappers:
        before = joined[-1] if joined and isinstance(each, str) else None
        if isinstance(before, str) and any(before.count(mark) > before.count(end) for mark, end in ("[]", "()", "{}")):
            joined[-1] = f"{before},{each}"
        else:
            joined.append(each)
    return joined


def _arguments(query: str, wrapper: str) -> dict[str, Any]:
    """The arguments behind a wrapper's question mark; a value is JSON, a literal of Python, or else a text."""
    arguments = {}
    for part in filter(None, query.split("&")):
        name, given, value = part.partition("=")
        if not given:
            raise ConfigError(f"wrappers={wrapper!r}: {part!r} has no value. Write arguments as name=value&name=value")
        arguments[name] = _value(value)
    return arguments


def _value(text: str) -> Any:
    for read in (json.loads, literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, TypeError):
            continue
    return text


def _wrapped(made: Any, wrapper: Callable[..., Any], env: str) -> Any:
    call, arguments = (wrapper.wrapper, wrapper.arguments) if isinstance(wrapper, Wrapping) else (wrapper, {})
    try:
        return call(made, **arguments)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # of what the wrapper itself called
        raise ConfigError(
            f"env={env!r} cannot be wrapped in {name_of(wrapper)}: {error}. Arguments are written as in "
            "FrameStackObservation?stack_size=4"
        ) from error


def _spec(env: str) -> Any:
    """What the registry says of an id."""
    gymnasium = _gymnasium(env)
    try:
        if ":" in env:
            importlib.import_module(env.partition(":")[0])
        return gymnasium.spec(env.rpartition(":")[2])
    except gymnasium.error.Error as error:  # no such name, namespace or version
        close, bare = nearest(env, gymnasium.registry), env.rpartition(":")[2]
        remedy = (
            f"name the environment of a package with the module that registers it, as in module:{bare}, and one of "
        )
        remedy = close.removeprefix("; ") if "mean" in close else f"{remedy}your own as file.py:make_env"
        raise ConfigError(f"env={env!r}: {str(error).partition('. ')[0].rstrip('.')}; {remedy}") from error


def _entry_point(spec: Any) -> Any:
    """The function or class behind an id: of the user's own code, its code counts."""
    from gymnasium.envs.registration import load_env_creator

    try:
        return load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    except (ImportError, AttributeError):
        return spec.entry_point


def _from_spec(spec: Any, env: str, arguments: Mapping[str, Any]) -> Any:
    gymnasium = _gymnasium(env)
    try:
        # Gymnasium's checker looks at every step; `check` looks once.
        return gymnasium.make(spec, disable_env_checker=True, **arguments)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"env={env!r} needs a package that is not installed: {error}") from error
    except ModuleNotFoundError as error:
        raise _missing(env, error) from error
    except TypeError as error:
        raise ConfigError(f"env={env!r} does not take env_kwargs={dict(arguments)!r}: {error}") from error
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(f"env={env!r} cannot be made: {error}") from error


def _gymnasium(env: str) -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise MissingExtra("gymnasium", "rl", f"the environment {env!r}") from error
    return gymnasium


def _missing(env: str, error: ModuleNotFoundError) -> ConfigError:
    package = (error.name or "?").partition(".")[0]
    return ConfigError(f"env={env!r} needs the module {error.name!r}, which is not installed: pip install {package}")
