"""The simulator's costs as tables over tilings of classes and loops of ops."""
