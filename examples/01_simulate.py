"""Find out which policy reaches a good config first, before you rent any GPU.

Two simulated studies on a synthetic workload. Run it with `python examples/01_simulate.py`.
"""

import paceline as pl

for policy in ("fifo", "asha:eta=3"):
    study = pl.Simulation(source="families", policy=policy, slots=8, trials=60, target=0.9)
    result = study.run()
    print(f"{policy}: accuracy {result.best_value:.3f} after {result.time_to_target_s:.0f} s")
    print(f"  {result.trials_started} trials, {result.epochs_trained} epochs, 8 slots")
    print(f"  {result.best_config}")
