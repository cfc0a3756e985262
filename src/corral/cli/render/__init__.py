"""From answers of the pool to text: pure functions, aligned and calm, right at 80 columns."""
