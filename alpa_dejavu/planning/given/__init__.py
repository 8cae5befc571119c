"""A plan that is there comes in; what it takes, keeps, costs and rests on goes out, beside other plans' figures."""
