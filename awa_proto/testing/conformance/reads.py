"""Reads: one row for each job, whatever became of it, and the same from every read."""

from __future__ import annotations

from awa_proto import extra as extras
from awa_proto.job import JobRow, JobState
from awa_proto.store import JobFilter, QueueStat, Verdict
from awa_proto.testing.conformance.kit import HOUR, OUTCOMES, DatabaseKit, Kit, end, jobs, now

HAPPENS = (
    JobState.SCHEDULED,
    JobState.AVAILABLE,
    JobState.RUNNING,
    JobState.COMPLETED,
    JobState.RETRYABLE,
    JobState.FAILED,
    JobState.CANCELLED,
)
"""Every state a job can be in so far."""


async def agree(kit: Kit, ids: list[int]) -> list[JobRow]:
    """Every read says the same of these jobs, which are all there are; the rows."""
    rows = await kit.run(kit.store.list_jobs(JobFilter(limit=1000)))
    assert [row.id for row in rows] == sorted(ids, reverse=True)
    assert rows == [await kit.job(row.id) for row in rows]
    for state in JobState:
        listed = await kit.run(kit.store.list_jobs(JobFilter(state=state, limit=1000)))
        assert listed == [row for row in rows if row.state is state], state
    for stat in await kit.run(kit.store.queue_stats()):
        counted = {s.value: sum(r.state is s for r in rows if r.queue == stat.queue) for s in JobState}
        assert {s.value: getattr(stat, s.value) for s in JobState} == counted, stat
    return rows


async def every_read_shows_a_job_in_its_state(kit: Kit) -> None:
    """get_job, lists by state, and the counts agree, job by job."""
    ids = [await kit.job_in(state, queue=f"{state} {n}") for n in range(2) for state in HAPPENS]
    rows = await agree(kit, ids)
    assert [row.state for row in reversed(rows)] == [*HAPPENS] * 2


async def a_job_is_shown_once_through_many_attempts(kit: Kit) -> None:
    """H11: the attempts of a job lie in one segment, and only the newest stands for it."""
    ids = await kit.enqueue(6)
    for number in range(5):
        attempts = await kit.claim()
        await kit.finalize(*(end(a, OUTCOMES[(a.id + number) % 6]) for a in attempts))
        await agree(kit, ids)
        await kit.run(kit.store.promote(100))
        for id in ids:
            await kit.run(kit.store.retry(id))
        await agree(kit, ids)


async def a_list_is_paged_by_id_and_filtered_by_all_its_conditions(kit: Kit) -> None:
    """Newest first; a page goes on before the last id of the one before."""
    ids = [
        row.id
        for n in range(4)
        for row in await kit.insert(*jobs(2, kind=f"k{n % 2}", queue=f"q{n}"), *jobs(1, kind="k1", run_at=now() + HOUR))
    ]
    pages: list[list[int]] = []
    before: int | None = None
    while page := await kit.listed(before_id=before, limit=5):
        pages.append(page)
        before = page[-1]
    assert [len(page) for page in pages] == [5, 5, 2]
    assert [id for page in pages for id in page] == ids[::-1]
    assert await kit.listed(kind="k0") == [ids[i] for i in (7, 6, 1, 0)]
    assert await kit.listed(kind="k1", queue="q1") == [ids[4], ids[3]]
    assert await kit.listed(kind="k1", queue="q", state=JobState.SCHEDULED) == [ids[i] for i in (11, 8, 5, 2)]
    assert await kit.listed(kind="k0", state=JobState.SCHEDULED) == []
    assert await kit.listed(state=JobState.AVAILABLE, before_id=ids[4], queue="q1") == [ids[3]]
    assert await kit.listed(queue="q1%") == []


async def a_list_knows_where_its_next_page_begins(kit: Kit) -> None:
    """And that nothing comes after its last one, also when that is full."""
    ids = [await kit.job_in(state, queue=f"{state} {n}") for n in range(2) for state in HAPPENS]
    for limit in (1, 2, 7, 13, 14, 15):
        page = await kit.run(kit.store.list_jobs(JobFilter(limit=limit)))
        found = [job.id for job in page]
        while page.next is not None:
            assert (len(page), page.next) == (limit, page[-1].id)
            page = await kit.run(kit.store.list_jobs(JobFilter(limit=limit, before_id=page.next)))
            found += [job.id for job in page]
        assert found == ids[::-1]
    for state in HAPPENS:
        page = await kit.run(kit.store.list_jobs(JobFilter(state=state, limit=1)))
        assert page.next == page[0].id
        page = await kit.run(kit.store.list_jobs(JobFilter(state=state, limit=1, before_id=page.next)))
        assert (len(page), page.next) == (1, None)


