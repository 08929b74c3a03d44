"""What a person judges, their marks so far, and the judged queries that follow from these.

A query is in the output once the person went on from it, without a snippet that they were unsure
of. Snippets that they did not see keep the judgement that they had.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import JsonValue, TypeAdapter, ValidationError

from conformal_retrievers.data.checks import all_of, check_names
from conformal_retrievers.data.files import checksum, explain
from conformal_retrievers.data.jsonl import read_jsonl
from conformal_retrievers.data.judged import check_not_only_relevant, check_retrieved
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.labels.judging.audit import AuditReport
from conformal_retrievers.labels.judging.journal import Event, Journal, as_marks
from conformal_retrievers.labels.judging.sample import Sample, draw
from conformal_retrievers.labels.record import beside, read_labels, write_labelled
from conformal_retrievers.labels.wording import say


class Judging:
    """The judging of queries by one person, which goes on where it was if it is opened again.

    It may have grown: queries behind those that it was begun with are asked after these.

    The queries have retrieved snippets, marked or not. `out` is the file of JSON lines for the
    judged ones: a new one, or one that this judging wrote. Beside it are the journal
    (.marks.sqlite) and the origin of the judgements (.labels.json), with `by`, who judges, and
    `given`, where the marks and the questions come from, as `read_labels` returns it. `share` is
    that of the unmarked snippets to show, in (0, 1]; see `draw` for the default.

    Raises ValueError if there is nothing to judge, the queries are not retrieved yet, a query has
    evidence, marked queries follow those without marks, or the journal is about other queries,
    another share or person; OSError if a file cannot be written, another process judges it, or
    `out` exists without a journal or was edited.
    """

    def __init__(
        self,
        queries: Iterable[JudgedQuery],
        out: str | Path,
        *,
        by: str | None = None,
        share: float | None = None,
        given: Mapping[str, JsonValue] | None = None,
    ) -> None:
        self.queries, self.out, self.by = all_of(JudgedQuery, queries, "queries"), Path(out), by
        check_names("judging", by=by)
        check_retrieved(self.queries)
        check_not_only_relevant(self.queries)
        for query in self.queries:
            if query.evidence:
                raise ValueError(say("marks ranges", query=query))
        self.marked = any(any(query.relevant) for query in self.queries)
        self.given = dict(given or {})
        digest = _digest(self.queries)
        drawn = draw(self.queries, share, int(digest[:8], 16))  # the same for a second person
        journal = beside(out, "marks.sqlite")
        if self.out.exists() and not journal.exists():
            raise FileExistsError(f"{out} exists, and {journal.name} does not; give another --out")
        about: dict[str, JsonValue] = {"by": by}
        self.journal = Journal(journal, {"queries": digest, **about, **vars(drawn)})
        if share is not None:
            about["share"] = drawn.share
        with ExitStack() as undo:
            undo.callback(self.journal.close)
            for field, value in about.items():
                if (begun := self.journal.plan.get(field)) != value:
                    facts = {"field": field, "begun": begun, "value": value}
                    raise ValueError(say("begun otherwise", path=self.journal.path, **facts))
            self._grow(digest)
            self.sample, events = self._begun()
            self._lock = threading.Lock()
            self._versions = [0] * len(self.queries)
            self._latest = [
                Event(place, tuple(query.relevant[i] for i in self.sample.shown[place]), False)
                for place, query in enumerate(self.queries)
            ]
            for event in events:
                self._take(event)
            self.unwritten: str | None = None  # why `out` lacks marks that the journal has
            self._check_unchanged()
            self.write()
            undo.pop_all()

    def _grow(self, digest: str) -> None:
        """Add what is behind the queries that the journal was begun with; ValueError for others."""
        plan = self.journal.plan
        if plan.get("queries") == digest:
            return
        n = len(plan["shown"]) if isinstance(plan.get("shown"), list) else 0
        if n >= len(self.queries) or plan.get("queries") != _digest(self.queries[:n]):
            raise ValueError(say("begun with others", path=self.journal.path))
        if self.marked and not any(any(query.relevant) for query in self.queries[:n]):
            raise ValueError(say("begun unmarked", path=self.journal.path, n=n))
        more = draw(self.queries[n:], plan["share"], int(digest[:8], 16))
        order = [*plan["order"], *(n + place for place in more.order)]
        shown = [*plan["shown"], *more.shown]
        self.journal.replace({**plan, "queries": digest, "order": order, "shown": shown})

    def _begun(self) -> tuple[Sample, list[Event]]:
        """Return what the journal has; raise ValueError unless it is of these queries."""
        sizes = [len(query.snippets) for query in self.queries]
        try:
            sample, events = TypeAdapter(Sample).validate_python(self.journal.plan), [*self.journal]
            shown = dict(enumerate(sample.shown))
            fits = (
                not own or 0 <= min(own) <= max(own) < n
                for own, n in zip(shown.values(), sizes, strict=False)
            )
            if len(shown) != len(sizes) or sorted(sample.order) != [*shown] or not all(fits):
                raise ValueError("what is shown is not of these questions")
            if any(q not in shown or len(marks) != len(shown[q]) for q, marks, _ in events):
                raise ValueError("its marks are not of these questions")
        except ValueError as error:
            wrong = explain(error) if isinstance(error, ValidationError) else error
            raise ValueError(say("changed", path=self.journal.path, wrong=wrong)) from None
        return sample, events

    def _check_unchanged(self) -> None:
        """Raise FileExistsError if `out` was edited since it was written."""
        if self.out.exists():
            try:
                read_labels(self.out)
            except ValueError:  # also if a process was killed before it wrote the record
                if read_jsonl(self.out) != self.judged():
                    raise FileExistsError(say("would be lost", out=self.out)) from None

    def _take(self, event: Event) -> None:
        self._latest[event.question] = event
        self._versions[event.question] += 1

    @property
    def n_done(self) -> int:
        """How many questions the person went on from."""
        return sum(event.done for event in self._latest)

    @property
    def unsure(self) -> list[JudgedQuery]:
        """The questions that are done and left out, because a mark is unsure."""
        done = [event for event in self._latest if event.done and None in event.marks]
        return [self.queries[event.question] for event in done]

    @property
    def texts_left(self) -> list[str]:
        """The snippets to judge of the questions that are not done."""
        left = (event.question for event in self._latest if not event.done)
        return [self.queries[q].snippets[i].text for q in left for i in self.sample.shown[q]]

    def next_after(self, number: int) -> int | None:
        """Return the number of the next question that is not done, or None if all are."""
        return self._after(number, lambda event: not event.done)

    def _after(self, number: int, wanted: Callable[[Event], bool]) -> int | None:
        n = len(self.sample.order)
        ahead = [(number + 1 + i) % n for i in range(n)]
        return next((i for i in ahead if wanted(self._latest[self.sample.order[i]])), None)

    def question(self, number: int) -> dict[str, JsonValue]:
        """Return what the page shows of a question, by its number from 0."""
        place = self.sample.order[number]
        query, event = self.queries[place], self._latest[place]
        shown = [(query.snippets[i], query.relevant[i]) for i in self.sample.shown[place]]
        snippets: list[JsonValue] = [
            {"text": s.text, "document": s.document, "given": relevant if self.marked else None}
            for s, relevant in shown
        ]
        return {
            "number": number,
            "questions": len(self.sample.order),
            "n_done": self.n_done,
            "n_unsure": len(self.unsure),
            "next": self.next_after(number),
            "next_unsure": self._after(number, lambda event: None in event.marks),
            "query": query.query,
            "snippets": snippets,
            "of": len(query.snippets),
            "given_by": "by the LLM" if self.given.get("source") == "LLM" else "before",
            "marks": list(event.marks),
            "done": event.done,
            "version": self._versions[place],
            "unwritten": self.unwritten,
        }

    def mark(self, number: int, marks: Sequence[Any], *, done: bool, version: int) -> bool:
        """Store the marks of a question's snippets; return False if the version is an old one.

        They are on disk when it returns; `unwritten` says why `out` does not have them yet. Raises
        ValueError for marks of another number or kind, and OSError if they cannot be written.
        """
        place = self.sample.order[number]
        if len(marks) != len(self.sample.shown[place]):
            raise ValueError(f"marks are {len(marks)}; give {len(self.sample.shown[place])}")
        with self._lock:
            if version != self._versions[place]:
                return False
            event = Event(place, as_marks(marks), done or self._latest[place].done)
            self.journal.append(event)
            self._take(event)
            if event.done:
                self.unwritten = None
                try:
                    self.write()
                except OSError as error:
                    self.unwritten = str(error)
            return True

    def judged(self) -> list[JudgedQuery]:
        """Return the queries that the person judged, in their order in the file."""
        return [query for _, query in self._judged()]

    def _judged(self) -> list[tuple[int, JudgedQuery]]:
        judged = []
        for place, event in enumerate(self._latest):
            if event.done and None not in event.marks:
                query = self.queries[place]
                seen = dict(zip(self.sample.shown[place], event.marks, strict=True))
                relevant = tuple(seen.get(i) is True for i in range(len(query.snippets)))
                # Where nothing was marked, no snippet could be known to be missed.
                missed = query.missed if self.marked else query.missed or None
                query = replace(query, answerable=query.answerable or any(relevant), missed=missed)
                judged.append((place, replace(query, relevant=relevant)))
        return judged

    def write(self) -> None:
        """Write the judged queries and the origin of their judgements, once there is one."""
        judged = self._judged()
        if not judged and not self.out.exists():
            return
        seen: list[dict[str, JsonValue]] = []
        for place, _ in judged:
            shown, given = self.sample.shown[place], self.queries[place].relevant
            seen.append({"seen": list(shown), "given": [given[i] for i in shown]})
        write_labelled([q for _, q in judged], self._labels(judged), self.out, seen=seen)

    def _labels(self, judged: Sequence[tuple[int, JudgedQuery]]) -> dict[str, JsonValue]:
        labels: dict[str, JsonValue] = {"source": "person", "by": self.by, "queries": len(judged)}
        labels |= {"unsure": len(self.unsure), "of": len(self.sample.order)}
        if "questions" in self.given:
            labels["questions"] = self.given["questions"]
        if not self.marked:
            return labels
        labels["given"] = self.given
        labels["sample"] = {"share": self.sample.share, "seed": self.sample.seed}
        return labels | self._audit(judged).labels

    def _audit(self, judged: Sequence[tuple[int, JudgedQuery]]) -> AuditReport:
        """Return the audit of the given marks by the person's."""
        rows: list[tuple[float, ...]] = []
        for n, (place, query) in enumerate(judged):
            given, shown = self.queries[place].relevant, self.sample.shown[place]
            weight = given.count(False) / max(1, sum(not given[i] for i in shown))
            rows += [(given[i], query.relevant[i], n, 1.0 if given[i] else weight) for i in shown]
        labelled, audited, numbers, weights = np.array(rows, dtype=np.float64).reshape(-1, 4).T
        return AuditReport(labelled == 1, audited == 1, numbers.astype(np.int64), weights)

    def close(self) -> None:
        """Give the journal back, so that another process may judge."""
        self.journal.close()


def _digest(queries: Sequence[JudgedQuery]) -> str:
    """Return the checksum of what a person is asked: queries, snippets and their marks."""
    texts = [[q.id, q.query, [[s.id, s.text] for s in q.snippets], q.relevant] for q in queries]
    return checksum({"queries": texts})
