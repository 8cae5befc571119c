"""A model that somebody names or gives comes in; its layers go out, cut into any number, for any micro-batch."""
