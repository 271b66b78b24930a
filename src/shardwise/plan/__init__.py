"""The estimate of one strategy, the search over strategies, the plan file, validation.

`shardwise.plan` is this package and the function of the same name: calling it runs the search.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwise.plan.search.types import Answer


class _Callable(ModuleType):
    """A package that can be called; an attribute of `shardwise` would be hidden by the package of its name."""

    def __call__(self, *args: Any, **options: Any) -> Answer:  # noqa: ANN401 - those of search.api.plan
        """See `shardwise.plan.search.api.plan`."""
        from shardwise.plan.search.api import plan

        return plan(*args, **options)


sys.modules[__name__].__class__ = _Callable
