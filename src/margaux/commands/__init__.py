"""The commands of `margaux`: what they share, and a file for each family of `margaux fit`."""
