"""The sets of measurements that `open_trials.py` scores, a file per family: which rows, which groups, which predictor.

`_sets.py` lists them all. `_trial_set.py` has the interfaces, `_folder.py` reads the files, `_run.py` leaves groups
out, `_score.py` computes the figures.
"""
