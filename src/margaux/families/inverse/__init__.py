"""Linear inverse problems with a learned regularisation."""
