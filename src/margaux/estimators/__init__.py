"""scikit-learn style estimators, one family a file. Imported when first asked for, since scikit-learn takes a second."""
