"""What `test_slicer_gap.py` compares slicers on: problems, the peers, and a part for each row of its table."""
