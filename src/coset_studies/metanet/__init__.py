"""Networks that read and edit the weights of other networks: the thesis on flows over weights, chapter 5."""
