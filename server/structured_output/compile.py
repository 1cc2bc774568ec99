"""Compiles grammars before they go to the engine, so that a bad one is the client's error and nobody else's."""

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from server.errors import bad_request
from server.structured_output.grammars import Restriction
from workers.shared.grammar import GrammarFailed, GrammarMatcher, Grammars

_SECONDS = 4.0  # the library's own limits end nearly every compilation sooner
_THREADS = 2
_REMEMBERED = 128
_MESSAGE = 500  # characters of the library's explanation


class GrammarChecker:
    """Compiles in threads of its own, which the library leaves free to run beside the event loop."""

    def __init__(self, folder: Path) -> None:
        """Reads the model's vocabulary; raises `ConfigError`."""
        self._grammars = Grammars(folder)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")
        self._good: OrderedDict[str, None] = OrderedDict()

    async def check(self, restriction: Restriction) -> None:
        """Raises a 400 `ApiError` that names the parameter unless the grammar compiles in time."""
        grammar, param = restriction.grammar, restriction.param
        if grammar in self._good:
            self._good.move_to_end(grammar)
            return
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._compile, grammar)
        try:
            await asyncio.wait_for(asyncio.shield(work), _SECONDS)
        except TimeoutError:
            raise bad_request(
                f"'{param}' could not be compiled within {_SECONDS:g} seconds; simplify it", param
            ) from None
        except GrammarFailed as error:
            raise bad_request(f"'{param}' cannot be used: {str(error)[:_MESSAGE]}", param) from error
        self._good[grammar] = None
        while len(self._good) > _REMEMBERED:
            self._good.popitem(last=False)

    def _compile(self, grammar: str) -> None:
        GrammarMatcher(self._grammars, grammar).allowed()
