"""What tests share: real checkpoints made by torch.save, and real processes of the command line."""
