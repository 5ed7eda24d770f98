"""Find the best values of two numbers: a function that returns a score, a space, trials.

Run it with `python examples/00_first_study.py`. It needs nothing but Paceline.
"""

import paceline as pl


def objective(x, y):
    return (x - 2) ** 2 + (y + 1) ** 2


result = pl.tune(objective, space={"x": pl.uniform(-5, 5), "y": pl.uniform(-5, 5)}, trials=100)
print(result.best_value, result.best_params)
