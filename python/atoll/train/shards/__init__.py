"""How the processes of one worker share its parameters: blocks of sharded tensors, and the memory that they meet in."""
