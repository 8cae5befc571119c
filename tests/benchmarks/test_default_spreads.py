"""The spread of the null models is what the measurements give, where they are there."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import default_spreads
from alpa_dejavu.costs.latency.learned import UNMEASURED_DTYPE, UNMEASURED_KIND
from alpa_dejavu.planning.uncertainty._spreads import ALPHA_BETA, ROOFLINE

TRAIN = Path(__file__).parents[3] / "shared" / "data"


def test_spread_by_hand():
    log_errors, groups = pd.Series([0.0, 2.0, 4.0, 6.0]), pd.Series(["a", "a", "b", "b"])
    assert default_spreads.left_out_spread(log_errors, groups) == (4.0, 1.0)


@pytest.mark.skipif(not TRAIN.is_dir(), reason=f"the measurements are to be in {TRAIN}")
@pytest.mark.slow
def test_the_constants_are_the_figures(tmp_path):
    out = tmp_path / "out.json"
    assert default_spreads.main(["--train", str(TRAIN), "--json", str(out)]) == 0
    rows = json.loads(out.read_text(encoding="utf-8"))["classes"]
    found = {row["class"]: (row["common"], row["own"]) for row in rows}
    for name, figures in ROOFLINE.items():
        assert found[name] == pytest.approx(figures, abs=0.005)
    assert found["products of a kind left out"] == pytest.approx(UNMEASURED_KIND, abs=0.005)
    assert np.hypot(*found["products in half precision"]) == pytest.approx(UNMEASURED_DTYPE, abs=0.005)
    for place, sigma in ALPHA_BETA.items():
        assert np.hypot(*found[f"collectives {place}"]) == pytest.approx(sigma, abs=0.005)
