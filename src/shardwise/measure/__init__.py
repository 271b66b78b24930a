"""What was measured, and what is learnt from it: probe, fit, rehearsal, correction, validation."""
