"""What `001_train_gpt.py` is made of: the text, the model, the training, the report."""
