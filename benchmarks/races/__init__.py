"""The parts of `parallel_initialization.py`: models on real data, ways to train them, and what comes out."""
