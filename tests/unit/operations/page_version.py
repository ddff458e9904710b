"""The pages of operations show what one version of jaxlib says of them, and others say otherwise."""

from __future__ import annotations

import jaxlib
import pytest

_MADE_WITH = "0.10"

OF_ONE_VERSION = pytest.mark.skipif(
    not jaxlib.__version__.startswith(f"{_MADE_WITH}."),
    reason=f"the page is made with jaxlib {_MADE_WITH}, this is {jaxlib.__version__}",
)
