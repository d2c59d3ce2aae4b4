"""Which steps an engine takes under a load: who is in them, how full they are, who waits."""
