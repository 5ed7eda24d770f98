"""Tuning algorithms, one small module each. They read the study and set goals; they run nothing."""
