"""What to do about images that cannot be read: log each once, and stop if there are too many."""

import dataclasses
import logging

from vit_jax.data.sources import Source

_SHOWN = 100


@dataclasses.dataclass(frozen=True)
class BadImages:
    """Counts unreadable examples, each once however often it comes up.

    `limit` is a share of the source. Reader threads share one of these; worker processes, which
    share no memory, each have their own.
    """

    source: Source
    limit: float
    reasons: dict[int, str] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.reasons)

    def report(self, index: int, error: Exception) -> None:
        """Raises ValueError with the list once more than `limit` of the source is bad."""
        if index not in self.reasons:
            self.reasons[index] = str(error)
            logging.getLogger(__name__).warning(
                "unreadable image %s: %s", self.source.path(index), error
            )
        if len(self) > self.limit * len(self.source):
            raise ValueError(self._message())

    def _message(self) -> str:
        lines = [
            f"  {self.source.path(i)}: {why}" for i, why in list(self.reasons.items())[:_SHOWN]
        ]
        if len(self) > _SHOWN:
            lines.append(f"  and {len(self) - _SHOWN} more")
        return (
            f"{len(self)} of {len(self.source)} images of {self.source.name} cannot be read, more "
            f"than config.max_bad_images={self.limit:g} allows. Repair them, or allow more:\n"
            + "\n".join(lines)
        )
