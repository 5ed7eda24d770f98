"""Train a network with Keras on scikit-learn's digits. It needs keras, torch and scikit-learn."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
from sklearn.datasets import load_digits

import paceline as pl

digits, labels = load_digits(return_X_y=True)
EPOCHS = 9


def train(config):
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(config["width"], activation="relu"),
            keras.layers.Dropout(config["dropout"]),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(config["lr"]),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model.fit(
        digits[:1400] / 16,
        labels[:1400],
        validation_data=(digits[1400:] / 16, labels[1400:]),
        batch_size=64,
        epochs=EPOCHS,
        verbose=2,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: pl.report(logs))],
    )


if __name__ == "__main__":
    space = {"lr": pl.loguniform(1e-4, 1e-1), "width": pl.choice([16, 64]), "dropout": 0.2}
    result = pl.tune(train, space=space, metric="val_loss", mode="min", epochs=EPOCHS, trials=8)
    print(f"loss {result.best.value:.3f} with {result.best.config}")
