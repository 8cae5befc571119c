"""What `optex.py` is made of: problems, ways to train them, runs until a target, and what they come to."""
