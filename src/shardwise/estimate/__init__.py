"""One strategy -> its estimate: the ledgers of time and memory. The one maker of pass costs lives here."""
