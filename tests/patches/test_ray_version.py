"""Ray's version is checked before anything starts."""

import pytest
import ray

from alpa_stock_jax import _ray_version


@pytest.mark.parametrize("version", ["2.10.0", "2.31.1", "2.60.0", "2.60.0rc1", ray.__version__])
def test_versions_in_the_range_fit(version):
    _ray_version.check_version(version)


@pytest.mark.parametrize("version", ["1.13.0", "2.9.3", "2.61.0", "3.0.0.dev0", "unknown"])
def test_others_are_refused_with_the_remedy(version):
    with pytest.raises(RuntimeError, match=rf"Ray {version} doesn't fit: .* pip install \"ray>=2.10,<2.61\""):
        _ray_version.check_version(version)
