"""What operators have in common: arguments checked, arrays as rows and back."""
