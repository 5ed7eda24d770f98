"""Train a network with Keras on scikit-learn's digits. It needs keras, torch and scikit-learn."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
from sklearn.datasets import load_digits

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
    )


if __name__ == "__main__":
    train({"lr": 1e-3, "width": 32, "dropout": 0.2})
