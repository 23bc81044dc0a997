"""How far the nearest equivalent mode is: of networks, and of the means of mean-field posteriors."""
