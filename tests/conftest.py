"""What holds for all tests: they see neither the cache of the user who runs them nor that of
another test."""

from __future__ import annotations

import os

# Of the processes that tests start, too. A test of the cache names a folder of its own.
os.environ["SHARDOPT_CACHE"] = "off"
