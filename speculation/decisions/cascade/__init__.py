"""What a model of a cascade does next, given what its neighbours have written."""
