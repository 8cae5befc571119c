"""The sets of measurements that `open_trials.py` predicts by the planner's default models, a file per family.

`_sets.py` lists them all. `_trial_set.py` says what a set is, `_folder.py` reads the files, `_run.py` predicts the rows
of a set, `_score.py` computes the figures.
"""
