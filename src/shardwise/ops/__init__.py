"""What one layer computes, keeps and sends, sharded by the strategy."""
