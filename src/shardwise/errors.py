"""Everything that Shardwise raises on purpose.

    ShardwiseError                 exit code
     ├── InputError                2   a model, cluster, strategy, file or flag is wrong
     │    ├── UnknownNameError     2   no such model, cluster, runtime, schedule ...
     │    └── FileError            2   a file cannot be read or written
     ├── MissingExtraError         2   an optional package is not installed
     ├── InfeasibleError           1   the question is well put and the answer is "nothing fits"
     └── JobError                  3   a job that was started died (measure/launch/failure.py)

A message says what is wrong, with the numbers, and what to change. An InputError carries all faults of an
input at once, each with the dotted path of its field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with an input."""

    path: str
    """Dotted path of the field, such as `strategy.tp`; empty when the whole input is meant."""
    message: str
    """What is wrong, with the numbers, and what to change."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ShardwiseError(Exception):
    """The root of all errors that a user can cause and mend."""

    exit_code = 2


class InputError(ShardwiseError):
    """An input is wrong; `faults` lists everything that is wrong with it."""

    def __init__(self, faults: str | Fault | Iterable[Fault], *, title: str = "") -> None:
        if isinstance(faults, str):
            faults = Fault("", faults)
        if isinstance(faults, Fault):
            faults = (faults,)
        self.faults: tuple[Fault, ...] = tuple(faults)
        self.title = title
        super().__init__(self._text())

    def rename(self, word: Callable[[str], str]) -> None:
        """Tell the same in the words of who asked: a flag's name as an argument's."""
        self.title = word(self.title)
        self.faults = tuple(Fault(word(fault.path), word(fault.message)) for fault in self.faults)
        self.args = (self._text(),)

    def _text(self) -> str:
        if len(self.faults) == 1:
            return f"{self.title}: {self.faults[0]}" if self.title else str(self.faults[0])
        head = f"{self.title}: " if self.title else ""
        return f"{head}{len(self.faults)} faults\n" + "\n".join(f"  - {fault}" for fault in self.faults)


class UnknownNameError(InputError):
    """A name is not in its catalog; the nearest ones are offered. `every`: and all others, as they are few."""

    def __init__(self, what: str, name: str, known: Iterable[str], *, hint: str = "", every: bool = False) -> None:
        import difflib

        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        offer = (
            f"did you mean {' or '.join(', '.join(near).rsplit(', ', 1))}?"
            if near
            else f"known: {', '.join(names[:12])}"
        )
        if near and every:
            offer += f" Known: {', '.join(names)}"
        if not near and len(names) > 12:
            offer += f" and {len(names) - 12} more"
        super().__init__(f"there is no {what} named {name!r}; {offer}{' ' + hint if hint else ''}")


class FileError(InputError):
    """A file cannot be read, is not what it should be, or cannot be written."""

    def __init__(self, path: str | Path, message: str) -> None:
        super().__init__(f"{path}: {message}")


class MissingExtraError(ShardwiseError):
    """A feature needs an optional package."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the extra {extra!r}: type  pip install 'shardwise[{extra}]'")


class InfeasibleError(ShardwiseError):
    """No answer exists under the given limits."""

    exit_code = 1
