"""An application that prunes by rules, for the command line."""

from __future__ import annotations

from chancy import Chancy
from chancy.plugins.pruner import Prune, Pruner

chancy = Chancy(plugins=[Pruner(keep_days=1, rules=[Prune(keep_last=15)])])
