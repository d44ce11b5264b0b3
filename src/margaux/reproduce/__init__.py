"""Scripts that repeat published experiments: `margaux reproduce NAME`."""
