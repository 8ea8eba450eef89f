"""What the pages show: items and their graph, recommendations and their reasons, the model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import fsum
from typing import Any
from urllib.parse import urlencode

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, Json

from mrfrec.answers.people import people_of
from mrfrec.answers.question import Question, Quotas
from mrfrec.answers.recommending import explanations
from mrfrec.answers.tables import history_columns
from mrfrec.answers.where import mask_of
from mrfrec.checks import shortened
from mrfrec.models.recommender import Recommender
from mrfrec.options import same_field
from mrfrec.service import answers
from mrfrec.service.api import index_of
from mrfrec.service.graph import NARROW, WIDE, draw
from mrfrec.service.problems import ProblemError
from mrfrec.service.schemas import Conditions, where_of
from mrfrec.service.served import Served

Content = dict[str, Any]
Indices = Sequence[int] | npt.NDArray[Any]

FOUND, SUGGESTED = 50, 8  # items that a search shows on its page, and below its box
_POPULAR = 12  # items on the start page
# Items of an answer or a history on a page. All items of a history are in every link of its page.
MOST_ON_PAGE = 100
_NAME, _WHOLE_NAME = 120, 1000  # characters of a name in lists, and on the page of its item
_FEATURES = 20  # features of an item, the rarest
_FEW_BARS = 6  # bars of a score that are visible at once


class PageQuery(BaseModel):
    """What the address of a page asks for."""

    model: str = ""
    q: str = ""  # words to search for
    item: list[str] = Field(default=[], max_length=MOST_ON_PAGE)  # the history, or the item to show
    id: str | None = Field(default=None, max_length=1000)  # the user to show
    add: str | None = None  # if given, links of the results add an item to the history
    k: int | None = Field(default=None, ge=1, le=MOST_ON_PAGE)
    novelty: float | None = same_field(Question, "novelty")
    variety: float = same_field(Question, "variety")
    where: Json[Conditions] | None = None
    at_most: Json[Quotas] = None


@dataclass(frozen=True, kw_only=True)
class PageVisit:
    """A request for a page."""

    root: str  # prefix of all addresses
    query: PageQuery
    served: Served
    models: list[str]
    is_default: bool  # whether it is the default model
    may_see_users: bool

    @property
    def model(self) -> Recommender:
        return self.served.model

    @property
    def kind(self) -> str:
        return type(self.model).__name__

    def link(self, page: str = "", **query: Any) -> str:
        """Return the address of a page of the same model, without the values that are None."""
        named = {} if self.is_default else {"model": self.served.name}
        values = {name: value for name, value in {**named, **query}.items() if value is not None}
        return f"{self.root}{page}" + (f"?{urlencode(values, doseq=True)}" if values else "")

    def rules(self) -> dict[str, Any]:
        """Return the filter and the quotas of the address, as `Question` takes them."""
        rules = {"where": where_of(self.query.where), "at_most": self.query.at_most}
        return {name: rule for name, rule in rules.items() if rule}

    def options(self) -> dict[str, Any]:
        """Return what links to recommendations keep besides the history: novelty, variety and rules."""
        rules = {name: json.dumps(rule, ensure_ascii=False) for name, rule in self.rules().items()}
        variety = {"variety": f"{self.query.variety:g}"} if self.query.variety else {}
        novelty = {} if self.query.novelty is None else {"novelty": self.query.novelty}
        return {**novelty, **variety, **rules}

    def question(self) -> Question:
        """Return the options of the address. Models whose scores have no novelty get none."""
        query = self.query
        novelty = query.novelty if self.model.fitted_.learned.scales_scores else None
        return Question.of(k=query.k or 10, novelty=novelty, variety=query.variety, **self.rules())

    def history(self) -> tuple[list[int], list[str]]:
        """Return the indices of the items of the query, without repetitions, and the unknown texts."""
        texts = list(dict.fromkeys(self.query.item))
        indices = [answers.find_item(self.model.items_, text) for text in texts]
        unknown = [text for text, index in zip(texts, indices, strict=True) if index is None]
        return list(dict.fromkeys(index for index in indices if index is not None)), unknown

    def ids(self, indices: Indices) -> list[Any]:
        return self.model.items_.take(np.asarray(indices, np.int64))

    def items(self, indices: Indices) -> list[Content]:
        """Return rows about items, cut to a few lines: name, id in brackets, number of users, and link."""
        catalogue = self.model.catalogue
        rows = []
        for index, id_ in zip(indices, self.ids(indices), strict=True):
            name = catalogue.name(int(index))
            short_id = shortened(str(id_), _NAME)
            short = shortened(name, _NAME) if name.strip() else "(without a name)"
            note = None if short == short_id else f"[{short_id}]"
            rows.append(
                {
                    "id": id_,
                    "name": short,
                    "note": note,
                    "hover": f"{shortened(name, 2 * _NAME)} {note or ''}".strip(),
                    "whole": shortened(name, _WHOLE_NAME) if len(name) > _NAME else None,
                    "users": int(catalogue.popularity[index]),
                    "link": self.link("item", item=id_),
                }
            )
        return rows


# ── items ─────────────────────────────────────────────────────────────────────────────────────────


def start(visit: PageVisit) -> tuple[str, Content]:
    rank = visit.model.catalogue.popularity_rank
    indices = np.flatnonzero(rank < _POPULAR)
    popular = visit.items(indices[np.argsort(rank[indices])])
    return "start.html", {"popular": popular, "about": answers.about(visit.model)}


def search(template: str, most: int, visit: PageVisit) -> tuple[str, Content]:
    text = visit.query.q.strip()[:1000]
    history = list(dict.fromkeys(visit.query.item))
    rows = visit.items(visit.model.catalogue.search(text, most) if text else [])
    for row in rows:
        row["add"] = visit.link("history", item=[*history, row["id"]], **visit.options())
    adds = visit.query.add is not None
    return template, {"q": text, "found": rows, "history": history, "most": most, "adds": adds}


def item(visit: PageVisit) -> tuple[str, Content]:
    if not visit.query.item:
        raise ProblemError(422, "say which item: ?item=ID.")
    model = visit.model
    text = visit.query.item[0]
    index = index_of(visit.served, text)
    others, strengths = model.fitted_.learned.neighbors(index, model.catalogue)
    order = np.lexsort((model.catalogue.popularity_rank[others], -strengths))
    order = order[others[order] != index]
    positive = order[strengths[order] > 0][: WIDE.positive]
    negative = order[strengths[order] < 0][::-1][: WIDE.negative]
    chosen = np.concatenate([positive, negative])
    near = np.asarray(others)[chosen].astype(np.int64)
    weights = strengths[chosen].astype(np.float64)
    rows = visit.items(near)
    has_weights = model.fitted_.learned.scales_scores
    adds = _weights(model, np.array([index]), near)[0] if has_weights else [None] * len(near)
    widest = float(np.abs(weights).max(initial=0)) or 1.0
    for row, weight, added in zip(rows, weights.tolist(), adds, strict=True):
        row |= {"weight": weight, "share": abs(weight) / widest, "adds": added}
    on_page = [*visit.items([index]), *rows]
    matrix = _edges(model, np.array([index, *near]), weights)
    drawings = []
    for canvas in (WIDE, NARROW) if rows else ():
        against = range(len(positive) + 1, len(on_page))[: canvas.negative]
        kept = [*range(min(canvas.positive, len(positive)) + 1), *against]
        nodes, edges = draw([on_page[i] for i in kept], matrix[np.ix_(kept, kept)], canvas)
        drawings.append({"canvas": canvas, "nodes": nodes, "edges": edges})
    features = [] if model.catalogue.features is None else model.catalogue.features.shared(index, index)[0]
    return "item.html", {
        "item": on_page[0],
        "features": [shortened(name, _NAME) for name in features[:_FEATURES]],
        "rank": int(model.catalogue.popularity_rank[index]) + 1,
        "of": model.fitted_.size.users,
        "positive": rows[: len(positive)],
        "negative": rows[len(positive) :],
        "drawings": drawings,
        "add": visit.link("history", item=text),
    }


def _weights(model: Recommender, items: npt.NDArray[Any], targets: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the weights of items, at value 1, in the scores of targets: items × targets."""
    return model.fitted_.learned.weights_between(items, np.ones(len(items)), targets)


