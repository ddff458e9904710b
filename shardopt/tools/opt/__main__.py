"""`python -m shardopt.tools.opt` is `shardopt-opt`."""

import sys

from shardopt.tools.opt import main

sys.exit(main())
