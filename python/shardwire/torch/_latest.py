# SPDX-License-Identifier: Apache-2.0
"""Publications of which each step replaces the one before."""

from __future__ import annotations

import functools
import logging
from typing import Any

from .. import Catalog, InvalidArgument, Publication, Session, TimedOut
from .._types import Seconds, Snapshot

logger = logging.getLogger(__name__)


class Latest:
    """What this rank publishes under one name. Peers see the old or the new step, never neither.

    `options`: of Session.publish(), beside the step and the snapshot.
    """

    def __init__(self, session: Session, name: str, **options: Any) -> None:
        self.session, self.name, self.options = session, name, options
        self.step: int | None = None
        self.publication: Publication | None = None

    def publish(self, catalog: Catalog, step: int, snapshot: Snapshot) -> Publication:
        """Waits 10 s for peers that read the step before, which is then revoked."""
        anew = functools.partial(self.session.publish, catalog, step=step, name=self.name, snapshot=snapshot, **self.options)
        if self.publication is None:
            self.publication = anew()
        else:
            try:
                self.publication.update(catalog, step, snapshot=snapshot)
            except TimedOut as error:
                logger.warning("peers that still read step %s of '%s' lose it: %s", self.step, self.name, error)
            except InvalidArgument as refusal:
                try:
                    self.publication = anew()  # it was retired
                except InvalidArgument:
                    raise refusal from None
        self.step = step
        return self.publication

    def retire(self, timeout: Seconds = 10) -> None:
        """Ends the publication; raises as Publication.retire(). The next step begins another."""
        publication, self.publication, self.step = self.publication, None, None
        if publication is not None:
            publication.retire(timeout)
