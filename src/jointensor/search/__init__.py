"""``--rank auto``: candidates, cross-validation, ensemble selection and an explanation."""
