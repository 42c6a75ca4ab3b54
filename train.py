"""Trains a model: ``python train.py --config NAME [KEY=VALUE ...]`` is ``edorec train``."""

from edorec.cli import train_main

if __name__ == "__main__":
    train_main()
