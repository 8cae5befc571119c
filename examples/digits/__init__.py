"""A small convolutional network for scikit-learn's handwritten digits, and pictures of how its candidates train."""
