"""Train gradient-boosted trees with LightGBM. It needs lightgbm and scikit-learn."""

import lightgbm as lgb
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import paceline as pl

x, y = load_breast_cancer(return_X_y=True)
x_train, x_valid, y_train, y_valid = train_test_split(x, y, random_state=0)
ROUNDS = 30


def train(learning_rate=0.1, num_leaves=31, min_child_samples=20):
    params = {
        "objective": "binary",
        "metric": "auc",
        "verbosity": -1,
        "learning_rate": learning_rate,
        "num_leaves": num_leaves,
        "min_child_samples": min_child_samples,
    }
    train_set = lgb.Dataset(x_train, y_train)
    return lgb.train(
        params,
        train_set,
        num_boost_round=ROUNDS,
        valid_sets=[lgb.Dataset(x_valid, y_valid, reference=train_set)],
        callbacks=[lambda env: pl.report({"auc": env.evaluation_result_list[0][2]})],
    )


if __name__ == "__main__":
    space = {"learning_rate": pl.loguniform(0.01, 0.5), "num_leaves": pl.randint(4, 64)}
    result = pl.tune(train, space=space, metric="auc", mode="max", epochs=ROUNDS, trials=12)
    print(f"auc {result.best.value:.3f} with {result.best.config}")