def _edges(model: Recommender, indices: npt.NDArray[Any], weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the weights of the edges between an item, which comes first, and its neighbors: n × n.

    √(B_ij·B_ji) is the partial correlation, but for a factor by `novelty`. Every neighbor has an edge to the
    first item. A model without weights has no other edges.
    """
    n = len(indices)
    edges = np.zeros((n, n))
    if model.fitted_.learned.scales_scores:
        B = _weights(model, indices, indices)
        edges = np.sqrt(np.maximum(B * B.T, 0)) * np.sign(B)
    inner = np.where(edges[0, 1:] * weights > 0, edges[0, 1:], weights)
    edges[0, 1:] = edges[1:, 0] = inner
    return edges


# ── recommendations ───────────────────────────────────────────────────────────────────────────────


def history(visit: PageVisit) -> tuple[str, Content]:
    model, query, question = visit.model, visit.query, visit.question()
    indices, unknown = visit.history()
    ids = visit.ids(indices)
    (answer,), _ = answers.recommend(model, [dict.fromkeys(ids)], question)
    options = {**visit.options(), "k": query.k}
    cards = _cards(visit, answer.items, question.novelty, history=[ids])
    for row in cards:
        row["add"] = visit.link("history", item=[*ids, row["id"]], **options)
    rows = visit.items(indices)
    for row in rows:
        row["remove"] = visit.link("history", item=[one for one in ids if one != row["id"]], **options)
    fitted = model.fitted_
    novelty = fitted.novelty if question.novelty is None else question.novelty
    without_rules = {name: value for name, value in options.items() if name not in visit.rules()}
    return "history.html", {
        "history": rows,
        "ids": ids,
        "unknown": unknown,
        "novelty": novelty if fitted.learned.scales_scores else None,
        "typical": None if fitted.size.binary else fitted.usual_value,
        "without_rules": visit.link("history", item=ids, **without_rules),
        "variety": query.variety if model.catalogue.table is not None or query.variety else None,
        **_recommended(visit, question, cards, "history", item=ids),
    }


def user(visit: PageVisit) -> tuple[str, Content]:
    """Show what a user has, what the model recommends to them, and why."""
    if not visit.may_see_users:
        raise ProblemError(
            403, "a key with the role manage is needed to look at users; without keys, a request from this "
            "host.",
        )  # fmt: skip
    model, text = visit.model, visit.query.id
    if text is None:
        return "user.html", {"user": None}
    users = model.fitted_.training_for("the page of a user", "Fit it again, and").users
    index = answers.find_item(users, text)
    if index is None:
        raise ProblemError(404, "the model does not know this user.")
    (id_,) = users.take(np.array([index]))
    question = visit.question()
    (answer,), _ = answers.recommend_to_user(model, id_, question)
    columns, _ = history_columns(model.fitted_, [id_])
    latest = slice(None, -MOST_ON_PAGE - 1, -1)
    had = visit.items(model.items_.find(list(columns["item"][latest]), "item"))
    for name in ("value", "time"):
        for row, x in zip(had, columns[name][latest].tolist() if name in columns else (), strict=False):
            row[name] = x
    cards = _cards(visit, answer.items, question.novelty, users=[id_])
    return "user.html", {
        "user": shortened(text, _NAME),
        "history": had,
        "count": len(columns["item"]),
        **_recommended(visit, question, cards, "user", id=text),
    }


def _recommended(
    visit: PageVisit, question: Question, cards: list[Content], page: str, **whom: Any
) -> Content:
    """Return what a page says about its recommendations: cards, rules, and a link to more of them."""
    options = {**visit.options(), "k": visit.query.k}
    kept = mask_of(question.where, visit.model.catalogue)
    is_full = len(cards) == question.k < MOST_ON_PAGE
    more = visit.link(page, **whom, **{**options, "k": min(2 * question.k, MOST_ON_PAGE)})
    return {
        "recommended": cards,
        "rules": {name: text for name, text in options.items() if name in visit.rules()},
        "left": None if kept is None else (int(kept.sum()), len(kept)),
        "more": more if is_full else None,
    }


def _cards(
    visit: PageVisit, recommended: Sequence[Mapping[str, Any]], novelty: float | None, **whom: Any
) -> list[Content]:
    """Return rows about recommended items with their scores and reasons. `whom` is a history or a user."""
    targets = visit.model.items_.find([row["item"] for row in recommended], "item")
    rows = visit.items(targets)
    for row, answer in zip(rows, recommended, strict=True):
        row |= {"score": answer["score"], "source": answer["source"]}
    if visit.model.explains and rows:
        for row, reasons in zip(rows, _bars(visit, targets, novelty, **whom), strict=True):
            row["reasons"] = reasons
    return rows


def _bars(visit: PageVisit, targets: Indices, novelty: float | None, **whom: Any) -> list[Content]:
    """Return, for each target, the bars whose amounts add up to its score.

    All bars have one scale, so that the bars of different items can be compared.
    """
    fitted = visit.model.fitted_
    scores = explanations(fitted, np.asarray(targets), people_of(fitted, **whom), novelty)
    amounts = [0.0, *(parts.base for parts in scores)]
    amounts += [part.amount for parts in scores for part in parts.contributions]
    low = min(amounts)
    width = max(amounts) - low or 1.0
    shown = [sorted(parts.contributions, key=lambda part: -abs(part.amount)) for parts in scores]
    indices = list(dict.fromkeys(part.item for parts in shown for part in parts[:MOST_ON_PAGE]))
    named = dict(zip(indices, visit.items(indices), strict=True))

    def bar(amount: float, row: Content | None = None) -> Content:
        """Return where a bar begins and how long it is, in percent of the widest."""
        begin = 100 * (min(amount, 0.0) - low) / width
        length = 100 * abs(amount) / width
        return {"item": row, "amount": amount, "x": round(begin, 2), "length": round(length, 2)}

    reasons = []
    for parts, base in zip(shown, [each.base for each in scores], strict=True):
        bars = [bar(part.amount, named[part.item]) for part in parts[:MOST_ON_PAGE]]
        left = parts[MOST_ON_PAGE:]
        reasons.append(
            {
                "few": bars[:_FEW_BARS],
                "rest": bars[_FEW_BARS:],
                # A user may have thousands of items; the page adds the smallest parts up.
                "left": (len(left), fsum(part.amount for part in left)),
                "base": bar(base),
                "zero": round(-100 * low / width, 2),
            }
        )
    return reasons


# ── the model ─────────────────────────────────────────────────────────────────────────────────────


def model(visit: PageVisit) -> tuple[str, Content]:
    served = visit.served
    plan = served.model.fitted_.learned.plan
    return "model.html", {
        "about": answers.about(served.model),
        "opened": datetime.fromtimestamp(served.opened, UTC),
        "plan": None if plan is None else str(plan),
        "training": _training(served.model.notes_),
    }


def _training(notes: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the notes that were saved with the model; the notes of `mrfrec nightly` get names in words."""
    left = dict(notes)
    rows = []
    if isinstance(left.get("started"), str):
        rows.append(("Trained", left.pop("started")[:16].replace("T", " ") + " UTC"))
    if isinstance(left.get("fit_seconds"), float):
        rows.append(("Training time", f"{left.pop('fit_seconds'):,.1f} s"))
    if isinstance(left.get("value"), float) and "metric" in left:
        error = left.pop("error", None)
        spread = f" ± {error:.4f}" if isinstance(error, float) else ""
        rows.append((str(left.pop("metric")), f"{left.pop('value'):.4f}{spread}"))
    if isinstance(left.get("asked"), int):
        rows.append(("Evaluated on", f"{left.pop('asked'):,} users held out"))
    return rows + list(left.items())
