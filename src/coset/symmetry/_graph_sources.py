"""The text of generated code, which torch.fx keeps for ever, given back when the graphs are gone.

Every graph module that ``torch.export`` makes on its way is compiled from text, and each text stays in a table of
torch and in ``linecache``, so that a traceback can show it. A process that exports one model after the other grows by
all of it: about 9 kB for a network of three layers, and in proportion to the graph.
"""

import linecache
from collections.abc import Iterator
from contextlib import contextmanager

from torch.fx import graph_module


@contextmanager
def sources_forgotten() -> Iterator[None]:
    """Forget the text of graph modules that are made within the block, or the function it decorates.

    They still run; only a traceback through one that lives longer shows no lines of it.
    """
    # No public name clears it; where torch keeps it elsewhere, nothing is done.
    texts: dict[str, str] = getattr(getattr(graph_module, "_loader", None), "eval_cache", {})
    known = set(texts)
    try:
        yield
    finally:
        for name in [name for name in texts if name not in known]:
            texts.pop(name, None)
            linecache.cache.pop(name, None)
