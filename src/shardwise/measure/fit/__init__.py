"""From measured kernels to the few physical numbers of a calibration."""
