"""Train gradient-boosted trees with XGBoost. It needs xgboost and scikit-learn."""

import xgboost as xgb
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

x, y = load_breast_cancer(return_X_y=True)
x_train, x_valid, y_train, y_valid = train_test_split(x, y, random_state=0)
ROUNDS = 30


def train(params):
    history = {}
    valid = xgb.DMatrix(x_valid, y_valid)
    xgb.train(
        {"objective": "binary:logistic", "eval_metric": "logloss", **params},
        xgb.DMatrix(x_train, y_train),
        num_boost_round=ROUNDS,
        evals=[(valid, "valid")],
        evals_result=history,
        verbose_eval=False,
    )
    return history["valid"]["logloss"][-1]


if __name__ == "__main__":
    params = {"eta": 0.3, "max_depth": 6, "subsample": 1.0}
    print(f"logloss {train(params):.3f} with {params}")
