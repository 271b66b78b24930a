"""Actions, the event engine and the timeline: times, memory curves, bubbles, critical path."""
