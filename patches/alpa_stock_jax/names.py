"""Names that Alpa imports from jax 0.3.22 and that stock jax has moved or lost."""

from alpa_stock_jax._patch import Patch

PATCHES: tuple[Patch, ...] = ()
