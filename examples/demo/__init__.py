"""What the examples are made of: the text, the model, the training and the report of 001; the slicers of 004."""
