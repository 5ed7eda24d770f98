"""Generators built on Optuna's samplers."""

import warnings

# Optuna imports tqdm, which warns in notebooks without ipywidgets. Paceline uses neither.
warnings.filterwarnings("ignore", message="IProgress not found")
