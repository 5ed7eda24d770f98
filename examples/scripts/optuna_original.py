import math

import optuna


def objective(trial):
    lr = trial.suggest_float("lr", 1e-4, 1.0, log=True)
    layers = trial.suggest_int("layers", 1, 3)
    widths = [trial.suggest_int(f"width_{i}", 8, 64, step=8) for i in range(layers)]
    narrow = trial.suggest_int("narrow", 1, layers)
    optimizer = trial.suggest_categorical("optimizer", ["sgd", "adam"])
    momentum = trial.suggest_float("momentum", 0.0, 0.9) if optimizer == "sgd" else 0.5
    floor = abs(math.log10(lr) + 2) + abs(sum(widths) / 64 - 1) + abs(momentum - 0.5) + narrow / 10
    trial.set_user_attr("parameters", sum(widths))
    for epoch in range(10):
        loss = floor + 1 / (epoch + 1)
        trial.report(loss, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned()
    return loss


if __name__ == "__main__":
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(), direction="minimize")
    study.optimize(objective, n_trials=30)
    pruned = study.get_trials(states=[optuna.trial.TrialState.PRUNED])
    print(f"{len(study.trials)} trials, {len(pruned)} pruned")
    print(f"best {study.best_value:.3f} in trial {study.best_trial.number}: {study.best_params}")
