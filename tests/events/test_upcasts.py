"""A log that an earlier version of the schema wrote still reads, with every hash as it was."""

from pathlib import Path

import pytest

from kernelbraid.events.audit import AuditCompleted
from kernelbraid.events.errors import EventInvalid
from kernelbraid.events.state import fold
from kernelbraid.events.store import open_store
from kernelbraid.events.upcasts import UPCASTS, upcast

OLD_LOG = Path(__file__).parent / "logs" / "schema-1.kernelbraid"
OLD_HEAD = "ae3967cdaf04e22402a0dbda7e6103e53a894a07650a08dbb24ff5113c60f1f9"


def test_a_log_of_schema_1_reads_as_today_and_keeps_its_hashes(tmp_path: Path) -> None:
    # given: a file exported when AuditCompleted had one duration
    store = open_store(f"sqlite:///{tmp_path / 'old.db'}")
    store.import_(OLD_LOG)
    # when
    audits = [item.event for item in store.read("schema-1") if isinstance(item.event, AuditCompleted)]
    # then: the duration is there in its new form, and the stored bytes were not touched
    assert [audit.elapsed_s > 0 and audit.build_s == 0 for audit in audits] == [True] * 4
    assert store.verify("schema-1", head=OLD_HEAD).problems == ()
    # and the environment's digest, which has more fields today, is still the one that the audits cite
    state = fold(store.read("schema-1"))
    assert state.audited_count == 4
    assert {audit.environment for audit in audits} == {state.environment_digest}
    store.close()


def test_an_upcast_starts_from_exactly_the_old_fields() -> None:
    # given
    today = AuditCompleted.version
    # when / then
    new = upcast("AuditCompleted", {"elapsed_s": 2.0, "action": None}, 1, today, UPCASTS)
    assert new == {"action": None, "build_s": 0.0, "check_s": 0.0, "timing_s": 2.0}
    with pytest.raises(EventInvalid, match="install a newer one"):
        upcast("AuditCompleted", {}, today + 1, today, UPCASTS)
