"""The words for torch.distributed.pipelining, apart so that the list of targets loads nothing heavy."""

TORCH = "torch-pipelining@2.13"
SPEAKS = "torch 2.13, torch.distributed.pipelining (CSV and runner)"