async def completed_jobs_are_listed_past_those_that_wait_and_run(kit: Kit) -> None:
    """However many there are of these: more than a statement looks at to begin with."""
    ids = await kit.enqueue(450)
    assert await kit.finalize(*map(end, await kit.claim(30))) == [Verdict.ACCEPTED] * 30
    running = await kit.claim(390)
    assert await kit.finalize(end(running[200])) == [Verdict.ACCEPTED]
    done = [running[200].id, *ids[29::-1]]
    assert await kit.listed(state=JobState.COMPLETED, limit=100) == done
    found: list[int] = []
    while page := await kit.listed(state=JobState.COMPLETED, limit=10, before_id=found[-1] if found else None):
        found += page
    assert found == done


async def a_list_is_filtered_by_tag_and_by_what_metadata_contain(kit: Kit) -> None:
    """In every state: whole tags, and metadata as jsonb says that one contains the other."""
    tenant: dict[str, object] = {"tenant": 5, "b": True, "in": {"x": [1, {"y": "ü"}], "z": None}, "f": 1.5}
    extra = extras.encode(metadata=tenant, tags=["a", 'b"\\ c', "ü"])
    found = [await kit.job_in(state, queue=state.value, extra=extra) for state in HAPPENS][::-1]
    for state in HAPPENS:
        await kit.job_in(
            state, queue=state.value, kind="other", extra=extras.encode(metadata={"tenant": "5"}, tags=["a b"])
        )
        await kit.job_in(state, queue=state.value, kind="plain")
    for tag, count in (("a", 7), ('b"\\ c', 7), ("ü", 7), ("b", 0), ("A", 0), ("", 0)):
        assert await kit.listed(tag=tag) == found[:count], tag
    contained: list[object] = [
        {}, {"tenant": 5}, {"tenant": 5.0}, {"b": True, "f": 1.5}, {"in": {}}, {"in": {"x": [{"y": "ü"}]}}, {"in": {"z": None}}
    ]  # fmt: skip
    for part in contained[1:]:
        assert await kit.listed(metadata=extras.compact(part)) == found, part
    foreign: list[object] = [
        {"tenant": "6"}, {"b": 1}, {"tenant": True}, {"f": 2}, {"in": {"x": [2]}}, {"in": []}, {"x": [1]}, {"z": None},
    ]  # fmt: skip
    for part in foreign:
        assert await kit.listed(metadata=extras.compact(part)) == [], part
    assert len(await kit.listed(metadata="{}")) == 14
    assert await kit.listed(tag="a", metadata='{"b":true}', kind="count", queue="failed", state=JobState.FAILED) == [
        id for id in found if (await kit.job(id)).state is JobState.FAILED
    ]


async def no_job_is_none(kit: Kit) -> None:
    """At any number there is not."""
    for id in (0, -5, 1, 2**63 - 1):
        assert await kit.run(kit.store.get_job(id)) is None
    assert await kit.listed() == []
    assert await kit.run(kit.store.queue_stats()) == []


async def counts_tell_how_long_the_oldest_job_has_waited(kit: Kit) -> None:
    """Lag is that of available jobs only, and 0 without any."""
    await kit.enqueue(run_at=now() - HOUR)
    await kit.enqueue(run_at=now() - 2 * HOUR)
    await kit.enqueue(run_at=now() + HOUR)
    assert 7100 < (await kit.stat()).lag < 7300
    await kit.claim()
    stat = await kit.stat()
    assert stat == QueueStat("q", scheduled=1, running=2)


async def jobs_of_open_transactions_are_not_shown_and_those_of_late_ones_are(kit: DatabaseKit) -> None:
    """The claim that took a late job is found as well as any other."""
    async with kit.session() as one, kit.session() as two:
        await one.sql("BEGIN")
        early = [row.id for row in await one.run(kit.store.insert(jobs(3)))]
        await two.sql("BEGIN ISOLATION LEVEL SERIALIZABLE")
        late = [row.id for row in await two.run(kit.store.insert(jobs(3)))]
        ids = await kit.enqueue(4)
        for _ in range(3):
            await kit.claim(1)
        await agree(kit, ids)
        await two.sql("COMMIT")
        ids += late
        await agree(kit, ids)
        await kit.claim(2)
        await agree(kit, ids)
        await one.sql("COMMIT")
        ids += early
        await agree(kit, ids)
        while attempts := await kit.claim(1):
            await agree(kit, ids)
            await kit.close(attempts[0], OUTCOMES[attempts[0].id % 5], due=now() + HOUR)
        await agree(kit, ids)


async def a_read_in_a_users_transaction_sees_what_it_has_written(kit: DatabaseKit) -> None:
    """And, at REPEATABLE READ, one consistent moment."""
    async with kit.session() as user:
        await user.sql("BEGIN ISOLATION LEVEL REPEATABLE READ")
        (own,) = await user.run(kit.store.insert(jobs(1)))
        (other,) = await kit.enqueue()
        assert await user.run(kit.store.get_job(own.id)) == own
        assert await user.run(kit.store.get_job(other)) is None
        assert [row.id for row in await user.run(kit.store.list_jobs(JobFilter()))] == [own.id]
        await user.sql("COMMIT")
    await agree(kit, [own.id, other])
