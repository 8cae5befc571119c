"""What `parallel_initialization.py` is made of: models on real data, ways to train them, and what comes out."""
