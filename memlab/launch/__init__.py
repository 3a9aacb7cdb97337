"""Control of DeepSpeed's launcher: start it, watch it, end it, and record the outcome."""
